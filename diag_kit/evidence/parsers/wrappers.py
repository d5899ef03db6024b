"""Code that catches an out-of-memory and goes on, or warns of one: recovered, advisory, or saved broken.

* ``Attempting to copy inputs of <function ...> to CPU due to CUDA OOM`` (detectron2), ``WARNING: ran out of memory ...
  skipping batch`` and ``attempting to recover from OOM in forward/backward pass`` (fairseq): recovered.
* ``Batch size 64 failed, trying batch size 32`` (Lightning's finder), ``CUDA out of memory with batch=16. Reducing to
  batch=8`` and ``CUDA out of memory in TaskAlignedAssigner, using CPU`` (Ultralytics): recovered.
* ``Sequential pipeline ran out of memory. Please consider choosing a smaller module`` (llm-compressor), ``OOM during
  optimization, irrecoverable`` (fairseq): the end, in other words.
* ``UserWarning: Failed to clone() tensor with name X. ... Error: CUDA out of memory.`` (FSDP): the process lives on,
  the checkpoint that it writes is broken.
* ``No executable batch size found, reached zero.`` (accelerate): every batch size ran out.

An empty result means that no code of these kinds spoke.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..facts import Event
from ..text import Window
from ..torch_sizes import sizes

LITERALS = (
    "due to CUDA OOM",
    "skipping batch",
    "recover from OOM",
    "trying batch size",
    "pipeline ran out of memory",
    "OOM during optimization",
    "Failed to clone()",
    "No executable batch size",
)

_KINDS = (
    (
        "wrapper.recovered",
        "recovered",
        re.compile(
            r"due to CUDA OOM|out of memory.{0,200}skipping batch|skipping batch.{0,200}(?:OOM|out of memory)|recover from OOM"
        ),
    ),
    ("wrapper.recovered", "recovered", re.compile(r"Batch size \d{1,9} failed, trying batch size \d")),
    (
        "wrapper.gave-up",
        "originator",
        re.compile(r"Sequential pipeline ran out of memory|OOM during optimization, irrecoverable"),
    ),
    ("fsdp.clone-failed", "originator", re.compile(r"Failed to clone\(\) tensor with name .*out of memory")),
    ("wrapper.no-batch-fits", "originator", re.compile(r"No executable batch size found")),
)


def parse(window: Window) -> Iterator[Event]:
    """Events ``wrapper.recovered``, ``wrapper.gave-up``, ``fsdp.clone-failed``, ``wrapper.no-batch-fits``."""
    for index, line in enumerate(window.lines):
        if not any(literal in line.text for literal in LITERALS):
            continue
        for kind, role, pattern in _KINDS:
            text = window.joined(index, lines=4) if kind == "fsdp.clone-failed" else line.text
            if pattern.search(text):
                figures, device, _ = sizes(text) if role == "originator" else ({}, None, [])
                yield window.event(
                    index,
                    kind=kind,
                    family="gpu-oom",
                    role=role,
                    figures=figures,
                    device=device,
                    message=text.strip()[:1500],
                )
                break
