"""Memory over steps: whether it grows, how fast, and with what.

Growth is judged after the first steps (gradients, optimizer state and the allocator's cache arrive there) and, where
micro-steps are logged, inside an accumulation window and between windows apart. It is called growth only where the
slope's interval excludes zero, the rise exceeds what the allocator rounds to, no few steps up tell it better, and it
did not stop. A peak counter never falls, so its rise alone is no growth of what lives; reserved memory that rises
while what is allocated does not is cache. What too few points can't tell is called insufficient.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from ..units import MIB, format_bytes
from . import trend as stats
from .facts import MemoryPoint

GROWING = ("per-micro-step", "per-step", "over-time", "creep")
"""Kinds in which live memory, or all of the device's, rises for as long as it was watched."""

_TELLING = (*GROWING[:3], "peak-growth", "spikes", "length-driven", "sawtooth", "step-up", "cache-growth",
            "reserved-growth", "creep", "plateau", "none", "unclear", "insufficient")  # fmt: skip
_CALM = ("none", "plateau", "step-up", "sawtooth", "spikes", "length-driven")
_PREFERRED = ("allocated", "used", "peak_allocated", "reserved", "peak_reserved", "host_used")
_MIN_SLOPE_BYTES = 64 * 1024
_MATERIAL, _FLAT = 0.02, 0.01
"""Shares of the level: a rise below the first only creeps, a move below the second is flat."""
_GRANULE = {"allocated": 2 * MIB, "peak_allocated": 2 * MIB}
"""Below these a rise is the allocator's rounding: 2 MiB blocks of small tensors; 20 MiB segments, twice, for others."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What a series shows.

    Attributes:
        kind: one of ``per-micro-step``, ``per-step``, ``over-time`` (time stamps, no steps), ``creep`` (sure, but below
            2 % of the level), ``peak-growth`` (only the peak rises), ``cache-growth`` (reserved rises, allocated does
            not), ``reserved-growth`` (reserved rises, allocated is not known), ``length-driven``, ``sawtooth``,
            ``spikes``, ``step-up``, ``plateau``, ``none``, ``unclear``, ``insufficient``.
        slope_bytes: growth per micro-step, step, hour or reading, as ``per`` says; 0 where there is none.
        points: the points judged, in order.
        text: the same in words.
        low_bytes, high_bytes: the slope's interval, where it was estimated.
        rise_bytes: what the slope adds up to over the points judged.
        correlation: of memory with the length, where it follows that.
        ranks: those that grow, where several ranks were judged and others do not.
    """

    kind: str
    slope_bytes: int
    points: tuple[MemoryPoint, ...]
    text: str
    per: str = "step"
    low_bytes: int = 0
    high_bytes: int = 0
    rise_bytes: int = 0
    correlation: float | None = None
    ranks: tuple[int, ...] = ()


def judge(points: Sequence[MemoryPoint], grad_accum: int | None = None) -> Growth | None:
    """Growth of the most telling series of device memory among ``points``; None where there is no series.

    Args:
        points: of all files, ranks and devices; each series is judged alone, then those of a rank together.
        grad_accum: micro-steps in an accumulation window, where the settings say.
    """
    groups: dict[tuple[str, str, int | None, int | None, str], list[MemoryPoint]] = defaultdict(list)
    for p in points:
        if p.metric != "host_used" and (p.metric == "used" or (p.step, p.micro_step, p.time) != (None, None, None)):
            groups[(p.source.path, p.series, p.rank, p.device, p.metric)].append(p)
    owners: dict[tuple[int | None, int | None], list[Growth]] = defaultdict(list)
    for (_, _, rank, device, _), group in groups.items():
        owners[(rank, device)].append(_judge_one(tuple(group), grad_accum))
    if not owners:
        return None
    told = {owner: _of_owner(judged) for owner, judged in owners.items()}
    best = min(told.values(), key=_rank)
    return _among_ranks(best, {rank: growth for (rank, _), growth in told.items() if rank is not None})


def exhaustion(growth: Growth, capacity_bytes: int) -> tuple[int, int, int | None] | None:
    """(step, earliest, latest) at which growth by step fills the card: latest is None where the interval leaves it
    open, all None where this series can't say."""
    last = growth.points[-1]
    if growth.kind not in ("per-step", "creep") or growth.per != "step" or last.relative or last.step is None:
        return None
    room = capacity_bytes - last.value_bytes
    if room <= 0 or growth.low_bytes <= 0:
        return None
    step, first, late = (last.step + room / s for s in (growth.slope_bytes, growth.high_bytes, growth.low_bytes))
    return round(step), round(first), round(late) if late < 1e12 else None


def _rank(growth: Growth) -> tuple[int, int, int]:
    return _TELLING.index(growth.kind), _PREFERRED.index(growth.points[0].metric), -len(growth.points)


def _of_owner(judged: Sequence[Growth]) -> Growth:
    """The most telling growth of one rank or device, read beside what its allocated memory does."""
    live = [g for g in judged if g.points[0].metric == "allocated" and g.kind != "insufficient"]
    calm = min(live, key=_rank) if live and all(g.kind in _CALM for g in live) else None
    if calm is None:
        return min(judged, key=_rank)
    return min((_beside(calm, growth) for growth in judged), key=_rank)


def _beside(calm: Growth, growth: Growth) -> Growth:
    """Growth of another reading while what is allocated does not grow."""
    if growth.kind not in (*GROWING[1:], "reserved-growth"):
        return growth
    rise = f"rises by {format_bytes(growth.slope_bytes)} with each {growth.per}"
    if growth.points[0].metric == "peak_allocated":
        text = f"the peak {rise}, while what stays allocated between them does not: the steps get larger"
        return replace(growth, kind="peak-growth", text=f"{text}, nothing outlives them")
    what = "memory of the device" if growth.points[0].metric == "used" else "reserved memory"
    beyond = " or something outside PyTorch" if growth.points[0].metric == "used" else ""
    text = f"{what} {rise}, while what is allocated does not ({calm.text}): the allocator's cache{beyond}"
    return replace(growth, kind="cache-growth", text=f"{text}, not tensors that are kept")


def _among_ranks(best: Growth, by_rank: dict[int, Growth]) -> Growth:
    """The growth with the ranks that show it, where several were judged."""
    grow = tuple(sorted(rank for rank, g in by_rank.items() if g.kind == best.kind))
    if len(by_rank) < 2 or best.kind not in GROWING or not grow:
        return best
    if len(grow) == len(by_rank):
        return replace(best, text=f"{best.text}; on all {len(grow)} ranks with readings")
    named = ", ".join(map(str, grow[:4])) + (f" and {len(grow) - 4} more" if len(grow) > 4 else "")
    only = f"on rank{'s' if len(grow) > 1 else ''} {named} of {len(by_rank)} with readings"
    return replace(best, ranks=grow, text=f"{best.text}; {only}, not on the others")


def _judge_one(ordered: tuple[MemoryPoint, ...], grad_accum: int | None) -> Growth:
    windows = _windows(ordered) if any(point.micro_step is not None for point in ordered) else []
    within = _within_windows(ordered, windows) if windows else None
    if within:
        floors = tuple(min(window, key=lambda p: p.value_bytes) for window in windows)
        between = _over_steps(floors, None) if len(floors) >= 6 else None
        if not between or between.kind not in ("per-step", "creep"):
            return within
        if within.kind != "per-micro-step":
            return between
        more = f", and its floor by {format_bytes(between.slope_bytes)} with each step"
        return replace(within, text=within.text + more)
    if len(ordered) < 4:
        rise = ordered[-1].value_bytes - ordered[0].value_bytes
        text = (
            f"{len(ordered)} {'point' if len(ordered) == 1 else 'points'}, {format_bytes(ordered[0].value_bytes)} to "
            f"{format_bytes(ordered[-1].value_bytes)} ({'a rise' if rise > 0 else 'no rise'}): too few to tell growth "
            "from warm-up; readings of some ten steps after the first ones would"
        )
        return Growth("insufficient", 0, ordered, text)
    return _over_steps(ordered, grad_accum)


def _windows(points: tuple[MemoryPoint, ...]) -> list[list[MemoryPoint]]:
    """Windows, cut where the micro-step counter or the optimizer step starts anew."""
    windows: list[list[MemoryPoint]] = [[]]
    for point in points:
        last = windows[-1][-1] if windows[-1] else None
        if last and (point.step != last.step or (point.micro_step or 0) <= (last.micro_step or 0)):
            windows.append([])
        windows[-1].append(point)
    return windows


def _within_windows(points: tuple[MemoryPoint, ...], windows: Sequence[Sequence[MemoryPoint]]) -> Growth | None:
    """Growth by micro-step."""
    slopes = []
    for whole in windows:
        window = list(whole)
        while len(window) > 3 and window[-1].value_bytes < window[-2].value_bytes:
            window.pop()  # the last reading of a step may stand after the memory was freed
        if len(window) < 3:
            continue
        x = [float(point.micro_step or 0) for point in window]
        y = [float(point.value_bytes) for point in window]
        slope, fit = stats.line(x[1:], y[1:]) if len(window) > 3 else stats.line(x, y)
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
        text = f"memory rises by {format_bytes(slope)} with each micro-step, in a straight line, in {count}{again}"
        return Growth("per-micro-step", slope, tuple(longest), text, "micro-step", rise_bytes=slope * len(longest))
    level = max(point.value_bytes for point in points) or 1
    if all(abs(slope) < max(_MIN_SLOPE_BYTES, 0.002 * level) for slope, _, _ in slopes):
        return Growth("none", 0, tuple(longest), f"memory does not grow with the micro-steps, in {count}")
    return None


def _axis(points: Sequence[MemoryPoint]) -> tuple[list[float], str]:
    """Where the points stand, and the unit of it: steps that start anew go on counting; else hours; else readings."""
    steps = [point.step for point in points]
    if None not in steps and len(set(steps)) > 1:
        x, behind = [], 0.0
        for before, step in pairwise([steps[0], *steps]):
            behind += float(before - step + 1) if step < before else 0.0  # type: ignore[operator]  # none is None
            x.append(float(step or 0) + behind)
        return x, "step"
    times = [point.time for point in points if point.time is not None]
    if len(times) == len(points) and times[-1] > times[0] and all(b >= a for a, b in pairwise(times)):
        return [(time - times[0]) / 3600 for time in times], "hour"
    return [float(index) for index in range(len(points))], "reading"


def _over_steps(points: tuple[MemoryPoint, ...], grad_accum: int | None) -> Growth:
    settled = points[min(max(2, len(points) // 10), len(points) // 2) :]
    x, per = _axis(settled)
    y = [float(point.value_bytes) for point in settled]
    length = _by_length(settled, x, y)
    free_of_length, r = length or (y, 0.0)
    if (saw := stats.teeth(y)) and not length:
        return _of_saw(points, settled, x, y, saw, grad_accum, per)
    if found := _growth(points, settled, x, free_of_length, per):
        return found
    if length and abs(r) >= 0.9:
        text = f"memory follows the length (r = {r:.2f}) and does not grow beyond that"
        return Growth("length-driven", 0, points, text, per, correlation=r)
    return _no_growth(points, settled, x, y, per)


def _growth(
    points: tuple[MemoryPoint, ...], settled: Sequence[MemoryPoint], x: list[float], y: list[float], per: str
) -> Growth | None:
    """Growth with its interval; None where the series does not show one."""
    found, metric, half = stats.trend(x, y), points[0].metric, len(y) // 2
    level, rise = median(y) or 1.0, found.slope * found.span
    sure = found.low > (0.5 * found.slope if len(y) < 20 else 0)  # a few readings must lie well on the line
    if not sure or rise < _GRANULE.get(metric, 40 * MIB) or stats.steps_up(x, y):
        return None
    later = stats.trend(x[half:], y[half:])
    if len(y) - half >= 4 and (later.high < 0.5 * found.slope or later.slope < 0.25 * found.slope):
        return None  # it stopped
    # A maximum that was never reset can only rise; one that falls is read anew for each step, as any other reading.
    if metric.startswith("peak") and all(b >= a for a, b in pairwise(y)):
        ups = sum(b > a for a, b in pairwise(y)) / max(1, len(y) - 1)
        if len(y) < 6 or ups < 0.6 or stats.line(x, y)[1] < 0.95:
            return None
    slope, low, high = round(found.slope), max(1, round(found.low)), round(found.high)
    kind = "creep" if rise < _MATERIAL * level else "per-step" if per == "step" else "over-time"
    verb, whose = "rises" if kind != "creep" else "creeps up", "memory"
    if "reserved" in metric:
        kind, whose = "reserved-growth", "reserved memory"
    band = f" (between {format_bytes(low)} and {format_bytes(high)})" if high - low > 0.1 * slope else ""
    text = (
        f"{whose} {verb} by {format_bytes(slope)}{band} with each {per} after the first ones, "
        f"from {format_bytes(settled[0].value_bytes)} to {format_bytes(settled[-1].value_bytes)}"
    )
    if kind == "reserved-growth":
        text += "; without what is allocated beside it, this may be the allocator's cache alone"
    elif kind == "over-time":
        text += "; it counts all of the device, the allocator's cache too" if metric == "used" else ""
    return Growth(kind, slope, points, text, per, low, high, round(rise))


def _of_saw(
    points: tuple[MemoryPoint, ...], settled: Sequence[MemoryPoint], x: list[float], y: list[float],
    saw: Sequence[tuple[int, int]], grad_accum: int | None, per: str,
) -> Growth:  # fmt: skip
    """A saw: what it gains in a tooth, and whether its floor rises."""
    slope = round(median(stats.line(x[a:b], y[a:b])[0] for a, b in saw))
    size = round(median(b - a for a, b in saw))
    inner = saw[1:] or saw
    floors = tuple(settled[min(range(a, b), key=lambda i: y[i])] for a, b in inner)
    if len(floors) >= 4:
        at, unit = _axis(floors)
        found = stats.trend(at, [float(p.value_bytes) for p in floors])
        if found.rises and found.slope * found.span > 0.1 * (max(y) - min(y)):
            text = (
                f"memory falls back again and again, but to a floor that rises by {format_bytes(found.slope)} with "
                f"each {unit}, from {format_bytes(floors[0].value_bytes)} to {format_bytes(floors[-1].value_bytes)}"
            )
            kind = "per-step" if unit == "step" else "over-time"
            low, high, rise = (round(v) for v in (found.low, found.high, found.slope * found.span))
            return Growth(kind, round(found.slope), points, text, unit, low, high, rise)
    if per == "step" and grad_accum and grad_accum > 1 and abs(size - grad_accum) <= 1:
        text = (
            f"memory rises by {format_bytes(slope)} with each micro-step and falls back after {size}, as many as the "
            "settings accumulate"
        )
        return Growth("per-micro-step", slope, points, text, "micro-step", rise_bytes=slope * size)
    text = (
        f"memory rises by {format_bytes(slope)} with each {per} and falls back after about {size} readings, to a floor "
        "that does not rise: what piles up is released there (an epoch's end, an evaluation, a cache that is emptied)"
    )
    return Growth("sawtooth", 0, points, text, per, rise_bytes=round(max(y) - min(y)))


def _no_growth(
    points: tuple[MemoryPoint, ...], settled: Sequence[MemoryPoint], x: list[float], y: list[float], per: str
) -> Growth:
    """What a series shows that does not grow."""
    level, top, low = median(y) or 1.0, max(y), min(y)
    # A maximum that was never reset shows no fall, so it can't show a spike.
    peak_counter = points[0].metric.startswith("peak") and all(b >= a for a, b in pairwise(y))
    started = points[0].value_bytes
    tail = y[len(y) // 2 :]
    if (
        top > 1.15 * level
        and top - level > 64 * MIB
        and not peak_counter
        and sum(v > 1.15 * level for v in y) <= max(1, 0.2 * len(y))
    ):
        text = f"memory stays near {format_bytes(round(level))} and jumps to {format_bytes(round(top))} in single steps"
        return Growth("spikes", 0, points, text, per)
    if max(tail) - min(tail) <= _FLAT * level:
        if started < 0.97 * level:
            text = (
                f"memory grows in the first steps, from {format_bytes(started)}, and then stays at "
                f"{format_bytes(round(tail[-1]))}: as when gradients, optimizer state and the cache arrive"
            )
            return Growth("plateau", 0, points, text, per)
        return Growth("none", 0, points, f"memory stays at {format_bytes(round(level))}", per)
    if len(y) >= 6 and (cuts := stats.steps_up(x, y)):
        before, after = y[: cuts[-1]], y[cuts[-1] :]
        up = median(after) - median(before)
        apart = 2 * sum(v < median(before) + up / 2 for v in after) <= 0.1 * len(after)
        if up > _FLAT * level and len(after) >= 4 and apart:
            where = f"{per} {settled[cuts[-1]].step}" if per == "step" else f"reading {cuts[-1]}"
            text = (
                f"memory steps up by {format_bytes(round(up))} near {where} and stays: as when evaluation "
                "begins or batches get longer, not as when something piles up"
            )
            return Growth("step-up", 0, points, text, per, rise_bytes=round(up))
    found = stats.trend(x, y) if len(y) >= 8 else None
    if found and found.noise <= 0.05 * level and max(abs(found.low), abs(found.high)) * found.span <= 0.05 * level:
        text = (
            f"memory moves around {format_bytes(round(level))}, between {format_bytes(round(low))} and "
            f"{format_bytes(round(top))}, without a trend"
        )
        return Growth("none", 0, points, text, per)
    text = f"memory moves between {format_bytes(round(low))} and {format_bytes(round(top))} without a line that holds"
    return Growth("unclear", 0, points, text, per)


def _by_length(
    points: Sequence[MemoryPoint], x: Sequence[float], y: Sequence[float]
) -> tuple[list[float], float] | None:
    """(readings less what the length explains, correlation); None where lengths are unknown, alike, or grow with the
    steps, so that nobody can tell the two apart."""
    lengths = [float(point.seq_len or 0) for point in points]
    if len(points) < 6 or not all(lengths) or len(set(lengths)) < 3 or abs(stats.correlation(x, lengths)) >= 0.9:
        return None
    best: tuple[float, list[float], float] = (0.0, [], 0.0)
    for by in (lengths, [length * length for length in lengths]):
        free_by, free_y = stats.without(x, by), stats.without(x, y)
        r = stats.correlation(free_by, free_y)
        best = max(best, (abs(r), by, stats.line(free_by, free_y)[0]))
    r, by, slope = best
    if r < 0.5:
        return None
    mean = sum(by) / len(by)
    return [value - slope * (length - mean) for value, length in zip(y, by, strict=True)], math.copysign(r, slope)


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
    slope, fit = stats.line([math.log(length) for length, _, _ in pairs], [math.log(added) for _, added, _ in pairs])
    return (slope, tuple(point for *_, point in pairs)) if fit > 0.97 else None
