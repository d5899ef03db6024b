"""The out-of-memory message of the ``cudaMallocAsync`` backend, six lines that never say "CUDA out of memory".

Who writes it: ``c10/cuda/CUDAMallocAsyncAllocator.cpp``, chosen by
``PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync``::

    RuntimeError: Allocation on device 0 would exceed allowed memory. (out of memory)
    Currently allocated     : 16.66 GiB
    Requested               : 31.27 MiB
    Device limit            : 22.13 GiB
    Free (according to CUDA): 4.62 MiB
    PyTorch limit (set by user-supplied memory fraction)
                            : 17179869184.00 GiB

The last value is 2**64 where no fraction is set. An empty result means that this backend did not run out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import SIZE, parse_size
from ..facts import Event
from ..text import Window

LITERALS = ("would exceed allowed memory",)

_START = re.compile(r"Allocation on device (\d{1,15})? ?would exceed allowed memory")
_FIELDS = (
    ("allocated_bytes", re.compile(rf"Currently allocated\s*:\s*({SIZE})")),
    ("tried_to_allocate_bytes", re.compile(rf"Requested\s*:\s*({SIZE})")),
    ("total_bytes", re.compile(rf"Device limit\s*:\s*({SIZE})")),
    ("free_bytes", re.compile(rf"Free \(according to CUDA\)\s*:\s*({SIZE})")),
    ("allowed_bytes", re.compile(rf"memory fraction\)\s*:\s*({SIZE})")),
)


def parse(window: Window) -> Iterator[Event]:
    """Events ``cuda-async.oom``."""
    for index, line in enumerate(window.lines):
        found = _START.search(line.text)
        if not found:
            continue
        message = window.joined(index, lines=8)
        figures: dict[str, Any] = {}
        for name, pattern in _FIELDS:
            value = parse_size(size[1]) if (size := pattern.search(message)) else None
            if value is not None and value < 1 << 53:
                figures[name] = value
        yield window.event(
            index,
            kind="cuda-async.oom",
            family="gpu-oom",
            message=message[:1500],
            figures=figures,
            device=int(found[1]) if found[1] else None,
        )
