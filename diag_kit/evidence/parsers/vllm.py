"""vLLM and SGLang at start: a budget for the cache of keys and values that is empty, or a card that is taken.

* ``ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` ...``: the budget came
  out at zero or below; nothing was allocated and refused. SGLang: ``RuntimeError: Not enough memory. Please try to
  increase --mem-fraction-static.``
* ``ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache
  (2512)``, later ``To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed,
  which is larger than the available KV cache memory (7.41 GiB)``.
* ``ValueError: Free memory on device (7.41/23.65 GiB) on startup is less than desired GPU memory utilization (0.9, 21.28
  GiB)``: something else holds the card before the server starts.
* before these: ``Loading model weights took 14.99 GB``, ``total_gpu_memory (23.65GiB) x gpu_memory_utilization (0.90) =
  21.28GiB``, ``PyTorch activation peak memory takes 1.23GiB``, ``# GPU blocks: 0``, ``Available KV cache memory: -1.21
  GiB``.

GB means 2**30. A ``raise ValueError("No available memory ...`` in a traceback's code is not the message. An empty result
means that no server refused to start for want of cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import parse_size
from ..facts import Event
from ..text import Window

LITERALS = (
    "memory for the cache blocks",
    "can be stored in KV cache",
    "KV cache is needed",
    "than desired GPU memory utilization",
    "increase --mem-fraction-static",
)

_SIZE = r"(-?[\d.]{1,16}) ?Gi?B"
_KINDS = (
    ("vllm.no-cache-blocks", re.compile(r"Error: No available memory for the cache blocks")),
    ("vllm.no-cache-blocks", re.compile(r"Error: Not enough memory\. Please try to increase --mem-fraction-static")),
    (
        "vllm.cache-too-small",
        re.compile(r"Error: .{0,120}max seq len \((\d{1,9})\) is larger than the maximum number of tokens"),
    ),
    ("vllm.cache-too-small", re.compile(r"Error: To serve at least one request with .{0,60}max seq len \((\d{1,9})\)")),
    ("vllm.card-taken", re.compile(r"Error: Free memory on device .{0,80}less than desired GPU memory utilization")),
)
_ABOVE = (
    ("weights_bytes", re.compile(rf"(?:[Mm]odel weights took|Model loading took|model weights take) {_SIZE}")),
    ("total_bytes", re.compile(rf"total_gpu_memory \({_SIZE}\)")),
    ("budget_bytes", re.compile(rf"gpu_memory_utilization \([\d.]{{1,8}}\) = {_SIZE}")),
    ("activation_peak_bytes", re.compile(rf"PyTorch activation peak memory takes {_SIZE}")),
    ("non_torch_memory_bytes", re.compile(rf"non_torch_memory takes {_SIZE}")),
    ("cache_bytes", re.compile(rf"(?:reserved for KV Cache is|Available KV cache memory:) {_SIZE}")),
)
_BLOCKS = re.compile(r"# (?:GPU|cuda|CUDA) blocks: (\d{1,9})")
_WITHIN = (
    ("needed_bytes", re.compile(rf"\(?{_SIZE} KV cache is needed")),
    ("cache_bytes", re.compile(rf"available KV cache memory \({_SIZE}\)")),
    ("budget_bytes", re.compile(rf"GPU memory utilization \([\d.]{{1,8}}, {_SIZE}\)")),
)
_FREE = re.compile(r"on device(?: cuda:(\d{1,6}))? \(([\d.]{1,16})/([\d.]{1,16}) GiB\)")
_NEXT = re.compile(r"Error: |^Traceback|^\s*File ")
_NEAR = 400


def parse(window: Window) -> Iterator[Event]:
    """Events ``vllm.no-cache-blocks``, ``vllm.cache-too-small`` and ``vllm.card-taken``."""
    above: dict[str, Any] = {}
    since = -_NEAR
    for index, line in enumerate(window.lines):
        text = line.text
        if "mem" in text or "blocks:" in text or "eights" in text or "loading" in text:
            found_above = _sizes(text, _ABOVE)
            if blocks := _BLOCKS.search(text):
                found_above["gpu_blocks"] = int(blocks[1])
            if found_above:
                above, since = {**above, **found_above}, index
        if not any(literal in text for literal in LITERALS):
            continue
        for kind, pattern in _KINDS:
            if not (found := pattern.search(text)):
                continue
            message = window.joined(index, lines=3, stop=_NEXT)
            figures = {**(above if index - since <= _NEAR else {}), **_sizes(message, _WITHIN)}
            if found.groups():
                figures["max_seq_len"] = int(found[1])
            free = _FREE.search(message)
            if free:
                figures |= {"free_bytes": parse_size(f"{free[2]} GiB"), "total_bytes": parse_size(f"{free[3]} GiB")}
            yield window.event(
                index,
                kind=kind,
                family="gpu-oom",
                figures=figures,
                device=int(free[1]) if free and free[1] else None,
                message=message[:800],
            )
            break


def _sizes(text: str, fields: tuple[tuple[str, re.Pattern[str]], ...]) -> dict[str, Any]:
    """Sizes by name; a budget below zero stays negative."""
    figures: dict[str, Any] = {}
    for name, pattern in fields:
        if found := pattern.search(text):
            value = parse_size(f"{found[1].removeprefix('-')} GiB")
            if value is not None:
                figures[name] = -value if found[1].startswith("-") else value
    return figures
