"""Which event stopped the run, which rank failed first, and who only reported it.

An error of a device beats a wait: a rank that timed out waited for another. The events of one stream (a file and rank)
that no progress separates belong to one failure, of which the first strong event counts: a re-raise, a crash in an
error handler or a launcher's exit code come after. An event that training went on after was recovered from.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from . import first
from .facts import Event, Progress, Traceback
from .frames import place
from .ranks import Crew, assemble
from .run import Run

WEAK_KINDS = frozenset(
    {
        "exit.sigkill",
        "exit.sigbus",
        "cudnn.failed",
        "cublas.alloc-failed",
        "python.exception",
        "wrapper.no-batch-fits",
        "container.oom-kill",
        "tf.device-refused",
        "crash.segfault",
        "cgroup.oom-count",
        "xpu.driver-oom",
        "nccl.cuda-error",
        "nccl.system-error",
    }
)
_OUTSIDE = frozenset(
    {"kernel.oom-kill", "cgroup.oom-kill", "slurm.oom-kill", "hardware.ecc", "preempted", "time-limit"}
)
IMPOSSIBLE_BYTES = 1 << 50
"""A single request of a pebibyte or more is no memory need but a corrupted or overflowed size."""
_NEAR_LINES = 60


@dataclass(frozen=True, slots=True)
class Origin:
    """The failure's beginning.

    Attributes:
        event: what stopped the run; None where nothing shows.
        traceback: the traceback that ends in the event, if any.
        family: of the contract.
        rank: the global rank that failed first, or None; ``reason`` says why.
        alike: several ranks failed with the same error.
        ranks: all ranks seen in the evidence.
        victims: events of ranks that waited or were cleaned up.
        survived: memory events that the run went on after, and warnings.
        disagreement: two waits that show that ranks took different paths through the code.
        suspects: where no rank is named, those that are missing or behind.
        told: all that happened, each event with the role that it turned out to have; mere context left out.
        crew: ranks and processes of the job.
        garbled: the size that was asked for is no need for memory but a corrupted number.
    """

    event: Event | None
    traceback: Traceback | None
    family: str
    rank: int | None
    reason: str
    alike: bool
    ranks: frozenset[int]
    victims: tuple[Event, ...]
    survived: tuple[Event, ...]
    disagreement: tuple[Event, ...] = ()
    suspects: tuple[int, ...] = ()
    told: tuple[Event, ...] = ()
    crew: Crew = field(default_factory=Crew)
    garbled: bool = False


def find(run: Run) -> Origin:
    """The origin of a run's failure."""
    events, crew = assemble(run)
    after = _After(run.progress, events)
    outlived = {id(e) for e in events if e.role in ("recovered", "advisory") or after.went_on(e)}
    survived = tuple(e for e in events if id(e) in outlived)
    victims = tuple(e for e in events if e.role in ("victim", "teardown") and id(e) not in outlived)
    explained = _explained(events)
    suspects = [
        e
        for e in events
        if e.role == "originator"
        and id(e) not in outlived
        and id(e) not in explained
        and not (e.kind in _OUTSIDE and after.finished_elsewhere(e))
    ]
    ended = any(e.kind in ("finished", "epoch-end") for e in events) or run.progress
    if not suspects and not victims and not ended:
        # Nothing else is here: a message that was only quoted may be all that was kept of the failure.
        suspects = [replace(e, role="originator") for e in survived if e.role == "advisory" and e.kind == "torch.oom"]
    streams: dict[tuple[object, ...], list[Event]] = defaultdict(list)
    for event in suspects:
        streams[(event.source.path, event.rank, event.pid if event.rank is None else None)].append(event)
    firsts = [_first_of_cluster(stream) for stream in streams.values()]
    strong = [e for e in firsts if e.kind not in WEAK_KINDS]
    # An exit code names a death, not its cause: any event that tells the cause comes before it.
    telling = _without_echoes(strong or [e for e in firsts if not e.kind.startswith("exit.")] or firsts)
    parted = first.disagreement(events, crew)
    told = tuple(_with_roles(events, outlived, explained, telling))
    if not telling:
        family = "not-memory" if parted else _family_without_event(run, victims, survived)
        why = first.of_waits([e for e in events if id(e) not in outlived], crew)
        rest = (crew.seen, victims, survived, parted, why.suspects, told, crew)
        return Origin(None, None, family, why.rank, why.reason, False, *rest)
    event = _earliest(telling)
    why = first.of_error(event, telling, [e for e in events if id(e) not in outlived], crew)
    if why.rank is not None and event.rank is not None and why.rank != event.rank:
        event = next((e for e in telling if e.rank == why.rank), event)
    traceback = _traceback_of(run, event)
    garbled = _garbled(event, traceback, [e for e in telling if e.kind == event.kind], victims)
    return Origin(
        event=event,
        traceback=traceback,
        family="not-memory" if garbled else event.family,
        rank=why.rank,
        reason=why.reason,
        alike=why.alike,
        ranks=crew.seen,
        victims=victims,
        survived=survived,
        disagreement=parted,
        suspects=why.suspects,
        told=told,
        crew=crew,
        garbled=garbled,
    )


def _garbled(event: Event, traceback: Traceback | None, alike: Sequence[Event], victims: Sequence[Event]) -> bool:
    """Whether the size asked for is a corrupted number: beyond any machine, or beyond the device and read from a peer
    whose message never came.

    A collective of objects first exchanges their sizes. Once the group has timed out, what stands in that buffer is
    arbitrary, and the allocation of so many bytes is the first thing to fail.
    """
    names = ("tried_to_allocate_bytes", "requested_at_least_bytes")
    asked, total = max(int(event.figures.get(name) or 0) for name in names), event.figures.get("total_bytes")
    if asked >= IMPOSSIBLE_BYTES:
        return True
    if not total or asked <= total or traceback is None or place(traceback.frames).operation != "object-collective":
        return False
    waits = [one for one in victims if one.kind == "nccl.timeout"]
    return any(
        one.rank is not None and one.figures.get(names[0]) == event.figures.get(names[0])
        and first.gave_up_before(one, waits)
        for one in alike
    )


def _explained(events: Sequence[Event]) -> set[int]:
    """Ids of events that report another's failure although their words alone could begin one.

    A line that says that a peer is gone, whatever exception carries it; a failed system call of NCCL, where the same
    rank says so around it.
    """
    gone: dict[tuple[str, int | None, int | None], list[int]] = defaultdict(list)
    for event in events:
        if event.role == "victim":
            gone[(event.source.path, event.rank, event.pid)].append(event.source.line or 0)
    explained = set()
    for event in events:
        near = _NEAR_LINES if event.kind == "nccl.system-error" else 0
        if event.kind not in WEAK_KINDS or event.role != "originator":
            continue
        lines = gone.get((event.source.path, event.rank, event.pid), ())
        if any(abs(line - (event.source.line or 0)) <= near for line in lines):
            explained.add(id(event))
    return explained


def _with_roles(
    events: Sequence[Event], outlived: set[int], explained: set[int], telling: Sequence[Event]
) -> list[Event]:
    """All events but mere context, in the roles that they turned out to have."""
    begun = {id(e) for e in telling}
    told = []
    for event in events:
        if event.role == "originator" and id(event) not in begun:
            if id(event) in explained and not event.kind.startswith("nccl."):
                continue  # the same line is told as a victim's
            role = "recovered" if id(event) in outlived else "victim" if id(event) in explained else "confirmation"
            told.append(replace(event, role=role))
        elif event.role != "context":
            told.append(event)
    return told


class _After:
    """What each file shows after a line: later steps, a proper end. By file and rank, so that a question is cheap."""

    def __init__(self, progress: Sequence[Progress], events: Sequence[Event]) -> None:
        latest: dict[tuple[str, int | None], dict[int, int]] = defaultdict(dict)
        for one in progress:
            steps, line = latest[(one.source.path, one.rank)], one.source.line or 0
            if line >= steps.get(one.step, 0):
                steps[one.step] = line
        self._steps = {key: self._last(steps) for key, steps in latest.items()}
        self._everyone: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for (path, _), last in self._steps.items():
            self._everyone[path] += last
        self._ends: dict[str, int] = {}
        for event in events:
            if event.kind == "finished":
                self._ends[event.source.path] = max(event.source.line or 0, self._ends.get(event.source.path, 0))

    @staticmethod
    def _last(steps: dict[int, int]) -> list[tuple[int, int]]:
        """(line, step) of the three steps that were printed last."""
        return heapq.nlargest(3, ((line, step) for step, line in steps.items()))

    def went_on(self, event: Event) -> bool:
        """Whether training went on after an event: three later steps in its stream, or a proper finish."""
        line, path = event.source.line, event.source.path
        if event.family not in ("gpu-oom", "not-memory") or line is None or event.role != "originator":
            return False
        if event.kind == "fsdp.clone-failed":
            return False
        if self._ends.get(path, -1) > line:
            return True
        if event.rank is None:
            here = self._everyone[path]
        else:
            here = [*self._steps.get((path, event.rank), ()), *self._steps.get((path, None), ())]
        return len({step for at, step in here if at > line}) >= 3

    def finished_elsewhere(self, event: Event) -> bool:
        """Whether a log beside the event's tells its own, proper end."""
        return any(path != event.source.path for path in self._ends)


def _first_of_cluster(stream: Sequence[Event]) -> Event:
    """The first strong event of a stream, or its first; within one moment the one that has figures."""
    strong = [e for e in stream if e.kind not in WEAK_KINDS] or list(stream)
    first = strong[0]
    if not first.figures:
        near = [
            e
            for e in strong
            if e.figures and (e.source.line or 0) - (first.source.line or 0) <= _NEAR_LINES and e.family == first.family
        ]
        return near[0] if near else first
    return first


def _without_echoes(events: Sequence[Event]) -> list[Event]:
    """The events without those that a launcher or a thread repeated without a rank, where a rank's own line is here."""
    own = {e.kind for e in events if e.rank is not None}
    return [e for e in events if e.rank is not None or e.kind not in own]


def _earliest(events: Sequence[Event]) -> Event:
    """The first by time where all are stamped; otherwise one that has figures, in file order."""
    if len(events) > 1 and first.one_clock(events):
        return min(events, key=lambda e: e.time or 0.0)
    memory = [e for e in events if e.family in ("gpu-oom", "host-oom", "shared-memory")] or list(events)
    return next((e for e in memory if e.figures), memory[0])


def _traceback_of(run: Run, event: Event) -> Traceback | None:
    """The traceback that ends in the event's line, or the nearest one before it in the same stream."""
    line = event.source.line
    if line is None:
        return None
    near = [
        t
        for t in run.tracebacks
        if t.source.path == event.source.path
        and (t.rank == event.rank or t.rank is None or event.rank is None)
        and (t.source.line or 0) <= line
        and -2 <= line - (t.end_line or line) <= _NEAR_LINES
    ]
    inside = [
        t
        for t in run.tracebacks
        if t.source.path == event.source.path and (t.source.line or 0) <= line <= (t.end_line or 0)
    ]
    # Some writers print the message before Python unwinds: the traceback then begins right after it.
    following = [
        t for t in run.tracebacks if t.source.path == event.source.path and 0 < (t.source.line or 0) - line <= 4
    ]
    pool = inside or near
    return max(pool, key=lambda t: t.end_line or 0) if pool else (following[0] if following else None)


def _family_without_event(run: Run, victims: Sequence[Event], survived: Sequence[Event]) -> str:
    if victims:
        return "undetermined"
    if survived or any(e.kind == "finished" for e in run.events):
        return "ok"
    if any(p.total and p.step >= p.total for p in run.progress):
        return "ok"
    # A log that ends with an epoch's end, and shows no step after it, ends where a run may well stop.
    ends = [e.source for e in run.events if e.kind == "epoch-end"]
    later = [
        p
        for p in run.progress
        if ends and p.source.path == ends[-1].path and (p.source.line or 0) > (ends[-1].line or 0)
    ]
    return "ok" if ends and not later else "undetermined"
