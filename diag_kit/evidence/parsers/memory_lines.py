"""Memory that frameworks print while they run, one point a line.

detectron2 ``iter: 19 ... max_mem: 24911M`` · mmcv ``Epoch [1][150/6300] ... memory: 4021`` · torchtitan ``step: 10 ...
memory: 44.12GiB(46.4%)`` (peak reserved) · Megatron ``[Rank 1] (after 4 iterations) memory (MB) | allocated: 1323.3 |
max allocated: ...`` · DeepSpeed ``MA 1.2 GB Max_MA 3.4 GB CA ...`` and ``MemAllocated=1.2GB, MaxMemAllocated=3.4GB`` ·
RETURNN ``step 95, ... mem_usage:cuda:3 8.8GB`` · hand-made lines: ``[micro-batch 16] allocated +2624 MiB``, ``step 12 |
mem 3.4 GiB``, ``[0][2/100] gpu mem 4433M``. Units are binary, whatever the letters. Growth "since the first" is marked
relative. Empty: nothing printed memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import MIB, parse_size
from ..facts import MemoryPoint, Progress
from ..text import Line, Window

SERIES = ("mem", "Mem", "lloc", "MA ", "eserved")
LITERALS = ("mem", "allocated", "Mem", "MA ", "it/s", "s/it", "step", "iter", "poch", " it ")

_MEGATRON = re.compile(
    r"\(after (\d{1,15}) iterations\) memory \(MB\) \| allocated: ([\d.]+) \| max allocated: ([\d.]+) \| reserved: ([\d.]+) \| max reserved: ([\d.]+)"
)
_DEEPSPEED = re.compile(r"\bMA ([\d.]+) GB\s+Max_MA ([\d.]+) GB\s+CA ([\d.]+) GB")
_NAMED = (
    ("peak_allocated", re.compile(r"\bmax_mem: (\d{1,15})M")),
    ("peak_allocated", re.compile(r"\bMaxMemAllocated=([\d.]+ ?GB)")),
    ("peak_reserved", re.compile(r"\bmemory: +([\d.]+ ?GiB)\(")),
    ("used", re.compile(r"\bmem_usage:cuda:\d{1,15} ([\d.]+ ?GB)")),
    ("peak_allocated", re.compile(r"\bmemory: (\d{1,15})(?=,|\s|$)")),
    ("peak_allocated", re.compile(r"\b(?:peak|max)[\w ]*(?:alloc|mem)\w*[ :=]{1,3}([\d.,]+ ?[KMGT]i?B?)\b", re.I)),
    ("reserved", re.compile(r"\breserved[\w ]*[ :=]{1,3}([\d.,]+ ?[KMGT]i?B?)\b", re.I)),
    (
        "allocated",
        re.compile(
            r"\b(?:alloc\w*|gpu[_ ]?mem\w*|cuda[_ ]?mem\w*|mem(?:ory)?(?:[_ ]\w+)?)[ :=]{1,3}(\+?[\d.,]+ ?[KMGT]i?B?)\b",
            re.I,
        ),
    ),
)
_STEP = re.compile(
    r"\b(?:global[_ ]?)?(?:step|iter(?:ation)?|it|batch)s?\b\]?[ :=#\[]{0,4}(\d{1,15})(?:\s*/\s*(\d{1,15}))?", re.I
)
_BRACKET = re.compile(r"\[\s*(\d{1,15})\s*/\s*(\d{1,15})\s*\]")
_MICRO = re.compile(r"\bmicro[-_ ]?(?:batch|step)\b[ :=#]{0,6}(\d{1,15})", re.I)
_NO_STEP = re.compile(r"slurmstepd|\bsrun:|StepId=|\bSTEP \d{1,15}\.\d|\bbest[ _-](?:step|iter|epoch|val)", re.I)
_FAIRSEQ = re.compile(r"\bepoch \d{1,6}: +(\d{1,15}) / (\d{1,15})\b")
_BAR = re.compile(r"\d{1,15}%\|.*?\| *(\d{1,15})/(\d{1,15}) \[")
_LENGTH = re.compile(r"\b(?:seq(?:uence)?[_-]?len(?:gth)?|max_size:time|length|tokens)[ =:]{1,2}(\d{1,15})\b", re.I)


def parse(window: Window) -> Iterator[MemoryPoint | Progress]:
    """Memory points, and the steps that lines of progress show."""
    length: int | None = None
    for index, line in enumerate(window.lines):
        if not any(literal in line.text for literal in LITERALS):
            if found := _LENGTH.search(line.text):
                length = int(found[1])
            continue
        if found := _LENGTH.search(line.text):
            length = int(found[1])
        if "out of memory" in line.text.lower() or "Tried to allocate" in line.text:
            continue
        try:
            yield from _of_line(window, index, line, length)
        except ValueError:
            continue  # a number that is none, such as "1.2.3": this line says nothing, the others still do


def _of_line(window: Window, index: int, line: Line, length: int | None) -> Iterator[MemoryPoint | Progress]:
    text = line.text
    common: dict[str, Any] = {"source": window.source(index, around=0), "rank": line.rank, "seq_len": length}
    if found := _MEGATRON.search(text):
        for metric, value in zip(
            ("allocated", "peak_allocated", "reserved", "peak_reserved"), found.groups()[1:], strict=True
        ):
            yield MemoryPoint(
                metric=metric, value_bytes=round(float(value) * MIB), step=int(found[1]), series="megatron", **common
            )
        return
    if found := _DEEPSPEED.search(text):
        for metric, value in zip(("allocated", "peak_allocated", "reserved"), found.groups(), strict=True):
            yield MemoryPoint(metric=metric, value_bytes=parse_size(f"{value} GB") or 0, series="deepspeed", **common)
        return
    step, total, micro = _position(text)
    if step is not None:
        yield Progress(source=common["source"], rank=line.rank, step=step, total=total)
    for metric, pattern in _NAMED:
        if not (found := pattern.search(text)):
            continue
        printed = found[1].removeprefix("+")
        if printed.isdigit() and (step is None and micro is None):
            continue
        value = parse_size(printed if not printed.isdigit() else printed + "M")
        if value is None or (step is None and micro is None):
            continue
        relative = found[1].startswith("+") or " since " in text
        yield MemoryPoint(
            metric=metric, value_bytes=value, step=step, micro_step=micro, series=metric, relative=relative, **common
        )
        return


def _position(text: str) -> tuple[int | None, int | None, int | None]:
    """(step, total steps, micro-step) that a line states; a scheduler's job number and a best step are neither."""
    if _NO_STEP.search(text):
        return None, None, None
    micro = int(found[1]) if (found := _MICRO.search(text)) else None
    if bar := _BAR.search(text) or _FAIRSEQ.search(text):
        return int(bar[1]), int(bar[2]), micro
    rest = _MICRO.sub("", text)
    if found := _STEP.search(rest):
        return int(found[1]), int(found[2]) if found[2] else None, micro
    if found := _BRACKET.search(rest):
        return int(found[1]), int(found[2]), micro
    return None, None, micro
