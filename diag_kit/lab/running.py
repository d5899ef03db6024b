"""Runs experiments in a process of their own: nothing stays allocated here, and a crash or a hang is one line."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from .catalog import experiment, experiments
from .records import DEVICES, Experiment, LabError, Outcome

LIMIT_S = 300.0
"""An experiment that takes longer is stopped; it is meant to take under 5 seconds of the processor."""
START_LIMIT_S = 300.0
"""The same for the import of torch, which a cold network file system makes slow."""
_LOOK_S = 0.1
_STOPPED = "stopped before it ended; run it again"
_NO_TORCH = "needs PyTorch: pip install torch, in the environment of {python}"


def run(
    ids: Sequence[str] | None = None, *, device: str = "auto", on_outcome: Callable[[Outcome], None] | None = None,
    on_start: Callable[[Experiment], None] | None = None, limit_s: float = LIMIT_S,
    stop: threading.Event | None = None,
) -> tuple[Outcome, ...]:  # fmt: skip
    """Run experiments, all without ``ids``, each once; outcomes in the order asked for.

    torch is imported once, in one child process; after an experiment that kills it or passes ``limit_s`` seconds a new
    one goes on with the next. What can't be run is an outcome with a ``problem``. ``device``: ``auto`` is CUDA where
    torch finds one. ``on_start`` and ``on_outcome`` are called here, as it happens. Once ``stop`` is set, the child is
    ended within a blink, and what had not ended has a ``problem`` that says so.

    Raises:
        LabError: an id or a device that is not known.
    """
    if device not in DEVICES:
        raise LabError(f"lab: device {str(device)[:40]!r} is not one of {', '.join(DEVICES)}")
    chosen = [experiment(id) for id in dict.fromkeys(ids)] if ids is not None else list(experiments())
    found: list[Outcome] = []

    def told(outcome: Outcome) -> None:
        found.append(outcome)
        if on_outcome:
            on_outcome(outcome)

    while left := chosen[len(found) :]:
        for outcome in _in_one_process(left, device, on_start, limit_s, stop or threading.Event()):
            told(outcome)
    return tuple(found)


def _in_one_process(
    left: Sequence[Experiment], device: str, on_start: Callable[[Experiment], None] | None, limit_s: float,
    stop: threading.Event,
) -> Iterator[Outcome]:  # fmt: skip
    """Outcomes of one child, until it ends; at least one."""
    by_id = {one.id: one for one in left}
    running, version, where, complaint = left[0].id, "", "", ""
    with tempfile.TemporaryFile() as errors, _child(device, list(by_id), errors) as child:
        lines = _lines(child)
        limit, deadline = START_LIMIT_S, time.monotonic() + START_LIMIT_S
        while True:
            if stop.is_set():
                for one in by_id.values():
                    yield Outcome(one.id, None, "", device=where, torch=version, problem=_STOPPED)
                return
            try:
                line = lines.get(timeout=max(min(deadline - time.monotonic(), _LOOK_S), 0))
            except queue.Empty:
                if time.monotonic() < deadline:
                    continue
                complaint = f"took longer than {limit:.0f} s and was stopped; try it alone, on an idle machine"
                break
            if line is None:
                complaint = _death(child.wait(), errors)
                break
            said = json.loads(line)
            if "problem" in said:
                complaint = said["problem"]
                missing = "No module named 'torch'" in complaint
                complaint = _NO_TORCH.format(python=sys.executable) if missing else complaint
                for one in left:
                    yield Outcome(one.id, None, "", problem=complaint)
                return
            version, where = said.get("ready", version), said.get("device", where)
            if "start" in said:
                running, limit, deadline = said["start"], limit_s, time.monotonic() + limit_s
                if on_start:
                    on_start(by_id[running])
            elif "outcome" in said:
                outcome = Outcome.from_json(said["outcome"])
                del by_id[outcome.experiment]
                yield outcome
                if not by_id:
                    return
                running = next(iter(by_id))
    yield Outcome(running, None, "", device=where, torch=version, problem=complaint)


def _command(device: str, ids: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "diag_kit.lab", str(os.getpid()), device, *ids]


@contextlib.contextmanager
def _child(device: str, ids: Sequence[str], errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The lab's process; whatever happens, it and what it started are gone afterwards."""
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    child = subprocess.Popen(
        _command(device, ids),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, "PYTHONPATH": path},
        start_new_session=os.name == "posix",
    )  # fmt: skip
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()


def _lines(child: subprocess.Popen[bytes]) -> queue.Queue[bytes | None]:
    """What the child prints, line by line; None where it has closed its output."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in child.stdout or ():
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _death(status: int, errors: Any) -> str:
    """How a process ended that was not meant to, with the last line it printed."""
    errors.seek(0)
    said = [line for line in errors.read()[-4000:].decode(errors="replace").splitlines() if line.strip()]
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    last = " ".join("".join(c if c.isprintable() else " " for c in said[-1]).split())[:200] if said else ""
    hint = "; the system may have run out of memory" if status == -signal.SIGKILL else ""
    return f"its process ended with {name}{hint}{f' ({last})' if last else ''}; run it alone to see more"


def end_with(parent: int) -> None:
    """Watch, from now on, that ``parent`` is still this process's parent; end this process's group when it is not.

    For a child in a session of its own, which neither a closed terminal nor a killed kernel ends.
    """
    if os.name == "posix":
        threading.Thread(target=_watch, args=(parent,), name="diag-kit parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
