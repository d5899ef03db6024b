"""From measured bytes to what a verdict needs: slopes, exponents, polynomials. Numbers only, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise

from ..units import format_bytes

FLAT_BYTES = 1024
"""Growth up to this many bytes for each step is called none: scalars and their bookkeeping."""


def shown(n: float) -> str:
    """Bytes for a sentence, MiB and KiB with one decimal.

    >>> shown(9162764), shown(0)
    ('8.7 MiB', '0 B')
    """
    return format_bytes(n, 1) if abs(n) >= 1024 else format_bytes(n)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least squares: ``y`` for each unit of ``x``."""
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - middle_x) ** 2 for a in x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / spread


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The power of ``x`` that ``y`` follows: slope of the logarithms. 1 is linear, 2 quadratic."""
    return slope([math.log(a) for a in x], [math.log(max(b, 1)) for b in y])


def growth(y: Sequence[float]) -> list[float]:
    """From each value to the next."""
    return [b - a for a, b in pairwise(y)]


def per_step(live: Sequence[float]) -> float:
    """Mean growth from one reading to the next, the first apart: gradients appear there."""
    return (live[-1] - live[1]) / (len(live) - 2)


def steady(y: Sequence[float], tolerance: float = 0.001) -> bool:
    """All values within this share of the first."""
    return all(abs(value - y[0]) <= tolerance * abs(y[0]) for value in y)


def truth(cases: Iterable[bool]) -> str:
    """``true`` where the claim held in each case, ``false`` where in none, else ``conditional``."""
    held = list(cases)
    return "true" if all(held) else "conditional" if any(held) else "false"


def solve(rows: Sequence[Sequence[int]], values: Sequence[int]) -> list[Fraction]:
    """The exact solution of a square system of whole numbers.

    Raises:
        ZeroDivisionError: the rows are not independent.
    """
    n = len(rows)
    table = [[Fraction(a) for a in (*row, value)] for row, value in zip(rows, values, strict=True)]
    for column in range(n):
        pivot = next((at for at in range(column, n) if table[at][column]), column)
        table[column], table[pivot] = table[pivot], table[column]
        table[column] = [a / table[column][column] for a in table[column]]
        for at in range(n):
            if at != column and (factor := table[at][column]):
                table[at] = [a - factor * b for a, b in zip(table[at], table[column], strict=True)]
    return [row[-1] for row in table]
