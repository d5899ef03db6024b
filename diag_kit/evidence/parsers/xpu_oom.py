"""Intel's XPU: the allocator of torch and its extension, and the driver below it.

* ``XPU out of memory. Tried to allocate 1.71 GiB (GPU 0; 15.56 GiB total capacity; 0 bytes already allocated; 0 bytes
  reserved in total by PyTorch)``, without "free" (Intel's extension, to 2.1).
* ``XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.91 GiB of which 1.20 GiB is free. Of
  the allocated memory ... Please use `empty_cache` to release all unoccupied cached memory.`` (torch 2.5 on; "of which"
  is not always there).
* ``Current platform can NOT allocate memory block with size larger than 4GB! Tried to allocate 6.85 GiB (GPU 0; ...``:
  a limit for one block, whatever is free.
* ``Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)``, older ``-5 (PI_ERROR_OUT_OF_
  RESOURCES)``: SYCL's word for a device that refused, without sizes.

An empty result means that XPU did not complain. Source: c10/xpu/XPUCachingAllocator.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...units import parse_size
from ..facts import Event
from ..text import Window
from ..torch_sizes import sizes

LITERALS = (
    "XPU out of memory",
    "can NOT allocate memory block",
    "_ERROR_OUT_OF_DEVICE_MEMORY",
    "_ERROR_OUT_OF_RESOURCES",
)

_BLOCK = re.compile(r"block with size larger than (\d{1,6} ?[KMGT]i?B)")
_NEXT = re.compile(r"XPU out of memory|can NOT allocate|^Traceback|^\s*File |\bError: ")


def parse(window: Window) -> Iterator[Event]:
    """Events ``xpu.oom``, ``xpu.block-limit`` and ``xpu.driver-oom``."""
    for index, line in enumerate(window.lines):
        if not any(literal in line.text for literal in LITERALS):
            continue
        text = window.joined(index, lines=5, stop=_NEXT)
        figures, device, _ = sizes(text)
        kind = "xpu.oom" if LITERALS[0] in line.text else "xpu.driver-oom"
        if limit := _BLOCK.search(text):
            kind, figures = "xpu.block-limit", {**figures, "block_limit_bytes": parse_size(limit[1])}
        yield window.event(index, kind=kind, family="gpu-oom", figures=figures, message=text[:800], device=device)
