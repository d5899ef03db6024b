"""What would settle a diagnosis that the evidence leaves open, most useful first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .evidence.figures import Figures
from .evidence.ranks import names
from .findings import Finding, Missing


def missing_of(figures: Figures, family: str, findings: Sequence[Finding]) -> tuple[Missing, ...]:
    """What would settle the question: of the general facts those that are absent, then the needs of the best findings
    in turn.
    """
    if family == "ok" or (findings and findings[0].verdict == "confirmed"):
        return ()
    asked: list[Missing] = list(_general(figures))
    queues = [list(finding.missing) for finding in findings[:3] if finding.verdict != "ruled-out"]
    while any(queues):
        asked += [queue.pop(0) for queue in queues if queue]
    asked += _afterwards(figures, family)
    seen: set[str] = set()
    unique = [one for one in asked if not (one.kind in seen or seen.add(one.kind))]  # type: ignore[func-returns-value]
    return tuple(unique[:6])


def _general(figures: Figures) -> Iterable[Missing]:
    origin = figures.origin
    if origin.disagreement and origin.event is None:
        yield Missing(
            "full-traceback",
            "The line of the code from which each of these ranks called its collective.",
            "py-spy dump --pid PID    # of each rank, while it hangs",
        )
        return
    if origin.event is None and (origin.victims or origin.suspects):
        rest = "the ranks that no line here comes from" if origin.ranks else "every rank"
        absent = names(origin.suspects) if origin.suspects else rest
        said = "the ranks shown only waited for another" if origin.rank is None else "what is here only reports its end"
        yield Missing(
            "other-rank-logs",
            f"The log{'' if len(origin.suspects) == 1 else 's'} of {absent}: {said}.",
            "collect stdout and stderr of every rank, for instance torchrun --log-dir logs --redirects 3 --tee 3 ...",
        )
    if origin.event is None:
        yield Missing(
            "full-log",
            "The log to its very end: nothing here shows how the run ended.",
            "run the job with its output in a file: your-command > run.log 2>&1",
        )


def _afterwards(figures: Figures, family: str) -> Iterable[Missing]:
    event = figures.origin.event
    if event is not None and family in ("host-oom", "shared-memory"):
        yield Missing(
            "kernel-log",
            "The kernel's word on what it killed, and why.",
            "dmesg -T | grep -iE 'oom|killed process|bus error' (on the node that failed)",
        )
        yield Missing(
            "host-memory",
            "Host and shared memory while the run goes.",
            "free -g -s 10 & df -h /dev/shm; cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.events",
        )
    if event is None or family != "gpu-oom":
        return
    if not figures.values.get("has_sizes"):
        yield Missing(
            "oom-message",
            "The whole out-of-memory message, with the sizes asked for, free and reserved.",
            "attach the lines from 'out of memory' to the end of the message, or rerun with torch >= 2.1",
        )
    if figures.origin.traceback is None:
        yield Missing(
            "full-traceback",
            "The traceback above the message: it names the phase and the operation.",
            "attach 60 lines before the message; for asynchronous errors rerun with CUDA_LAUNCH_BLOCKING=1",
        )
    yield Missing(
        "gpu-processes",
        "Who held memory on the device when it failed.",
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
    )
    if "reproduced" not in figures.values:
        yield Missing(
            "reproduction",
            "Whether the same input fails again, alone on a free device.",
            "rerun the failing step on a free GPU with the same seed: diag-kit reproduce RUN writes the script",
        )
