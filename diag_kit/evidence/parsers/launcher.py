"""Launchers and schedulers: who was cleaned up, who they say failed, who was stopped on purpose.

* torchelastic: ``Sending process 197 closing signal SIGTERM`` (a survivor), ``failed (exitcode: 1) local_rank: 3 (pid:
  29577) of binary: ...``, and the block ``Root Cause (first observed failure):`` with ``time``, ``rank : 3 (local_rank:
  3)``, ``exitcode``, ``traceback``. It is the first that one node's agent noticed, to the second; ``Failures:`` above it
  lists the others, ``<NO_OTHER_FAILURES>`` says that there were none. Exit code -6 is a watchdog that aborted a waiter.
* DeepSpeed: ``Killing subprocess 21207`` lists every local process, whoever died; ``exits with return code = 1`` is of the
  one that died, but the ``--local_rank`` in the command beside it is always the last child's.
* Slurm: ``srun: error: node7: tasks 2-3: Exited with exit code 1``; ``CANCELLED AT ... DUE TO TIME LIMIT``, ``DUE TO
  PREEMPTION``, ``DUE TO JOB REQUEUE``; submitit: ``this job is preempted``. Lightning: ``Child process with PID 9
  terminated with code -9``.

An empty result means that no launcher reported an end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..facts import Event
from ..text import Window, stamp

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
    "exits with return code",
    "Exited with exit code",
    "terminated with code",
)

ROLL_CALL = ("Root Cause", "failed (exitcode", "closing signal SIGTERM", "Killing subprocess")
"""Once for each node or process."""

_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,15})\) local_rank: (\d{1,15}) \(pid: (\d{1,15})\)")
_ROOT_RANK = re.compile(r"^\s*rank\s+: (\d{1,15}) \(local_rank: (\d{1,15})\)")
_ROOT_EXIT = re.compile(r"^\s*exitcode\s+: (-?\d{1,15}) \(pid: (\d{1,15})\)")
_ROOT_HOST = re.compile(r"^\s*host\s+: (\S+)")
_ROOT_TIME = re.compile(r"^\s*time\s{0,9}: (\d{4})-(\d\d)-(\d\d)_(\d\d):(\d\d):(\d\d)")
_ROOT_SAID = re.compile(r"^\s*traceback\s{0,9}: (\S.{0,300})")
_EXITED = re.compile(
    r"exits with return code = (?P<ds>-?\d{1,10})|error: (?P<host>[\w.-]{1,100}): tasks? (?P<tasks>[\d,-]{1,200}): Exited with exit "
    r"code (?P<srun>\d{1,10})|Child process with PID (?P<pid>\d{1,10}) terminated with code (?P<child>-?\d{1,10})"
)
_SIGTERM = re.compile(r"Sending process (\d{1,15}) closing signal SIGTERM|Killing subprocess (\d{1,15})")
_STOPPED = re.compile(r"this job is preempted|DUE TO (?:PREEMPTION|JOB REQUEUE)|[Pp]reempted by|received preemption")
_TIME_LIMIT = re.compile(r"DUE TO TIME LIMIT|(?:reached|exceeded) (?:the )?time limit")


def parse(window: Window) -> Iterator[Event]:
    """Events ``launcher.*``, ``preempted`` and ``time-limit``."""
    for index, line in enumerate(window.lines):
        text = line.text
        if not any(literal in text for literal in LITERALS):
            continue
        common: dict[str, Any] = {"source": window.source(index), "message": text.strip()[:400]}
        common |= {"host": line.host, "time": line.time, "rank": line.rank}
        if found := _SIGTERM.search(text):
            pid = int(found[1] or found[2])
            yield Event(kind="launcher.sigterm", family="undetermined", role="teardown", **{**common, "rank": None}, pid=pid)
        elif found := _FAILED.search(text):
            said: dict[str, Any] = {"exitcode": int(found[1]), "local_rank": int(found[2]), "pid": int(found[3])}
            yield Event(kind="launcher.failed", family="undetermined", role="confirmation", **common, **said)
        elif "Root Cause" in text:
            yield from _block(window, index)
        elif found := _EXITED.search(text):
            yield _exit(found, common)
        elif _STOPPED.search(text):
            yield Event(kind="preempted", family="not-memory", **common)
        elif _TIME_LIMIT.search(text):
            yield Event(kind="time-limit", family="not-memory", **common)


def _exit(found: re.Match[str], common: dict[str, Any]) -> Event:
    """An exit code that a launcher passes on: whose, where the line says so."""
    code = int(found["ds"] or found["srun"] or found["child"])
    figures: dict[str, Any] = {"tasks": found["tasks"]} if found["tasks"] else {}
    said = {**common, "host": found["host"] or common["host"], "pid": int(found["pid"]) if found["pid"] else None}
    killed = found["child"] == "-9"  # the other launchers' words for it are read where kills are
    figures = {"alone": True} if killed else figures  # the first child that ends has the others stopped
    kind, family, role = ("exit.sigkill", "host-oom", "originator") if killed else ("launcher.exit", "undetermined", "confirmation")
    return Event(kind=kind, family=family, role=role, exitcode=code, figures=figures, **said)


def _block(window: Window, start: int) -> Iterator[Event]:
    """torchelastic's root-cause block: the failure that one node's agent noticed first."""
    rank = local = code = pid = host = time = None
    said = ""
    for line in window.lines[start + 1 : start + 10]:
        text = line.text
        if found := _ROOT_RANK.match(text):
            rank, local = int(found[1]), int(found[2])
        elif found := _ROOT_EXIT.match(text):
            code, pid = int(found[1]), int(found[2])
        elif found := _ROOT_HOST.match(text):
            host = found[1]
        elif found := _ROOT_TIME.match(text):
            time = stamp(*found.groups())
        elif found := _ROOT_SAID.match(text):
            said = found[1]
    if rank is None:
        return
    alone = any("NO_OTHER_FAILURES" in line.text for line in window.lines[max(0, start - 4) : start])
    figures = {"alone": True} if alone else {}
    yield Event(
        source=window.source(start),
        rank=rank,
        kind="launcher.root-cause",
        family="undetermined",
        role="confirmation",
        message=f"root cause by the launcher: rank {rank}, exit code {code}" + (f", {said}" if said else ""),
        figures=figures,
        exitcode=code,
        pid=pid,
        local_rank=local,
        host=host or window.lines[start].host,
        time=time,
    )
