"""What to change: each remedy alone, the cheapest combinations that fit, the largest shapes that do.

All of it works over any engine that can say the peak of settings; the closed forms are the one that needs nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations as subsets
from typing import Any, Protocol

from ..errors import SettingsError
from .estimates import Estimate
from .formulas import device_limit, estimate, largest_root, peak_bytes, quadratics
from .remedies import CATALOG, OFFLOAD, SEGMENTS, Change
from .settings import Settings

LONGEST = 1 << 24
"""Sizes are searched up to here."""
MEMBERS = 3
_MOST = {"formula": 2000, "trace": 24}
"""Evaluations that a search for combinations may cost; a trace of another model structure takes seconds."""
_GUIDE_ERROR = 1.1
"""A guide's prediction, scaled to agree now, rules a combination out only beyond this."""


class Engine(Protocol):
    """What says how much memory settings need. ``method``: formula or trace."""

    method: str

    def estimate(self, s: Settings) -> Estimate:
        """The whole estimate."""

    def peak_bytes(self, s: Settings) -> int:
        """Its peak_allocated_bytes alone."""


class Formulas:
    """The closed forms as an engine."""

    method = "formula"

    def estimate(self, s: Settings) -> Estimate:
        """As `formulas.estimate`."""
        return estimate(s)

    def peak_bytes(self, s: Settings) -> int:
        """As `formulas.peak_bytes`."""
        return peak_bytes(s)


FORMULAS = Formulas()


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change, or several together, and the effect.

    Attributes:
        change: settings to change; values may be the words ``half``, ``one`` and ``double``.
        peak_bytes, saves_bytes: predicted allocated peak after the change, and how much lower that is.
        device_bytes: what the device then holds in all.
        saves_reserved_bytes: what it takes, at most, from what the allocator holds beyond tensors.
        fits: whether the device holds it then; None without a capacity.
        cost: in words, of several without those that are free; ``cost_rank``: 0 same numbers and speed, 1 slower, 2
            changes numerics, 3 changes the training; of several, the highest.
        code: framework -> line; of several, where each has one. ``members``: ids of several.
        method: of the estimate that predicts.
    """

    id: str
    action: str
    change: Mapping[str, Any]
    peak_bytes: int
    saves_bytes: int
    fits: bool | None
    cost: str
    cost_rank: int
    code: Mapping[str, str] = field(default_factory=dict)
    device_bytes: int = 0
    saves_reserved_bytes: int = 0
    members: tuple[str, ...] = ()
    method: str = "formula"

    def to_json(self) -> dict[str, Any]:
        """As ``diag-kit estimate --json`` lists it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Search:
    """Combinations that fit, cheapest first; ``evaluations`` of the engine that finding them took, of ``most``.

    ``complete``: every combination of up to three that could be cheaper or as cheap was looked at.
    """

    found: tuple[Remedy, ...]
    evaluations: int
    most: int
    complete: bool


def remedies(s: Settings, engine: Engine | None = None) -> tuple[Remedy, ...]:
    """Changes that lower the peak here: those that make it fit first, then by cost, then by what they save."""
    engine = engine or FORMULAS
    now = engine.estimate(s)
    found = []
    for entry in CATALOG:
        try:
            if entry.when(s) and (change := _solved(s, entry, engine)) is not None:
                remedy = _remedy(s, now, change, [entry], engine)
                found += [remedy] if remedy.saves_bytes > 0 else []
        except SettingsError:  # a change that this run's own model can't make
            continue
    if together := _together(s, now, found, engine):
        found.append(together)
    if segments := _segments(now):
        found.append(segments)
    return tuple(sorted(found, key=lambda r: (not r.fits, r.cost_rank, -r.saves_bytes)))


def combinations(
    s: Settings, engine: Engine | None = None, *, enough: int = 3, most: int | None = None,
    guide: Engine | None = FORMULAS, answer: Estimate | None = None,
) -> Search:  # fmt: skip
    """The cheapest combinations of up to three changes that fit; one change alone is a combination of one.

    Cheaper: fewer changes of the training, then of numerics, then of speed, then fewer; within a class in the
    catalogue's order. None holds a member without which the others fit. Nothing is searched where the run fits already
    or no capacity is given. Changes are taken never to raise the peak of other changes: where all of a class together
    don't fit, no part of them is tried.

    ``enough`` are looked for, with ``most`` evaluations of the engine (2,000 closed forms, 24 traces). ``guide`` is a
    cheap engine whose prediction decides what a costly one is asked; None asks it for all. ``answer``: the estimate
    that says whether the run fits, where another engine than this one made it.
    """
    engine = engine or FORMULAS
    most = _MOST.get(engine.method, 24) if most is None else most
    now = engine.estimate(s)
    answer = answer or now
    limit = _limit(s, answer)
    if math.isinf(limit) or answer.fits:
        return Search((), 1, most, True)
    if guide is None or guide.method == engine.method or (s.exact and s.exact.uncovered):
        guide, bound = engine, limit
    else:
        bound = limit * _GUIDE_ERROR * guide.peak_bytes(s) / now.peak_allocated_bytes
    asked, tried = 1, guide is not engine
    peaks: dict[tuple[str, ...], float] = {}
    entries = [e for e in CATALOG if e.combines and (e.when(s) or e.after)]
    order = {entry.id: place for place, entry in enumerate(entries)}

    def floor(rank: int) -> int:
        nonlocal asked
        lowest, at = now.peak_allocated_bytes if guide is engine else guide.peak_bytes(s), s
        for entry in entries:
            if entry.rank <= rank and entry.when(at):
                asked += guide is engine
                after = changed(at, _solved(at, entry, None) or {})
                if (peak := guide.peak_bytes(after)) <= lowest:
                    lowest, at = peak, after
        return lowest

    def fits(members: tuple[Change, ...]) -> bool:
        nonlocal asked
        names = tuple(entry.id for entry in members)
        if names not in peaks:
            change = _merged(s, members, None) if tried else None
            hopeless = tried and (change is None or guide.peak_bytes(changed(s, change)) > bound)
            asked += not hopeless
            try:
                change = None if hopeless else _merged(s, members, engine)
                peaks[names] = math.inf if change is None else engine.peak_bytes(changed(s, change))
            except SettingsError:  # a change that this run's own model can't make
                peaks[names] = math.inf
        return peaks[names] <= limit

    possible = {rank: floor(rank) <= bound for rank in sorted({entry.rank for entry in entries})}
    found: list[Remedy] = []
    for members in _by_cost(entries, order):
        names = {entry.id for entry in members}
        if not possible[max(entry.rank for entry in members)] or any(names >= set(r.members) for r in found):
            continue
        if asked >= most or len(found) >= enough:
            return Search(tuple(found), asked, most, len(found) >= enough)
        if fits(members) and not any(fits(part) for part in subsets(members, len(members) - 1) if part):
            change = _merged(s, members, engine)
            remedy = _remedy(s, now, change or {}, members, engine)
            if remedy.fits:
                found.append(remedy)
    return Search(tuple(found), asked, most, True)


def _by_cost(entries: Iterable[Change], order: Mapping[str, int]) -> Iterator[tuple[Change, ...]]:
    """All sets of up to three, cheapest first; members in the catalogue's order."""

    def price(members: tuple[Change, ...]) -> tuple[int, ...]:
        efforts = (sum(entry.effort for entry in members if entry.rank == rank) for rank in (3, 2, 1, 0))
        return (*efforts, sum(order[entry.id] for entry in members))

    listed = list(entries)
    return iter(sorted((m for n in range(1, MEMBERS + 1) for m in subsets(listed, n)), key=price))


def _solved(s: Settings, entry: Change, engine: Engine | None) -> dict[str, Any] | None:
    """The change with the number for ``largest``, 1 without an engine; None where nothing fits or nothing changes."""
    change = dict(entry.change)
    for name, value in entry.change.items():
        if value == "largest" and engine is None:
            change[name] = 1
        elif value == "largest":
            # More micro-steps will follow: from the second on, gradients are there already.
            most = largest(s.with_(grad_accum=max(s.grad_accum, 2)) if "grad_accum" in change else s, name, engine)
            if most is None or most >= getattr(s, name):
                return None
            change[name] = most
    return _accordingly(s, change)


def _accordingly(s: Settings, change: dict[str, Any]) -> dict[str, Any]:
    """The change with the accumulation that keeps the effective batch, where it says so."""
    if change.get("grad_accum") != "accordingly":
        return change
    batch = changed(s, {"micro_batch": change["micro_batch"]}).micro_batch
    return {**change, "grad_accum": -(-s.micro_batch * s.grad_accum // batch)}


def _merged(s: Settings, members: Iterable[Change], engine: Engine | None) -> dict[str, Any] | None:
    """One change from several, solved ones last; None where two contradict or one can't be made."""
    merged: dict[str, Any] = {}
    at = s
    for entry in sorted(members, key=lambda e: "largest" in e.change.values()):
        change = _solved(at, entry, engine) if entry.when(at) else None
        if change is None:
            return None
        for name, value in change.items():
            held = merged.get(name, {} if isinstance(value, Mapping) else value)
            if isinstance(value, Mapping) and any(held.get(key, new) != new for key, new in value.items()):
                return None
            if not isinstance(value, Mapping) and held != value:
                return None
            merged[name] = {**held, **value} if isinstance(value, Mapping) else value
        at = changed(s, merged)
    return merged


def _remedy(s: Settings, now: Estimate, change: Mapping[str, Any], members: Iterable[Change], engine: Engine) -> Remedy:
    after = changed(s, change)
    e, entries = engine.estimate(after), tuple(members)
    rank = max(entry.rank for entry in entries)
    frameworks = [name for name in entries[0].code if all(name in entry.code for entry in entries)]
    return Remedy(
        id=" + ".join(entry.id for entry in entries),
        action="; ".join(_filled(entry.action, after) for entry in entries),
        change=change,
        peak_bytes=e.peak_allocated_bytes,
        saves_bytes=now.peak_allocated_bytes - e.peak_allocated_bytes,
        fits=e.fits,
        cost="; ".join(dict.fromkeys(entry.cost for entry in entries if entry.rank or not rank)),
        cost_rank=rank,
        code={name: "\n".join(_filled(entry.code[name], after) for entry in entries) for name in frameworks},
        device_bytes=e.device_bytes,
        members=tuple(entry.id for entry in entries),
        method=e.method,
    )


def _filled(text: str, s: Settings) -> str:
    """A line with the settings' numbers for ``<micro_batch>`` and the like."""
    for name in ("micro_batch", "grad_accum", "seq_len"):
        text = text.replace(f"<{name}>", f"{getattr(s, name)}")
    return text.replace("<tokens>", f"{s.micro_batch * s.seq_len}")


def _together(s: Settings, now: Estimate, found: list[Remedy], engine: Engine) -> Remedy | None:
    """All changes at once that leave batch, data and numerics alone; None where that is one change or none."""
    wanted = {r.id for r in found if r.cost_rank <= 1 and "micro_batch" not in r.change}
    kept: list[Change] = []
    change: dict[str, Any] = {}
    for entry in reversed(CATALOG):  # of two that exclude each other, the stronger stands later
        if entry.id in wanted and entry.effort < OFFLOAD and (merged := _merged(s, [*kept, entry], engine)) is not None:
            kept, change = [*kept, entry], merged
    if len(kept) < 2:
        return None
    one = _remedy(s, now, change, kept[::-1], engine)
    action = "All changes that leave the training as it is: " + ", ".join(one.members)
    return Remedy("together", action, change, one.peak_bytes, one.saves_bytes, one.fits, "as of each", one.cost_rank,
                  one.code, one.device_bytes, 0, one.members, one.method)  # fmt: skip


def _segments(now: Estimate) -> Remedy | None:
    """Expandable segments: what the allocator may hold beyond the least that a full device needs."""
    saves = now.band_bytes[1] - now.device_bytes
    if saves <= 0 or now.fits is False or not SEGMENTS.when(now.settings):
        return None
    return Remedy(SEGMENTS.id, SEGMENTS.action, {}, now.peak_allocated_bytes, 0, now.fits, SEGMENTS.cost, SEGMENTS.rank,
                  SEGMENTS.code, now.device_bytes, saves, (SEGMENTS.id,), now.method)  # fmt: skip


def saves(s: Settings, change: Mapping[str, Any], engine: Engine | None = None) -> int:
    """Bytes by which ``change`` lowers the allocated peak; negative where it raises it."""
    engine = engine or FORMULAS
    return engine.peak_bytes(s) - engine.peak_bytes(changed(s, change))


def changed(s: Settings, change: Mapping[str, Any]) -> Settings:
    """Settings after a change; ``half``, ``one`` and ``double`` stand for what they say of a whole number."""
    values = dict(change)
    for name, value in change.items():
        held = getattr(s, name, None)
        if isinstance(value, str) and isinstance(held, int):
            values[name] = {"half": max(held // 2, 1), "one": 1, "double": 2 * held}.get(value, value)
    return s.with_(**values)


def _limit(s: Settings, answer: Estimate | None) -> float:
    """Allocated bytes that the device holds; fewer than now where a trace's replay says that these don't fit."""
    limit = device_limit(s)
    if answer is None or answer.method != "trace" or answer.fits is not False or s.capacity_bytes is None:
        return limit
    return min(limit, answer.peak_allocated_bytes - (answer.device_bytes - s.capacity_bytes))


def largest(s: Settings, name: str, engine: Engine | None = None, answer: Estimate | None = None) -> int | None:
    """The largest ``seq_len`` or ``micro_batch`` that the device holds; None without a capacity or where none does.

    From closed forms solved: the least of the roots of each moment's quadratic. From another engine by halving, since
    the peak never falls with either. No longer than the positions that a model has learned. ``answer``: an estimate of
    ``s``, which the result does not contradict.
    """
    if name not in ("seq_len", "micro_batch"):
        raise SettingsError(f"largest: {name!r} is not one of seq_len, micro_batch")
    limit = _limit(s, answer)
    if math.isinf(limit):
        return None
    most = (name == "seq_len" and s.model.positions) or LONGEST
    if engine is None or engine.method == "formula":
        best = min((largest_root(a - limit, b, c) for a, b, c in quadratics(s, name)), default=math.inf)
        return int(min(best, most)) if 1 <= best < math.inf else None
    if name == "seq_len" and hasattr(engine, "longest"):
        most = engine.longest(s) or most
    return longest_that(lambda n: engine.peak_bytes(s.with_(**{name: n})) <= limit, most) or None


def longest_that(holds: Callable[[int], bool], most: int = LONGEST) -> int:
    """The largest whole number up to ``most`` for which ``holds``, which never comes back once lost; 0 where none."""
    top = 1
    while top < most and holds(top):
        top = min(2 * top, most)
    return bisect_right(range(1, top + 1), False, key=lambda n: not holds(n))


def largest_pairs(
    s: Settings, engine: Engine | None = None, answer: Estimate | None = None
) -> tuple[tuple[int, int], ...]:
    """For each micro-batch 1, 2, 4, ...: the largest ``seq_len`` that the device holds, down to where none does."""
    pairs: list[tuple[int, int]] = []
    while longest := largest(s.with_(micro_batch=1 << len(pairs)), "seq_len", engine, answer):
        pairs.append((1 << len(pairs), longest))
    return tuple(pairs)


def plan(
    s: Settings, engine: Engine | None = None, shapes: Engine | None = None, answer: Estimate | None = None
) -> dict[str, Any]:
    """All of it as ``diag-kit estimate --json`` shows it: remedies, combinations, largest shapes (by ``shapes``).

    ``answer``: the estimate that it stands beside, whose word on whether the run fits holds.
    """
    shapes = shapes or engine
    try:
        search = combinations(s, engine, answer=answer)
    except SettingsError:  # an engine that does not answer for all of them
        search = Search((), 0, 0, False)
    return {
        "remedies": [r.to_json() for r in remedies(s, engine)],
        "combinations": [r.to_json() for r in search.found],
        "searched": {"evaluations": search.evaluations, "most": search.most, "complete": search.complete},
        "largest": {
            "seq_len": _or(None, largest, s, "seq_len", shapes, answer),
            "micro_batch": _or(None, largest, s, "micro_batch", shapes, answer),
            "pairs": [{"micro_batch": b, "seq_len": n} for b, n in _or((), largest_pairs, s, shapes, answer)],
            "method": (shapes or FORMULAS).method,
        },
    }


def _or(otherwise: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    """What the engine answers; ``otherwise`` where it can't: a user's code may know one size alone."""
    try:
        return ask(*arguments)
    except SettingsError:
        return otherwise
