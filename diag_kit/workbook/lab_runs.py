"""Runs of the lab since the kernel began: what is measured now, what came of it, what was measured before."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from .. import lab
from ..errors import DiagKitError
from . import places

LOOK_SECONDS = 0.1
NO_TORCH = "PyTorch is not installed for this kernel, so nothing can be measured here: pip install torch"


@dataclass(frozen=True)
class Recorded:
    """An outcome of the project's own records, and where it was measured."""

    outcome: lab.Outcome
    where: str


class Runs:
    """Outcomes by experiment. ``on`` listens to every change.

    Attributes:
        outcomes: since the kernel began, the latest of each experiment.
        running: the experiment that is measured now; empty while none is.
        waiting: those that come after it.
        problem: why the last run could not begin; empty where it could.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, lab.Outcome] = {}
        self.running, self.problem = "", ""
        self.waiting: tuple[str, ...] = ()
        self._stop = Event()
        self._told: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._thread: Thread | None = None
        self._listeners: list[Callable[[], None]] = []

    def on(self, call: Callable[[], None]) -> None:
        """Call ``call`` after each change."""
        self._listeners.append(call)

    def off(self, call: Callable[[], None]) -> None:
        """Call it no more."""
        self._listeners.remove(call)

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def start(self, ids: Sequence[str]) -> None:
        """Measure these, one after another, in a child process; more are put at the end of those that wait.

        Returns at once where a loop runs, on which the outcomes arrive; else when all is measured.
        """
        self.problem = "" if importlib.util.find_spec("torch") else NO_TORCH
        new = [id for id in dict.fromkeys(ids) if id != self.running and id not in self.waiting]
        if self.problem or not new:
            self._tell()
            return
        begin = not self.busy
        self.waiting = (*self.waiting, *new)
        if begin:
            self._begin()
        self._tell()

    def _begin(self) -> None:
        ids, self._stop, self._told = self.waiting, Event(), SimpleQueue()
        self._thread = Thread(target=self._run, args=(ids, self._stop, self._told), name="diag-kit lab", daemon=True)
        self._thread.start()
        try:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        except RuntimeError:
            self.wait()

    @staticmethod
    def _run(ids: Sequence[str], stop: Event, told: SimpleQueue[tuple[str, Any]]) -> None:
        try:
            lab.run(ids, on_start=lambda one: told.put(("start", one.id)), stop=stop,
                    on_outcome=lambda outcome: told.put(("outcome", outcome)))  # fmt: skip
        except DiagKitError as error:
            told.put(("problem", str(error)))
        except Exception as error:  # noqa: BLE001 (a thread's error would reach nobody)
            told.put(("problem", f"the lab failed ({type(error).__name__}: {str(error)[:200]})"))
        told.put(("end", None))

    def _look(self) -> None:
        if self._take() or self.busy:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def wait(self) -> None:
        """Wait until nothing is measured; for a notebook that runs without a person."""
        while self.busy and self._thread:
            self._thread.join()
            self._take()

    def stop(self) -> None:
        """End what is measured now, and begin none of those that wait."""
        self.waiting = ()
        self._stop.set()
        self._tell()

    def _take(self) -> bool:
        """Everything that the thread has told; whether there was anything."""
        taken = False
        while True:
            try:
                what, value = self._told.get_nowait()
            except Empty:
                break
            taken = True
            if what == "start":
                self.running, self.waiting = value, tuple(id for id in self.waiting if id != value)
            elif what == "outcome":
                self.running, self.waiting = "", tuple(id for id in self.waiting if id != value.experiment)
                if not (value.problem and self._stop.is_set()):
                    self.outcomes[value.experiment] = value
            elif what == "problem":
                self.problem, self.waiting = value, ()
            else:
                self.running, self._thread = "", None
                if self.waiting:
                    self._begin()
        if taken:
            self._tell()
        return taken

    def _tell(self) -> None:
        for call in tuple(self._listeners):
            call()


@cache
def runs() -> Runs:
    """Those of this kernel: each view of an experiment shows the same."""
    return Runs()


@cache
def recorded() -> dict[str, Recorded]:
    """Outcomes that the project keeps, by experiment; none where they are not there or not as they should be."""
    path = places.CHECKOUT / "data" / "measured" / "lab_claims.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        outcomes = [lab.Outcome.from_json(one) for one in document["outcomes"]]
        machine = str(document.get("machine") or "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {one.experiment: Recorded(one, ", ".join(filter(None, (machine, one.device, f"torch {one.torch}"))))
            for one in outcomes if not one.problem}  # fmt: skip
