"""Out-of-memory messages of frameworks beside PyTorch, recognised with the figures that stand in one line.

* JAX and XLA: ``RESOURCE_EXHAUSTED: Out of memory while trying to allocate N bytes``, TPU ``Used 23.43G of 15.48G
  hbm``.
* TensorFlow: ``OOM when allocating tensor with shape[32,4,4096,4096] and type float on ... by allocator GPU_0_bfc``.
* Paddle: ``Out of memory error on GPU 0. Cannot allocate 25.002197MB memory on GPU 0, available memory is only
  15.19MB``.
* ONNX Runtime: ``Failed to allocate memory for requested buffer of size N``.
* vLLM: ``No available memory for the cache blocks``: a budget of zero, not an allocation.

An empty result means that none of these spoke.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import parse_size
from ..facts import Event
from ..text import Window

LITERALS = (
    "RESOURCE_EXHAUSTED",
    "Resource exhausted",
    "OOM when allocating tensor",
    "Out of memory error on GPU",
    "requested buffer of size",
    "memory for the cache blocks",
    "Ran out of memory in memory space",
)

_DTYPE_BYTES = {"float": 4, "half": 2, "bfloat16": 2, "double": 8, "int32": 4, "int64": 8, "bool": 1, "uint8": 1}
_SHAPE = re.compile(r"OOM when allocating tensor (?:with|of) shape ?\[([\d,]+)\](?: and type (\w+))?")
_DEVICE = re.compile(r"(?:GPU[: ]|device:GPU:)(\d{1,15})")
_KINDS = (
    ("tf.oom", _SHAPE),
    (
        "jax.oom",
        re.compile(r"RESOURCE_EXHAUSTED: |Resource exhausted: Out of memory|Ran out of memory in memory space"),
    ),
    ("paddle.oom", re.compile(r"Out of memory error on GPU (\d{1,15})")),
    ("ort.alloc", re.compile(r"Failed to allocate memory for requested buffer of size")),
    ("vllm.no-cache-blocks", re.compile(r"Error: No available memory for the cache blocks")),
)
_FIELDS = (
    (
        "tried_to_allocate_bytes",
        re.compile(
            r"(?:trying to allocate|Cannot allocate|buffer of size|Attempting to allocate) ([\d.]{1,24} ?(?:[KMGT]i?B?|bytes)?)"
        ),
    ),
    ("free_bytes", re.compile(r"available memory is only ([\d.]{1,24} ?[KMGT]i?B)")),
    ("allocated_bytes", re.compile(r"(?<![\d.])([\d.]{1,24} ?[KMGT]i?B) memory has been allocated")),
    ("total_bytes", re.compile(r"Used [\d.]{1,24}[KMGT] of ([\d.]{1,24}[KMGT])")),
    ("needed_bytes", re.compile(r"Used ([\d.]{1,24}[KMGT]) of [\d.]{1,24}[KMGT]")),
)


def parse(window: Window) -> Iterator[Event]:
    """Events ``tf.oom``, ``jax.oom``, ``paddle.oom``, ``ort.alloc``, ``vllm.no-cache-blocks``."""
    for index, line in enumerate(window.lines):
        if not any(literal in line.text for literal in LITERALS):
            continue
        for kind, pattern in _KINDS:
            if not (found := pattern.search(line.text)):
                continue
            figures: dict[str, Any] = {}
            for name, field in _FIELDS:
                if (size := field.search(line.text)) and (value := parse_size(size[1])) is not None:
                    figures[name] = value
            if kind == "tf.oom":
                shape = [int(part) for part in found[1].split(",") if part]
                figures |= {"tensor_shape": shape, "tensor_dtype": "float32" if found[2] == "float" else found[2]}
                if found[2] in _DTYPE_BYTES:
                    size_bytes = _DTYPE_BYTES[found[2]]
                    for part in shape:
                        size_bytes *= part
                    figures["tensor_size_bytes"] = size_bytes
            device = _DEVICE.search(line.text)
            yield window.event(
                index,
                kind=kind,
                family="gpu-oom",
                figures=figures,
                device=int(device[1]) if device else ("tpu" if "hbm" in line.text else None),
                message=line.text.strip()[:800],
            )
            break
