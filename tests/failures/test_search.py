"""Search finds what people ask for, says how, and knows when it found nothing."""

from __future__ import annotations

import doctest

import pytest

from diag_kit.failures import load_entries, search
from diag_kit.failures.search import Index, named, tokens


def ids(query: str) -> list[str]:
    return [hit.entry.id for hit in search.search(query).hits]


def test_examples_of_the_docstring() -> None:
    """What the module's text shows is so."""
    assert doctest.testmod(search).failed == 0


@pytest.mark.parametrize("query", ["gradient accumulation", "memory grows every micro-step", "no_sync saves memory"])
def test_a_question_leads_to_its_entry(query: str) -> None:
    """Words of a symptom, a claim or a title bring the entry that answers them first."""
    assert ids(query)[0] == "gradient-accumulation-memory-spike"


@pytest.mark.parametrize(("query", "entry"), [
    ("memory grows every step until it crashes", "kept-tensors"),
    ("out of memory on the second epoch during validation", "evaluation-peak"),
    ("OOM during validation", "evaluation-peak"),
    ("resume from checkpoint oom", "resume-duplicate-states"),
    ("only rank 0 runs out of memory", "all-ranks-on-gpu0"),
    ("killed by the OOM killer", "host-memory"),
])  # fmt: skip
def test_a_sentence_of_ones_own_leads_to_its_entry(query: str, entry: str) -> None:
    """Words that every entry has, or none needs, don't outweigh the one that tells."""
    assert ids(query)[0] == entry


def test_every_entry_is_found_by_its_title_and_its_causes() -> None:
    """No entry hides: its title and each of its causes bring it first, by search and by name."""
    for one in load_entries():
        assert ids(one.title)[0] == one.id, one.title
        assert named(one.id) is named(one.title.upper()) is one
        for cause in one.causes:
            assert named(cause.id) is one
            assert one.id in ids(cause.id)[:2], cause.id


def test_a_word_that_is_only_begun_is_enough() -> None:
    """While one types, each letter keeps the entry in sight; an ending more or less does not lose it."""
    for end in range(4, len("fragmentation") + 1):
        assert "fragmentation" in ids("fragmentation"[:end])
    assert set(ids("retained")) & set(ids("retaining"))


def test_the_line_shown_holds_what_was_asked() -> None:
    """The sentence beside a hit is of that entry and has a word of the query in it."""
    found = search.search("retain_graph backward")
    assert found.whole
    for hit in found.hits:
        assert {"retain", "backward"} & set(tokens(hit.line)), hit


def test_more_words_never_find_more() -> None:
    """Entries must have all words; only where none has, those that come nearest are given, and it is said."""
    assert set(ids("checkpoint host")) <= set(ids("checkpoint"))
    near = search.search("fragmentation zebra")
    assert near.hits
    assert (near.whole, near.unknown) == (False, ("zebra",))


@pytest.mark.parametrize("query", ["", "   ", "???", "zebra", "no-such-entry", "\x00\x1b[31m", "x" * 100_000])
def test_nothing_found_is_nothing(query: str) -> None:
    """Empty, foreign and hostile queries find nothing and suggest nothing."""
    found = search.search(query)
    assert not found.hits
    assert not found.suggestion


@pytest.mark.parametrize(("typed", "meant"), [("activation-memory-spyke", "activation-memory-spike"),
                                              ("fragmnetation", "fragmentation"),
                                              ("gradent acumulation", "gradient accumulation")])  # fmt: skip
def test_a_typo_is_corrected(typed: str, meant: str) -> None:
    """What is spelt wrong finds nothing, and the query that would find something is offered."""
    found = search.search(typed)
    assert not found.hits
    assert found.suggestion == meant
    assert search.search(meant).hits


def test_the_index_reads_no_code_and_no_signature() -> None:
    """Searching parses only what people read: no section that a diagnosis or a fix needs."""
    import diag_kit.failures as failures

    fresh = failures.load_folder(failures.FOLDER)
    known = {one.id: set(vars(one)) for one in fresh}
    Index(fresh).search("memory")
    for one in fresh:
        assert not {"fixes", "checks", "needs", "examples"} & (set(vars(one)) - known[one.id])
