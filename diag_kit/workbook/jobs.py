"""One thing in a thread, looked at from the kernel's loop: the page never waits, and no widget hears a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

from ..errors import DiagKitError

LOOK_SECONDS = 0.1

T = TypeVar("T")


class Job(Generic[T]):
    """Calls ``call(stop)`` in a thread, then ``done`` where it was started from; at once where no loop runs.

    Attributes:
        result: what it gave; None before, and where it failed.
        problem: why it failed, in one line; empty where it did not.
        stop: set by a person who does not want to wait; ``call`` looks at it.
    """

    def __init__(self, call: Callable[[Event], T], done: Callable[[], None]) -> None:
        self.result: T | None = None
        self.problem, self.stop = "", Event()
        self._call, self._done = call, done
        self._thread = Thread(target=self._run, name="diag-kit job", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        try:
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        except RuntimeError:
            self._thread.join()
            self._done()

    def _run(self) -> None:
        try:
            self.result = self._call(self.stop)
        except DiagKitError as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001 (a thread's error would reach nobody)
            self.problem = f"{type(error).__name__}: {str(error)[:200]}"

    def _look(self) -> None:
        if self._thread.is_alive():
            asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        else:
            self._done()
