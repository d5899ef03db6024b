"""Launchers and schedulers: who was cleaned up, who they say failed, who was stopped on purpose.

* torchelastic: ``Sending process 197 closing signal SIGTERM`` (a survivor), ``failed (exitcode: 1) local_rank: 3 (pid:
  29577) of binary: ...``, and the block ``Root Cause (first observed failure):`` with ``rank : 3 (local_rank: 3)``.
* DeepSpeed: ``Killing subprocess 21207`` lists every local process, whoever died.
* Slurm and submitit: ``CANCELLED AT ... DUE TO TIME LIMIT``, ``DUE TO PREEMPTION``, ``DUE TO JOB REQUEUE``,
  ``this job is preempted``.

An empty result means that no launcher reported an end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..facts import Event
from ..text import Window

LITERALS = (
    "closing signal SIGTERM",
    "failed (exitcode",
    "Root Cause",
    "Killing subprocess",
    "CANCELLED AT",
    "preempt",
    "Preempt",
    "PREEMPT",
    "time limit",
    "TIME LIMIT",
    "  rank ",
    "local_rank:",
)

_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,15})\) local_rank: (\d{1,15}) \(pid: (\d{1,15})\)")
_ROOT_RANK = re.compile(r"^\s*rank\s+: (\d{1,15}) \(local_rank: (\d{1,15})\)")
_ROOT_EXIT = re.compile(r"^\s*exitcode\s+: (-?\d{1,15}) \(pid: (\d{1,15})\)")
_ROOT_HOST = re.compile(r"^\s*host\s+: (\S+)")
_SIGTERM = re.compile(r"Sending process (\d{1,15}) closing signal SIGTERM|Killing subprocess (\d{1,15})")
_STOPPED = re.compile(r"this job is preempted|DUE TO (?:PREEMPTION|JOB REQUEUE)|[Pp]reempted by|received preemption")
_TIME_LIMIT = re.compile(r"DUE TO TIME LIMIT|(?:reached|exceeded) (?:the )?time limit")


def parse(window: Window) -> Iterator[Event]:
    """Events ``launcher.sigterm``, ``launcher.failed``, ``preempted`` and ``time-limit``."""
    for index, line in enumerate(window.lines):
        text = line.text
        common: dict[str, Any] = {
            "source": window.source(index),
            "message": text.strip()[:400],
            "host": line.host,
            "time": line.time,
        }
        if found := _SIGTERM.search(text):
            yield Event(
                kind="launcher.sigterm", family="undetermined", role="teardown", pid=int(found[1] or found[2]), **common
            )
        elif found := _FAILED.search(text):
            yield Event(
                kind="launcher.failed",
                family="undetermined",
                role="context",
                exitcode=int(found[1]),
                local_rank=int(found[2]),
                pid=int(found[3]),
                **common,
            )
        elif "Root Cause" in text:
            yield from _block(window, index)
        elif _STOPPED.search(text):
            yield Event(kind="preempted", family="not-memory", **common)
        elif _TIME_LIMIT.search(text):
            yield Event(kind="time-limit", family="not-memory", **common)


def _block(window: Window, start: int) -> Iterator[Event]:
    """torchelastic's root-cause block: the failure that one node's agent noticed first."""
    rank = local = code = pid = host = None
    for line in window.lines[start + 1 : start + 10]:
        if found := _ROOT_RANK.match(line.text):
            rank, local = int(found[1]), int(found[2])
        elif found := _ROOT_EXIT.match(line.text):
            code, pid = int(found[1]), int(found[2])
        elif found := _ROOT_HOST.match(line.text):
            host = found[1]
    if rank is not None:
        yield Event(
            source=window.source(start),
            rank=rank,
            kind="launcher.root-cause",
            family="undetermined",
            role="context",
            message=f"root cause by the launcher: rank {rank}, exit code {code}",
            exitcode=code,
            pid=pid,
            local_rank=local,
            host=host,
        )
