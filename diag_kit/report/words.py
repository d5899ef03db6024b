"""The words that every form of the report uses for the contract's names, and log text made safe to show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..beside import Again, Comparison, Repeats
from ..differences import signed
from ..evidence.facts import Source
from ..findings import Diagnosis, Failure
from ..units import decimals_for, format_bytes

FAMILIES = {
    "gpu-oom": "GPU out of memory",
    "host-oom": "Host out of memory",
    "shared-memory": "Shared memory exhausted",
    "not-memory": "Not a memory failure",
    "ok": "No failure found",
    "undetermined": "Not settled by the evidence",
}


def family_text(diagnosis: Diagnosis) -> str:
    """What stopped the run, no firmer than the evidence."""
    name = FAMILIES[diagnosis.family]
    return f"Perhaps {name[0].lower() if name[1].islower() else name[0]}{name[1:]}" if diagnosis.hedged else name


def initiating_text(diagnosis: Diagnosis) -> str:
    """Who failed first and what shows it; empty where one process failed and nobody asks."""
    reason = clean(diagnosis.initiating_reason).rstrip(".")
    if diagnosis.initiating_rank is None:
        return f"No rank is named first: {reason}." if reason and diagnosis.collateral else ""
    return f"Rank {diagnosis.initiating_rank} failed first{f': {reason}' if reason else ''}."


def steps_of(action: str) -> list[str]:
    """The next action in its steps: what to find out and how, what to do then, how to verify it.

    >>> steps_of("First find out: A. Then: B. Verify: C.")
    ['First find out: A.', 'Then: B.', 'Verify: C.']
    """
    return re.split(r" (?=(?:How|Then|Verify): )", action)


VERDICTS = {
    "confirmed": "the evidence entails it and excludes its rivals",
    "likely": "it explains the evidence best; a named check would confirm it",
    "possible": "it agrees with the evidence no better than its rivals",
    "ruled-out": "the evidence contradicts it",
}
TRUTHS = {"true": "true", "false": "false", "conditional": "it depends"}
STATES = {"todo": "to do", "confirmed": "confirmed", "refuted": "refuted", "not-applicable": "not applicable"}

FITS, CLOSE, DOES_NOT_FIT = "fits", "close", "does not fit"


def fit_of(band: tuple[int, int], device: int, capacity: int | None) -> str:
    """Whether an estimate fits: ``close`` where what isn't known exactly decides; empty without a capacity.

    Args:
        band: lowest and highest bytes that the device may show.
        device: bytes that it most likely shows; above the capacity, no band helps.
        capacity: bytes that the device has for this run.

    >>> [fit_of((8, 12), 10, capacity) for capacity in (12, 11, 9, None)]
    ['fits', 'close', 'does not fit', '']
    """
    if capacity is None:
        return ""
    if max(band[0], device) > capacity:
        return DOES_NOT_FIT
    return FITS if band[1] <= capacity else CLOSE


_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def clean(text: str, limit: int | None = None) -> str:
    """Log text without what a screen would obey: colour, control characters, reordering of direction.

    Control characters and those that reorder text are shown by their code, broken bytes by the replacement character.
    A text longer than ``limit`` characters keeps both of its ends.

    >>> clean("GPU \\x00 \\x1b[31mred\\x1b[0m \\u202ereversed")
    'GPU ⟨U+0000⟩ red ⟨U+202E⟩reversed'
    >>> clean("a" * 50 + "b" * 50, limit=40)
    'aaaaaaaaaa … 80 characters … bbbbbbbbbb'
    """
    text = _UNSAFE.sub(_show, _ANSI.sub("", text))
    if limit and len(text) > limit:
        keep = max(limit - 20, 20) // 2
        text = f"{text[:keep]} … {len(text) - 2 * keep} characters … {text[-keep:]}"
    return text


def _show(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"⟨U+{code:04X}⟩"


CUT_AT = (400, 2000)
"""Characters after which reading cuts a neighbouring line, and the fact's own."""


class Line(NamedTuple):
    """A line of a source's context; ``here`` is the line that the fact stands on."""

    text: str
    here: bool


def lines_around(source: Source) -> Iterator[Line]:
    """The lines to show of a source, in file order, its own marked and as long as it was read.

    A neighbour that was cut where it was read ends at a word, with an ellipsis.
    """
    for line in source.context or (source.text,):
        here = bool(line) and source.text.startswith(line)
        text = source.text if here else line
        yield Line(_cut_at_word(text) if len(text) in CUT_AT else text, here)


def _cut_at_word(text: str) -> str:
    kept, _, _ = text.rpartition(" ")
    return f"{kept or text} …"


def value_text(value: Any) -> str:
    """A setting's value for a table."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not stated"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {value_text(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value))
    return str(value)


def figure_text(name: str, value: Any) -> str:
    """A figure for a table: sizes in binary units."""
    if isinstance(value, list | tuple):
        return ", ".join(figure_text(name, one) for one in value) or "none"
    return format_bytes(value) if name.endswith("_bytes") and value is not None else value_text(value)


def place(failure: Failure) -> list[tuple[str, str]]:
    """Where and when it failed, as far as the evidence states it: label and text."""
    stated = (
        ("rank", failure.rank),
        ("device", f"cuda:{failure.device}" if isinstance(failure.device, int) else failure.device),
        ("host", failure.host),
        ("step", failure.step),
        ("micro-step", failure.micro_step),
        ("phase", "" if failure.phase == "unknown" else failure.phase),
        ("operation", failure.operation),
    )
    return [(label, str(text)) for label, text in stated if text not in (None, "")]


def place_text(failure: Failure) -> str:
    """The same in one phrase: ``rank 3, cuda:3, on node7, step 812, forward: attention scores``."""
    prefixes = {"rank": "rank ", "host": "on ", "step": "step ", "micro-step": "micro-step "}
    return ", ".join(prefixes.get(label, "") + text for label, text in place(failure))


def arithmetic(diagnosis: Diagnosis) -> str:
    """What the message's own sizes say, in a sentence; empty where it states no request."""
    figures = diagnosis.figures
    asked, total, free, cached = (figures.get(f"{name}_bytes") for name in ("request", "total", "free", "cached"))
    if asked is None:
        return ""
    there = (free or 0) + (cached or 0)
    digits = decimals_for((free or 0, cached or 0, there), (there, asked - there, asked)) if free is not None else 0
    text = f"asked {format_bytes(asked, digits)}" + ("" if total is None else f" of {format_bytes(total)}")
    if free is not None:
        text += f"; free {format_bytes(free, digits)}"
    if free is not None and cached is not None:
        text += f" + cached {format_bytes(cached, digits)} = {format_bytes(there, digits)}"
    judgement = _judgement(figures, asked, free, cached, digits)
    return f"{text}: {judgement}" if judgement else text


def _judgement(figures: Mapping[str, Any], asked: int, free: int | None, cached: int | None, digits: int) -> str:
    if figures.get("request_exceeds_capacity"):
        return "more than the whole device"
    if free is None:
        return ""
    if asked <= free:
        piece = figures.get("largest_free_bytes")
        if piece is not None and piece < asked:
            return f"enough, but the largest free piece is {format_bytes(piece)}"
        close = f", by {format_bytes(free - asked, digits)} only" if free - asked < 32 << 20 < asked else ""
        return f"free memory alone would have held it{close}"
    if cached is None or asked > free + cached:
        return f"{format_bytes(asked - free - (cached or 0), digits)} short"
    return "together enough, but not in one piece"


def beside_rows(comparison: Comparison) -> list[dict[str, str]]:
    """The differences for a table: what, the value and place on each side, and what the memory model predicts."""

    def side(name: str, value: Any, source: Source | None) -> tuple[str, str]:
        text = figure_text(name, value) if source else "not stated"
        return clean(text, 400), clean(str(source), 400) if source else ""

    rows = []
    for one in comparison.differences:
        (failed, where), (good, good_where) = (
            side(one.name, one.failed, one.failed_source),
            side(one.name, one.good, one.good_source),
        )
        predicted = "" if one.predicted_bytes is None else signed(one.predicted_bytes)
        rows.append({"name": clean(one.name, 400), "failed": failed, "where": where, "good": good,
                     "good_where": good_where, "predicted": predicted})  # fmt: skip
    return rows


def again_rows(repeats: Repeats) -> list[dict[str, str]]:
    """Reproductions for a table: where, what was changed, what came of it, measured beside predicted sizes."""

    def size(measured: int | None, predicted: int | None) -> str:
        beside = "" if predicted is None else f" ({format_bytes(predicted)} predicted)"
        return "not told" if measured is None else f"{format_bytes(measured)}{beside}"

    def row(one: Again) -> dict[str, str]:
        what = [one.change, "scaled down" if one.small else ""]
        return {
            "where": clean(one.where, 400),
            "change": clean(", ".join(filter(None, what)), 400) or "as it ran",
            "verdict": clean(one.verdict, 400) or "not finished",
            "says": clean(one.says),
            "peak": size(one.peak_bytes, one.predicted_bytes),
            "growth": size(one.growth_bytes, one.predicted_growth_bytes),
            "source": clean(str(one.source), 400),
        }

    return [row(one) for one in repeats.runs]


def coverage_text(coverage: Mapping[str, Any]) -> str:
    """How much of the evidence was read, in one line."""
    files, size, read = (coverage.get(name) for name in ("files", "bytes", "bytes_read"))
    if files is None:
        return "not stated"
    amount = f"all {format_bytes(size)}" if size == read else f"{format_bytes(read)} of {format_bytes(size)}"
    return f"{files:,} {'file' if files == 1 else 'files'}, {amount}"


def is_command(text: str) -> bool:
    """Whether a step is a shell line, to be kept whole, rather than a sentence.

    >>> [is_command(text) for text in ("grep -n 'x' train.py", "print the shape, then rerun", "dmesg | tail")]
    [True, False, True]
    """
    return bool(re.match(r"[a-z][\w./-]*\s", text) and re.search(r"\s(?:--?\w|[|>])", text) and ": " not in text)


def continued(command: str, width: int) -> list[str]:
    """A shell command over several lines that can still be pasted: broken only at spaces outside quotes.

    >>> continued("python train.py --name 'a b c'", 22)
    ['python train.py \\\\', "--name 'a b c'"]
    """
    rows: list[str] = []
    for word in re.findall(r"(?:[^\s\"']|\"[^\"]*\"|'[^']*'|[\"'])+", command):
        if rows and len(rows[-1]) + 1 + len(word) <= width - 2:
            rows[-1] += f" {word}"
        else:
            rows.append(word)
    return [f"{row} \\" for row in rows[:-1]] + rows[-1:]
