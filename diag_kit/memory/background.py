"""Traces in a process of its own, which keeps the programs: whoever asked loads them, and never imports torch.

The process reads settings from its standard input and tells progress on its standard output, a JSON object a line. When
the input ends, whoever asked is gone, and so is the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from ..errors import SettingsError
from .engine import Traces
from .settings import Settings

NICE = 10
"""Below what a person waits for: the cores of a login node are few."""


class Background:
    """One process that traces these settings in turn.

    Attributes:
        settings: what is traced. at: index of the one under way; its number when all are done.
        what, done, meant: as last told of that one: what is traced, traces done, traces meant.
        errors: index -> why one of them has no program, in one line. layers: index -> how deep the model is.
        running: whether it is at it.
    """

    def __init__(self, settings: Sequence[Settings]) -> None:
        self.settings = tuple(settings)
        self.at, self.what, self.done, self.meant = 0, "starting", 0, 0
        self.errors: dict[int, str] = {}
        self.layers: dict[int, int] = {}
        self.running, self._stopped = True, False
        here = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__], text=True, encoding="utf-8", env={
                "OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._thread = Thread(target=self._listen, name="diag-kit tracing", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        process = self._process
        with contextlib.suppress(OSError), process:  # it may end before it listens
            print(json.dumps([s.to_json() for s in self.settings]), file=process.stdin, flush=True)
            for line in process.stdout or ():
                self._hear(json.loads(line))
        code = process.wait()
        if self.at < len(self.settings) and not self._stopped:
            self.errors[self.at] = f"the tracing process ended with code {code}; its memory may be too small"
            self.at = len(self.settings)
        self.running = False

    def _hear(self, told: dict[str, Any]) -> None:
        if "error" in told:
            self.errors[self.at] = told["error"]
        if "layers" in told:
            self.layers[self.at] = told["layers"]
        if "at" in told:
            self.at, self.what, self.done, self.meant = told["at"], "", 0, 0
        else:
            self.what, self.done, self.meant = told.get("what", ""), told.get("done", 0), told.get("meant", 0)

    def stop(self) -> None:
        """End the process; what it has kept stays kept."""
        self._stopped = True
        self._process.kill()
        self._thread.join()

    def wait(self, seconds: float | None = None) -> None:
        """Until all are traced."""
        self._thread.join(seconds)


def main() -> None:
    """Trace what the first line of standard input holds, one after another, and end."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what a library prints is no progress
        if hasattr(os, "nice"):
            os.nice(NICE)
        documents = json.loads(sys.stdin.readline())
        Thread(target=_end_with_parent, daemon=True).start()

        def tell(**what: Any) -> None:
            out.write(json.dumps(what) + "\n")
            out.flush()

        traces = Traces(lambda what, done, meant: tell(what=what, done=done, meant=meant))
        for at, document in enumerate(documents, 1):
            try:
                settings = Settings.from_json(document)
                traced, point = traces.traced(settings)
                error = {"error": traced.said} if traced.off_bytes is None else {}
                tell(at=at, layers=point.layers, **error)
            except SettingsError as error:
                tell(at=at, error=str(error))
            except Exception as error:  # noqa: BLE001 (whatever a model does, the next one may do better)
                tell(at=at, error=f"the trace failed ({type(error).__name__}: {str(error)[:200]})")


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()
