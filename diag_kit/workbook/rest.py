"""Work that waits until a control rests: on the kernel's own loop, never in a second thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

REST_S = 0.3


class AtRest:
    """Calls once, ``REST_S`` after the last time it was asked to; at once where no event loop runs."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._waiting: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._call()
            return
        self.cancel()
        self._waiting = loop.call_later(REST_S, self._call)

    def cancel(self) -> None:
        if self._waiting:
            self._waiting.cancel()
        self._waiting = None
