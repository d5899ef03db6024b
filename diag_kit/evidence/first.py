"""Which rank failed first, and in words why, or why nothing tells.

An error of a device beats a wait. Of several errors the earliest counts where one clock stamps them; ranks that fail
alike have no first. A launcher's word is as good as its clock, whole seconds of one node: it counts for a signal, for a
traceback that it quotes, and where it lost one process alone; exit code -6 is a watchdog that aborted a waiter. What
came after ranks had given up waiting is a consequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .facts import Event
from .ranks import Crew, names
from .text import YEARLESS_END

SIGNALS = (-9, -7, -11)
_BLOCK_LINES = 150
"""A root-cause block quotes the whole traceback of the rank that it names."""
_ALIKE_SECONDS = 5
"""Ranks that fail alike do so within the same moment, as their stamps show it."""
_MOST_BY_DEVICE = 1024
_PAIRED = frozenset(("SEND", "RECV", "COALESCED", None))
"""Operations of two ranks, which differ from those that others wait in as a rule."""
_AFTER_SECONDS = (1, 1800)
"""How long after the reports of waiting an error is their consequence; beyond, the clocks may not be the same."""


@dataclass(frozen=True, slots=True)
class First:
    """The initiating rank or None, why, whether several failed alike, and who is suspected while none is named."""

    rank: int | None
    reason: str
    alike: bool = False
    suspects: tuple[int, ...] = ()


def began(event: Event) -> float | None:
    """When a wait began: its stamp less what it says it had waited."""
    waited = event.figures.get("waited_seconds")
    return event.time - waited if event.time is not None and waited is not None else None


def one_clock(events: Iterable[Event]) -> bool:
    """Whether all have stamps, all with a year or all without."""
    kinds = {None if event.time is None else event.time < YEARLESS_END for event in events}
    return len(kinds) == 1 and None not in kinds


def of_error(event: Event, telling: Sequence[Event], events: Sequence[Event], crew: Crew) -> First:
    """The rank that failed first where an error was told.

    Args:
        event: the error taken to have stopped the run.
        telling: the first error of each stream, ``event`` among them.
        events: all events.
        crew: ranks and processes of the job.
    """
    own: dict[int, Event] = {}
    for one in telling:
        if one.rank is not None:
            own.setdefault(one.rank, one)
    waits = [one for one in events if one.role == "victim" and one.kind == "nccl.timeout"]
    if event.rank is not None and (before := gave_up_before(event, waits)):
        return First(None, f"ranks had given up waiting before: {before}", suspects=of_waits(events, crew).suspects)
    roots = [one for one in events if one.kind == "launcher.root-cause"]
    if event.kind.startswith("exit.") and any(root.exitcode in SIGNALS for root in roots):
        return _of_signals(event, roots, events)
    if len(own) > 1 and event.rank is not None:
        return _of_several(event, own, crew)
    if event.rank is None:
        return _of_launcher(event, telling, events, crew)
    if others := [one for one in telling if one.rank is None and one.kind != event.kind]:
        where = others[0].source
        return First(None, f"rank {event.rank} shows an error, and {where} another one that no rank is told of")
    return _of_one(event, events, waits, crew)


def _of_one(event: Event, events: Sequence[Event], waits: Sequence[Event], crew: Crew) -> First:
    """One rank has an error of its own: it is the first where others are there to be compared with."""
    rank = event.rank
    timed = [one for one in waits if began(one) is not None]
    if event.time is not None and timed and one_clock([event, *timed]):
        apart = event.time - min(began(one) or 0.0 for one in timed)
        when = f"{abs(apart):.0f} s {'before' if apart < 0 else 'after'} the others began to wait"
        if apart < -_AFTER_SECONDS[1]:  # they worked on for so long that it need not be what they waited for
            return First(None, f"rank {rank} shows an error, but {when}")
        return First(rank, f"rank {rank} alone shows an error of its own, {when}")
    waited = {one.rank for one in events if one.role == "victim"} - {rank, None}
    if len(crew.seen) > 1:
        others = "1 other" if len(waited) == 1 else f"{len(waited):,} others"
        rest = f"{others} only waited for it" if waited else "no other rank shown does"
        return First(rank, f"rank {rank} alone shows an error of its own; {rest}")
    if event.kind.startswith("hardware."):
        return First(rank, f"a fault of rank {rank}'s own device does not come from another rank")
    named = any(one.kind == "launcher.root-cause" and one.rank == rank for one in events)
    named |= bool(event.figures.get("alone"))
    if named or (any(one.role == "teardown" for one in events) and event.pid is None):
        return First(rank, f"rank {rank} raised the error, and the launcher stopped the others")
    return First(None, f"only lines of rank {rank} are here: nothing tells whether another rank failed before it")


def _of_several(event: Event, own: dict[int, Event], crew: Crew) -> First:
    """Several ranks have errors of their own."""
    same = [rank for rank, one in own.items() if one.kind == event.kind]
    timed = sorted(own.values(), key=lambda one: one.time or 0.0)
    clock = one_clock(timed)
    gap = (timed[1].time or 0.0) - (timed[0].time or 0.0)
    if len(same) >= max(2, len(crew.seen) - 1) and (not clock or gap <= _ALIKE_SECONDS):
        return First(None, f"{len(same):,} ranks failed alike: a matter of configuration, not of one rank", True)
    hosts = {one.host for one in timed}
    if clock and gap > (_ALIKE_SECONDS if len(hosts) > 1 else 0):
        return First(timed[0].rank, f"rank {timed[0].rank} failed first by its time stamp, {gap:.3g} s before the next")
    why = "their stamps are too close to tell which was first" if clock else "no time stamp says which was first"
    return First(None, f"{names(list(own))} failed, and {why}")


def gave_up_before(event: Event, waits: Sequence[Event]) -> str:
    """Where a watchdog had reported before the error, on the same rank or by the same clock; empty if none had."""
    for one in waits:
        stream = (one.source.path, one.rank) == (event.source.path, event.rank)
        if stream and (one.source.line or 0) < (event.source.line or 0) and "sequence" in one.figures:
            return f"rank {event.rank} itself timed out at {one.source}"
    timed = [one for one in waits if one.time is not None and one_clock([event, one])]
    first = min(timed, key=lambda one: one.time or 0.0, default=None)
    if first is None or event.time is None or first.time is None:
        return ""
    after = event.time - first.time
    low, high = _AFTER_SECONDS
    return f"the first at {first.source}, {after:.0f} s before this error" if low < after <= high else ""


def _of_launcher(event: Event, telling: Sequence[Event], events: Sequence[Event], crew: Crew) -> First:
    """The error's own lines name no rank: what a launcher says of it."""
    roots = [one for one in events if one.kind == "launcher.root-cause"]
    for root in roots:
        below = (event.source.line or 0) - (root.source.line or 0)
        if root.source.path == event.source.path and 0 <= below <= _BLOCK_LINES:
            return First(root.rank, f"the launcher's root-cause block quotes this error of rank {root.rank}")
    if event.kind.startswith("exit."):
        return _of_signals(event, roots, events)
    if len({one.kind for one in telling}) > 1 or any(one.role == "victim" for one in events):
        return _of_device(event, events, crew)
    sole = _only_dead(event, roots, events, crew)
    if sole is not None and sole.rank is not None:
        return First(sole.rank, f"rank {sole.rank} alone ended by itself ({sole.source}), and one error is told")
    return _of_device(event, events, crew)


def _of_signals(event: Event, roots: Sequence[Event], events: Sequence[Event]) -> First:
    """Processes that a signal ended: the first by the launchers' clocks, if they tell one."""
    killed = {root.rank: root for root in roots if root.exitcode in SIGNALS}
    if len(killed) == 1:
        (root,) = killed.values()
        return First(root.rank, f"the launcher saw rank {root.rank} die by signal {-(root.exitcode or 0)}")
    if killed:
        timed = sorted(killed.values(), key=lambda one: one.time or 0.0)
        if one_clock(timed) and timed[0].time != timed[1].time:
            return First(timed[0].rank, f"of the nodes' root causes, rank {timed[0].rank} died by a signal first")
        ranks = names([rank for rank in killed if rank is not None])
        return First(None, f"{ranks} died by a signal on their nodes, and no clock says which was first")
    hosts = {one.host for one in events if one.host}
    if event.local_rank is not None and len(hosts) <= 1 and "local_rank: " in event.message:
        local = event.local_rank
        return First(local, f"the launcher saw local rank {local} die by a signal; one node is shown")
    return First(None, "the evidence names no rank")


def _only_dead(event: Event, roots: Sequence[Event], events: Sequence[Event], crew: Crew) -> Event | None:
    """The one process of the only node shown that was not there to be stopped, where the launcher tells of no other."""
    ended = {
        (one.host, one.pid): one
        for one in events
        if one.kind in ("launcher.failed", "launcher.root-cause") and one.source.path == event.source.path
    }
    if any(one.exitcode in (-6, -15) for one in ended.values()) or len({root.host for root in roots}) > 1:
        return None
    if len(roots) == 1 and roots[0].figures.get("alone"):
        return roots[0]
    stopped = {one.pid for one in events if one.kind == "launcher.sigterm"}
    dead = {one.pid: one for one in ended.values() if one.pid not in stopped}
    if len(dead) != 1 or len(stopped) + 1 != crew.world:
        return None
    (one,) = dead.values()  # all ranks are this launcher's children, so that its count is everyone's
    return one if one.rank is not None else replace(one, rank=one.local_rank)


def _of_device(event: Event, events: Sequence[Event], crew: Crew) -> First:
    """NCCL numbers its lines by device: on one host with several, that is the rank. Elsewhere a device is the local
    rank of nodes of equal size, whatever that is: of the ranks that this leaves, those that waited are out.
    """
    numbered = {one.device for one in events if one.kind.startswith("nccl.") and one.device is not None and one.host}
    hosts = {one.host for one in events if one.host}
    if event.kind.startswith("nccl.") and isinstance(event.device, int) and len(numbered) > 1 and len(hosts) == 1:
        return First(event.device, f"of the processes of one host only that of device {event.device} began an error")
    waited = {one.rank for one in events if one.kind == "nccl.timeout"} - {None}
    if isinstance(event.device, int) and crew.exact and crew.world and crew.world <= _MOST_BY_DEVICE and waited:
        device, world = event.device, crew.world
        sizes = [size for size in range(device + 1, world + 1) if world % size == 0]
        left = {rank for size in sizes for rank in range(device, world, size)} - waited
        if len(left) == 1:
            rest = names(sorted(rank for rank in waited if rank is not None))
            why = f"of {world} ranks only it can have device {device} and not be among those that waited ({rest})"
            return First(left.pop(), why)
    return First(None, "the evidence names no rank")


_WAITERS_CODES = (-6, -15, 134, 143)
"""Of ranks that a watchdog or a launcher ended: they waited, or were stopped."""


def of_waits(events: Sequence[Event], crew: Crew) -> First:
    """Nobody tells an error: who is missing among those that waited, and who is behind."""
    waits = [one for one in events if one.role == "victim"]
    ended = [
        one
        for one in events
        if one.kind == "launcher.root-cause" and one.rank is not None and one.exitcode not in (None, *_WAITERS_CODES)
    ]
    if ended:
        dead = sorted({one.rank for one in ended if one.rank is not None})
        reason = f"the launcher saw {names(dead)} end by itself, with exit code {ended[0].exitcode}"
        alone = len(dead) == 1 and ended[0].figures.get("alone") and len({one.host for one in events if one.host}) <= 1
        return First(dead[0] if alone else None, reason, suspects=tuple(dead))
    if not waits:
        return First(None, "nothing in the evidence stopped the run")
    aborted = [one for one in events if one.kind.startswith("launcher.") and one.exitcode in (-6, 134)]
    waited = {one.rank for one in [*waits, *aborted] if one.rank is not None}
    named = {rank for one in waits for rank in one.figures.get("absent_ranks", ())}
    behind = _behind(waits)
    absent = crew.absent(waited) if waited else []
    stopped = {one.rank for one in events if one.kind == "launcher.sigterm" and one.rank is not None}
    dead = [rank for rank in absent if rank not in stopped]
    suspects = sorted(named) or behind or dead or absent
    reason = "only ranks that waited are shown" + (f" ({names(sorted(waited))})" if waited else "")
    if named:
        reason += f"; {names(suspects)} did not come to a barrier"
    elif behind:
        reason += f"; {names(suspects)} stood at another collective than the rest"
    elif suspects:
        reason += f"; {names(suspects)} reported nothing"
    if aborted:
        who = f"rank {aborted[0].rank}" if aborted[0].rank is not None else f"local rank {aborted[0].local_rank}"
        reason += f"; exit code {aborted[0].exitcode} of {who} is a waiter's own abort"
    return First(None, reason, suspects=tuple(suspects))


def _behind(waits: Sequence[Event]) -> list[int]:
    """The few ranks of a process group whose work number differs from the others', if there are such."""
    numbers: dict[int, int] = {}
    for one in waits:
        if (number := one.figures.get("sequence")) is not None and one.rank is not None and _in_whole(one):
            numbers.setdefault(one.rank, number)
    if not numbers:
        return []
    usual, many = Counter(numbers.values()).most_common(1)[0]
    odd = sorted(rank for rank, number in numbers.items() if number != usual)
    return odd if many >= 2 and len(odd) <= max(1, len(numbers) // 8) else []


def _in_whole(event: Event) -> bool:
    """Whether a watchdog speaks of the group of all ranks: there a rank's number in the group is its own."""
    return _whole(event.figures.get("group")) and event.figures.get("group_rank", event.rank) == event.rank


def _whole(group: str | None) -> bool:
    return group is None or group == "0" or "default_pg" in group


def disagreement(events: Sequence[Event], crew: Crew) -> tuple[Event, ...]:
    """Two ranks that took different ways: of one group, they waited in the same numbered collective with different
    operations or sizes; or every rank of the job waited, so that none was gone, and not in the same collective, where
    it takes all of them: in the group of all ranks, or in any group of a job of two.
    """
    waits = [one for one in events if one.kind == "nccl.timeout" and one.rank is not None and "sequence" in one.figures]
    group_of = {(one.rank, one.figures["sequence"]): one.figures["group"] for one in waits if one.figures.get("group")}
    parts = any(not _whole(group) for group in group_of.values())
    seen: dict[int, Event] = {}
    for event in waits:
        number, what = event.figures["sequence"], _what(event)
        group = group_of.get((event.rank, number))
        if what is None or not _in_whole(event) or not _whole(group) or (group is None and parts):
            continue  # each group counts its own collectives, and nothing says that it was the same one
        other = seen.setdefault(number, event)
        if other.rank != event.rank and _what(other) != what:
            return other, event
    own = {event.rank: event for event in reversed(waits)}
    if not 1 < len(own) == (crew.world or len(crew.siblings)) or any(rank not in own for rank in range(len(own))):
        return ()
    groups = [group_of.get((rank, one.figures["sequence"])) for rank, one in own.items()]
    sure = len(own) == 2 or all(group is not None and _whole(group) for group in groups)
    apart = [one for one in own.values() if _what(one) and _what(own[0]) and _what(one) != _what(own[0])]
    paired = any(one.figures.get("collective") in _PAIRED for one in own.values())
    return (own[0], apart[0]) if sure and apart and not paired else ()


def _what(event: Event) -> tuple[object, object] | None:
    elements = event.figures.get("elements")
    return None if elements is None else (event.figures.get("collective"), elements)
