"""Outcomes and experiments as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from .fitting import shown
from .records import Experiment, Outcome

_MARKS = {"true": "TRUE", "false": "FALSE", "conditional": "IT DEPENDS", None: "NOT RUN"}
_COLOURS = {"true": "32", "false": "31", "conditional": "33", None: "35"}


def listed(found: Sequence[Experiment], width: int = 100) -> str:
    """The experiments by entry: id and title."""
    lines: list[str] = []
    entry = ""
    for one in found:
        if one.entry != entry:
            entry = one.entry
            lines += [*[""] * bool(lines), entry]
        lines.append(f"  {one.id:24} {one.title}"[: max(width, 40)])
    return "\n".join(lines)


def told(outcome: Outcome, about: Experiment, width: int = 100, color: bool = False) -> str:
    """Claim, verdict and numbers of one outcome."""
    width = max(min(width, 110), 50)
    mark = _MARKS[outcome.verdict]
    head = f"\x1b[1;{_COLOURS[outcome.verdict]}m{mark:10}\x1b[0m" if color else f"{mark:10}"
    head += f"  {about.id}"
    if not outcome.problem:
        head += f"  ({outcome.device}, {outcome.seconds:.1f} s)"
    inner = " " * 12
    lines = [head, *_wrapped(f"claim: {about.claim}", width, inner)]
    lines += _wrapped(
        f"{'not measured' if outcome.problem else 'measured'}: {outcome.problem or outcome.says}", width, inner
    )
    label = max((len(row.label) for row in outcome.rows), default=0)
    for row in outcome.rows:
        line = f"{inner}{row.label:{label}}  {shown(row.bytes):>11}  {row.note}".rstrip()
        lines.append(line if len(line) <= width else line[: width - 2] + " …")
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many verdicts of each kind, on what, and how long it took."""
    counts = [(sum(o.verdict == verdict for o in outcomes), _MARKS[verdict].lower()) for verdict in _MARKS]
    parts = ", ".join(f"{n} {name}" for n, name in counts if n)
    ran = next((o for o in outcomes if o.torch), None)
    where = f"; torch {ran.torch} on {ran.device}" if ran else ""
    importing = f", and {ran.importing_seconds:.0f} s of CPU to import torch" if ran else ""
    claims = "claim" if len(outcomes) == 1 else "claims"
    return f"{len(outcomes)} {claims}: {parts}{where}; {sum(o.seconds for o in outcomes):.0f} s{importing}"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return textwrap.wrap(plain, width, initial_indent=indent, subsequent_indent=indent)
