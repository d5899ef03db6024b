"""DeepSpeed's memory lines: see_memory_usage, the throughput timer, ZeRO-3's warning of flushes.

* ``see_memory_usage``, three lines that make one record: a message (``After creating fp16 partitions``), ``MA 1.2 GB
  Max_MA 3.4 GB  CA 4.5 GB  Max_CA 5 GB`` and ``CPU Virtual Memory:  used = 41.5 GB, percent = 8.2%``. MA is allocated and
  CA reserved; Max_MA and Max_CA are peaks since the record before (each print resets them), Max_CA rounded to whole
  GB. CPU is total less available of the whole node. Rank 0 alone prints, where it is forced to.
* ``epoch=0/micro_step=200/global_step=100, RunningAvgSamplesPerSec=.., MemAllocated=1.2GB, MaxMemAllocated=3.4GB``; older:
  ``0/200, RunningAvgSamplesPerSec=..``.
* ``3 pytorch allocator cache flushes since last step. this happens when there is high memory pressure``: allocations of
  rank 0 that succeeded only after the cache was given back.

GB is 2**30. An empty result means that DeepSpeed printed no memory. Source: deepspeed/runtime/utils.py, utils/timer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import parse_size
from ..facts import Event, MemoryPoint
from ..text import Window

SERIES = ("Max_MA ", "MemAllocated=")
LITERALS = (*SERIES, "allocator cache flushes")

_RECORD = re.compile(
    r"\bMA ([\d.]{1,12}) GB\s{1,20}Max_MA ([\d.]{1,12}) GB\s{1,20}CA ([\d.]{1,12}) GB\s{1,20}Max_CA ([\d.]{1,12}) GB"
)
_HOST = re.compile(r"CPU Virtual Memory: {1,4}used = ([\d.]{1,12}) GB")
_THROUGHPUT = re.compile(r"\bMemAllocated=([\d.]{1,12} ?GB), MaxMemAllocated=([\d.]{1,12} ?GB)")
_STEP = re.compile(r"global_step=(\d{1,12})|(?:^|\s|\])(?:\d{1,9})/(\d{1,12}), (?:RunningAvg|SamplesPerSec)")
_FLUSHES = re.compile(r"\b(\d{1,9}) pytorch allocator cache flushes since last step")
_HEAD = re.compile(r"^(?:\[[^\]]{0,80}\] ?){1,5}|^\w{1,12}:[\w.]{1,60}:")
_METRICS = ("allocated", "peak_allocated", "reserved", "peak_reserved")


def parse(window: Window) -> Iterator[MemoryPoint | Event]:
    """Points without a step but with the record's message as label; points by global step; ``deepspeed.flushes``."""
    for index, line in enumerate(window.lines):
        text = line.text
        if not any(literal in text for literal in LITERALS):
            continue
        common: dict[str, Any] = {"source": window.source(index, around=1), "rank": line.rank, "series": "deepspeed"}
        if found := _RECORD.search(text):
            above = window.lines[index - 1].text if index else ""
            label = "" if "MemAllocated" in above or _RECORD.search(above) else _HEAD.sub("", above).strip()[:120]
            for metric, printed in zip(_METRICS, found.groups(), strict=True):
                if (size := parse_size(f"{printed} GB")) is not None:
                    yield MemoryPoint(metric=metric, value_bytes=size, label=label, **common)
            below = window.lines[index + 1].text if index + 1 < len(window.lines) else ""
            if (host := _HOST.search(below)) and (size := parse_size(f"{host[1]} GB")) is not None:
                yield MemoryPoint(metric="host_used", value_bytes=size, label=label, **common)
        elif found := _THROUGHPUT.search(text):
            step = _STEP.search(text)
            number = int(step[1] or step[2]) if step else None
            for metric, printed in zip(_METRICS[:2], found.groups(), strict=True):
                if (size := parse_size(printed)) is not None:
                    yield MemoryPoint(metric=metric, value_bytes=size, step=number, **common)
        elif found := _FLUSHES.search(text):
            yield window.event(
                index,
                kind="deepspeed.flushes",
                family="gpu-oom",
                role="context",
                figures={"cache_flushes": int(found[1])},
                message=text.strip()[:400],
            )
