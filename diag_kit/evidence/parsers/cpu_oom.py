"""Allocators of the host that said no: torch's CPU allocator, numpy, Python, Arrow, the operating system.

* torch: ``[enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory: you tried to allocate
  8589934592 bytes. Error code 12 (Cannot allocate memory)``; Windows: ``not enough memory: you tried to allocate N
  bytes.``, until 1.0 ``$ Torch: not enough memory: you tried to allocate 8GB. Buy new RAM!``. File and line vary.
* numpy: ``numpy.core._exceptions._ArrayMemoryError: Unable to allocate 113. GiB for an array with shape (123, 456) and
  data type float64``; 1.17 wrote ``Unable to allocate array with shape ...`` without a size. Any unit to PiB.
* Python: ``MemoryError`` alone. ``MemoryError: std::bad_alloc: cudaErrorMemoryAllocation`` is the GPU and not read here.
* C++: ``terminate called after throwing an instance of 'std::bad_alloc'``; Arrow: ``malloc of size N failed``; the
  system: ``OSError: [Errno 12] Cannot allocate memory``, ``unable to mmap N bytes from file <...>: Cannot allocate``.
* shared memory: ``unable to write to file </torch_123>``, ``unable to allocate shared memory(shm) for file``: /dev/shm
  is full.

An empty result means that no allocator of the host refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import SIZE, parse_size
from ..facts import Event
from ..text import Window

LITERALS = (
    "you tried to allocate",
    "Unable to allocate ",
    "MemoryError",
    "std::bad_alloc'",
    "Cannot allocate memory",
    "malloc of size ",
    "unable to write to file </torch_",
    "allocate shared memory",
)

_KINDS = (
    (
        "cpu-allocator.oom",
        "host-oom",
        re.compile(
            rf"(?:can't allocate memory|not enough memory): you tried to allocate (?P<size>{SIZE}|\d{{1,20}}(?= bytes))"
        ),
    ),
    (
        "numpy.oom",
        "host-oom",
        re.compile(
            rf"Unable to allocate (?:(?P<size>{SIZE}) for an )?array with shape \((?P<shape>[\d, ]{{1,200}})\) and "
            r"data type (?P<dtype>[<>|=]?\w{1,24})"
        ),
    ),
    ("numpy.oom", "host-oom", re.compile(rf"Unable to allocate (?P<size>{SIZE}) for an array")),
    (
        "shm.exhausted",
        "shared-memory",
        re.compile(r"unable to (?:write to file </torch_|allocate shared memory ?\(shm\) for file)"),
    ),
    (
        "os.no-memory",
        "host-oom",
        re.compile(r"unable to mmap (?P<size>\d{1,20} bytes) from file .{0,300}Cannot allocate"),
    ),
    ("os.no-memory", "host-oom", re.compile(r"Errno 12\] Cannot allocate memory|fork: Cannot allocate memory")),
    ("arrow.oom", "host-oom", re.compile(r"malloc of size (?P<bytes>\d{1,20}) failed")),
    ("cpp.bad-alloc", "host-oom", re.compile(r"instance of 'std::bad_alloc'")),
    ("python.memory-error", "host-oom", re.compile(r"^MemoryError(?::(?!.*std::bad_alloc: (?:cuda|out_of)).*)?$")),
)
_WIDTHS = {
    "float64": 8, "float32": 4, "float16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2,
    "uint32": 4, "uint64": 8, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


def parse(window: Window) -> Iterator[Event]:
    """Events of family host-oom, and ``shm.exhausted`` of family shared-memory."""
    for index, line in enumerate(window.lines):
        if not any(literal in line.text for literal in LITERALS):
            continue
        text = window.joined(index, lines=2) if "Unable to allocate" in line.text else line.text
        for kind, family, pattern in _KINDS:
            if found := pattern.search(text.strip()):
                said = found.groupdict()
                figures: dict[str, Any] = {}
                if asked := said.get("size") or said.get("bytes"):
                    figures["tried_to_allocate_bytes"] = parse_size(asked)
                if shape := said.get("shape"):
                    figures |= _array(shape, said["dtype"])
                yield window.event(index, kind=kind, family=family, figures=figures, message=text.strip()[:500])
                break


def _array(shape: str, dtype: str) -> dict[str, Any]:
    dims = [int(part) for part in shape.replace(",", " ").split()[:32]]
    figures: dict[str, Any] = {"tensor_shape": dims, "tensor_dtype": dtype}
    if dtype in _WIDTHS:
        size = _WIDTHS[dtype]
        for dim in dims:
            size *= min(dim, 1 << 62)
        figures["tensor_size_bytes"] = size
    return figures
