"""From recordings of a few layers, a program: sizes as polynomials, and what repeats with depth found by comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .program import ROUNDING, NotPolynomialError, Point, Program, Segment, Step, grouped
from .terms import CATEGORIES
from .trace.recording import Mark, Move, Recording, any_layer, segments

PADS = (1, 8, 16, 32, 64, 128, 256)
"""Multiples that kernels pad a length to: masks to 8 elements, log-sum-exp to 32, flash's accumulator to 128."""
_PADDINGS = [(1, False), *((pad, mixed) for pad in PADS[1:] for mixed in (False, True))]


class Token(NamedTuple):
    """What a move is, whichever layer or instance makes it."""

    sign: int
    category: str
    bytes: int
    op: str
    phase: str


Cut = list[tuple[Mark, list[Move]]]


def compile_program(
    grid: Sequence[tuple[Point, Recording]], shallow: tuple[Point, Recording] | None, rounding: int = ROUNDING
) -> Program:
    """The program of a family. NotPolynomialError where the recordings are not one.

    Args:
        grid: recordings at one depth and accumulation (1 or 3) whose points determine the polynomials, and what
            kernels pad: three lengths at each batch, and some that are no multiples of a power of two.
        shallow: one at the first point of the grid but fewer layers; None for a stack of fixed depth.
        rounding: bytes that the device's allocator rounds each size up to; 1 for none.
    """
    reference, cut = grid[0][1], list(segments(grid[0][1]))
    _same(cut, [list(segments(r)) for _, r in grid[1:]])
    shapes = _fit([(p, [a.bytes for a in r.allocations]) for p, r in grid])
    blocks: list[list[tuple[int, int]]] = [[] for _ in cut]
    depth, period = grid[0][0].layers, 0
    if shallow is not None:
        period = depth - shallow[0].layers
        blocks = _repeated(cut, reference, list(segments(shallow[1])), shallow[1])
    columns: dict[tuple[Shape, str], int] = {}
    examples: list[str] = []
    keys: dict[tuple[Shape, str], int] = {}
    names: dict[str, int] = {}
    steps, labels = [], []
    for (mark, moves), repeated in zip(cut, blocks, strict=True):
        booked, made = [], []
        for move in moves:
            own, shape = reference.allocations[move.place], shapes[move.place]
            name = f"{own.op} in {any_layer(own.module)}" if own.module else own.op
            column = columns.setdefault((shape, move.category), len(columns))
            if column == len(examples):
                examples.append(name)
            key = -1 if move.turned else keys.setdefault((shape, own.op), len(keys))
            booked.append((column, move.sign, key))
            made.append(names.setdefault(name, len(names)))
        steps.append(Step(mark.micro_step, booked, repeated))
        labels.append((mark.phase, made))
    counts, found, origins = _moments(steps, labels, len(columns))
    return Program(
        shallow=depth - period,
        period=period,
        accumulates=grid[0][0].grad_accum > 1,
        coefficients=np.array([[float(c) for c in shape.coefficients] for shape, _ in columns]).reshape(-1, 6),
        pads=np.array([shape.pad for shape, _ in columns], dtype=np.int64),
        mixed=np.array([shape.mixed for shape, _ in columns], dtype=bool),
        category=np.array([CATEGORIES.index(category) for _, category in columns], dtype=np.int64),
        counts=counts,
        segments=found,
        origins=origins,
        names=list(names),
        examples=examples,
        steps=steps,
        rounding=rounding,
    )


def _same(cut: Cut, others: Iterable[Cut]) -> None:
    """All recordings make the same moves in the same order."""
    for other in others:
        if len(other) != len(cut):
            raise NotPolynomialError("the phases differ")
        for (mark, moves), (there, more) in zip(cut, other, strict=True):
            if (mark.phase, mark.micro_step) != (there.phase, there.micro_step) or moves != more:
                raise NotPolynomialError(f"the {mark.phase} takes another course at another batch or length")


Sized = Sequence[tuple[Point, list[int]]]
Coefficients = tuple[Fraction, ...]


class Shape(NamedTuple):
    """A size as a polynomial: six coefficients; the multiple that the length is padded to, in one factor or in both."""

    coefficients: Coefficients
    pad: int
    mixed: bool


class _Basis:
    """The polynomials over a grid whose lengths are padded one way: solved exactly, from as many points as it takes."""

    def __init__(self, points: Sequence[Point], pad: int, mixed: bool) -> None:
        self.pad, self.mixed = pad, mixed
        self.monomials = [_monomials(p, pad, mixed) for p in points]
        lengths, batches = {-(-p.seq_len // pad) for p in points}, {p.micro_batch for p in points}
        of_length, of_batch = (0, 1, 2)[: min(len(lengths), 3)], (0, 3)[: min(len(batches), 2)]
        self.places = [a + b for b in of_batch for a in of_length]
        self.chosen: list[int] = []
        rows: list[list[Fraction]] = []
        for i, monomials in enumerate(self.monomials):
            if len(rows) < len(self.places) and _independent([*rows, row := [monomials[p] for p in self.places]]):
                rows.append(row)
                self.chosen.append(i)
        self.inverse = _inverse(rows) if len(rows) == len(self.places) else None

    def fit(self, sizes: Sequence[int]) -> Shape | None:
        """The polynomial through these sizes, one for each point; None where there is none."""
        if self.inverse is None:
            return None
        found = [Fraction(0)] * 6
        for place, row in zip(self.places, self.inverse, strict=True):
            found[place] = sum((a * sizes[i] for a, i in zip(row, self.chosen, strict=True)), Fraction(0))
        for monomials, size in zip(self.monomials, sizes, strict=True):
            if sum((a * b for a, b in zip(found, monomials, strict=True)), Fraction(0)) != size:
                return None
        return Shape(tuple(found), self.pad, self.mixed)


def _fit(sized: Sized) -> list[Shape]:
    """Each allocation's polynomial."""
    points = [p for p, _ in sized]
    bases: dict[tuple[int, bool], _Basis] = {}
    solved: dict[tuple[int, ...], Shape] = {}
    shapes = []
    for sizes in zip(*(s for _, s in sized), strict=True):
        if sizes not in solved:
            for kind in _PADDINGS:
                basis = bases.get(kind) or bases.setdefault(kind, _Basis(points, *kind))
                if (shape := basis.fit(sizes)) is not None:
                    solved[sizes] = shape
                    break
            else:
                raise NotPolynomialError("a size is no polynomial of batch and length, padded or not")
        shapes.append(solved[sizes])
    return shapes


def _monomials(p: Point, pad: int, mixed: bool) -> tuple[Fraction, ...]:
    s, b = Fraction(-(-p.seq_len // pad) * pad), Fraction(p.micro_batch)
    square = s * p.seq_len if mixed else s * s
    return Fraction(1), s, square, b, b * s, b * square


def _independent(rows: list[list[Fraction]]) -> bool:
    """Whether the last row is no combination of those before it."""
    rows = [list(row) for row in rows]
    rank = 0
    for column in range(len(rows[0])):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] / rows[rank][column]
            rows[r] = [x - factor * y for x, y in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank == len(rows)


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Exact inverse of a regular matrix, by Gauss-Jordan."""
    n = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        pivot = next(r for r in range(i, n) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(n):
            if r != i and rows[r][i]:
                rows[r] = [x - rows[r][i] * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [row[n:] for row in rows]


def _repeated(deep: Cut, recording: Recording, flat: Cut, shallow: Recording) -> list[list[tuple[int, int]]]:
    """Where each segment of the deeper stack has more than the shallower: (first, last) moves of each insertion."""
    if [(m.phase, m.micro_step) for m, _ in deep] != [(m.phase, m.micro_step) for m, _ in flat]:
        raise NotPolynomialError("the phases differ with depth")
    found = []
    for (mark, moves), (_, fewer) in zip(deep, flat, strict=True):
        found.append(_insertions(list(_tokens(fewer, shallow)), list(_tokens(moves, recording)), mark.phase))
    return found


def _tokens(moves: Iterable[Move], recording: Recording) -> Iterator[Token]:
    for move in moves:
        own = recording.allocations[move.place]
        yield Token(move.sign, move.category, own.bytes, f"{own.op} {any_layer(own.module)}", own.phase)


def _insertions(short: list[Token], long: list[Token], phase: str) -> list[tuple[int, int]]:
    """The stretches of ``long`` that ``short`` lacks."""
    found, i, j = [], 0, 0
    while j < len(long):
        if i < len(short) and short[i] == long[j]:
            i, j = i + 1, j + 1
            continue
        if i == len(short):
            found.append((j, len(long)))
            break
        spare = (len(long) - j) - (len(short) - i)
        # The stretch after which both go on alike for longest: at best to the end, else the shortest of such.
        runs = ((_run(short, i, long, j + d), d == spare, -d) for d in range(1, spare + 1))
        run, _, d = max(runs, default=(0, False, 0))
        if not run:
            raise NotPolynomialError(f"the {phase} of a deeper stack is not that of a shallower with more layers")
        found.append((j, j - d))
        j -= d
    if i < len(short):
        raise NotPolynomialError(f"the {phase} of a shallower stack has more than that of a deeper")
    return found


def _run(short: list[Token], i: int, long: list[Token], j: int) -> int:
    n = 0
    while i + n < len(short) and j + n < len(long) and short[i + n] == long[j + n]:
        n += 1
    return n


def _moments(
    steps: list[Step], labels: list[tuple[str, list[int]]], width: int
) -> tuple[list[NDArray[np.float64]], list[Segment], NDArray[np.int64]]:
    """Counts of each size at every local maximum, first and last copy of what repeats."""
    now = np.zeros((4, width))
    rows: list[NDArray[np.float64]] = []
    found: list[Segment] = []
    origins: list[int] = []
    by_segment = iter(labels)
    for group, _ in grouped(enumerate(steps), 1):
        named = [next(by_segment) for _ in group]
        middle = group[0][1].micro_step == 2
        before = now.copy()
        start = len(rows)
        for (_, step), (phase, made) in zip(group, named, strict=True):
            first = len(rows)
            now = _walk(step, made, now, rows, origins)
            found.append(Segment(phase, step.micro_step, first, len(rows)))
        if middle:
            # The group's own change, repeated k times: rows so far are its first copy, the last is k - 1 changes later.
            change = now - before
            change[2:] = 0
            shift = np.concatenate([-change[:2], change[:2]])
            copies = [(s, [row + shift for row in rows[s.first : s.last]]) for s in found if s.first >= start]
            for segment, more in copies:
                found.append(Segment(segment.phase, 2, len(rows), len(rows) + len(more)))
                origins += origins[segment.first : segment.last]
                rows += more
            now = before + np.concatenate([np.zeros_like(change[:2]), change[:2]])
    table = np.stack(rows) if rows else np.zeros((0, 4, width))
    return [np.ascontiguousarray(table[:, i]) for i in range(4)], found, np.array(origins, dtype=np.int64)


def _walk(
    step: Step, made: list[int], now: NDArray[np.float64], rows: list[NDArray[np.float64]], origins: list[int]
) -> NDArray[np.float64]:
    """Follow a segment's moves; a row at each local maximum."""
    at = 0
    for first, last in [*step.blocks, (len(step.moves), len(step.moves))]:
        now = _stretch(step.moves[at:first], made[at:first], now, rows, origins)
        if first == last:
            break
        begun, start = now.copy(), len(rows)
        now = _stretch(step.moves[first:last], made[first:last], now, rows, origins)
        change = now - begun
        # The first copy stands in rows; the last is n - 1 changes later.
        shift = np.stack([-change[0], change[0], -change[2], change[2]])
        end = len(rows)
        rows += [row + shift for row in rows[start:end]]
        origins += origins[start:end]
        now = begun + np.stack([np.zeros_like(change[0]), change[0], np.zeros_like(change[2]), change[2]])
        at = last
    return now


def _stretch(
    moves: list[tuple[int, int, int]],
    made: list[int],
    now: NDArray[np.float64],
    rows: list[NDArray[np.float64]],
    origins: list[int],
) -> NDArray[np.float64]:
    rising = True
    name = -1
    now = now.copy()
    rows.append(now.copy())
    origins.append(made[0] if made else 0)
    for (size, sign, _), origin in zip(moves, made, strict=True):
        if sign < 0 and rising and name >= 0:
            rows.append(now.copy())
            origins.append(name)
        rising = sign > 0
        if rising:
            name = origin
        now[0, size] += sign
    rows.append(now.copy())
    origins.append(name if name >= 0 else (made[-1] if made else 0))
    return now
