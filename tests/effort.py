"""What a piece of work costs beside a fixed piece of work on the same machine, so that no test depends on its speed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def _seconds(work: Callable[[], object]) -> float:
    """CPU time, without the collector's share, which grows with what other tests left in the process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        begun = time.process_time()
        work()
        return time.process_time() - begun
    finally:
        if enabled:
            gc.enable()


def _count() -> int:
    total = 0
    for number in range(1_500_000):
        total += number & 7
    return total


_yardstick = 0.0


def costs_less(work: Callable[[], object], yardsticks: float, tries: int = 3) -> bool:
    """Whether the work's CPU time is below so many yardsticks (each about a tenth of a second on a machine of 2025).

    The yardstick is measured once; work that seems to cost more is measured again beside a fresh one.
    """
    global _yardstick
    _yardstick = _yardstick or _seconds(_count)
    for _ in range(tries):
        if _seconds(work) < yardsticks * _yardstick:
            return True
        _yardstick = _seconds(_count)
    return False
