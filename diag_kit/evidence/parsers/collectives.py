"""NCCL and its watchdog: ranks that waited, ranks that disagreed, and NCCL's own failures.

* ``Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3437, OpType=ALLREDUCE, NumelIn=4311252, ...,
  Timeout(ms)=600000) ran for 600057 milliseconds``: a victim; it began to wait "ran for" earlier.
* the same SeqNum with another OpType or NumelIn on another rank of the group: the ranks took different paths.
* ``[PG ID 0 PG GUID 0(default_pg) Rank 1] Timeout at NCCL work: 6, last enqueued NCCL work: 516, last completed NCCL
  work: 5``: that rank was healthy and waiting. ``Rank 1`` counts within the group; the line's prefix knows the rank.
* ``Ranks 3, 5 failed to pass monitoredBarrier``: who did not come.
* ``Failed to CUDA calloc``, ``Cuda failure 'out of memory'`` under NCCL: memory of the communication library, outside
  torch's allocator. ``Error while creating shared memory segment``: /dev/shm is full.
* ``node-a:10:11 [3] NCCL INFO init.cc:1 -> 1``: result codes. 1 (a CUDA call failed) and 2 (a system call failed) begin a
  failure, 3 (a proxy or socket ended) and 6 (the remote side is gone) report one; torch says the same in words.
* ``ncclInvalidUsage``, ``ncclInvalidArgument``: the call or the configuration is wrong (a network plugin that is not
  there, two ranks on one device), and no memory is involved.
* ``ncclRemoteError``, ``Connection closed by remote peer``, ``communicator was aborted``, a broken store: a victim.

An empty result means that no collective complained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..facts import Event
from ..text import Window

LITERALS = (
    "Watchdog caught collective",
    "Timeout at NCCL work",
    "Failed to CUDA calloc",
    "Cuda failure",
    "onnection closed by",
    "onnection reset by peer",
    "communicator was aborted",
    "last enqueued NCCL work",
    "remote process exited",
    "monitoredBarrier",
    "creating shared memory segment",
    "dump signal from",
    "eartbeat monitor timed out",
    "watchdog got stuck",
    "unhandled cuda error",
    "unhandled system error",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclRemoteError",
    "ncclInvalid",
    "DistStoreError",
    "DistNetworkError",
    "BrokenPipeError",
    "ConnectionResetError",
    ".cc:",
    ".h:",
)

ROLL_CALL = ("Watchdog caught collective", "last enqueued NCCL work")
"""A thousand ranks print these once each."""

_WORK = re.compile(r"SeqNum=(\d{1,15}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,15}))?")
_AT = re.compile(r"\bwork: (\d{1,15}), last enqueued NCCL work: (-?\d{1,15}), last completed NCCL work: (-?\d{1,15})")
_GROUP = re.compile(
    r"\[(?:PG (?:ID )?(?P<id>\w{1,40}) (?:PG GUID (?P<guid>\w{1,40}(?:\([^)]{0,80}\))?) )?)?Rank (?P<rank>\d{1,6})\]"
)
_PROCESS = re.compile(r"^([\w.-]{1,100}):(\d{1,10}):\d{1,10} \[(\d{1,4})\] (?:[\w./-]{1,100}:\d{1,6} )?NCCL ")
_CHAIN = re.compile(r"\.(?:cc|h):\d{1,6} -> ([1-9])\b")
_RAN = re.compile(r"ran for (?:more than )?(\d{1,15}) milliseconds")
_ABSENT = re.compile(r"Ranks? ((?:\d{1,6}(?:, )?){1,2000}) failed to pass monitoredBarrier")
_KINDS = (
    ("nccl.oom", "gpu-oom", "originator", re.compile(r"Failed to CUDA calloc|Cuda failure (?:\d{1,15} )?'out of memory'")),
    ("nccl.shared-memory", "shared-memory", "originator", re.compile(r"Error while creating shared memory segment")),
    (
        "nccl.timeout",
        "undetermined",
        "victim",
        re.compile(
            r"Watchdog caught collective|Timeout at NCCL work|last enqueued NCCL work|monitoredBarrier"
            r"|dump signal from (?:another|this) rank|[Hh]eartbeat monitor timed out|watchdog got stuck"
        ),
    ),
    (
        "nccl.remote-error",
        "undetermined",
        "victim",
        re.compile(
            r"ncclRemoteError|[Cc]onnection (?:closed|reset) by|communicator was aborted|remote process exited"
            r"|^(?:[\w.]{1,80}\.)?(?:Dist(?:Store|Network)Error|BrokenPipeError|ConnectionResetError)\b"
        ),
    ),
    ("nccl.internal-error", "undetermined", "victim", re.compile(r"ncclInternalError")),
    ("nccl.misuse", "not-memory", "originator", re.compile(r"ncclInvalid(?:Usage|Argument)\b")),
    ("nccl.cuda-error", "undetermined", "originator", re.compile(r"unhandled cuda error|ncclUnhandledCudaError")),
    ("nccl.system-error", "undetermined", "originator", re.compile(r"unhandled system error|ncclSystemError")),
)
_CODES = {"1": "nccl.cuda-error", "2": "nccl.system-error", "3": "nccl.internal-error", "6": "nccl.remote-error"}
_ROLES = {kind: role for kind, _, role, _ in _KINDS}


def parse(window: Window) -> Iterator[Event]:
    """Events ``nccl.*``; of a chain of result codes one event for each process and code."""
    chains: set[tuple[str, str, str]] = set()
    for index, line in enumerate(window.lines):
        text = line.text
        if not any(literal in text for literal in LITERALS):
            continue
        process = _PROCESS.match(text)
        known = next((one for one in _KINDS if one[3].search(text)), None)
        if known:
            kind, family, role, _ = known
        else:
            code = _CHAIN.search(text) if process else None
            kind = _CODES.get(code[1], "") if code else ""
            key = (process[1], process[2], kind) if process else ("", "", "")
            if not kind or key in chains:
                continue
            chains.add(key)
            family, role = "undetermined", _ROLES[kind]
        yield window.event(
            index,
            kind=kind,
            family=family,
            role=role,
            figures=_figures(text) if kind == "nccl.timeout" else {},
            message=(window.joined(index, lines=3) if kind == "nccl.misuse" else text).strip()[:500],
            device=int(process[3]) if process else None,
        )


def _figures(text: str) -> dict[str, Any]:
    """What a watchdog tells of the work that it waited for, and of its group."""
    figures: dict[str, Any] = {}
    if work := _WORK.search(text):
        elements = int(work[3]) if work[3] else None
        figures = {"sequence": int(work[1]), "collective": work[2], "elements": elements}
    if at := _AT.search(text):
        figures |= {"sequence": int(at[1]), "enqueued": int(at[2]), "completed": int(at[3])}
    if ran := _RAN.search(text):
        figures["waited_seconds"] = int(ran[1]) / 1000
    if group := _GROUP.search(text, 0, 600):
        figures |= {"group": group["guid"] or group["id"], "group_rank": int(group["rank"])}
    if absent := _ABSENT.search(text):
        figures["absent_ranks"] = [int(rank) for rank in re.findall(r"\d+", absent[1])]
    return figures
