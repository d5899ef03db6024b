"""The engineer's own loop: hand over a factory or a Trainer, and what stays alive from one micro-step to the next is
found, with the line that holds it.

    from diag_kit.lab.loop import inspect_loop, compare, try_fix, inspect_trainer
    inspect_loop("train.py:factory")                       # runs your code, small
    compare("train.py:factory", change={"checkpointing": True})
    try_fix("train.py:factory")                            # edits a copy of the named line in memory, measures again

``forms`` says what a factory may return. Importing this package imports no torch; the functions do.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "inspect_loop": "survey",
    "inspect_trainer": "trainer",
    "inspect_apart": "child",
    "compare": "fix",
    "try_fix": "fix",
    "Loop": "result",
    "Holding": "result",
    "Comparison": "result",
    "LoopError": "result",
}
__all__ = [
    "Comparison", "Holding", "Loop", "LoopError",
    "compare", "inspect_apart", "inspect_loop", "inspect_trainer", "try_fix",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
