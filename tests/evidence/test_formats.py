"""What each format's reader takes from the message's grammar, to the byte, and what it leaves alone."""

import pytest

from diag_kit.evidence.facts import Event
from diag_kit.evidence.parsers import all_parsers
from diag_kit.evidence.text import Window, lines_of
from diag_kit.units import parse_size
from tests.evidence.formats import HEALTHY, MESSAGES
from tests.evidence.samples import SAMPLES

PARSERS = {parser.__name__.rpartition(".")[2]: parser for parser in all_parsers()}
TEXTS = [(name, text) for name, (text, _) in SAMPLES.items()] + [(name, text) for name, text, *_ in MESSAGES]


def facts(name, text):
    return list(PARSERS[name].parse(Window("run.log", lines_of(text.encode()))))


def kind(fact):
    return fact.kind if isinstance(fact, Event) else type(fact).__name__


def said(fact, name):
    """A figure of an event, or the field of that name."""
    figures = getattr(fact, "figures", {})
    return figures[name] if name in figures else getattr(fact, name, None)


@pytest.mark.parametrize(("name", "text", "kinds", "figures"), MESSAGES)
def test_every_figure_of_a_message_is_read(name, text, kinds, figures):
    """Kinds in order, one failure told several times counted once, and each size as stated."""
    found = facts(name, text)
    assert [kind(fact) for fact in found] == kinds
    for key, printed in figures.items():
        known = parse_size(printed) if isinstance(printed, str) and printed[:1].isdigit() else printed
        assert said(found[-1], key) == known, key


@pytest.mark.parametrize(("name", "text"), HEALTHY)
def test_look_alikes_are_left_alone(name, text):
    """A line that only shares words with a format gives nothing."""
    assert facts(name, text) == []


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_nothing_is_read_where_no_literal_stands(name, text):
    """A scan that looks for the literals alone misses no fact: without them, the reader finds nothing."""
    for literal in sorted({*PARSERS[name].LITERALS, *getattr(PARSERS[name], "SERIES", ())}, key=len, reverse=True):
        text = text.replace(literal, "~")
    assert facts(name, text) == []


@pytest.mark.parametrize(("name", "text", "kinds", "figures"), MESSAGES)
def test_a_message_behind_a_rank_keeps_its_figures(name, text, kinds, figures):
    """The prefix that torch puts before each line of a rank takes nothing from the message, and names its rank."""
    found = facts(name, "\n".join(f"[rank5]: {line}" for line in text.split("\n")))
    assert [kind(fact) for fact in found] == kinds
    assert all(fact.rank == 5 for fact in found if isinstance(fact, Event))
