"""Memory over steps: whether it grows, how fast, and with what.

Growth is judged after the first steps (gradients, optimizer state and the allocator's cache arrive there) and, where
micro-steps are logged, inside an accumulation window. A peak counter never falls, so its rise alone is no growth of
what lives. What two points can't tell is called insufficient.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ..units import MIB, format_bytes
from .facts import MemoryPoint

_PREFERRED = ("allocated", "used", "peak_allocated", "reserved", "peak_reserved", "host_used")
_MIN_SLOPE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Growth:
    """What a series shows.

    Attributes:
        kind: per-micro-step, per-step, plateau, none, spikes, unclear or insufficient.
        slope_bytes: growth per micro-step or step; 0 where there is none.
        points: the points judged, in order.
        text: the same in words.
    """

    kind: str
    slope_bytes: int
    points: tuple[MemoryPoint, ...]
    text: str


def judge(points: Sequence[MemoryPoint]) -> Growth | None:
    """Growth of the most telling series of device memory among ``points``; None where there is no series."""
    groups: dict[tuple[str, str, int | None, str], list[MemoryPoint]] = defaultdict(list)
    for point in points:
        if point.metric != "host_used" and (point.step is not None or point.micro_step is not None):
            groups[(point.source.path, point.series, point.rank, point.metric)].append(point)
    if not groups:
        return None
    judged = [_judge_one(group) for group in groups.values()]
    telling = {
        "per-micro-step": 0,
        "per-step": 1,
        "spikes": 2,
        "plateau": 3,
        "none": 4,
        "unclear": 5,
        "insufficient": 6,
    }
    return min(judged, key=lambda g: (telling[g.kind], _PREFERRED.index(g.points[0].metric), -len(g.points)))


def _judge_one(points: Sequence[MemoryPoint]) -> Growth:
    ordered = tuple(points)
    if any(point.micro_step is not None for point in ordered):
        within = _within_windows(ordered)
        if within:
            return within
    if len(ordered) < 4:
        rise = ordered[-1].value_bytes - ordered[0].value_bytes
        return Growth(
            "insufficient",
            0,
            ordered,
            f"{len(ordered)} {'point' if len(ordered) == 1 else 'points'}, {format_bytes(ordered[0].value_bytes)} to "
            f"{format_bytes(ordered[-1].value_bytes)} "
            f"({'a rise' if rise > 0 else 'no rise'}): too few to tell growth from warm-up",
        )
    return _over_steps(ordered)


def _within_windows(points: tuple[MemoryPoint, ...]) -> Growth | None:
    """Growth by micro-step: windows are cut where the micro-step counter or the optimizer step starts anew."""
    windows: list[list[MemoryPoint]] = [[]]
    for point in points:
        last = windows[-1][-1] if windows[-1] else None
        if last and (point.step != last.step or (point.micro_step or 0) <= (last.micro_step or 0)):
            windows.append([])
        windows[-1].append(point)
    slopes = []
    for window in windows:
        while len(window) > 3 and window[-1].value_bytes < window[-2].value_bytes:
            window.pop()  # the last reading of a step may stand after the memory was freed
        if len(window) < 3:
            continue
        x = [float(point.micro_step or 0) for point in window]
        y = [float(point.value_bytes) for point in window]
        slope, fit = _line(x[1:], y[1:]) if len(window) > 3 else _line(x, y)
        slopes.append((slope, fit, window))
    if not slopes:
        return None
    rising = [(slope, fit) for slope, fit, _ in slopes if slope >= _MIN_SLOPE_BYTES and fit >= 0.97]
    slope = round(median(slope for slope, _, _ in slopes))
    longest = max((window for *_, window in slopes), key=len)
    count = f"{len(slopes)} accumulation window{'s' if len(slopes) > 1 else ''}"
    if len(rising) >= max(1, math.ceil(0.6 * len(slopes))):
        resets = len(slopes) > 1 and min(w[0].value_bytes for *_, w in slopes[1:]) < max(
            w[-1].value_bytes for *_, w in slopes
        )
        again = "; it falls back when the optimizer steps" if resets else ""
        return Growth(
            "per-micro-step",
            slope,
            tuple(longest),
            f"memory rises by {format_bytes(slope)} with each micro-step, in a straight line, in {count}{again}",
        )
    level = max(point.value_bytes for point in points) or 1
    if all(abs(slope) < max(_MIN_SLOPE_BYTES, 0.002 * level) for slope, _, _ in slopes):
        return Growth("none", 0, tuple(longest), f"memory does not grow with the micro-steps, in {count}")
    return None


def _over_steps(points: tuple[MemoryPoint, ...]) -> Growth:
    settled = points[min(max(2, len(points) // 10), len(points) // 2) :]
    x = [float(point.step if point.step is not None else index) for index, point in enumerate(settled)]
    y = [float(point.value_bytes) for point in settled]
    level, top, low = median(y) or 1.0, max(y), min(y)
    slope, fit = _line(x, y)
    rise = slope * (x[-1] - x[0])
    ups = sum(b >= a for a, b in pairwise(y)) / max(1, len(y) - 1)
    # A maximum that was never reset can only rise; one that falls is read anew for each step, as any other reading.
    peak_counter = points[0].metric.startswith("peak") and all(b >= a for a, b in pairwise(y))
    started = points[0].value_bytes
    tail = y[len(y) // 2 :]
    if (
        rise > 0.02 * level
        and fit >= (0.95 if peak_counter else 0.85)
        and ups >= 0.8
        and len(settled) >= (6 if peak_counter else 4)
        and slope >= 1024
    ):
        return Growth(
            "per-step",
            round(slope),
            points,
            f"memory rises by {format_bytes(round(slope))} with each step after the first ones, "
            f"from {format_bytes(settled[0].value_bytes)} to {format_bytes(settled[-1].value_bytes)}",
        )
    if (
        top > 1.15 * level
        and top - level > 64 * MIB
        and not peak_counter
        and sum(v > 1.15 * level for v in y) <= max(1, 0.2 * len(y))
    ):
        return Growth(
            "spikes",
            0,
            points,
            f"memory stays near {format_bytes(round(level))} and jumps to {format_bytes(round(top))} in single steps",
        )
    if max(tail) - min(tail) <= 0.01 * level:
        if started < 0.97 * level:
            return Growth(
                "plateau",
                0,
                points,
                f"memory grows in the first steps, from {format_bytes(started)}, and then stays at "
                f"{format_bytes(round(tail[-1]))}: as when gradients, optimizer state and the cache arrive",
            )
        return Growth("none", 0, points, f"memory stays at {format_bytes(round(level))}")
    return Growth(
        "unclear",
        0,
        points,
        f"memory moves between {format_bytes(round(low))} and {format_bytes(round(top))} without a line that holds",
    )


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Least-squares slope, and the share of the variance that the line explains (0 to 1)."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    spread = sum((a - mean_x) ** 2 for a in x)
    if not spread:
        return 0.0, 0.0
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    variance = sum((b - mean_y) ** 2 for b in y)
    if not variance:
        return 0.0, 1.0
    rest = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    return slope, max(0.0, 1.0 - rest / variance)


def length_exponent(points: Sequence[MemoryPoint]) -> tuple[float, tuple[MemoryPoint, ...]] | None:
    """(x, points) where what a step adds above its floor grows as length to the power x; None below three lengths.

    The floor is the allocated memory stated beside a peak. Around 1 is linear, around 2 quadratic.
    """
    floors = {(p.rank, p.seq_len): p.value_bytes for p in points if p.metric == "allocated" and p.seq_len}
    peaks: dict[int, MemoryPoint] = {}
    for point in points:
        if point.metric == "peak_allocated" and point.seq_len and (point.rank, point.seq_len) in floors:
            held = peaks.get(point.seq_len)
            peaks[point.seq_len] = point if held is None or point.value_bytes > held.value_bytes else held
    pairs = [
        (length, point.value_bytes - floors[(point.rank, length)], point) for length, point in sorted(peaks.items())
    ]
    pairs = [pair for pair in pairs if pair[1] > 0]
    if len(pairs) < 3 or pairs[-1][0] < 2 * pairs[0][0]:
        return None
    slope, fit = _line([math.log(length) for length, _, _ in pairs], [math.log(added) for _, added, _ in pairs])
    return (slope, tuple(point for *_, point in pairs)) if fit > 0.97 else None
