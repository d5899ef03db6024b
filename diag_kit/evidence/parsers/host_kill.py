"""The host's own memory: killed processes, DataLoader workers, the kernel's and the scheduler's word.

* ``RuntimeError: DataLoader worker (pid 2931) is killed by signal: Killed.`` (SIGKILL: host memory, most often) or
  ``: Bus error.`` with ``ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared
  memory (shm).`` (``/dev/shm``). The traceback around it is whatever the main process was doing when the signal came.
* kernel: ``Out of memory: Killed process 4242 (python)``; a limit of a group: ``Memory cgroup out of memory: Killed
  process``; Slurm: ``Detected 1 oom_kill event in StepId=...``, ``task 3: Out Of Memory``; Kubernetes: ``OOMKilled``;
  Ray's monitor: ``Task was killed due to the node running low on memory``.
* exit codes -9 and 137: SIGKILL, by the kernel, a person or a launcher; -7 and 135: SIGBUS. Never proof alone.
* torch's CPU allocator, numpy and Python: ``DefaultCPUAllocator: can't allocate memory: you tried to allocate N
  bytes``, ``Unable to allocate 113. GiB for an array``, ``MemoryError``.

An empty result means that nothing was killed in a way that these lines tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import SIZE, parse_size
from ..facts import Event
from ..text import Window

LITERALS = (
    "DataLoader worker",
    "bus error",
    "Killed process",
    "Kill process",
    "oom_kill",
    "oom-kill",
    "Out Of Memory",
    "OOMKill",
    "OOM-kill",
    "exitcode",
    "exit code",
    "Exit Code",
    "return code",
    "signal 9",
    "SIGKILL",
    "DefaultCPUAllocator",
    "not enough memory",
    "Unable to allocate",
    "MemoryError",
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
            r"DataLoader worker \(pid[^)]*\) is killed by signal: Bus error|Unexpected bus error encountered in worker"
        ),
    ),
    ("dataloader.exited", "host-oom", "victim", re.compile(r"DataLoader worker \(pid\(s\)[^)]*\) exited unexpectedly")),
    (
        "cgroup.oom-kill",
        "host-oom",
        "originator",
        re.compile(r"[Mm]emory cgroup out of memory|oom-kill:constraint=CONSTRAINT_MEMCG"),
    ),
    (
        "kernel.oom-kill",
        "host-oom",
        "originator",
        re.compile(r"Out of memory: Kill(?:ed)? process|invoked oom-killer|oom-kill:constraint"),
    ),
    (
        "slurm.oom-kill",
        "host-oom",
        "originator",
        re.compile(r"Detected \d{1,15} oom[_-]kill event|tasks? [\d,-]+: Out Of Memory|OUT_OF_MEMORY"),
    ),
    (
        "ray.oom-kill",
        "host-oom",
        "originator",
        re.compile(
            r"due to the node running low on memory|ray\.exceptions\.OutOfMemoryError|killed due to memory pressure \(OOM\)"
        ),
    ),
    ("container.oom-kill", "host-oom", "originator", re.compile(r"\bOOM-?[Kk]ill(?:ed)?\b")),
    (
        "cpu-allocator.oom",
        "host-oom",
        "originator",
        re.compile(
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate (?P<bytes>\d{1,15}) bytes|"
            r"not enough memory: you tried to allocate (?P<bytes2>\d{1,15}) bytes"
        ),
    ),
    ("numpy.oom", "host-oom", "originator", re.compile(rf"Unable to allocate (?P<size>{SIZE}) for an array")),
    ("python.memory-error", "host-oom", "originator", re.compile(r"^MemoryError(?::(?!.*std::bad_alloc: cuda).*)?$")),
    (
        "exit.sigkill",
        "host-oom",
        "originator",
        re.compile(
            r"exitcode:? ?-9\b|exits? with return code = -9\b|[Ee]xit(?:ed with exit)? ?[Cc]ode:? (?:137|-9)\b|SIGKILL|^Killed$|signal 9\b"
        ),
    ),
    (
        "exit.sigbus",
        "shared-memory",
        "originator",
        re.compile(r"exitcode:? ?-7\b|return code = -7\b|[Ee]xit ?[Cc]ode:? 135\b|SIGBUS"),
    ),
)
_PID = re.compile(r"\(?pid[: ]+(\d{1,15})\)?|[Kk]illed process (\d{1,15})")
_VICTIM = re.compile(r"Kill(?:ed)? process \d{1,15}[ ,].{0,40}?\(([^)]{1,40})\)")
_TRAINING = re.compile(r"python|pt_|ray|torch|train|java|deepspeed|accelerate|pytest|jupyter|.*(?:train|worker)", re.I)
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
            if (victim := _VICTIM.search(line.text)) and not _TRAINING.match(victim[1]):
                break  # the kernel killed another program
            said = found.groupdict()
            figures: dict[str, Any] = {}
            if asked := said.get("bytes") or said.get("bytes2"):
                figures["tried_to_allocate_bytes"] = int(asked)
            elif asked := said.get("size"):
                figures["tried_to_allocate_bytes"] = parse_size(asked)
            pid, local = _PID.search(line.text), _LOCAL.search(line.text)
            yield window.event(
                index,
                kind=kind,
                family=family,
                role=role,
                message=line.text.strip()[:500],
                figures=figures,
                pid=int(pid[1] or pid[2]) if pid else line.pid,
                local_rank=int(local[1]) if local else line.local_rank,
                exitcode=-9 if kind == "exit.sigkill" else -7 if kind == "exit.sigbus" else None,
            )
            break
