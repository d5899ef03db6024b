"""An estimate from a program: its moments by category, what the allocator makes of them, what was assumed."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .allocator import replay
from .device import RESERVED_OVER_ALLOCATED, context_bytes, workspace_bytes
from .estimates import Estimate, Lead, Moment
from .exact import Traced
from .formulas import beside_step
from .program import Point, Program
from .settings import Settings
from .sharing import Sharing, by_formula, factors_of
from .terms import CATEGORIES, Term
from .trace.recording import BASE

SHOWN = 24
"""Moments of a phase that a timeline shows."""
_REPLAYED_MICRO_STEPS = 3
_WORKSPACE = CATEGORIES.index("temporaries")


def peak_bytes(traced: Traced, p: Point, s: Settings) -> int:
    """The largest moment."""
    return int(Sharing(traced.program, p, s).totals().max()) + workspace_bytes(s)


def leads(points: Sequence[tuple[Traced, Point]], s: Settings) -> list[Lead]:
    """The largest moment at each point, of one depth and accumulation; neighbours of one program in one product."""
    found: list[Lead] = []
    workspace = workspace_bytes(s)
    for _, group in groupby(points, key=lambda one: id(one[0])):
        part = list(group)
        program = part[0][0].program
        starts = [segment.first for segment in program.segments]
        for peak, row in _peaks(program, [p for _, p in part], s):
            segment = program.segments[bisect_right(starts, row) - 1]
            found.append(Lead(int(peak) + workspace, segment.phase, program.names[program.origins[row]]))
    return found


def _peaks(program: Program, points: Sequence[Point], s: Settings) -> Iterator[tuple[float, int]]:
    """The largest total and its row, at each point."""
    if not by_formula(program, s):
        yield from zip(*program.peaks(points), strict=True)
        return
    for p in points:
        totals = Sharing(program, p, s).totals()
        yield totals.max(), int(totals.argmax())


def traced_estimate(traced: Traced, p: Point, s: Settings, replayed: bool = True) -> Estimate:
    """The estimate of ``formulas.estimate``, from a program instead of closed forms.

    Args:
        traced: the program that covers the point.
        p: where it is evaluated.
        s: the settings that the point belongs to.
        replayed: the caching allocator is replayed over two steps for reserved bytes, which takes up to a second.
    """
    program, workspace = traced.program, workspace_bytes(s)
    sharing = Sharing(program, p, s)
    totals = sharing.totals()
    rows, segments = _shown(program, p, totals)
    table = sharing.by_category(rows)
    table[:, _WORKSPACE] += workspace
    timeline = tuple(
        Moment(program.names[program.origins[row]], *segment, dict(zip(CATEGORIES, values, strict=True)))
        for row, segment, values in zip(rows, segments, np.rint(table).astype(np.int64).tolist(), strict=True)
    )
    peak = max(timeline, key=lambda moment: moment.total_bytes)
    reserved, device, how = _reserved(sharing, p, s, peak.total_bytes, replayed)
    low, high = context_bytes(s)
    covered = not (s.exact and s.exact.uncovered)
    beside = beside_step(s) if covered else ()
    every = device + max([moment.total_bytes - peak.total_bytes for moment in beside] + [0])
    return Estimate(
        s,
        _terms(sharing, p, int(totals.argmax()), workspace),
        timeline,
        peak,
        timeline[-1].total_bytes,
        reserved,
        device,
        (peak.total_bytes + low, max(reserved, peak.total_bytes) + high),
        tuple(said for said in (*_assumptions(traced, s), sharing.said, how) if said),
        "trace",
        beside,
        every,
        _details(traced),
    )


def _shown(program: Program, p: Point, totals: NDArray[np.float64]) -> tuple[list[int], list[tuple[str, int | None]]]:
    """Rows of the timeline: of each phase its ends, its largest, and some between."""
    rows: list[int] = []
    segments: list[tuple[str, int | None]] = []
    done: set[tuple[str, int]] = set()
    for segment in program.segments:
        if segment.phase == BASE or (p.grad_accum == 2 and segment.micro_step == 2):
            continue
        m = segment.micro_step
        if program.accumulates and m >= 2:  # recorded are the first, a middle one and the last of any number
            again = (segment.phase, m) in done
            m = 2 if m == 2 and not again else p.grad_accum - 1 if m == 2 else p.grad_accum
            if again and p.grad_accum == 3:
                continue
        done.add((segment.phase, segment.micro_step))
        of = np.arange(segment.first, segment.last)
        if not len(of):
            continue
        picked = {int(of[0]), int(of[-1]), int(of[totals[of].argmax()])}
        picked |= {int(of[i]) for i in np.linspace(0, len(of) - 1, SHOWN).astype(int)}
        rows += sorted(picked)
        segments += [(segment.phase, m or None)] * len(picked)
    return rows, segments


def _reserved(sharing: Sharing, p: Point, s: Settings, allocated: int, replayed: bool) -> tuple[int, int, str]:
    """Reserved bytes, the device's bytes, and how they are known."""
    low, high = context_bytes(s)
    context = (low + high) // 2
    if s.device == "cpu":
        return allocated, allocated, "on a CPU nothing is reserved beyond what is allocated"
    if not replayed:
        reserved = round(allocated * RESERVED_OVER_ALLOCATED[1])
        return reserved, reserved + context, "reserved bytes: a share of the allocated, until the allocator is replayed"
    few = p._replace(grad_accum=min(p.grad_accum, _REPLAYED_MICRO_STEPS))
    ids, sizes = _two_steps(_Key(sharing.program), few, sharing.factors)
    room = replay(ids, sizes)
    extra = max(allocated - room.peak_allocated_bytes, 0)
    reserved = room.peak_reserved_bytes + extra
    said = "simulated" if room.verified else "simulated, unverified"
    how = f"reserved bytes: the caching allocator replayed over two steps ({said}), with room to spare"
    limit = s.capacity_bytes - context - extra if s.capacity_bytes is not None else None
    if (
        limit is not None
        and reserved > limit > allocated - extra
        and replay(ids, sizes, capacity_bytes=limit).oom is None
    ):
        return reserved, limit + extra + context, f"{how}; on this device it gives cached memory back, and fits"
    return reserved, reserved + context, how


class _Key:
    """A program as a key: by identity."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __hash__(self) -> int:
        return id(self.program)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.program is self.program


@lru_cache(8)
def _two_steps(key: _Key, p: Point, factors: tuple[float, ...]) -> tuple[list[int], list[int]]:
    """The events of two steps, one after another; storages without bytes are none."""
    ids, sizes, base = key.program.events(p, factors_of(key.program, factors))
    empty: set[int] = set()
    alive: set[int] = set()
    names: list[int] = []
    amounts: list[int] = []
    for at, (name, size) in enumerate(zip(ids, sizes, strict=True)):
        if at == base:
            base = len(names)
        if name in alive:
            alive.remove(name)
        elif name in empty:
            continue
        elif size:
            alive.add(name)
        else:
            empty.add(name)
            continue
        names.append(name)
        amounts.append(size)
    if alive != set(names[:base]):
        return names, amounts  # a step that leaves something behind is not repeated
    again = max(names, default=0) + 1
    return names + [name + again for name in names[base:]], amounts + amounts[base:]


def _terms(sharing: Sharing, p: Point, row: int, workspace: int) -> tuple[Term, ...]:
    """What is alive at the peak, largest first: counts of each size, with its polynomial; then what sharing adds."""
    program = sharing.program
    sizes, counts = program.sizes(p, sharing.scale), program.alive(p, row)
    order = sorted(np.flatnonzero((counts > 0) & (sizes > 0)), key=lambda i: -sizes[i] * counts[i])
    phase = next(s.phase for s in program.segments if s.first <= row < s.last)
    terms = [
        Term(
            program.examples[i],
            CATEGORIES[program.category[i]],
            int(sizes[i]),
            "storage",
            int(counts[i]),
            program.formula(int(i)),
            "",
            "traced",
            (phase,),
        )
        for i in order
    ]
    terms += sharing.terms(phase)
    if workspace:
        terms.append(
            Term("library workspace", "temporaries", workspace, "model", 1, "constant", "", "pytorch#95668", (phase,))
        )
    return tuple(terms)


def _assumptions(traced: Traced, s: Settings) -> list[str]:
    told = [f"traced: {traced.said}", *traced.notes]
    for (kernel, why), n in Counter((k[0], k[1]) for k in traced.kernels).items():
        told.append(f"attention ran the {kernel} kernel in {n} traced call{'s' * (n > 1)}: {why}")
    if traced.decisions:
        asked = Counter((op, answer) for op, _, answer in traced.decisions)
        listed = ", ".join(f"{op or 'a tensor'} taken as {answer:g}" for (op, answer), _ in asked.most_common(4))
        told.append(f"{len(traced.decisions)} questions about a tensor's values were answered by assumption: {listed}")
    told.append("a step after the first: optimizer state exists, gradients are set to None after it")
    if s.device == "cuda":
        told.append("CUDA's kernels emulated on a CPU; library workspaces and the context are a stated band")
    return told


def _details(traced: Traced) -> dict[str, Any]:
    """What a reader of the JSON may want to check."""
    kernels: dict[tuple[str, str], list[str]] = {}
    for kernel, why, module in traced.kernels:
        kernels.setdefault((kernel, why), []).append(module)
    decisions = Counter((d[0], d[2]) for d in traced.decisions)
    return {
        "self_check": {"at": traced.proof._asdict(), "off_bytes": traced.off_bytes},
        "attention_kernels": [
            {"kernel": kernel, "why": why, "calls": len(modules), "modules": list(dict.fromkeys(modules))}
            for (kernel, why), modules in kernels.items()
        ],
        "decisions": [{"asked_of": op, "assumed": answer, "times": n} for (op, answer), n in decisions.items()],
    }
