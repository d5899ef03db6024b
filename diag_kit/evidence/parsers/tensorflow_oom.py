"""TensorFlow's out-of-memory messages: the tensor that found no room, what its allocator held, and mere advice.

* ``ResourceExhaustedError: OOM when allocating tensor with shape[32,4,4096,4096] and type float on
  /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc``; 1.x before 1.5: ``tensor of shape [a,b] and
  type float``, or a shape alone, whose type the node below tells (``T=DT_FLOAT``). ``device:CPU:0 by allocator cpu`` is the host. A graph that fails in several places
  prints ``2 root error(s) found`` and repeats the message as ``(0)`` and ``(1)``; the log line of the operation repeats
  it before the traceback. One failure, one event.
* the BFC allocator's summary before it, in bytes: ``Limit:``, ``InUse:``, ``MaxInUse:``, ``MaxAllocSize:``; newer ones
  add ``LargestFreeBlock:``. ``Limit`` is what TensorFlow took or was given, not what the card has.
* ``failed to allocate 7.35G (7889485824 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY``: the card refused the pool.
* ``failed to alloc N bytes on host: CUDA_ERROR_OUT_OF_MEMORY``, ``could not allocate pinned host memory of size: N``:
  page-locked host memory.
* ``Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.19GiB ... The caller indicates that this is not a
  failure``: advice. The same line without that sentence stands before a failure; JAX, which shares the allocator,
  prints it too.
* ``Allocation of N exceeds 10% of free system memory``: advice about the host.

Units are binary, whatever the letters. An empty result means that TensorFlow's allocators did not complain.
Source: tensorflow/core/common_runtime/bfc_allocator.cc, tensorflow/core/framework/op_kernel.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import parse_size
from ..facts import DeviceMemory, Event
from ..text import Window

LITERALS = (
    "OOM when allocating",
    "ran out of memory trying to allocate",
    "from device: CUDA_ERROR_OUT_OF_MEMORY",
    "on host: CUDA_ERROR_OUT_OF_MEMORY",
    "could not allocate pinned host memory",
    "of free system memory",
    "with properties:",
    "deviceMemorySize:",
    "totalMemory:",
    "MaxInUse:",
)

_BYTES = {
    "float": 4, "half": 2, "bfloat16": 2, "double": 8, "int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_TORCH_NAMES = {"float": "float32", "half": "float16", "double": "float64"}
_OOM = re.compile(
    r"OOM when allocating tensor (?:with|of) shape ?\[([\d,]{0,200})\](?: and type (\w{1,40}))?"
    r"(?: on (\S{0,200}))?(?: by allocator (\w{1,60}))?"
)
_BFC = re.compile(r"Allocator \((\w{1,60})\) ran out of memory trying to allocate ([\d.]{1,24} ?[KMGT]?i?B)")
_REFUSED = re.compile(r"failed to allocate [\d.]{1,24}[KMGT]?i?B? \((\d{1,20}) bytes\) from device: CUDA_ERROR_OUT_OF")
_PINNED = re.compile(
    r"failed to alloc (\d{1,20}) bytes on host: CUDA_ERROR_OUT_OF|allocate pinned host memory of size: (\d{1,20})"
)
_HOST_ADVICE = re.compile(r"Allocation of (\d{1,20}) exceeds \d{1,3}% of free system memory")
_STATS = re.compile(r"^\s*(Limit|InUse|MaxInUse|MaxAllocSize|LargestFreeBlock):\s{1,40}(\d{1,20})\s*$")
_STAT_NAMES = {
    "Limit": "allocator_limit_bytes",
    "InUse": "allocated_bytes",
    "MaxInUse": "max_allocated_bytes",
    "MaxAllocSize": "largest_allocation_bytes",
    "LargestFreeBlock": "largest_free_block_bytes",
}
_DEVICE = re.compile(r"(?:GPU[:_ ]|device:GPU:)(\d{1,6})")
_FOUND_DEVICE = re.compile(r"Found device (\d{1,6}) with properties")
_CARD = re.compile(
    r"(?:deviceMemorySize|totalMemory): ([\d.]{1,24} ?[KMGT]i?B)(?: freeMemory: ([\d.]{1,24} ?[KMGT]i?B))?"
)
_NODE_TYPE = re.compile(r"\[(?:dtype|T)=DT_(\w{1,20})")
_NEAR = 300


def parse(window: Window) -> Iterator[Event | DeviceMemory]:
    """Events ``tf.oom``, ``tf.host-oom``, ``tf.device-refused``, ``tf.pinned-host``, ``tf.bfc-refused`` and the
    advisories ``tf.advisory``, ``tf.host-advisory``; the size of each card that TensorFlow found."""
    told = _one_of_each(window)
    failures = [i for i, line in enumerate(window.lines) if "esource" in line.text or "RESOURCE_EXH" in line.text]
    last_failure = failures[-1] if failures else -1
    stats: dict[str, int] = {}
    stats_at = device = 0
    for index, line in enumerate(window.lines):
        text = line.text
        if ":" in text and (found := _STATS.match(text)):
            if found[1] == "Limit":
                stats = {}
            stats[_STAT_NAMES[found[1]]], stats_at = int(found[2]), index
        if not any(literal in text for literal in LITERALS):
            continue
        if found := _FOUND_DEVICE.search(text):
            device = int(found[1])
        if found := _CARD.search(text):
            yield DeviceMemory(
                source=window.source(index, around=0),
                rank=line.rank,
                device=device,
                total_bytes=parse_size(found[1]),
                free_bytes=parse_size(found[2]) if found[2] else None,
            )
        elif found := told.get(index):
            host = "CPU" in (found[3] or "") or found[4] in ("cpu", "mklcpu")
            near = index - stats_at <= _NEAR and not host
            dtype = found[2] or _dtype_below(window, index)
            figures: dict[str, Any] = {**_tensor(found[1], dtype), **(stats if near else {})}
            kind, family = ("tf.host-oom", "host-oom") if host else ("tf.oom", "gpu-oom")
            yield _event(window, index, kind, family, figures, device=_device(text) if not host else None)
        elif found := _BFC.search(text):
            figures = {"tried_to_allocate_bytes": parse_size(found[2])}
            advice = "not a failure" in window.joined(index, lines=3)
            kind = "tf.advisory" if advice else "tf.bfc-refused"
            # Where the failure itself is told further down, this line only comes before it.
            role = "advisory" if advice else "context" if index < last_failure else "originator"
            family = "gpu-oom" if "GPU" in found[1] or not advice else "host-oom"
            yield _event(window, index, kind, family, figures, role=role, device=_device(found[1]))
        elif found := _REFUSED.search(text):
            yield _event(window, index, "tf.device-refused", "gpu-oom", {"tried_to_allocate_bytes": int(found[1])})
        elif found := _PINNED.search(text):
            figures = {"tried_to_allocate_bytes": int(found[1] or found[2])}
            yield _event(window, index, "tf.pinned-host", "host-oom", figures)
        elif found := _HOST_ADVICE.search(text):
            figures = {"tried_to_allocate_bytes": int(found[1])}
            yield _event(window, index, "tf.host-advisory", "host-oom", figures, role="advisory")


def _one_of_each(window: Window) -> dict[int, re.Match[str]]:
    """Where each failure is told best: of its repetitions the exception's own line, else ``(0)``, else the first."""
    groups: dict[tuple[Any, ...], list[tuple[int, int, re.Match[str]]]] = {}
    chosen: dict[int, re.Match[str]] = {}
    for index, line in enumerate(window.lines):
        found = _OOM.search(line.text) if "OOM when allocating" in line.text else None
        if not found:
            continue
        key = (line.rank, found[1], found[2])
        worth = 0 if "Error" in line.text[: found.start()] else 1 if line.text.lstrip()[:3] == "(0)" else 2
        group = groups.setdefault(key, [])
        if group and index - group[-1][0] > _NEAR:
            _, at, best = min(((w, i, f) for i, w, f in group), key=lambda one: one[:2])
            chosen[at] = best
            group.clear()
        group.append((index, worth, found))
    for group in groups.values():
        _, at, best = min(((w, i, f) for i, w, f in group), key=lambda one: one[:2])
        chosen[at] = best
    return chosen


def _tensor(shape: str, dtype: str | None) -> dict[str, Any]:
    """Shape, type and size of the tensor, as ``tensor_shape``, ``tensor_dtype`` and ``tensor_size_bytes``."""
    dims = [int(part) for part in shape.split(",")[:32] if part]
    figures: dict[str, Any] = {"tensor_shape": dims, "tensor_dtype": _TORCH_NAMES.get(dtype or "", dtype)}
    if dtype in _BYTES:
        size = _BYTES[dtype]
        for dim in dims:
            size *= min(dim, 1 << 62)
        figures["tensor_size_bytes"] = size
    return figures


def _dtype_below(window: Window, index: int) -> str | None:
    """The type of the node that the next lines name, in the message's spelling."""
    near = (_NODE_TYPE.search(line.text, 0, 600) for line in window.lines[index + 1 : index + 3])
    return next((found[1].lower() for found in near if found), None)


def _device(text: str) -> int | None:
    return int(found[1]) if (found := _DEVICE.search(text)) else None


def _event(window: Window, index: int, kind: str, family: str, figures: dict[str, Any], **said: Any) -> Event:
    figures = {name: value for name, value in figures.items() if value is not None}
    message = window.lines[index].text.strip()[:800]
    return window.event(index, kind=kind, family=family, figures=figures, message=message, **said)
