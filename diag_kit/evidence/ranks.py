"""Which process is which rank, how many ranks there are, and which of them say nothing.

No line tells it all. Process ids tie lines together: a watchdog's prefix knows a rank, an out-of-memory message knows
the ids of its neighbours, NCCL and launchers know both. On one node ranks count up with the local rank, and, where two
processes or more show it, with the process id. What does not follow from the lines stays unknown.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .facts import Event, Process, World
from .run import Run
from .text import rank_of_path

MOST = 1 << 20
"""No job has more ranks; a larger number is none."""
LISTED = 12
"""Ranks named in a sentence; of more, the rest is counted."""
_NODE_PARTS = re.compile(r"^(?:attempt_\d+|std(?:out|err)|logs?|\d+)$")


@dataclass(frozen=True, slots=True)
class Crew:
    """The processes of a job.

    Attributes:
        seen: ranks that a line or a fact comes from.
        world: how many ranks the job has at least, None where nothing tells.
        exact: whether ``world`` is the whole number.
        siblings: process ids that are known to be the job's own.
        devices: CUDA device of a process, by process id, as it counts itself.
    """

    seen: frozenset[int] = frozenset()
    world: int | None = None
    exact: bool = False
    siblings: frozenset[int] = frozenset()
    devices: Mapping[int, int] = field(default_factory=dict)

    def absent(self, present: Iterable[int]) -> list[int]:
        """Ranks that must exist and are not among ``present``: below the world's size, or below the highest seen."""
        there = set(present)
        return [rank for rank in range(max(self.world or 0, max(self.seen, default=-1) + 1)) if rank not in there]


def names(ranks: Sequence[int]) -> str:
    """Ranks in words, runs of them shortened, long lists cut and counted.

    >>> names([3]), names([0, 1, 2, 3, 7]), names([5, 6])
    ('rank 3', 'ranks 0-3, 7', 'ranks 5, 6')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [f"{a}-{b}" if b > a + 1 else f"{a}, {b}" if b > a else str(a) for a, b in runs[:LISTED]]
    left = sum(b - a + 1 for a, b in runs[LISTED:])
    more = f" and {left:,} more" if left else ""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(parts) + more


def assemble(run: Run) -> tuple[list[Event], Crew]:
    """The events of a run, each with the rank that other lines give its process or place, and the crew.

    A rank that only a file's name tells is taken back where folders of several nodes tell the same one: it then counts
    on its node.
    """
    processes = run.of(Process)
    sizes = [world for world in run.of(World) if 0 < world.size <= MOST]
    stated = run.settings.get("world_size")
    least = stated.value if stated and isinstance(stated.value, int) and stated.value <= MOST else 0
    world = max([world.size for world in sizes] + [least], default=0) or None
    widest = max((process.of for process in processes if process.of), default=None)
    sure = [p for p in processes if p.of is None or p.of == (world or widest)]
    pids = _pids(sure, world)
    told = run.events
    local = _Local(run, told, sure, sizes)
    events = []
    for event in told:
        placed = local.settle(event)
        if placed.rank is None and placed.pid is not None:
            rank = _agreed(pids.get(placed.pid, ()), placed)
            placed = replace(placed, rank=rank) if rank is not None else placed
        if placed.rank is None and (own := _left_out(placed, pids, world)):
            placed = replace(placed, pid=own[0], rank=own[1])
        events.append(placed)
    seen = {rank for rank in run.ranks if rank < MOST} - local.doubtful
    seen |= {event.rank for event in events if event.rank is not None and event.rank < MOST}
    known = {process.pid for process in processes if process.pid is not None} | set(pids)
    devices = {p.pid: p.device for p in sure if p.pid is not None and p.device is not None}
    exact = any(one.size == world and not one.least for one in sizes)
    return events, Crew(frozenset(seen), world, exact, frozenset(known), devices)


_Known = tuple[str | None, str, int]
"""Host, path and rank that one line gives a process."""


def _pids(processes: Sequence[Process], world: int | None) -> dict[int, list[_Known]]:
    """Process id -> what is known of it; on a single node, ids that count up with the ranks fill the gaps."""
    found: dict[int, list[_Known]] = defaultdict(list)
    offsets: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for pid, rank, host, path in dict.fromkeys((p.pid, p.rank, p.host, p.source.path) for p in processes):
        if pid is not None and rank is not None:
            found[pid].append((host, path, rank))
            offsets[(host or "", "" if host else path)][pid - rank] += 1
    if len(offsets) == 1 and world and world <= 64:  # ranks of one machine
        ((host, path), counted), *_ = offsets.items()
        offset, agreeing = counted.most_common(1)[0]
        if agreeing >= 2 and len(counted) == 1:
            for rank in range(world):
                found.setdefault(offset + rank, [(host or None, path, rank)])
    return found


def _agreed(known: Iterable[_Known], event: Event) -> int | None:
    """The one rank that all lines give this process, on its host or in its file where they tell."""
    same = [one for one in known if not (one[0] and event.host) or one[0] == event.host]
    near = [one for one in same if one[1] == event.source.path] or same
    ranks = {rank for _, _, rank in near}
    return ranks.pop() if len(ranks) == 1 else None


def _left_out(event: Event, pids: Mapping[int, list[_Known]], world: int | None) -> tuple[int, int] | None:
    """Process id and rank of a message that lists all of the job's processes but one, and itself as another."""
    listed = set(event.figures.get("other_process_ids") or ())
    if world is None or event.figures.get("process_in_use_bytes") is None or len(pids) != world or world < 3:
        return None
    own = pids.keys() - listed
    if len(own) != 1:
        return None
    pid = own.pop()
    rank = _agreed(pids[pid], event)
    return None if rank is None else (pid, rank)


class _Local:
    """Ranks that count on a node, made global where a line of that node tells where its ranks begin."""

    def __init__(
        self, run: Run, events: Sequence[Event], processes: Sequence[Process], worlds: Sequence[World]
    ) -> None:
        self._named = {file.path: rank for file in run.files if (rank := rank_of_path(file.path)) is not None}
        folders: dict[int, set[str]] = defaultdict(set)
        for path, rank in self._named.items():
            folders[rank].add(_node(path))
        self._twice = {path for path, rank in self._named.items() if len(folders[rank]) > 1}
        self.doubtful = {self._named[path] for path in self._twice}
        self._bases: dict[str, set[int]] = defaultdict(set)
        for rank, local, host, path in dict.fromkeys((p.rank, p.local_rank, p.host, p.source.path) for p in processes):
            if rank is not None and local is not None and rank >= local:
                self._bases[f"host {host}" if host else f"file {path}"].add(rank - local)
                self._bases[f"file {path}"].add(rank - local)
        for event in events:
            if event.source.path in self._twice and event.rank is not None:
                base = event.rank - self._named[event.source.path]
                if base > 0:
                    self._bases[f"node {_node(event.source.path)}"].add(base)
        nodes = {_node(path) for path in self._twice}
        told = {node for node in nodes if f"node {node}" in self._bases}
        if told and len(nodes - told) == 1:  # the others' ranks begin later, so this node's begin at 0
            self._bases[f"node {(nodes - told).pop()}"].add(0)
        self._alone = bool(worlds) and all(world.nodes == 1 for world in worlds if world.nodes is not None)
        self._alone &= any(world.nodes == 1 for world in worlds)

    def settle(self, event: Event) -> Event:
        path = event.source.path
        if path in self._twice and event.rank == self._named[path]:
            local, node = self._named[path], _node(path)
            bases = self._bases.get(f"node {node}", set())
            rank = next(iter(bases)) + local if len(bases) == 1 else None
            return replace(event, rank=rank, local_rank=local, host=event.host or node or None)
        if event.rank is not None or event.local_rank is None:
            return event
        keys = (f"host {event.host}", f"file {path}") if event.host else (f"file {path}",)
        for key in keys:
            bases = self._bases.get(key, set())
            if len(bases) == 1:
                return replace(event, rank=next(iter(bases)) + event.local_rank)
        return replace(event, rank=event.local_rank) if self._alone else event


def _node(path: str) -> str:
    """The part of a path that may name a node: its folders, without those that number attempts, ranks and streams."""
    return "/".join(part for part in path.replace("\\", "/").split("/")[:-1] if not _NODE_PARTS.match(part))
