"""Programs that allocate on the GPU themselves and say how much: CuPy, RAPIDS, llama.cpp, TensorRT, MXNet.

* CuPy: ``cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far:
  12,884,901,888 bytes, limit set to: 17,179,869,184 bytes).``
* RAPIDS: ``MemoryError: std::bad_alloc: out_of_memory: RMM failure at ... : Maximum pool size exceeded``.
* llama.cpp: ``ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of
  memory``.
* TensorRT: ``[TRT] ... Requested amount of GPU memory (8589934592 bytes) could not be allocated.``
* MXNet: ``cudaMalloc retry failed: out of memory``, without a size.

An empty result means that none of these complained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import SIZE, parse_size
from ..facts import Event
from ..text import Window

LITERALS = (
    "Out of memory allocating",
    "out_of_memory: ",
    "cudaMalloc failed: out of memory",
    "Requested amount of GPU memory",
    "cudaMalloc retry failed",
)

_KINDS = (
    ("cupy.oom", re.compile(rf"OutOfMemoryError: Out of memory allocating (?P<asked>{SIZE})")),
    ("rmm.oom", re.compile(r"bad_alloc: out_of_memory: ")),
    (
        "ggml.oom",
        re.compile(rf"allocating (?P<asked>{SIZE}) on device (?P<device>\d{{1,6}}): cudaMalloc failed: out of memory"),
    ),
    (
        "tensorrt.oom",
        re.compile(r"Requested amount of GPU memory \((?P<asked>\d{1,20} bytes)\) could not be allocated"),
    ),
    ("mxnet.oom", re.compile(r"cudaMalloc retry failed: out of memory")),
)
_ALLOCATED = re.compile(rf"allocated so far: ({SIZE})")
_LIMIT = re.compile(rf"limit set to: ({SIZE})")


def parse(window: Window) -> Iterator[Event]:
    """Events ``cupy.oom``, ``rmm.oom``, ``ggml.oom``, ``tensorrt.oom`` and ``mxnet.oom``."""
    for index, line in enumerate(window.lines):
        if not any(literal in line.text for literal in LITERALS):
            continue
        for kind, pattern in _KINDS:
            if not (found := pattern.search(line.text)):
                continue
            said = found.groupdict()
            figures: dict[str, Any] = {}
            if said.get("asked"):
                figures["tried_to_allocate_bytes"] = parse_size(said["asked"])
            for name, field in (("allocated_bytes", _ALLOCATED), ("allowed_bytes", _LIMIT)):
                if size := field.search(line.text):
                    figures[name] = parse_size(size[1])
            device = int(said["device"]) if said.get("device") else None
            message = line.text.strip()[:800]
            yield window.event(index, kind=kind, family="gpu-oom", figures=figures, device=device, message=message)
            break
