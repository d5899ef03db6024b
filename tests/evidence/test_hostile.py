"""No line of a log, however made, costs more than its length, and no bytes make a diagnosis fail."""

import random
from functools import cache
from pathlib import Path

import pytest

from diag_kit.diagnosis import diagnose
from diag_kit.errors import DiagKitError
from diag_kit.evidence.parsers import all_parsers
from diag_kit.evidence.text import MAX_LINE, Window, lines_of
from tests.effort import costs_less

LITERALS = sorted({literal for parser in all_parsers() for literal in parser.LITERALS})
LOGS = sorted(Path(__file__).parents[1].joinpath("cases").glob("*/evidence/*.txt"))


@cache
def repeated(literal: str, filler: str) -> Window:
    """One line of a filler between two literals, nearly as long as a line may be."""
    line = f"{literal} {filler * (MAX_LINE // len(filler) - 200)} {literal}"
    return Window("run.log", lines_of(line.encode()))


@pytest.mark.parametrize("parser", all_parsers(), ids=lambda parser: parser.__name__.rpartition(".")[2])
def test_no_pattern_backtracks(parser):
    """A line of one character repeated, between two of the words that a pattern looks for, is read in a moment.

    A pattern whose cost grows with the square of a line needs seconds here; a sound one needs milliseconds.
    """
    for filler in ("1", "1.", ".", "a", "(", "--a ", "= ", "│"):
        for literal in LITERALS:
            window = repeated(literal, filler)
            assert costs_less(lambda window=window: list(parser.parse(window)), 20), (literal, filler)


def test_damaged_logs_never_fail():
    """Real logs with bytes cut, repeated, inserted and flipped still give an answer, or one clear refusal."""
    draw = random.Random(11)
    for _ in range(150):
        data = bytearray(draw.choice(LOGS).read_bytes())
        for _ in range(draw.randint(1, 10)):
            at = draw.randrange(len(data) or 1)
            what = draw.random()
            if what < 0.3:
                del data[at : at + draw.randint(1, 60)]
            elif what < 0.6:
                data[at:at] = bytes(draw.choice([0, 10, 13, 27, 34, 91, 124, 255]) for _ in range(draw.randint(1, 30)))
            elif what < 0.8:
                data[at:at] = data[at : at + 200] * draw.randint(1, 5)
            elif data:
                data[at % len(data)] = draw.randrange(256)
        try:
            found = diagnose(text=bytes(data).decode("latin1"))
        except DiagKitError:
            continue
        assert not [note for note in found.coverage["notes"] if "stumbled" in note]
