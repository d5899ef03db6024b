"""Megatron-LM's memory lines: what each rank reports after its first iterations, and what the model should need.

* ``[Rank 1] (after 4 iterations) memory (MB) | allocated: 1323.3 | max allocated: 2702.3 | reserved: 3164.0 | max
  reserved: 3164.0`` (newer: ``| total device memory used: 4410.1``), printed once, by data-parallel rank 0 of each model-
  parallel rank; also ``(after save_checkpoint for iteration 500)``. MB is 2**20. A ``--seq-length`` or a dump's
  ``seq_length`` above it is the length in force.
* ``Theoretical memory footprints: weight and optimizer=17592.00 MB, activation=4096.00 MB, total=21688.00 MB``, for the
  most loaded shard; ``Number of parameters in most loaded shard in billions: 1.23``.
* `` > number of parameters on (tensor, pipeline) model parallel rank (0, 1): 1732608000``.

An empty result means that Megatron reported no memory.
Source: megatron/training/utils.py report_memory, megatron/training/theoretical_memory_usage.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import MIB
from ..facts import MemoryPoint, Setting
from ..text import Window

LITERALS = (
    " memory (MB) | allocated: ",
    "Theoretical memory footprints",
    "in most loaded shard in billions",
    "model parallel rank (",
)

_N = r"(\d{1,12}(?:\.\d{1,12})?)"
_REPORT = re.compile(
    rf"\(after ([^()]{{1,80}})\) memory \(MB\) \| allocated: {_N} \| max allocated: {_N} \| reserved: {_N} \| max reserved: {_N}"
    rf"(?: \| total device memory used: {_N})?"
)
_ITERATIONS = re.compile(r"^(\d{1,12}) iterations$|\bfor iteration (\d{1,12})$")
_THEORY = re.compile(rf"weight and optimizer={_N} MB, activation={_N} MB, total={_N} MB|weight and optimizer={_N} MB")
_LOADED = re.compile(rf"Number of parameters in most loaded shard in billions: {_N}")
_SHARD = re.compile(
    r"number of parameters on \(tensor, pipeline\) model parallel rank \(\d{1,5}, \d{1,5}\): (\d{1,15})"
)
_LENGTH = re.compile(r"\bseq[-_]length\b[ .=:]{1,60}(\d{1,9})\b")
_METRICS = ("allocated", "peak_allocated", "reserved", "peak_reserved", "used")
_THEORIES = ("theoretical_states_bytes", "theoretical_activations_bytes", "theoretical_total_bytes")


def parse(window: Window) -> Iterator[MemoryPoint | Setting]:
    """Points by rank; what Megatron predicts and the parameters of a shard as settings."""
    length: int | None = None
    for index, line in enumerate(window.lines):
        text = line.text
        if "seq" in text and (stated := _LENGTH.search(text)):
            length = int(stated[1])
        if not any(literal in text for literal in LITERALS):
            continue
        common: dict[str, Any] = {"source": window.source(index, around=0), "rank": line.rank}
        if found := _REPORT.search(text):
            after = _ITERATIONS.search(found[1])
            step = int(after[1] or after[2]) if after else None
            for metric, printed in zip(_METRICS, found.groups()[1:], strict=True):
                if printed:
                    value = round(float(printed) * MIB)
                    yield MemoryPoint(
                        metric=metric,
                        value_bytes=value,
                        step=step,
                        series="megatron",
                        label=found[1],
                        seq_len=length,
                        **common,
                    )
        elif found := _THEORY.search(text):
            for name, printed in zip(_THEORIES, found.groups()[:3] if found[1] else (found[4],), strict=False):
                if printed:
                    value = round(float(printed) * MIB)
                    yield Setting(name=name, value=value, raw=text.strip()[:200], **common)
        elif found := _LOADED.search(text):
            value = round(float(found[1]) * 1e9)
            yield Setting(name="n_params_of_a_shard", value=value, raw=text.strip()[:200], **common)
        elif found := _SHARD.search(text):
            yield Setting(name="n_params_of_a_shard", value=int(found[1]), raw=text.strip()[:200], **common)
