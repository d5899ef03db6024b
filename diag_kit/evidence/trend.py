"""The statistics of a series: a slope with its interval, a line against a few steps up, teeth that fall back.

All are robust to single outliers and cheap: a long series is first taken as the medians of at most 64 blocks. The
interval of a slope is wide (about 99.7 %), corrected for readings that resemble their neighbours; what it does not
exclude is not claimed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

BLOCKS = 64
MAX_STEPS = 3


@dataclass(frozen=True, slots=True)
class Trend:
    """Slope of y over x with its interval, in units of y per unit of x; ``noise`` is the spread about the line."""

    slope: float
    low: float
    high: float
    noise: float
    span: float

    @property
    def rises(self) -> bool:
        return self.low > 0


def _size(x: Sequence[float]) -> int:
    size = math.ceil(len(x) / BLOCKS)
    return 3 if size == 2 else size  # the median of two is their mean, which an outlier moves


def blocks(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most ``BLOCKS`` points: the medians of as many consecutive stretches."""
    size = _size(x)
    starts = range(0, len(x), size)
    return [median(x[i : i + size]) for i in starts], [median(y[i : i + size]) for i in starts]


def trend(x: Sequence[float], y: Sequence[float]) -> Trend:
    """Theil-Sen slope (the median of all slopes between two blocks) and an interval around it; at least 3 points."""
    bx, by = blocks(x, y)
    pairs = range(len(bx))
    slopes = sorted((by[j] - by[i]) / (bx[j] - bx[i]) for i in pairs for j in pairs[i + 1 :] if bx[j] > bx[i])
    if not slopes:
        return Trend(0.0, 0.0, 0.0, 0.0, 0.0)
    slope = median(slopes)
    offset = median(b - slope * a for a, b in zip(bx, by, strict=True))
    rest = [b - slope * a - offset for a, b in zip(bx, by, strict=True)]
    usual = sorted(r * r for r in rest)[: math.ceil(0.9 * len(rest))]  # one in ten may be an outlier
    spread = max(1.4826 * median(abs(r) for r in rest), 1.2 * math.sqrt(sum(usual) / len(usual)), 256.0)
    bound = [max(-3 * spread, min(3 * spread, r)) for r in rest]
    power = sum(r * r for r in bound) or 1.0
    alike = min(0.95, max(0.0, sum(a * b for a, b in pairwise(bound)) / power))
    mean = sum(bx) / len(bx)
    around = math.sqrt(sum((a - mean) ** 2 for a in bx))
    free = max(1, len(bx) - 2)
    error = spread / around * math.sqrt((1 + alike) / (1 - alike)) * (3 + 9 / free + 24 / free**2)
    return Trend(slope, slope - error, slope + error, spread, x[-1] - x[0])


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Least-squares slope and the share of variance that it explains (0 to 1)."""
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


def without(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """y less its least-squares slope over x."""
    slope = line(x, y)[0]
    return [b - slope * a for a, b in zip(x, y, strict=True)]


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's r; 0 where one of them does not vary."""
    slope, fit = line(x, y)
    return math.copysign(math.sqrt(fit), slope) if slope else 0.0


def steps_up(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Indices of y before which it steps, where one to three steps tell it better than a line does (BIC); else none."""
    bx, by = blocks(x, y)
    threes = [median(three) for three in zip(by, by[1:], by[2:], strict=False)]  # no single outliers
    by = [threes[0], *threes, threes[-1]] if threes else by
    n, size = len(bx), _size(x)
    floor = n * 256.0**2
    straight = line(bx, by)
    mean = sum(by) / n
    total = sum((b - mean) ** 2 for b in by)
    best = n * math.log(total * (1 - straight[1]) + floor) + 2 * math.log(n) + 4  # in doubt, steps
    cuts: list[int] = []
    found: list[int] = []
    for count in range(1, MAX_STEPS + 1):
        bounds = [0, *sorted(cuts), n]
        gains = [gain for a, b in pairwise(bounds) if (gain := _best_cut(by, a, b))]
        if not gains:
            break
        saved, cut = max(gains)
        total -= saved
        cuts.append(cut)
        score = n * math.log(max(0.0, total) + floor) + (2 * count + 1) * math.log(n)
        if score < best:
            best, found = score, sorted(cuts)
    return [cut * size for cut in found]


def _best_cut(y: Sequence[float], start: int, end: int) -> tuple[float, int] | None:
    """(squared error saved, index) of the best cut of a stretch into two levels of at least two points each."""
    total, n = sum(y[start:end]), end - start
    left, best = 0.0, None
    for k in range(1, n):
        left += y[start + k - 1]
        gain = left * left / k + (total - left) ** 2 / (n - k) - total * total / n
        if 2 <= k <= n - 2 and (best is None or gain > best[0]):
            best = (gain, start + k)
    return best


def teeth(y: Sequence[float]) -> list[tuple[int, int]]:
    """(start, end) of the teeth of a saw: stretches that rise and then fall back at once; none where it is no saw."""
    largest = max((a - b for a, b in pairwise(y)), default=0.0)
    falls = [i for i, (a, b) in enumerate(pairwise(y), 1) if a - b > 0.5 * largest]
    if largest <= 0.2 * (max(y) - min(y)):
        return []
    found = [(a, b) for a, b in pairwise([0, *falls, len(y)]) if b - a >= 4]
    need = 0.6 if len(falls) > 1 else 0.9  # two teeth must be sharper than many
    good = sum(slope > 0 and fit >= need for slope, fit in (line(range(b - a), y[a:b]) for a, b in found))
    return found if len(found) >= 2 and good >= 0.7 * len(found) and len(found) >= 0.7 * (len(falls) - 1) else []
