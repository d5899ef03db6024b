"""Figures of memory by step: how it grows, with what, and when it would fill the card."""

from __future__ import annotations

from dataclasses import replace

from . import series
from .facts import MemoryPoint
from .figures import Figures
from .run import Run


def figures_of_series(figures: Figures, run: Run) -> None:
    """Add what the run's memory by step shows: growth, lengths, and when it would fill the card."""
    accumulated = figures.values.get("setting.grad_accum")
    growth = series.judge(run.points, accumulated if isinstance(accumulated, int) else None)
    figures.growth = growth
    if growth:
        figures.put(
            growth.points[-1].source,
            growth=growth.kind,
            growth_bytes=growth.slope_bytes or growth.rise_bytes or _rise(growth.points),
            growth_points=len(growth.points),
            growth_rise_bytes=growth.rise_bytes or None,
            growth_ranks=growth.ranks or None,
            length_correlation=None if growth.correlation is None else round(growth.correlation, 2),
        )
        _of_lengths(figures, growth.points)
        _of_exhaustion(figures, growth)
    if exponent := series.length_exponent(run.points):
        figures.put(exponent[1][-1].source, length_exponent=round(exponent[0], 2))


def _of_lengths(figures: Figures, points: tuple[MemoryPoint, ...]) -> None:
    """The failing batch's length against the usual one, where a reading is known to be of the step that failed."""
    event, step = figures.origin.event, figures.values.get("failed_step")
    last = points[-1]
    same_rank = event is None or event.rank is None or last.rank is None or event.rank == last.rank
    same_step = last.step is None or step is None or abs(last.step - step) <= 1
    before = sorted(p.seq_len for p in points[:-1] if p.seq_len)
    if event and last.seq_len and len(before) >= 3 and same_rank and same_step:
        usual = before[len(before) // 2]
        figures.put(last.source, failing_length=last.seq_len, failing_length_ratio=last.seq_len / usual)


def _of_exhaustion(figures: Figures, growth: series.Growth) -> None:
    """When growth by step would fill the card, against the step that failed: agreement and contradiction are signs.

    The readings are of some moment of a step, whose peak is higher; so a failure before the predicted step contradicts
    only where all the growth until then is small beside the card.
    """
    values = figures.values
    capacity, failed = values.get("total_bytes") or values.get("setting.capacity_bytes"), values.get("failed_step")
    last, first = growth.points[-1], growth.points[0].step or 0
    if not isinstance(capacity, int | float) or not (found := series.exhaustion(growth, round(capacity))):
        return
    step, early, late = found
    figures.put(last.source, exhaustion_step=step)
    latest = f" and {late:,}" if late is not None else " and open end"
    figures.growth = replace(growth, text=f"{growth.text}; at this pace the card is full near step {step:,} "
                             f"(between {early:,}{latest})")  # fmt: skip
    if failed is None or figures.origin.family != "gpu-oom":
        return
    slack = 0.2 * max(1, failed - first)
    if early - slack <= failed <= (late if late is not None else step) + slack:
        figures.put(last.source, exhaustion_agrees=True)
    elif growth.high_bytes * max(1, failed - first) < 0.05 * capacity:
        figures.put(last.source, exhaustion_agrees=False)


def _rise(points: tuple[MemoryPoint, ...]) -> int:
    return max(0, points[-1].value_bytes - points[0].value_bytes)
