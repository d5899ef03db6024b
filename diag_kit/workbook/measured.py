"""What the run measured, beside what the memory model predicts for it: the what-if must not contradict the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..findings import Diagnosis
from ..memory.estimates import Estimate
from ..memory.formulas import estimate, micro_step_curve
from ..memory.settings import Settings
from ..report.words import CLOSE, DOES_NOT_FIT, FITS, fit_of
from ..units import format_bytes

TOLERANCE = 0.3
"""Share of the measured memory by which a prediction may miss it without a word."""


def highest(diagnosis: Diagnosis) -> tuple[int, str] | None:
    """The most that tensors were measured to take and the word for it, else the most that the device showed in use."""
    stated = diagnosis.figures.get("allocated_bytes") if diagnosis.family == "gpu-oom" else None
    for word, metrics in (("allocated", ("allocated", "peak_allocated")), ("in use", ("used",))):
        sizes = [p.value_bytes for p in diagnosis.points if p.metric in metrics and not p.relative]
        if word == "allocated" and stated:
            sizes.append(stated)
        if sizes:
            return max(sizes), word
    return None


class Line(NamedTuple):
    """A comparison in words; ``parts``: prediction and measurement disagree."""

    text: str
    parts: bool


def comparison(diagnosis: Diagnosis, logged: Settings, assumed: list[str]) -> Iterator[Line]:
    """Where prediction and evidence part, and the growth of each micro-step as measured and as predicted.

    Args:
        diagnosis: what was measured.
        logged: the run's settings as the evidence has them, gaps filled.
        assumed: labels of the settings that no line states.
    """
    if parted := _parted(diagnosis, logged):
        why = (
            f"its settings are not all known. Assumed: {', '.join(assumed)}" if assumed else "the settings hide a part"
        )
        yield Line(f"{parted}: {why}.", True)
    growth = diagnosis.figures.get("growth_bytes")
    if growth and diagnosis.figures.get("growth") == "per-micro-step":
        *_, before, last = micro_step_curve(logged, 4, "deferred")
        text = f"{format_bytes(growth)} measured, {format_bytes(last - before)} predicted for each micro-step."
        yield Line(text, abs(last - before - growth) > TOLERANCE * growth)


class Row(NamedTuple):
    """A term as measured and as predicted, in bytes. ``share``: their difference as a part of the measured.

    ``on_the_way``: measured where the run failed, before the step's peak: no more than that was to be expected.
    """

    term: str
    measured_bytes: int
    where: str
    predicted_bytes: int
    on_the_way: bool = False

    @property
    def off_bytes(self) -> int:
        return self.predicted_bytes - self.measured_bytes

    @property
    def share(self) -> float | None:
        return self.off_bytes / self.measured_bytes if self.measured_bytes else None


_SERIES = (
    ("Tensors, highest", ("allocated", "peak_allocated"), "peak_allocated_bytes"),
    ("Reserved by the allocator, highest", ("reserved", "peak_reserved"), "peak_reserved_bytes"),
    ("In use on the card, highest", ("used",), "device_bytes"),
)
_MESSAGE = (
    ("Tensors when it failed", "allocated_bytes"), ("with the request that failed", "request_bytes"),
    ("Reserved when it failed", "reserved_bytes"), ("The whole process when it failed", "process_in_use_bytes"),
    ("Outside PyTorch", "non_torch_bytes"),
)  # fmt: skip


def rows(diagnosis: Diagnosis, now: Estimate) -> Iterator[Row]:
    """Each term that the evidence measured beside the estimate's, at its highest: series, the peaks of phases that
    readings name, the message's sizes. What failed on its way up never reached its peak, so those are at most it.
    """
    points = [p for p in diagnosis.points if not p.relative]
    died = diagnosis.family == "gpu-oom"

    def row(term: str, size: int, where: str, predicted: int, *, peaks: bool = True) -> Row:
        return Row(term, size, where, predicted, died and peaks and predicted > size)

    for term, metrics, name in _SERIES:
        found = max((p for p in points if p.metric in metrics), key=lambda p: p.value_bytes, default=None)
        if found:
            yield row(term, found.value_bytes, str(found.source), getattr(now, name))
    for phase, predicted in now.peak_by_phase.items():
        named = [p for p in points if "allocated" in p.metric and phase in p.label.lower().split()]
        if named and predicted is not None:
            at = max(named, key=lambda p: p.value_bytes)
            yield row(f"Tensors, {phase}", at.value_bytes, str(at.source), predicted)
    if diagnosis.failure is None or not died:
        return
    said, where = {**diagnosis.failure.facts, **diagnosis.figures}, str(diagnosis.failure.source)
    outside = now.device_bytes - now.peak_reserved_bytes
    predicted_bytes = dict(zip((name for _, name in _MESSAGE), (
        now.peak_allocated_bytes, now.peak_allocated_bytes, now.peak_reserved_bytes, now.device_bytes, outside,
    ), strict=True))  # fmt: skip
    for term, name in _MESSAGE:
        size = said.get(name)
        if name == "request_bytes":
            size = size and said.get("allocated_bytes") and size + said["allocated_bytes"]
        if isinstance(size, int) and size > 0:
            yield row(term, size, where, predicted_bytes[name], peaks=name != "non_torch_bytes")


def passing(diagnosis: Diagnosis, now: Estimate) -> str:
    """Where the estimate's step first needs what the failed request would have made of it, beside where the run failed;
    empty where the message doesn't say how much that was, or the estimate never needs it.
    """
    held, asked = (diagnosis.figures.get(name) for name in ("allocated_bytes", "request_bytes"))
    if diagnosis.family != "gpu-oom" or not held or not asked:
        return ""
    moment = next((m for m in now.timeline if m.total_bytes >= held + asked), None)
    if moment is None:
        return f"The estimate's step never needs the {format_bytes(held + asked)} that the run asked for."
    step = f" of micro-step {moment.micro_step}" if moment.micro_step else ""
    phase = diagnosis.figures.get("phase")
    failed = f"; the run failed in {phase}" if phase and phase != "unknown" else ""
    return (
        f"The estimate first needs the {format_bytes(held + asked)} that the run asked for in {moment.phase}{step}, at "
        f"{'aten::' * (now.method == 'trace')}{moment.label}{failed}."
    )


def _parted(diagnosis: Diagnosis, logged: Settings) -> str:
    now, died, found = estimate(logged), diagnosis.family == "gpu-oom", highest(diagnosis)
    fit = fit_of(now.band_bytes, now.device_bytes, logged.capacity_bytes)
    size, word = found or (0, "")
    predicted = now.device_bytes if word == "in use" else now.peak_allocated_bytes
    says = f"For the run as logged the model predicts {format_bytes(predicted)}"
    if died and fit in (FITS, CLOSE):
        more = f" with {format_bytes(size)} {word}" if found else ""
        return f"{says}, which {'fits' if fit == FITS else 'may fit'}, yet the run ran out of GPU memory{more}"
    if not died and fit == DOES_NOT_FIT and diagnosis.family in ("ok", "not-memory"):
        return f"{says}, which does not fit, yet the run did not run out of GPU memory"
    if died and logged.capacity_bytes:
        predicted = min(predicted, logged.capacity_bytes)  # a run that dies on the way up never measures its peak
        if predicted > size:
            return ""
    far = found and abs(predicted - size) > TOLERANCE * size
    return f"{says}, the run measured {format_bytes(size)}" if far else ""
