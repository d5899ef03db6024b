"""Apple's GPU: torch's MPS allocator, Metal below it, and MLX.

* ``RuntimeError: MPS backend out of memory (MPS allocated: 11.14 GB, other allocations: 6.65 GB, max allowed: 18.13
  GB). Tried to allocate 375.40 MB on private pool.`` Units are binary in the older (GB) and the newer (GiB) wording.
  "Private pool" is no CUDA graph, and "max allowed" is the high-water mark, not the machine's memory.
* ``Invalid buffer size: 58.00 GB`` (or ``GiB``): one request above Metal's limit for a buffer.
* MLX: ``[metal::malloc] Attempting to allocate 28991029248 bytes which is greater than the maximum allowed buffer size of
  14000000000 bytes.``
* Metal: ``Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)``, without sizes.

An empty result means that MPS did not complain. Source: aten/src/ATen/mps/MPSAllocator.mm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...units import SIZE, parse_size
from ..facts import Event
from ..text import Window

LITERALS = (
    "MPS backend out of memory",
    "Invalid buffer size",
    "maximum allowed buffer size",
    "CallbackErrorOutOfMemory",
)

_FIELDS = (
    ("allocated_bytes", re.compile(rf"MPS\s+allocated:\s+({SIZE})")),
    ("other_allocations_bytes", re.compile(rf"other\s+allocations:\s+({SIZE})")),
    ("allowed_bytes", re.compile(rf"max\s+allowed:\s+({SIZE})")),
    (
        "tried_to_allocate_bytes",
        re.compile(rf"(?:Tried\s+to\s+allocate|Invalid buffer size:|Attempting to allocate)\s+({SIZE})"),
    ),
    ("buffer_limit_bytes", re.compile(rf"maximum allowed buffer size of ({SIZE})")),
)
_NEXT = re.compile(r"MPS backend out|Invalid buffer size|^Traceback|^\s*File |^\w{0,40}Error: ")


def parse(window: Window) -> Iterator[Event]:
    """Events ``mps.oom``."""
    for index, line in enumerate(window.lines):
        if any(literal in line.text for literal in LITERALS):
            text = window.joined(index, lines=5, stop=_NEXT)
            figures = {name: parse_size(found[1]) for name, pattern in _FIELDS if (found := pattern.search(text))}
            yield window.event(
                index,
                kind="mps.oom",
                family="gpu-oom",
                figures=figures,
                message=text[:800],
                device="mps",
            )
