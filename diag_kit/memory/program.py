"""A step's allocations as exact polynomials: its timeline at any batch, length, depth and accumulation.

From a few recordings of a small stack. Every allocation's size is a polynomial in batch b and length s with the
monomials 1, s, s², b, b·s, b·s²; the order of births and deaths is the same for all s and all b ≥ 2 (b = 1 is a kind
of its own). A deeper stack repeats the moves of a layer, a longer accumulation those of its middle micro-step. So the
bytes alive at a moment are a count of each size, affine in the number of layers and in the number of micro-steps, and
the peak is the largest of them: one product of a matrix and a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .terms import CATEGORIES

ROUNDING = 512
"""Bytes that CUDA's caching allocator rounds to (kMinBlockSize)."""


class NotPolynomialError(Exception):
    """These recordings do not describe one family: the step changes its course with batch, length or depth."""


class Point(NamedTuple):
    """What a step is evaluated at."""

    micro_batch: int
    seq_len: int
    layers: int
    grad_accum: int


@dataclass(frozen=True)
class Segment:
    """A phase of a micro-step as the rows ``first`` to ``last`` of a program's moments."""

    phase: str
    micro_step: int
    first: int
    last: int


@dataclass
class Program:
    """The moments of one optimizer step. Arrays are (moments × sizes) counts.

    Attributes:
        shallow, period: depths covered are ``shallow`` and 1, 2, 3, … times ``period`` more; period 0: that depth only.
        coefficients: (sizes × 6) of the monomials. pads: multiple to which each size rounds the length up; mixed: only
            one of its two lengths. examples: "operator in module" that first made each size.
        category: index in ``CATEGORIES`` of each size.
        counts: [c0, c1, k0, k1]: alive at a moment are c0 + n·c1 + k·(k0 + n·k1) of each size, where n counts the
            repeated layers and k the repeated micro-steps.
        origins: for each moment the index into ``names`` of "operator in module" that made it.
        steps: the moves in order, for a replay.
    """

    shallow: int
    period: int
    accumulates: bool
    coefficients: NDArray[np.float64]
    pads: NDArray[np.int64]
    mixed: NDArray[np.bool_]
    category: NDArray[np.int64]
    counts: list[NDArray[np.float64]]
    segments: list[Segment]
    origins: NDArray[np.int64]
    names: list[str]
    examples: list[str]
    steps: list[Step]
    rounding: int = ROUNDING
    any_length: bool = True
    _held: dict[tuple[int, int], NDArray[np.float64]] = field(default_factory=dict, repr=False, compare=False)

    def sizes(self, p: Point, scale: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Bytes of each size at a point, as the device's allocator rounds them."""
        return self._rounded(self._exact(p), scale)

    def _exact(self, p: Point) -> NDArray[np.float64]:
        length = (-(-p.seq_len // self.pads) * self.pads).astype(float)
        square = length * np.where(self.mixed, p.seq_len, length)
        b = float(p.micro_batch)
        one = np.ones(len(length))
        monomials = np.stack([one, length, square, b * one, b * length, b * square], axis=1)
        exact: NDArray[np.float64] = np.rint((self.coefficients * monomials).sum(axis=1))
        return exact

    def _rounded(self, exact: NDArray[np.float64], scale: NDArray[np.float64] | None) -> NDArray[np.float64]:
        if scale is not None:
            exact = np.rint(exact * scale)
        return np.ceil(exact / self.rounding) * self.rounding if self.rounding > 1 else exact

    def covers(self, layers: int) -> bool:
        """Whether stacks of this depth are covered."""
        more, left = divmod(layers - self.shallow, self.period or 1)
        return not left and (more >= 1 if self.period else not more)

    def _repeats(self, p: Point) -> tuple[int, int]:
        layers = (p.layers - self.shallow) // (self.period or 1)
        if not self.covers(p.layers):
            raise NotPolynomialError(f"{p.layers} layers are not {self.shallow} and a multiple of {self.period} more")
        if self.accumulates != (p.grad_accum > 1):
            raise NotPolynomialError("accumulating and not accumulating are two programs")
        return layers, p.grad_accum - 2 if self.accumulates else 0

    def totals(self, p: Point, scale: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Bytes alive at each moment."""
        alive = self._alive(*self._repeats(p))
        totals: NDArray[np.float64] = alive @ self.sizes(p, scale)
        return totals

    def _alive(self, n: int, k: int) -> NDArray[np.float64]:
        """(moments × sizes) counts with the repetitions in them, kept for the next point."""
        if (held := self._held.get((n, k))) is None:
            c0, c1, k0, k1 = self.counts
            held = c0 + n * c1 + k * (k0 + n * k1)
            if self.accumulates and k == 0:
                for segment in self.segments:
                    if segment.micro_step == 2:
                        held[segment.first : segment.last] = 0
            self._held.clear()
            self._held[n, k] = held
        return held

    def peaks(self, points: Sequence[Point]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The largest moments of points of one depth and accumulation, and which moments they are: a whole curve."""
        sizes = np.stack([self.sizes(p) for p in points], axis=1)
        totals = self._alive(*self._repeats(points[0])) @ sizes
        return totals.max(axis=0), totals.argmax(axis=0)

    def peak_bytes(self, p: Point, scale: NDArray[np.float64] | None = None) -> int:
        """The largest moment."""
        return int(self.totals(p, scale).max())

    def by_category(
        self, p: Point, rows: Sequence[int] | NDArray[np.int64], scale: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """(rows × categories) bytes at these moments."""
        alive = self._alive(*self._repeats(p))[rows] * self.sizes(p, scale)
        return np.stack([alive[:, self.category == c].sum(axis=1) for c in range(len(CATEGORIES))], axis=1)

    def events(self, p: Point, scale: NDArray[np.float64] | None = None) -> tuple[list[int], list[int], int]:
        """The step for a replay: ids, bytes where one begins or 0 where it ends, and how many are alive before it."""
        n, k = self._repeats(p)
        sizes = np.rint(self._exact(p) * (1 if scale is None else scale)).astype(np.int64).tolist()
        ids: list[int] = []
        amounts: list[int] = []
        alive: dict[int, list[tuple[int, int]]] = {}
        count = base = 0
        for place, (size, sign, key) in _expanded(self.steps, n, k):
            if key < 0:
                continue
            if sign > 0:
                alive.setdefault(key, []).append((count, len(ids)))
                ids.append(count)
                amounts.append(sizes[size])
                count += 1
            else:
                alike = (held for held in alive.values() if held and amounts[held[-1][1]] == sizes[size])
                if not (stack := alive.get(key) or next(alike, [])):
                    raise NotPolynomialError("something dies that was never born")
                ids.append(stack.pop()[0])
                amounts.append(0)
            base += place == 0
        return ids, amounts, base

    def alive(self, p: Point, row: int) -> NDArray[np.float64]:
        """How many of each size are alive at a moment."""
        found: NDArray[np.float64] = self._alive(*self._repeats(p))[row]
        return found

    def formula(self, size: int) -> str:
        """A size as its polynomial in b and s, in bytes."""
        names = ("", "s", "s²", "b", "b·s", "b·s²")
        parts = []
        for name, c in zip(names, self.coefficients[size], strict=True):
            if c:
                number = f"{c:,.0f}" if c == round(c) else f"{c:,.3f}"
                parts.append(f"{number}·{name}" if name else number)
        pad = self.pads[size]
        return (" + ".join(parts) or "0") + (f", s up to a multiple of {pad}" if pad > 1 else "")


class Step(NamedTuple):
    """Moves of one segment: (size, sign, key), the stretches ``blocks`` of it repeated with the layers.

    A death is of the youngest with its key, else of one as large. Key -1: from one category to another.
    """

    micro_step: int
    moves: list[tuple[int, int, int]]
    blocks: list[tuple[int, int]]


def _expanded(steps: Sequence[Step], n: int, k: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """(place of its segment, move), with all repetitions."""
    for group, repeats in grouped(enumerate(steps), k):
        for _ in range(repeats):
            for place, step in group:
                at = 0
                for first, last in [*step.blocks, (len(step.moves), len(step.moves))]:
                    for move in step.moves[at:first]:
                        yield place, move
                    for _ in range(n if first < last else 0):
                        for move in step.moves[first:last]:
                            yield place, move
                    at = last


def grouped(steps: Iterable[tuple[int, Step]], k: int) -> Iterator[tuple[list[tuple[int, Step]], int]]:
    """Segments with their places; neighbours of the middle micro-step stand together and are repeated ``k`` times."""
    for middle, group in groupby(steps, lambda placed: placed[1].micro_step == 2):
        yield list(group), k if middle else 1
