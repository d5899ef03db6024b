"""Apple's MPS allocator.

``RuntimeError: MPS backend out of memory (MPS allocated: 11.14 GB, other allocations: 6.65 GB, max allowed: 18.13 GB).
Tried to allocate 375.40 MB on private pool.`` Units are binary in the older (GB) and the newer (GiB) wording. "Private
pool" is no CUDA graph. ``Invalid buffer size: 58.00 GB`` is one request above Metal's limit. Empty: MPS did not
complain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...units import SIZE, parse_size
from ..facts import Event
from ..text import Window

LITERALS = ("MPS backend out of memory", "Invalid buffer size")

_FIELDS = (
    ("allocated_bytes", re.compile(rf"MPS allocated: ({SIZE})")),
    ("other_allocations_bytes", re.compile(rf"other allocations: ({SIZE})")),
    ("allowed_bytes", re.compile(rf"max allowed: ({SIZE})")),
    ("tried_to_allocate_bytes", re.compile(rf"(?:Tried to allocate|Invalid buffer size:) ({SIZE})")),
)


def parse(window: Window) -> Iterator[Event]:
    """Events ``mps.oom``."""
    for index, line in enumerate(window.lines):
        if any(literal in line.text for literal in LITERALS):
            text = window.joined(index, lines=4)
            figures = {name: parse_size(found[1]) for name, pattern in _FIELDS if (found := pattern.search(text))}
            yield window.event(
                index,
                kind="mps.oom",
                family="gpu-oom",
                figures=figures,
                message=text[:800],
                device="mps",
            )
