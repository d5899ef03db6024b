"""Every parser found in the folder keeps the parsers' contract, and each grammar gives its figures to the byte."""

import doctest
import random
import textwrap

import pytest

from diag_kit.evidence.facts import Event
from diag_kit.evidence.parsers import all_parsers
from diag_kit.evidence.text import Window, lines_of
from diag_kit.units import parse_size
from tests.evidence.samples import SAMPLES

PARSERS = {parser.__name__.rpartition(".")[2]: parser for parser in all_parsers()}


def window(text: str | bytes, path: str = "run.log") -> Window:
    return Window(path, lines_of(text if isinstance(text, bytes) else text.encode()))


def kinds(facts) -> list[str]:
    return [fact.kind if isinstance(fact, Event) else type(fact).__name__ for fact in facts]


def test_every_parser_has_a_sample():
    """A format that nobody wrote a sample for can't enter."""
    assert set(PARSERS) == set(SAMPLES)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_sample_is_parsed_and_knows_its_line(name):
    """The sample gives its facts, each with path and line, also when other lines stand before it."""
    text, expected = SAMPLES[name]
    facts = list(PARSERS[name].parse(window("a line before\nand another\n" + text)))
    assert [kind for kind in kinds(facts) if kind in expected][: len(expected)] and set(expected) <= set(kinds(facts))
    assert all(fact.source.path == "run.log" and fact.source.line >= 3 for fact in facts)


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_empty_and_garbage_give_nothing(name):
    """Neither nothing nor noise raises or invents a fact."""
    noise = random.Random(name).randbytes(30_000)
    assert list(PARSERS[name].parse(window(b""))) == []
    assert list(PARSERS[name].parse(window(noise))) == []


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_truncated_sample_does_not_raise(name):
    """A log that ends in the middle of a message still gives what it can."""
    text = SAMPLES[name][0]
    for end in range(0, len(text), 7):
        list(PARSERS[name].parse(window(text[:end])))


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_match_contains_a_declared_literal(name):
    """A scan that looks for the literals alone can miss no match."""
    parser = PARSERS[name]
    for text, _ in SAMPLES.values():
        for fact in parser.parse(window(text)):
            near = "\n".join(text.splitlines()[max(0, fact.source.line - 2) : fact.source.line + 1])
            assert any(literal in near for literal in parser.LITERALS), fact


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_docstring_is_a_manual_and_its_examples_run(name):
    """Each file explains its format and says what an empty result means; its examples are true."""
    assert "mpty" in PARSERS[name].__doc__ and len(PARSERS[name].__doc__) > 200
    assert doctest.testmod(PARSERS[name]).failed == 0


def oom(text: str) -> Event:
    from diag_kit.evidence.parsers import torch_oom

    return next(iter(torch_oom.parse(window(text))))


GRAMMARS = [
    (  # 1.0-1.3: "cached" is reserved but not allocated
        "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 1; 10.91 GiB total capacity; 9.80 GiB already allocated; 3.06 MiB free; 311.20 MiB cached)",
        {
            "tried": "12.50 MiB",
            "total": "10.91 GiB",
            "allocated": "9.80 GiB",
            "free": "3.06 MiB",
            "reserved_unallocated": "311.20 MiB",
            "reserved": None,
        },
    ),
    (  # 1.4-2.0
        "RuntimeError: CUDA out of memory. Tried to allocate 1.17 GiB (GPU 0; 15.90 GiB total capacity; 13.77 GiB already allocated; 0 bytes free; 14.99 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        {"tried": "1.17 GiB", "free": "0 bytes", "reserved": "14.99 GiB", "reserved_unallocated": None},
    ),
    (  # a memory fraction is set: one clause more
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; 9.10 GiB already allocated; 12.00 GiB free; 10.00 GiB allowed; 9.50 GiB reserved in total by PyTorch)",
        {"allowed": "10.00 GiB", "free": "12.00 GiB", "reserved": "9.50 GiB"},
    ),
    (  # 2.1, with its misspelling
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 3 has a total capacty of 39.39 GiB of which 40.19 MiB is free. Process 91 has 39.34 GiB memory in use. Of the allocated memory 38.11 GiB is allocated by PyTorch, and 561.52 MiB is reserved by PyTorch but unallocated.",
        {
            "tried": "96.00 MiB",
            "total": "39.39 GiB",
            "free": "40.19 MiB",
            "allocated": "38.11 GiB",
            "reserved_unallocated": "561.52 MiB",
            "process_in_use": None,
        },
    ),
    (  # the sizes that Windows can't tell are no sizes
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory 7.11 GiB is allocated by PyTorch, and 64.00 MiB is reserved by PyTorch but unallocated.",
        {"process_in_use": None, "allocated": "7.11 GiB"},
    ),
]


@pytest.mark.parametrize(("text", "expected"), GRAMMARS)
def test_figures_of_each_generation(text, expected):
    """Figures are those that the sentence states, to the byte; a clause that is absent stays absent."""
    figures = oom(text).figures
    for name, printed in expected.items():
        key = "tried_to_allocate_bytes" if name == "tried" else f"{name}_bytes"
        assert figures.get(key) == (parse_size(printed) if printed else None), key


def test_message_wrapped_between_words_beside_progress_bars():
    """A message that a reporter wrapped, among colours and progress bars, gives the figures of the unwrapped one."""
    flat = GRAMMARS[1][0]
    wrapped = (
        "\x1b[31m 3%|▎ | 12/400 [00:09<05:00]\r"
        + "\r\n".join(textwrap.wrap(flat, 78))
        + "\n  3%|▎ | 12/400 [00:09<05:00, 1.2s/it]"
    )
    assert oom(wrapped).figures == oom(flat).figures


@pytest.mark.parametrize("width", [60, 64, 80, 100])
def test_message_cut_in_mid_word_by_a_terminal(width):
    """A terminal cuts at its width, in the middle of a number if it must; the number is whole again."""
    flat = GRAMMARS[1][0]
    assert oom("\n".join(flat[i : i + width] for i in range(0, len(flat), width))).figures == oom(flat).figures


def test_a_nul_byte_for_the_device_keeps_the_rest():
    """Where the device's number is a NUL, only the device is unknown."""
    event = oom(GRAMMARS[3][0].replace("GPU 3", "GPU \0"))
    assert event.device is None and event.figures["total_bytes"] == parse_size("39.39 GiB")


def test_neighbours_are_listed_in_order():
    """Other processes are facts of their own, in the message's order."""
    text = SAMPLES["torch_oom"][0].replace(
        "Process 771 has 512.00 MiB", "Process 5 has 2.00 GiB memory in use. Process 771 has 512.00 MiB"
    )
    assert oom(text).figures["other_process_in_use_bytes"] == [2 << 30, 512 << 20]


def test_two_ranks_interleaved_give_two_tracebacks():
    """Frames that two ranks wrote line by line in turn end up in two tracebacks, each under its rank."""
    from diag_kit.evidence.parsers import traceback

    one = SAMPLES["traceback"][0].splitlines()
    text = "\n".join(f"[rank{rank}]: {line}" for line in one for rank in (0, 4))
    assert [(t.rank, len(t.frames), t.exception) for t in traceback.parse(window(text))] == [
        (0, 2, "RuntimeError"),
        (4, 2, "RuntimeError"),
    ]


def test_a_debugger_that_lists_the_innermost_frame_first_is_turned_round():
    """Where the exception stands before the frames, the frames come innermost first."""
    from diag_kit.evidence.parsers import traceback

    text = 'Exception has occurred: RuntimeError\nit broke\n  File "net.py", line 3, in forward\n    return self.head(h)\n  File "fit.py", line 9, in fit\n    loss = net(b)\n'
    [fact] = traceback.parse(window(text))
    assert ([frame.function for frame in fact.frames], fact.exception) == (["fit", "forward"], "RuntimeError")


@pytest.mark.parametrize(
    "line",
    [
        "XPU out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.91 GiB total capacity; 13.00 GiB already allocated)",
        "MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 1.00 GB, max allowed: 18.13 GB). "
        "Tried to allocate 256.00 MB on private pool.",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.91 GiB",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.",
    ],
)
def test_who_and_when_of_the_prefix_reach_the_event(line):
    """Of two ranks that failed, the first is told by its stamp, whatever the device."""
    stamped = window(f"2026-05-19 03:12:44,120 [rank3]: RuntimeError: {line}")
    events = [e for parser in PARSERS.values() for e in parser.parse(stamped) if isinstance(e, Event)]
    assert events
    assert all(event.rank == 3 and event.time is not None for event in events)
