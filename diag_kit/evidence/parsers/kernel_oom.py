"""The kernel's out-of-memory killer, as dmesg, journalctl, syslog or a control group's counters show it.

* ``python3 invoked oom-killer: gfp_mask=...`` opens a report; ``memory: usage 8388608kB, limit 8388608kB, failcnt 12``
  states a control group's limit, ``33554432 pages RAM`` what the host has, in pages of 4 KiB.
* ``oom-kill:constraint=CONSTRAINT_MEMCG,...,oom_memcg=/kubepods/pod1,task=python,pid=629,uid=0`` (5.0 on): the limit of a
  container or job; ``CONSTRAINT_NONE``: the whole host was short.
* ``Out of memory: Killed process 4242 (python3) total-vm:184429220kB, anon-rss:120535680kB, file-rss:69120kB,
  shmem-rss:3072kB``; of a group ``Memory cgroup out of memory: Killed process ...``; before 4.x ``Kill process 4242
  (python) score 945 or sacrifice child`` and ``Killed process 4242, UID 1801, (python) total-vm:...``.
* ``memory.events``: ``oom_kill 1``, above it ``max 1234`` and ``oom 2``: counted since the group was made.

A report is one event, at the line that names the victim; another program's death is none. The killer's choice is not
the cause: it names who was largest. An empty result means that the kernel killed nothing, or that its log is not here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from ...units import KIB
from ..facts import Event
from ..text import Window

LITERALS = ("Killed process", "Kill process", "invoked oom-killer", "oom-kill:constraint", "oom_kill ")

_KILLED = re.compile(r"Kill(?:ed)? process (\d{1,9})\b[ ,].{0,40}?\(([^)]{1,40})\)")
_OPENED = re.compile(r"(\S{1,40}) invoked oom-killer")
_CONSTRAINT = re.compile(r"oom-kill:constraint=CONSTRAINT_(\w{1,20})")
_TASK = re.compile(r"\btask=([^,]{1,40}),pid=(\d{1,9})")
_SIZES = (
    ("killed_virtual_bytes", re.compile(r"total-vm:(\d{1,15})kB")),
    ("killed_rss_bytes", re.compile(r"anon-rss:(\d{1,15})kB")),
    ("killed_file_bytes", re.compile(r"file-rss:(\d{1,15})kB")),
    ("killed_shared_bytes", re.compile(r"shmem-rss:(\d{1,15})kB")),
)
_USAGE = re.compile(r"\bmemory: usage (\d{1,15})kB, limit (\d{1,15})kB")
_PAGES = re.compile(r"\b(\d{1,15}) pages RAM")
_COUNTED = re.compile(r"^\s*oom_kill (\d{1,15})\s*$")
_TRAINING = re.compile(r"python|pt_|ray|torch|train|java|deepspeed|accelerate|pytest|jupyter|.*(?:train|worker)", re.I)
_UNLIMITED = 1 << 60
_NEAR = 250


def parse(window: Window) -> Iterator[Event]:
    """Events ``kernel.oom-kill`` (the host was short), ``cgroup.oom-kill`` (a limit of the job or container) and
    ``cgroup.oom-count`` (kills since the group was made, none of them dated)."""
    opened: int | None = None
    grouped = False
    figures: dict[str, Any] = {}
    done: set[tuple[int, int]] = set()
    report = _Report(window)
    for index, line in enumerate(window.lines):
        text = line.text
        if opened is not None and index - opened > _NEAR:
            opened, grouped, figures = None, False, {}
        if "memory: usage" in text and (found := _USAGE.search(text)):
            grouped = True
            if int(found[2]) * KIB < _UNLIMITED:
                figures |= {"memory_limit_bytes": int(found[2]) * KIB, "memory_used_bytes": int(found[1]) * KIB}
        if "pages RAM" in text and (found := _PAGES.search(text)):
            figures["host_total_bytes"] = int(found[1]) * 4 * KIB
        if not any(literal in text for literal in LITERALS):
            continue
        if found := _COUNTED.match(text):
            if int(found[1]) > 0 and _counters(window, index):
                yield _event(window, index, grouped=None, figures={"oom_kills": int(found[1])})
        elif _OPENED.search(text):
            opened, grouped, figures = index, False, {}
            if not report.goes_on(index):
                yield _event(window, index, grouped=False, figures={})
        elif found := _CONSTRAINT.search(text):
            opened, grouped = index if opened is None else opened, found[1] == "MEMCG"
            task = _TASK.search(text)
            if not report.goes_on(index) and (task is None or _TRAINING.match(task[1])):
                yield _event(window, index, grouped=grouped, figures=figures, pid=int(task[2]) if task else None)
        elif found := _KILLED.search(text):
            sizes = {name: int(size[1]) * KIB for name, field in _SIZES if (size := field.search(text))}
            # "Kill process N" and "Killed process N" are one death, told twice: the line with the sizes counts.
            if not sizes and report.names(index, int(found[1])):
                continue
            key = (int(found[1]), sizes.get("killed_rss_bytes", 0))
            if _TRAINING.match(found[2]) and key not in done:
                done.add(key)
                group = grouped or "cgroup out of memory" in text
                if not group and index and "cgroup out of memory" in window.lines[index - 1].text:
                    group = True
                yield _event(window, index, grouped=group, figures={**figures, **sizes}, pid=int(found[1]))
            opened, grouped, figures = None, False, {}


def _event(
    window: Window, index: int, *, grouped: bool | None, figures: dict[str, Any], pid: int | None = None
) -> Event:
    return window.event(
        index,
        kind="cgroup.oom-count" if grouped is None else "cgroup.oom-kill" if grouped else "kernel.oom-kill",
        family="host-oom",
        figures=figures,
        message=window.lines[index].text.strip()[:500],
        pid=pid if pid is not None else window.lines[index].pid,
    )


class _Report:
    """Where the reports of a window begin, and where each names its victim with sizes."""

    def __init__(self, window: Window) -> None:
        lines = window.lines
        self.opened = [i for i, line in enumerate(lines) if "invoked oom-killer" in line.text]
        kills = [(i, _KILLED.search(line.text)) for i, line in enumerate(lines) if "ill" in line.text]
        self.kills = [i for i, found in kills if found]
        self.sized: dict[int, list[int]] = {}
        for i, found in kills:
            if found and "total-vm" in lines[i].text:
                self.sized.setdefault(int(found[1]), []).append(i)

    def goes_on(self, index: int) -> bool:
        """Whether a line below, of the same report, names a victim."""
        return _next(self.kills, index) <= min(index + _NEAR, _next(self.opened, index))

    def names(self, index: int, pid: int) -> bool:
        """Whether a line below, of the same report, names this victim with sizes."""
        return _next(self.sized.get(pid, []), index) <= min(index + _NEAR, _next(self.opened, index))


def _next(places: list[int], index: int) -> int:
    at = bisect_right(places, index)
    return places[at] if at < len(places) else 1 << 60


def _counters(window: Window, index: int) -> bool:
    """Whether the lines around are a control group's ``memory.events``."""
    near = window.lines[max(0, index - 6) : index + 3]
    return sum(bool(re.match(r"\s*(?:low|high|max|oom|oom_group_kill) \d{1,15}\s*$", line.text)) for line in near) >= 2
