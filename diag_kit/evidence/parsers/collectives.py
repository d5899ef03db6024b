"""NCCL and its watchdog: ranks that waited, ranks that disagreed, and NCCL's own allocations that failed.

* ``Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3437, OpType=ALLREDUCE, NumelIn=4311252, ...,
  Timeout(ms)=600000) ran for 600057 milliseconds``: a victim; it began to wait "ran for" earlier.
* the same SeqNum with another OpType or NumelIn on another rank: the ranks took different paths through the code.
* ``last enqueued NCCL work: 516, last completed NCCL work: 5``: that rank was healthy and waiting.
* ``Failed to CUDA calloc``, ``Cuda failure 'out of memory'`` under NCCL: memory of the communication library, outside
  torch's allocator.
* ``ncclRemoteError``, ``Connection closed by remote peer``, ``communicator was aborted``: a victim.

An empty result means that no collective complained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..facts import Event
from ..text import Window

LITERALS = (
    "collective operation timeout",
    "Timeout at NCCL work",
    "Failed to CUDA calloc",
    "Cuda failure",
    "ncclRemoteError",
    "onnection closed by",
    "onnection reset by peer",
    "communicator was aborted",
    "ncclSystemError",
    "last enqueued NCCL work",
    "remote process exited",
)

_WORK = re.compile(r"SeqNum=(\d{1,15}), OpType=(\w+)(?:, NumelIn=(\d{1,15}))?")
_MEMBER = re.compile(r":(\d{1,15}):\d{1,15} \[\d{1,15}\] NCCL INFO comm \S+ rank (\d{1,15}) nranks")
_PROCESS = re.compile(r"^([\w.-]+):(\d{1,15}):\d{1,15} \[\d{1,15}\]")
_RAN = re.compile(r"ran for (?:more than )?(\d{1,15}) milliseconds")
_KINDS = (
    (
        "nccl.oom",
        "gpu-oom",
        "originator",
        re.compile(r"Failed to CUDA calloc|Cuda failure (?:\d{1,15} )?'out of memory'"),
    ),
    (
        "nccl.timeout",
        "undetermined",
        "victim",
        re.compile(r"Watchdog caught collective operation timeout|Timeout at NCCL work|last enqueued NCCL work"),
    ),
    (
        "nccl.remote-error",
        "undetermined",
        "victim",
        re.compile(r"ncclRemoteError|[Cc]onnection (?:closed|reset) by|communicator was aborted|remote process exited"),
    ),
)


def parse(window: Window) -> Iterator[Event]:
    """Events ``nccl.oom``, ``nccl.timeout``, ``nccl.remote-error``; NCCL's own lines name the rank of each process."""
    rank_of = {
        found[1]: int(found[2])
        for line in window.lines
        if "nranks" in line.text and (found := _MEMBER.search(line.text))
    }
    for index, line in enumerate(window.lines):
        if not any(literal in line.text for literal in LITERALS):
            continue
        for kind, family, role, pattern in _KINDS:
            if not pattern.search(line.text):
                continue
            figures: dict[str, Any] = {}
            if work := _WORK.search(line.text):
                figures = {
                    "sequence": int(work[1]),
                    "collective": work[2],
                    "elements": int(work[3]) if work[3] else None,
                }
            if ran := _RAN.search(line.text):
                figures["waited_seconds"] = int(ran[1]) / 1000
            process = _PROCESS.match(line.text)
            rank = rank_of.get(process[2], line.rank) if process else line.rank
            yield window.event(
                index,
                rank=rank,
                kind=kind,
                family=family,
                role=role,
                figures=figures,
                message=line.text.strip()[:500],
                host=process[1] if process else line.host,
            )
            break
