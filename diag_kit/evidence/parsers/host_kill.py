"""Processes that were killed: DataLoader workers, Ray's workers, exit codes of signals.

* ``RuntimeError: DataLoader worker (pid 2931) is killed by signal: Killed.`` (SIGKILL: host memory, most often) or
  ``: Bus error.`` with ``ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared
  memory (shm).`` (``/dev/shm``). The traceback around it is whatever the main process was doing when the signal came.
  Paddle writes ``Unexpected BUS error encountered in DataLoader worker.``
* UCX' handler: ``[node:5283 :0:5704] Caught signal 7 (Bus error: nonexistent physical address)`` and a backtrace. That
  address is one of a mapped file whose pages could not be had, as when ``/dev/shm`` is full; where the backtrace goes
  through NCCL (``nccl.bus-error``) the file is one of the segments by which it joins the ranks of a host.
* Ray's monitor: ``Task was killed due to the node running low on memory``.
* a shell's ``job.sh: line 28:  8156 Killed      python3 main.py``, srun's ``task 1: Killed``, exit codes -9 and 137: SIGKILL, by the kernel, a person or a launcher; -7 and 135: SIGBUS. Never proof alone.

An empty result means that nothing was killed in a way that these lines tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..facts import Event
from ..text import Window

LITERALS = (
    "DataLoader worker",
    "bus error",
    "BUS error",
    "Caught signal 7",
    "exitcode",
    "exit code",
    "Exit Code",
    "return code",
    "signal 9",
    "SIGKILL",
    "Killed",
    "low on memory",
    "OutOfMemoryError",
    "memory pressure",
)

_KINDS: tuple[tuple[str, str, str, re.Pattern[str]], ...] = (
    (
        "dataloader.killed",
        "host-oom",
        "originator",
        re.compile(r"DataLoader worker \(pid[^)]*\) is killed by signal: Killed"),
    ),
    (
        "dataloader.bus-error",
        "shared-memory",
        "originator",
        re.compile(
            r"DataLoader worker \(pid[^)]*\) is killed by signal: Bus error"
            r"|Unexpected (?:bus|BUS) error encountered in (?:DataLoader )?worker"
        ),
    ),
    ("dataloader.exited", "host-oom", "victim", re.compile(r"DataLoader worker \(pid\(s\)[^)]*\) exited unexpectedly")),
    (
        "ray.oom-kill",
        "host-oom",
        "originator",
        re.compile(
            r"due to the node running low on memory|ray\.exceptions\.OutOfMemoryError|killed due to memory pressure \(OOM\)"
        ),
    ),
    (
        "exit.sigkill",
        "host-oom",
        "originator",
        re.compile(
            r"exitcode:? ?-9\b|exits? with return code = -9\b|[Ee]xit(?:ed with exit)? ?[Cc]ode:? (?:137|-9)\b|SIGKILL|^Killed$|signal 9\b|"
            r"\bline \d{1,9}: {1,9}\d{1,9} Killed\b|error: \S{1,200}: tasks? [\d,-]{1,200}: Killed$"
        ),
    ),
    (
        "exit.sigbus",
        "shared-memory",
        "originator",
        re.compile(r"exitcode:? ?-7\b|return code = -7\b|[Ee]xit ?[Cc]ode:? 135\b|SIGBUS|Caught signal 7 \(Bus error"),
    ),
)
_PID = re.compile(r"\(?pid[: ]{1,4}(?P<pid>\d{1,15})\)?")
_CAUGHT = re.compile(r"\[(?P<host>[\w.-]{1,100}):(?P<pid>\d{1,10}) {0,4}:\d{1,6}:\d{1,10}\] Caught signal 7 .*nonexistent phys")
_BELOW = 12
"""Lines of a backtrace in which the library that crashed shows."""
_LOCAL = re.compile(r"local_rank: (\d{1,15})")


def parse(window: Window) -> Iterator[Event]:
    """Events of families host-oom and shared-memory."""
    for index, line in enumerate(window.lines):
        if not any(literal in line.text for literal in LITERALS):
            continue
        for kind, family, role, pattern in _KINDS:
            found = pattern.search(line.text.strip())
            if not found:
                continue
            if (caught := _CAUGHT.search(line.text)) and _in_nccl(window, index):
                kind = "nccl.bus-error"
            pid, local = caught or _PID.search(line.text), _LOCAL.search(line.text)
            yield window.event(
                index,
                kind=kind,
                family=family,
                role=role,
                message=line.text.strip()[:500],
                pid=int(pid["pid"]) if pid else line.pid,
                host=caught["host"] if caught else line.host,
                local_rank=int(local[1]) if local else line.local_rank,
                exitcode=-9 if kind == "exit.sigkill" else -7 if kind in ("exit.sigbus", "nccl.bus-error") else None,
            )
            break


def _in_nccl(window: Window, index: int) -> bool:
    """Whether the backtrace below goes through NCCL; lines of other processes may stand between."""
    return any(" nccl" in line.text or "libnccl" in line.text for line in window.lines[index + 1 : index + 1 + _BELOW]
               if "NCCL " not in line.text)  # fmt: skip
