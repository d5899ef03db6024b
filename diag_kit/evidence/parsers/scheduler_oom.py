"""Slurm, Kubernetes and Docker on jobs that ended for want of host memory, and the limits that they state.

* Slurm: ``slurmstepd: error: Detected 1 oom_kill event in StepId=608.0``, ``srun: error: node1: task 3: Out Of Memory``;
  ``sacct`` with a column ``State`` (``OUT_OF_MEMORY``, cut to ``OUT_OF_ME+``), ``MaxRSS`` and ``ReqMem``; ``seff``:
  ``State: OUT_OF_MEMORY (exit code 0)``, ``Memory Utilized: 63.20 GB``, ``Memory Efficiency: 98.75% of 64.00 GB``.
* Kubernetes: ``Reason: OOMKilled`` with ``Exit Code: 137`` and ``Limits: memory: 64Gi``; events such as ``The node was low
  on resource: memory. Container train was using 61Gi, request is 32Gi``.
* Docker: ``"OOMKilled": true`` of ``docker inspect`` with ``"Memory": 8589934592``; ``container oom 4f1c`` of ``docker
  events``. ``"OOMKilled": false`` says the opposite, and a line of prose that names the word says nothing.

Slurm and Kubernetes mean powers of 1024. What a sampler such as sacct calls the most used may lie below the true peak.
An empty result means that no scheduler tells of such an end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import parse_size
from ..facts import Event, HostMemory
from ..text import Window

LITERALS = (
    "oom_kill event",
    "oom-kill event",
    ": Out Of Memory",
    "OUT_OF_ME",
    "OOMKill",
    "OOM-kill",
    "OOMKILL",
    "low on resource: memory",
    "container oom",
    "Memory Efficiency:",
)

_SLURM = re.compile(r"Detected \d{1,9} oom[_-]kill event|tasks? [\d,-]{1,200}: Out Of Memory|OUT_OF_ME(?:MORY|\+)")
_ENDED = re.compile(
    r"(?:Reason|State|status|phase)\W{1,40}OOM-?[Kk]ill|^\s*\|?\s*OOM-?[Kk]illed\b|\bOOM-?[Kk]ill(?:ed)?\b|OOMKILL"
)
_DENIED = re.compile(r'"?OOMKilled"?\s*[:=]\s*(?:false|0)\b')
_QUOTED = re.compile(r"\b(?:if|when|not|no|avoid|prevent|without|may be|might be|could be) .{0,40}OOM-?[Kk]ill", re.I)
_EVICTED = re.compile(r"low on resource: memory")
_USING = re.compile(r"was using ([\d.]{1,16} ?[KMGT]?i?)")
_LIMIT = re.compile(r'^\s*(?:-\s*)?"?(?:[Mm]emory(?: [Ll]imit)?)"?:\s{0,40}"?([\d.]{1,20} ?(?:[KMGT]i?B?)?)"?,?\s*$')
_EXIT = re.compile(r'Exit ?Code"?:?\s{1,20}(\d{1,3})\b')
_EFFICIENCY = re.compile(r"Memory Efficiency: [\d.]{1,8}% of ([\d.]{1,16} ?[KMGT]?i?B)")
_UTILIZED = re.compile(r"Memory Utilized: ([\d.]{1,16} ?[KMGT]?i?B)")
_RULER = re.compile(r"-{3,60}")


def parse(window: Window) -> Iterator[Event | HostMemory]:
    """Events ``slurm.oom-kill``, ``container.oom-kill`` and ``k8s.evicted``; a job's limit and use as HostMemory."""
    blocks: set[int] = set()
    for index, line in enumerate(window.lines):
        text = line.text
        if not any(literal in text for literal in LITERALS):
            continue
        if found := _EFFICIENCY.search(text):
            used = _near(window, index, _UTILIZED)
            yield HostMemory(
                source=window.source(index),
                of="job",
                total_bytes=parse_size(found[1]),
                used_bytes=parse_size(used) if used else None,
            )
        elif _SLURM.search(text):
            figures = _sacct(window, index)
            if (limit := _near(window, index, _EFFICIENCY)) and "State:" in text:
                figures["memory_limit_bytes"] = parse_size(limit)
                figures["memory_used_bytes"] = parse_size(_near(window, index, _UTILIZED) or "")
            yield _event(window, index, "slurm.oom-kill", figures)
        elif _EVICTED.search(text):
            using = _USING.search(text)
            yield _event(window, index, "k8s.evicted", {"memory_used_bytes": parse_size(using[1]) if using else None})
        elif "container oom" in text or (_ENDED.search(text) and not _DENIED.search(text) and not _QUOTED.search(text)):
            if index - 1 in blocks or index - 2 in blocks:
                continue
            blocks.add(index)
            limit, code = _near(window, index, _LIMIT), _near(window, index, _EXIT)
            figures = {"memory_limit_bytes": parse_size(limit) if limit else None}
            yield _event(window, index, "container.oom-kill", figures, int(code) if code else None)


def _event(window: Window, index: int, kind: str, figures: dict[str, Any], code: int | None = None) -> Event:
    known = {name: value for name, value in figures.items() if value}
    message = window.lines[index].text.strip()[:500]
    exitcode = -(code - 128) if code and code > 128 else code
    return window.event(index, kind=kind, family="host-oom", figures=known, message=message, exitcode=exitcode)


def _near(window: Window, index: int, pattern: re.Pattern[str]) -> str | None:
    """What the pattern finds in the block around a line, below before above."""
    below = window.lines[index : index + 25]
    above = window.lines[max(0, index - 12) : index][::-1]
    return next((found[1] for line in (*below, *above) if (found := pattern.search(line.text))), None)


def _sacct(window: Window, index: int) -> dict[str, Any]:
    """MaxRSS and ReqMem of a row of sacct, by the columns of its header; rows are aligned or joined by ``|``."""
    for above in range(index - 1, max(-1, index - 40), -1):
        head = window.lines[above].text
        if "State" not in head or ("MaxRSS" not in head and "ReqMem" not in head):
            continue
        row, figures = window.lines[index].text, {}
        for name, column in (("memory_used_bytes", "MaxRSS"), ("memory_limit_bytes", "ReqMem")):
            if "|" in head:
                cells = dict(zip(head.split("|"), row.split("|"), strict=False))
            else:  # the ruler below the header shows how wide each column is
                spans = [one.span() for one in _RULER.finditer(window.lines[above + 1].text)]
                cells = {head[start:end].strip(): row[start:end] for start, end in spans}
            figures[name] = parse_size(cells.get(column, "").strip().rstrip("nc"))
        return figures
    return {}
