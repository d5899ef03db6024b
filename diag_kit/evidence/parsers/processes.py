"""Which process is which rank, and how many ranks there are, from every line that tells two of these at once.

* a prefix with both: axolotl ``[PID:202100] [RANK:0]``, Ray ``(Worker[rank=3] pid=44, ip=10.0.0.9)``, torch's logging
  ``[rank3]:W0321 04:11:58.123000 1401 torch/...``.
* NCCL ``node-a:101557:130069 [9] NCCL INFO comm 0x66 rank 9 nranks 16 cudaDev 9 busId b0000 - Init COMPLETE``.
* torchelastic ``rank      : 12 (local_rank: 4)`` followed by ``exitcode  : 1 (pid: 29577)``, and ``failed (exitcode: 1)
  local_rank: 3 (pid: 29577)``; who is sent SIGTERM was launched too, and so is all that DeepSpeed kills.
* Lightning ``[rank: 1] Child process with PID 881 terminated with code -9``, ``GLOBAL_RANK: 2, MEMBER: 3/4``.
* DeepSpeed ``WORLD INFO DICT: {'node-a': [0, 1], 'node-b': [0, 1]}``, ``nnodes=2, num_local_procs=8``, ``dist_world_size=16``.
* a command line with ``--nproc_per_node`` (times ``--nnodes``), ``--num_processes``, ``--num_gpus``.

Prefixes are not looked for in a large log, where every line has one, but read wherever something else is.

Interpreters of one launcher count up: a rank's number and its process's differ by one constant on a node. That is worked
out in ``ranks``. An empty result means that no line tells a process's rank or the number of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..facts import Process, Source, World
from ..text import Window

LITERALS = (
    "nranks", "(local_rank:", "local_rank: ", "closing signal SIGTERM", "Killing subprocess",
    "Child process with PID", "MEMBER: ", "WORLD INFO DICT", "world_size", "nproc", "num_processes", "num_gpus",
    "nnodes", "world size",
)  # fmt: skip

ROLL_CALL = ("nranks", "(local_rank:", "closing signal SIGTERM", "Killing subprocess")
"""Once for each rank or its process."""

_NOWHERE = Source("")
_COMM = re.compile(r"NCCL INFO comm \S{1,40} rank (\d{1,6}) nranks (\d{1,6})(?: cudaDev (\d{1,4}))?")
_BLOCK_RANK = re.compile(r"^\s*rank\s{0,9}: (\d{1,6}) \(local_rank: (\d{1,6})\)")
_BLOCK_PID = re.compile(r"\(pid: (\d{1,10})\)")
_BLOCK_HOST = re.compile(r"^\s*host\s{0,9}: (\S{1,200})")
_FAILED = re.compile(r"local_rank: (\d{1,6}) \(pid: (\d{1,10})\)")
_LAUNCHED = re.compile(r"Sending process (\d{1,10}) closing signal|Killing subprocess (\d{1,10})")
_CHILD = re.compile(r"Child process with PID (\d{1,10})")
_MEMBER = re.compile(r"MEMBER: (\d{1,6})/(\d{1,6})")
_DICT = re.compile(r"WORLD INFO DICT: (\{[^}]{0,8000}\})")
_WORLD = re.compile(r"\b(?:dist_)?world[_ ]size\b['\"]?[ =:]{1,3}(\d{1,6})\b", re.I)
_PER_NODE = re.compile(r"--n(?:proc|procs|gpus)?[-_]?(?:proc)?[-_]per[-_]node[= ](\d{1,6})\b")
_NODES = re.compile(r"--nnodes[= ](\d{1,6})\b(?!:)")
_ELASTIC_NODES = re.compile(r"--nnodes[= ]\d{1,6}:")
_ALL = re.compile(r"--num[-_]processes[= ](\d{1,6})\b")
_ALONE = re.compile(r"--standalone\b")


READS_ALL = True


def parse(window: Window) -> Iterator[Process | World]:
    """Process and World facts, each once a window."""
    told: set[Process | World] = set()
    for fact in _parse(window):
        bare = replace(fact, source=_NOWHERE)
        if bare not in told:
            told.add(bare)
            yield fact


def _parse(window: Window) -> Iterator[Process | World]:
    told: set[tuple[object, ...]] = set()
    for index, line in enumerate(window.lines):
        if line.rank is not None and (line.pid is not None or line.local_rank is not None):
            said = {"rank": line.rank, "pid": line.pid, "local_rank": line.local_rank}
            if (key := (line.host, *said.values())) not in told:
                told.add(key)
                yield _process(window, index, **said)
        text = line.text
        if not any(literal in text for literal in LITERALS):
            continue
        if found := _COMM.search(text):
            device = int(found[3]) if found[3] else None
            yield World(source=window.source(index, around=0), size=int(found[2]), least=True)
            yield _process(window, index, pid=line.pid, rank=int(found[1]), device=device, of=int(found[2]))
        elif found := _BLOCK_RANK.match(text):
            yield from _block(window, index, int(found[1]), int(found[2]))
        elif found := _LAUNCHED.search(text):
            yield _process(window, index, pid=int(found[1] or found[2]), rank=None, launched=True)
        elif found := _FAILED.search(text):
            yield _process(window, index, pid=int(found[2]), rank=line.rank, local_rank=int(found[1]), launched=True)
        elif (found := _CHILD.search(text)) and line.rank is not None:
            yield _process(window, index, pid=int(found[1]), rank=line.rank)
        yield from _worlds(window, index, text)


def _worlds(window: Window, index: int, text: str) -> Iterator[World]:
    source = window.source(index, around=0)
    if found := _MEMBER.search(text):
        yield World(source=source, size=int(found[2]))
    elif found := _DICT.search(text):
        lists = re.findall(r"\[([\d, ]*)\]", found[1])
        if size := sum(len(one.split(",")) for one in lists if one.strip()):
            yield World(source=source, size=size, nodes=len(lists))
    elif found := _PER_NODE.search(text):
        nodes = 1 if _ALONE.search(text) else int(known[1]) if (known := _NODES.search(text)) else None
        if _ELASTIC_NODES.search(text):
            nodes = None
        yield World(source=source, size=int(found[1]) * (nodes or 1), nodes=nodes, least=nodes is None)
    elif found := _ALL.search(text) or _WORLD.search(text):
        yield World(source=source, size=int(found[1]))


def _block(window: Window, start: int, rank: int, local: int) -> Iterator[Process]:
    """One failure of torchelastic's block: the host stands above its rank, the process below."""
    pid = host = None
    for line in window.lines[start + 1 : start + 4]:
        if found := _BLOCK_PID.search(line.text):
            pid = int(found[1])
    for line in window.lines[max(0, start - 3) : start]:
        if found := _BLOCK_HOST.match(line.text):
            host = found[1]
    yield Process(
        source=window.source(start, around=0),
        rank=rank,
        local_rank=local,
        pid=pid,
        host=host or window.lines[start].host,
        launched=True,
    )


def _process(window: Window, index: int, **said: Any) -> Process:
    return Process(source=window.source(index, around=0), **{"rank": None, "host": window.lines[index].host, **said})
