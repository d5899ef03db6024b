"""ONNX Runtime: its arena found no room, or CUDA refused it.

``[E:onnxruntime:, sequential_executor.cc:494 ExecuteKernel] Non-zero status code returned while running Conv node.
Name:'/up/conv' Status Message: .../bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(...) Failed to
allocate memory for requested buffer of size 8589934592``; ``Available memory of N is smaller than requested bytes of
M`` where a limit of the arena was reached; ``CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; expr=cudaMalloc(...)``.
The size can be garbage (4585490524328388608): a corrupted shape, no need for memory.

An empty result means that its arenas did not complain. Source: onnxruntime/core/framework/bfc_arena.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..facts import Event
from ..text import Window

LITERALS = ("requested buffer of size", "is smaller than requested bytes of", "CUDA failure 2: out of memory")

_ASKED = re.compile(r"requested buffer of size (\d{1,20})")
_LIMIT = re.compile(r"Available memory of (\d{1,20}) is smaller than requested bytes of (\d{1,20})")
_NODE = re.compile(r"while running (\w{1,60}) node\. Name:'([^']{0,200})'")
_NEXT = re.compile(r"Error\b|Exception|onnxruntime|^Traceback|^\s*File ")
_GPU = re.compile(r"\bGPU=(\d{1,6})")


def parse(window: Window) -> Iterator[Event]:
    """Events ``ort.alloc`` (the arena) and ``ort.cuda-oom`` (the device)."""
    for index, line in enumerate(window.lines):
        text = line.text
        if not any(literal in text for literal in LITERALS):
            continue
        message = window.joined(index, lines=3, stop=_NEXT)
        figures: dict[str, Any] = {}
        if found := _ASKED.search(message):
            figures["tried_to_allocate_bytes"] = int(found[1])
        elif found := _LIMIT.search(message):
            figures = {"free_bytes": int(found[1]), "tried_to_allocate_bytes": int(found[2])}
        node = _NODE.search(text)
        if node:
            figures["node"] = f"{node[1]} {node[2]}".strip()
        gpu = _GPU.search(message)
        yield window.event(
            index,
            kind="ort.cuda-oom" if LITERALS[2] in text else "ort.alloc",
            family="gpu-oom",
            figures=figures,
            device=int(gpu[1]) if gpu else None,
            message=text.strip()[:800],
        )
