"""Looks at a loop in a process of its own, so that nothing stays allocated here, and a crash or a hang is one line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
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
    asked = {"factory": factory, "settings": dict(settings or {}), "change": dict(change or {}), "try_fix": try_fix}
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-m", __package__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        try:
            out = _answer(child, json.dumps(asked | {"how": how}), seconds, stop or Event())
        except subprocess.TimeoutExpired:
            ended = stop is not None and stop.is_set()
            why = "stopped before it was done" if ended else f"not done after {seconds:g} s"
            raise LoopError(f"{factory}: {why}; hand over a smaller model or batch") from None
        finally:
            _end(child)
        said.seek(max(0, said.tell() - 2000))
        last = said.read().decode(errors="replace").strip().splitlines()
    try:
        answer = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        how_ended = f"signal {-child.returncode}" if child.returncode < 0 else f"status {child.returncode}"
        told = f": {last[-1][:200]}" if last else ""
        raise LoopError(
            f"{factory}: the process that ran it died ({how_ended}{told}); hand over a smaller model or batch"
        ) from None
    if "error" in answer:
        raise LoopError(answer["error"])
    return loop_from_json(answer["loop"]), tuple(comparison_from_json(one) for one in answer["comparisons"])


def _answer(child: subprocess.Popen[str], asked: str, seconds: float, stop: Event) -> str:
    """What the child printed; TimeoutExpired after so many seconds, or once ``stop`` is set."""
    deadline, given = time.monotonic() + seconds, asked
    while True:
        try:
            return child.communicate(given, timeout=LOOK_SECONDS)[0]
        except subprocess.TimeoutExpired:
            if stop.is_set() or time.monotonic() > deadline:
                raise
            given = ""


def _end(child: subprocess.Popen[str]) -> None:
    """The child and what it started."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.communicate()


def pairs(given: Sequence[str]) -> dict[str, Any]:
    """``k=v`` as settings: a value that is JSON is read as JSON, any other is text."""
    found: dict[str, Any] = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise LoopError(f"{one}: is no setting; write name=value")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
