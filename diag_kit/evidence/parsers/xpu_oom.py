"""Intel's XPU allocator.

``XPU out of memory. Tried to allocate 1.71 GiB (GPU 0; 15.56 GiB total capacity; 0 bytes already allocated; 0 bytes
reserved in total by PyTorch)`` without "free", or the newer sentence of CUDA's form; and ``Current platform can NOT
allocate memory block with size larger than 4GB! Tried to allocate 6.85 GiB``, a limit for one block, whatever is free.
Empty: XPU did not complain.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import Event
from ..text import Window
from ..torch_sizes import sizes

LITERALS = ("XPU out of memory", "can NOT allocate memory block")


def parse(window: Window) -> Iterator[Event]:
    """Events ``xpu.oom`` and ``xpu.block-limit``."""
    for index, line in enumerate(window.lines):
        if any(literal in line.text for literal in LITERALS):
            text = window.joined(index, lines=5)
            figures, device, _ = sizes(text)
            kind = "xpu.block-limit" if LITERALS[1] in line.text else "xpu.oom"
            yield window.event(
                index,
                kind=kind,
                family="gpu-oom",
                figures=figures,
                message=text[:800],
                device=device,
            )
