"""Log formats, one file each, found by looking into this folder.

A parser module offers ``LITERALS`` (strings of which every match contains at least one; a scan looks for them),
``parse(window) -> Iterator[Fact]``, and optionally ``SERIES``, the literals of lines that stand alone and may be
millions: they are thinned over a large file, while ``LITERALS`` are looked for near events only.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType


@cache
def all_parsers() -> tuple[ModuleType, ...]:
    """Every parser module of this folder, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)
