"""JAX and XLA: what the compiler or the runtime found no memory for, on GPUs and TPUs.

* GPU, at run time: ``XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 68719476736 bytes.``
  (also ``Out of memory allocating N bytes``, ``... trying to allocate 17.17GiB``, ``Failed to allocate request for
  2.50GiB (2684354560B) on device ordinal 0``; in 2019 ``Resource exhausted: Out of memory``), followed in some versions
  by ``BufferAssignment stats:`` with ``parameter allocation: 388.28MiB``, ``preallocated temp allocation``, ``total
  allocation``, and ``Peak buffers`` with a ``Size:`` and ``Shape: f32[8,4096]`` each.
* TPU, at run time: ``Attempting to allocate 31.06M. That was not possible. There are 58.64M free. Due to fragmentation,
  the largest contiguous region of free memory is 30.56M.; (0x0x0_HBM0)``; loading a program: ``Attempting to reserve
  12.04G at the bottom of memory. That was not possible. There are 11.04G free``, in some versions ``, 0B reserved, and
  3.33G reservable``: so much lies in one piece.
* TPU, when compiling, before any step: ``Ran out of memory in memory space hbm. Used 23.43G of 15.48G hbm. Exceeded hbm
  capacity by 7.95G.``, then ``program 23.43G``, ``arguments 0B``. In memory space ``vmem`` or ``smem`` a kernel's
  on-chip memory ran out, which is no device memory.

``RESOURCE_EXHAUSTED`` alone is gRPC's word too (a message or a quota too large) and says nothing. XLA reserves most of a
GPU at start, so nvidia-smi's number tells nothing of need. Letters mean powers of 1024. The filtered copy of an
exception is not counted again. An empty result means that XLA did not run out.
Source: xla/service/buffer_assignment.cc, xla/tsl/framework/bfc_allocator.cc, printed TPU errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import parse_size
from ..facts import Event
from ..text import Window

LITERALS = ("RESOURCE_EXHAUSTED", "Resource exhausted", "Ran out of memory in memory space", "That was not possible")

_AMOUNT = r"([\d.]{1,24} ?(?:bytes|[KMGT]?i?B|[KMGT])?)"
_START = re.compile(
    r"(?:RESOURCE_EXHAUSTED|Resource exhausted): .{0,300}?(?:Out of memory|[Ff]ailed to allocate|Attempting to (?:allocate|"
    r"reserve)|Ran out of memory in)|Ran out of memory in memory space|That was not possible"
)
_SPACE = re.compile(r"in memory space (\w{1,20})")
_FIELDS = tuple(
    (name, re.compile(pattern.replace("AMOUNT", _AMOUNT)))
    for name, pattern in (
        (
            "tried_to_allocate_bytes",
            r"(?:trying to allocate|Out of memory allocating|Attempting to (?:allocate|reserve)) AMOUNT",
        ),
        ("tried_to_allocate_bytes", r"allocate request for [\d.]{1,24}[KMGT]?i?B \((\d{1,20})B\)"),
        ("free_bytes", r"There are AMOUNT free"),
        ("largest_free_block_bytes", r"largest contiguous region of free memory is AMOUNT"),
        ("largest_free_block_bytes", r"There are .{0,60}\breserved, and AMOUNT reservable"),
        ("needed_bytes", r"Used AMOUNT of [\d.]{1,24}[KMGT]"),
        ("total_bytes", r"Used [\d.]{1,24}[KMGT]?i?B? of AMOUNT"),
        ("exceeded_by_bytes", r"Exceeded \w{1,20} capacity by AMOUNT"),
    )
)
_BELOW = tuple(
    (name, re.compile(rf"^\s*{pattern}:?\s{{1,60}}{_AMOUNT}\s*(?:\(|$)"))
    for name, pattern in (
        ("parameters_allocation_bytes", "parameter allocation"),
        ("output_allocation_bytes", "maybe_live_out allocation"),
        ("temporary_allocation_bytes", "preallocated temp allocation"),
        ("needed_bytes", "total allocation"),
        ("program_bytes", "program"),
        ("arguments_bytes", "arguments"),
    )
)
_BUFFER = re.compile(r"^\s*(?:\d{1,4}\. )?Size: " + _AMOUNT + r"\s*$")
_SHAPE = re.compile(r"^\s*Shape: \(?(\w{1,16})\[([\d,]{0,200})\]")
_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "s32": "int32", "pred": "bool"}
_KERNEL = {"needed_bytes": "kernel_needed_bytes", "total_bytes": "kernel_limit_bytes"}
_ORDINAL = re.compile(r"device ordinal (\d{1,6})")
_NEAR = 300


def parse(window: Window) -> Iterator[Event]:
    """Events ``jax.oom``; ``xla.kernel-memory`` (not memory of the device) where on-chip memory ran out."""
    said: dict[tuple[Any, ...], int] = {}
    for index, line in enumerate(window.lines):
        text = line.text
        if not any(literal in text for literal in LITERALS):
            continue
        start = _START.search(text)
        if not start or "OOM when allocating" in text:  # TensorFlow's own, read by its format
            continue
        message = window.joined(index, lines=4, stop=_START)
        figures = _figures(message)
        key = (line.rank, *sorted(figures.items()))
        if index - said.get(key, -_NEAR - 1) <= _NEAR:
            continue
        said[key] = index
        space = _SPACE.search(message)
        kernel = space is not None and space[1] not in ("hbm", "host")
        if kernel:
            figures = {_KERNEL[name]: value for name, value in figures.items() if name in _KERNEL}
        else:
            figures = {**_below(window, index), **figures}
        tpu = "hbm" in message or "HBM" in message or "TPU" in message
        ordinal = _ORDINAL.search(message)
        yield window.event(
            index,
            kind="xla.kernel-memory" if kernel else "jax.oom",
            family="not-memory" if kernel else "gpu-oom",
            figures=figures,
            device=int(ordinal[1]) if ordinal else "tpu" if tpu else None,
            message=text.strip()[:800],
        )


def _figures(message: str) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, pattern in _FIELDS:
        if name not in figures and (found := pattern.search(message)):
            value = parse_size(found[1].strip().rstrip("."))
            if value is not None:
                figures[name] = value
    return figures


def _below(window: Window, index: int) -> dict[str, Any]:
    """What the tables under the message say: XLA's buffers by use, and the largest one with its shape."""
    figures: dict[str, Any] = {}
    largest = current = 0
    for line in window.lines[index + 1 : index + 120]:
        if line.text.startswith("Traceback") or _START.search(line.text):
            break
        if found := _BUFFER.match(line.text):
            current = parse_size(found[1]) or 0
        elif (found := _SHAPE.match(line.text)) and current > largest:
            largest = figures["tensor_size_bytes"] = current
            figures["tensor_shape"] = [int(part) for part in found[2].split(",")[:32] if part]
            figures["tensor_dtype"] = _DTYPES.get(found[1], found[1])
        for name, pattern in _BELOW:
            if name not in figures and (found := pattern.match(line.text)):
                value = parse_size(found[1])
                if value is not None:
                    figures[name] = value
    return figures
