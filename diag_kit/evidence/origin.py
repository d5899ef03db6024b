"""Which event stopped the run, which rank failed first, and who only reported it.

An error of a device beats a wait: a rank that timed out waited for another. The events of one stream (a file and rank)
that no progress separates belong to one failure, of which the first strong event counts: a re-raise, a crash in an
error handler or a launcher's exit code come after. An event that training went on after was recovered from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .facts import Event, Traceback
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
    }
)
_OUTSIDE = frozenset(
    {"kernel.oom-kill", "cgroup.oom-kill", "slurm.oom-kill", "hardware.ecc", "preempted", "time-limit"}
)
IMPOSSIBLE_BYTES = 1 << 50
"""A single request of a pebibyte or more is no memory need but a corrupted or overflowed size."""
_SIGNALS = (-9, -7, -11)
_NEAR_LINES = 60
_BLOCK_LINES = 150
"""A root-cause block quotes the whole traceback of the rank that it names."""


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


def find(run: Run) -> Origin:
    """The origin of a run's failure."""
    events = run.events
    survived = tuple(e for e in events if e.role in ("recovered", "advisory") or _progressed_after(run, e))
    victims = tuple(e for e in events if e.role in ("victim", "teardown") and e not in survived)
    suspects = [e for e in events if e.role == "originator" and e not in survived and not _of_another_run(run, e)]
    ended = any(e.kind in ("finished", "epoch-end") for e in events) or run.progress
    if not suspects and not victims and not ended:
        # Nothing else is here: a message that was only quoted may be all that was kept of the failure.
        suspects = [replace(e, role="originator") for e in survived if e.role == "advisory" and e.kind == "torch.oom"]
    ranks = run.ranks
    streams: dict[tuple[str, int | None], list[Event]] = defaultdict(list)
    for event in suspects:
        streams[(event.source.path, event.rank)].append(event)
    firsts = [_first_of_cluster(stream) for stream in streams.values()]
    strong = [e for e in firsts if e.kind not in WEAK_KINDS]
    # An exit code names a death, not its cause: any event that tells the cause comes before it.
    telling = _without_echoes(strong or [e for e in firsts if not e.kind.startswith("exit.")] or firsts)
    disagreement = _disagreement(events)
    if not telling:
        family = "not-memory" if disagreement else _family_without_event(run, victims, survived)
        reason = "only ranks that waited are shown" if victims else "nothing in the evidence stopped the run"
        return Origin(None, None, family, None, reason, False, ranks, victims, survived, disagreement)
    event = _earliest(telling)
    rank, reason, alike = _initiating(run, telling, event, ranks)
    family = event.family
    asked = max(int(event.figures.get(name) or 0) for name in ("tried_to_allocate_bytes", "requested_at_least_bytes"))
    if asked >= IMPOSSIBLE_BYTES:
        family = "not-memory"
    return Origin(event, _traceback_of(run, event), family, rank, reason, alike, ranks, victims, survived, disagreement)


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


def _of_another_run(run: Run, event: Event) -> bool:
    """Whether a kernel's, scheduler's or driver's line lies beside a log that tells its own, proper end."""
    if event.kind not in _OUTSIDE:
        return False
    finished = {e.source.path for e in run.events if e.kind == "finished"} - {event.source.path}
    return bool(finished)


def _without_echoes(events: Sequence[Event]) -> list[Event]:
    """The events without those that a launcher or a thread repeated without a rank, where a rank's own line is here."""
    own = {e.kind for e in events if e.rank is not None}
    return [e for e in events if e.rank is not None or e.kind not in own]


def _earliest(events: Sequence[Event]) -> Event:
    """The first by time where all are stamped; otherwise one that has figures, in file order."""
    if len(events) > 1 and all(e.time is not None for e in events):
        return min(events, key=lambda e: e.time or 0.0)
    memory = [e for e in events if e.family in ("gpu-oom", "host-oom", "shared-memory")] or list(events)
    return next((e for e in memory if e.figures), memory[0])


def _initiating(run: Run, firsts: Sequence[Event], event: Event, ranks: frozenset[int]) -> tuple[int | None, str, bool]:
    by_rank = {e.rank: e for e in firsts if e.rank is not None and e.kind == event.kind}
    roots = [e for e in run.events if e.kind == "launcher.root-cause"]
    root = next((e for e in roots if e.exitcode in _SIGNALS), None)
    quoting = next(
        (
            e
            for e in roots
            if event.rank is None
            and e.source.path == event.source.path
            and 0 <= (event.source.line or 0) - (e.source.line or 0) <= _BLOCK_LINES
        ),
        None,
    )
    hosts = {e.host for e in run.events if e.host}
    if len(by_rank) > 1:
        if len(by_rank) >= max(2, len(ranks) - 1):
            return None, f"{len(by_rank)} ranks failed alike: a matter of configuration, not of one rank", True
        if all(e.time is not None for e in by_rank.values()):
            return event.rank, f"rank {event.rank} failed first by its time stamp", False
        return (
            None,
            f"ranks {', '.join(map(str, sorted(by_rank)))} failed, and no time stamp says which was first",
            False,
        )
    if len(by_rank) == 1 and event.rank is not None:
        if len(ranks) > 1:
            return (
                event.rank,
                f"rank {event.rank} alone shows an error of its own; the other ranks waited or were stopped",
                False,
            )
        named = next((e for e in roots if e.rank == event.rank), None)
        if named is not None or (any(e.role == "teardown" for e in run.events) and event.pid is None):
            return event.rank, f"rank {event.rank} raised the error, and the launcher stopped the others", False
        return (
            None,
            f"only lines of rank {event.rank} are here: nothing tells whether another rank failed before it",
            False,
        )
    if quoting is not None:
        return quoting.rank, f"the launcher's root-cause block quotes this error of rank {quoting.rank}", False
    if root is not None and event.kind.startswith("exit."):
        return root.rank, f"the launcher saw rank {root.rank} die by signal {-(root.exitcode or 0)} first", False
    if (
        event.local_rank is not None
        and event.kind.startswith("exit.")
        and len(hosts) <= 1
        and "local_rank: " in event.message
    ):
        return (
            event.local_rank,
            f"the launcher saw local rank {event.local_rank} die by a signal; one node is shown",
            False,
        )
    return None, "the evidence names no rank", False


def _progressed_after(run: Run, event: Event) -> bool:
    """Whether training went on after an event: three later steps in its stream, or a proper finish."""
    if event.family not in ("gpu-oom", "not-memory") or event.source.line is None or event.role != "originator":
        return False
    if event.kind == "fsdp.clone-failed":
        return False
    here = [
        p
        for p in run.progress
        if p.source.path == event.source.path and (p.rank == event.rank or p.rank is None or event.rank is None)
    ]
    after = {p.step for p in here if (p.source.line or 0) > event.source.line}
    own = [e for e in run.events if e.source.path == event.source.path and (e.source.line or 0) > event.source.line]
    if any(e.kind == "finished" for e in own):
        return True
    return len(after) >= 3


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


def _disagreement(events: Sequence[Event]) -> tuple[Event, ...]:
    """Two ranks that waited in the same numbered collective with different operations or sizes."""
    seen: dict[int, Event] = {}
    for event in events:
        number = event.figures.get("sequence")
        if (
            event.kind != "nccl.timeout"
            or number is None
            or event.rank is None
            or event.figures.get("elements") is None
        ):
            continue
        other = seen.setdefault(number, event)
        same = (other.figures.get("collective"), other.figures.get("elements")) == (
            event.figures.get("collective"),
            event.figures.get("elements"),
        )
        if other.rank != event.rank and not same:
            return other, event
    return ()


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
