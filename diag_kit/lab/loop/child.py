"""Looks at a loop in a process of its own, so that nothing stays allocated here, and a crash or a hang is one line."""

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from .result import Comparison, Loop, LoopError, comparison_from_json, loop_from_json

SECONDS = 600
LOOK_SECONDS = 0.2


def inspect_apart(
    factory: str,
    *,
    settings: Mapping[str, Any] | None = None,
    change: Mapping[str, Any] | None = None,
    try_fix: bool = False,
    seconds: float = SECONDS,
    stop: Event | None = None,
    **how: Any,
) -> tuple[Loop, tuple[Comparison, ...]]:
    """``inspect_loop``, then ``compare`` and ``try_fix`` where asked for, in a child process.

    Raises:
        LoopError: what the child said, or that it died, took longer than ``seconds`` or was ended by ``stop``.
    """
    if not seconds > 0:  # nor a number that is none
        raise LoopError(f"seconds: {seconds:g} is no time to give up after; give a number above 0")
    asked = {"factory": factory, "settings": dict(settings or {}), "change": dict(change or {}), "try_fix": try_fix}
    package = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as request:
        request.write(json.dumps(asked | {"how": how}).encode())
        request.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", __package__, str(os.getpid())],
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        try:
            out = _answer(child, seconds, stop or Event())
        except TimeoutError:
            ended = stop is not None and stop.is_set()
            why = "stopped before it was done" if ended else f"not done after {seconds:g} s"
            raise LoopError(f"{factory}: {why}; hand over a smaller model or batch") from None
        finally:
            _end(child)
        said.seek(max(0, said.seek(0, os.SEEK_END) - 2000))
        last = said.read().decode(errors="replace").strip().splitlines()
    try:
        answer = json.loads(out)
    except ValueError:
        how_ended = f"signal {-child.returncode}" if child.returncode < 0 else f"status {child.returncode}"
        told = f": {last[-1][:200]}" if last else ""
        raise LoopError(
            f"{factory}: the process that ran it died ({how_ended}{told}); hand over a smaller model or batch"
        ) from None
    if "error" in answer:
        raise LoopError(answer["error"])
    return loop_from_json(answer["loop"]), tuple(comparison_from_json(one) for one in answer["comparisons"])


def _answer(child: subprocess.Popen[bytes], seconds: float, stop: Event) -> bytes:
    """The line that the child answers with, empty where it died; TimeoutError after so many seconds, or once ``stop``
    is set. Its end is not waited for, nor that of processes which the user's code left with its output open.
    """
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_first_line, args=(child, lines), daemon=True).start()
    deadline = time.monotonic() + seconds
    while True:
        dead = child.poll() is not None
        try:
            return lines.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            if dead:
                return b""
            if stop.is_set() or time.monotonic() > deadline:
                raise TimeoutError from None


def _first_line(child: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
    if child.stdout:
        with child.stdout as answers:
            lines.put(answers.readline())


def _end(child: subprocess.Popen[bytes]) -> None:
    """The child and what it started. Its output is left open where somebody else still holds it: closing would wait."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()


def pairs(given: Sequence[str]) -> dict[str, Any]:
    """``k=v`` as settings: a value that is JSON is read as JSON, any other is text."""
    found: dict[str, Any] = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise LoopError(f"{one}: is no setting; write name=value")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found
