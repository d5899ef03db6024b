"""PaddlePaddle's out-of-memory messages.

``ResourceExhaustedError:`` and, one blank line below, ``Out of memory error on GPU 0. Cannot allocate 25.002197MB memory
on GPU 0, 7.782776GB memory has been allocated and available memory is only 15.187500MB.``; before 2.2 without the
clause on what has been allocated, and with ``NPU``, ``XPU`` or another device's name in place of GPU. Units are binary,
without a space before them, with six decimals. ``gpu memory limit`` or ``FLAGS_gpu_memory_limit_mb`` beside it tells of
a cap. ``Fail to alloc memory of 4096 size`` comes from the CPU's allocator.

An empty result means that Paddle's allocators did not complain.
Source: paddle/fluid/memory/allocation/cuda_allocator.cc, cpu_allocator.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...units import SIZE, parse_size
from ..facts import Event
from ..text import Window

LITERALS = ("Out of memory error on ", "Fail to alloc memory of ")

_START = re.compile(r"Out of memory error on (?:[A-Za-z]\w{0,11}) ?\(?(\d{1,6})?")
_NEXT = re.compile(r"Error\b|^Traceback|^\s*File |Please check")
_HOST = re.compile(r"Fail to alloc memory of (\d{1,20}) size")
_FIELDS = (
    ("tried_to_allocate_bytes", re.compile(rf"Cannot allocate ({SIZE}) memory on")),
    ("allocated_bytes", re.compile(rf"({SIZE}) memory has been allocated")),
    ("free_bytes", re.compile(rf"available memory is only ({SIZE})")),
    ("allowed_bytes", re.compile(rf"memory limit (?:is|=|of) ?({SIZE})")),
)


def parse(window: Window) -> Iterator[Event]:
    """Events ``paddle.oom``; ``paddle.host-oom`` for the CPU's allocator."""
    for index, line in enumerate(window.lines):
        if found := _START.search(line.text) if LITERALS[0] in line.text else None:
            message = window.joined(index, lines=4, stop=_NEXT)
            figures = {name: parse_size(size[1]) for name, field in _FIELDS if (size := field.search(message))}
            yield window.event(
                index,
                kind="paddle.oom",
                family="gpu-oom",
                figures=figures,
                device=int(found[1]) if found[1] else None,
                message=message[:800],
            )
        elif LITERALS[1] in line.text and (found := _HOST.search(line.text)):
            yield window.event(
                index,
                kind="paddle.host-oom",
                family="host-oom",
                figures={"tried_to_allocate_bytes": int(found[1])},
                message=line.text.strip()[:800],
            )
