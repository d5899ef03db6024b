"""What a look at a training loop gives: frozen records, their JSON, and lines for a terminal. Needs no torch."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import DiagKitError
from ...units import format_bytes

SCHEMA = "diag_kit.loop/1"


class LoopError(DiagKitError):
    """The code that was handed over can't be looked at; the text says where and what to do."""


@dataclass(frozen=True)
class Line:
    """A line of the user's code. ``text``: the statement, on one line."""

    path: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.text}" if self.text else f"{self.path}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Made:
    """``count`` tensors of one kind that one line made. ``shape``, ``dtype``: of the largest; ``bytes``: of all."""

    line: Line | None
    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    count: int = 1

    def __str__(self) -> str:
        where = f"{self.line.path}:{self.line.line}" if self.line else "outside the user's code"
        module = f", module {self.module}" if self.module else ""
        tensors = f" in {self.count} tensors" if self.count > 1 else ""
        return f"{format_bytes(self.bytes)}{tensors} by {self.op} {list(self.shape)} {self.dtype} at {where}{module}"


@dataclass(frozen=True)
class Holding:
    """Something that stays alive from one micro-step to the next.

    Attributes:
        kind: a key of ``kinds.KINDS``. cause: the failure's name in the encyclopedia. title: the kind, in words.
        holder: the variable, container or attribute, as one writes it. where: its function, class or file.
        line: the statement that stores into it; None where none was found.
        bytes_per_micro_step: kept by each micro-step, once the loop is warm.
        until: when it is let go of: ``the window ends``, or ``never`` as far as was seen.
        made: where the bytes were made, most first. through: the line that hides them on the way, if one does.
        also: other holders of the same bytes; all must let go.
        retain: lines that asked backward to keep its graph.
    """

    kind: str
    cause: str
    title: str
    holder: str
    where: str
    line: Line | None
    bytes_per_micro_step: int
    until: str
    made: tuple[Made, ...]
    through: Line | None
    also: tuple[str, ...]
    retain: tuple[Line, ...]
    advice: str


@dataclass(frozen=True)
class Peak:
    """The most bytes at once that the loop itself allocated, and what they were. ``cause``: a known spike, or empty."""

    bytes: int
    phase: str
    micro_step: int
    made: tuple[Made, ...]
    cause: str = ""
    says: str = ""


@dataclass(frozen=True)
class Loop:
    """What stays alive in a training loop, and what its peak is.

    Attributes:
        form: ``step``, ``loop`` or ``trainer``. micro_steps: in a window; windows: that were run.
        small_bytes: kept by each micro-step below ``least_bytes``, such as scalars for a log.
        gradients: a sum over the gradients of the last backward; None under fake tensors or without one.
    """

    target: str
    form: str
    device: str
    fake: bool
    micro_steps: int
    windows: int
    holdings: tuple[Holding, ...]
    small_bytes: int
    peak: Peak
    notes: tuple[str, ...] = ()
    gradients: float | None = None
    seconds: float = 0.0

    @property
    def kept_bytes(self) -> int:
        """Bytes that each micro-step leaves behind."""
        return sum(one.bytes_per_micro_step for one in self.holdings) + self.small_bytes

    def to_json(self) -> dict[str, Any]:
        """The whole as plain data, ``diag_kit.loop/1``."""
        return {"schema": SCHEMA} | asdict(self) | {"kept_bytes_per_micro_step": self.kept_bytes}


@dataclass(frozen=True)
class Comparison:
    """The same measure before and after one change.

    Attributes:
        change: the setting and its value, or the edit. verdict: ``gone``, ``reduced``, ``unchanged``, or None where
            the loop can't be run with it; ``problem`` says why.
        measure: ``kept`` for bytes that a micro-step leaves behind, ``peak`` where nothing stayed alive before.
        line, new: the statement before and after, of an edit.
        gradients: ``same``, ``changed`` or ``unknown``: a change of what is learnt is no fix of memory alone.
    """

    change: str
    verdict: str | None
    measure: str
    before_bytes: int
    after_bytes: int | None
    peak_before_bytes: int
    peak_after_bytes: int | None
    gradients: str = "unknown"
    line: Line | None = None
    new: str = ""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def loop_from_json(document: dict[str, Any]) -> Loop:
    """A ``Loop`` of what ``to_json`` gave; KeyError or TypeError where it is something else."""
    given = {key: value for key, value in document.items() if key not in ("schema", "kept_bytes_per_micro_step")}
    given["holdings"] = tuple(
        Holding(**{
            **one,
            "line": _line(one["line"]), "through": _line(one["through"]), "also": tuple(one["also"]),
            "made": tuple(map(_made, one["made"])), "retain": tuple(Line(**line) for line in one["retain"]),
        })
        for one in given["holdings"]
    )  # fmt: skip
    given["peak"] = Peak(**{**given["peak"], "made": tuple(map(_made, given["peak"]["made"]))})
    return Loop(**{**given, "notes": tuple(given["notes"])})


def comparison_from_json(document: dict[str, Any]) -> Comparison:
    """A ``Comparison`` of what ``to_json`` gave."""
    return Comparison(**{**document, "line": _line(document["line"])})


def _line(given: dict[str, Any] | None) -> Line | None:
    return None if given is None else Line(**given)


def _made(given: dict[str, Any]) -> Made:
    return Made(**{**given, "line": _line(given["line"]), "shape": tuple(given["shape"])})


def lines(loop: Loop, comparisons: tuple[Comparison, ...] = ()) -> list[str]:
    """About a dozen lines: what stays alive and which line holds it, the peak, what the changes did."""
    here = str(Path.cwd()) + os.sep
    told = (line.replace(here, "") for line in _lines(loop, comparisons))
    return ["".join(char if char.isprintable() else "?" for char in line) for line in told]


def _lines(loop: Loop, comparisons: tuple[Comparison, ...]) -> list[str]:
    size = format_bytes
    how = f"{'fake tensors, ' if loop.fake else ''}{loop.device}"
    turns = f"{loop.windows} windows of {loop.micro_steps} micro-steps"
    said = [f"{loop.target} was run ({loop.form}; {how}, {turns}; {loop.seconds:.1f} s)"]
    if not loop.holdings:
        small = f" (but for {size(loop.small_bytes)} a micro-step)" if loop.small_bytes else ""
        said.append(f"Nothing stays alive from one micro-step to the next{small}.")
    for one in loop.holdings:
        said += ["", f"{size(one.bytes_per_micro_step)} stay alive per micro-step, until {one.until}: {one.title}"]
        said.append(f"  held by  {one.holder}{f' in {one.where}' if one.where else ''}")
        if one.line:
            said.append(f"  line     {one.line}")
        said += [f"  through  {one.through}"] if one.through else []
        said += [f"  retained by  {line}" for line in one.retain[:2]]
        said += [f"  also by  {', '.join(one.also)}"] if one.also else []
        said += [f"  made     {made}" for made in one.made[:2]]
        said.append(f"  do       {one.advice}")
    peak = loop.peak
    when = f"in {peak.phase} of micro-step {peak.micro_step}"
    said += ["", f"Peak of what the loop allocates: {size(peak.bytes)}, {when}"]
    said += [f"  {peak.says}"] if peak.says else []
    said += [f"  {made}" for made in peak.made[:2]]
    for after in comparisons:
        said += ["", *_compared(after)]
    said += [f"note: {note}" for note in loop.notes]
    return said


def _compared(after: Comparison) -> list[str]:
    size = format_bytes
    if after.verdict is None:
        return [f"Tried {after.change}: no verdict. {after.problem}"]
    what = "kept per micro-step" if after.measure == "kept" else "peak"
    bytes_ = f"{what} {size(after.before_bytes)} → {size(after.after_bytes)}"
    if after.measure == "kept":
        bytes_ += f"; peak {size(after.peak_before_bytes)} → {size(after.peak_after_bytes)}"
    said = [f"Tried {after.change}: {after.verdict.upper()}, {bytes_}"]
    if after.line is not None:
        new = [f"  + {one}" for one in after.new.splitlines()]
        said += [f"  - {after.line.text}", *new, "  tried on a copy in memory; your file is as it was"]
    if after.gradients != "unknown":
        more = "; what is learnt changes too" if after.gradients == "changed" else ""
        said.append(f"  gradients: {after.gradients}{more}")
    return said
