"""Log formats, one file each, found by looking into this folder.

A parser module offers ``LITERALS`` (strings of which every match contains at least one; a scan over a large log looks
for them, so choose words that healthy logs don't repeat) and ``parse(window) -> Iterator[Fact]``. Optionally:

* ``ROLL_CALL``: of its literals those of lines that each rank prints once; they are kept by the thousand.
* ``SERIES``: those of lines that are printed each step; each is thinned evenly over a large log.
* ``READS_ALL``: it also reads lines without a literal (prefixes, dumps of arguments), wherever a window is parsed.
* ``STEPS``: signs of progress, thinned together. Of a module with these two, the other literals are not looked for.
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
