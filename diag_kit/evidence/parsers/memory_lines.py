"""Memory that frameworks print with each step, one line for one moment, and the steps themselves.

detectron2 ``iter: 19 ... max_mem: 24911M`` · mmcv and mmengine ``Epoch [1][150/6300] ... memory: 4021`` · MAE, Swin, timm
``max mem: 4021``, ``mem 10234MB`` · torchtitan ``step: 10 ... memory: 44.12GiB(46.4%)`` (peak reserved since the line
before) · torchtune ``peak_memory_alloc:12.1 peak_memory_reserved:14.5`` · verl ``step:5 - perf/max_memory_allocated_gb:
12.345`` · ColossalAI ``[3/1000] Forward GPU memory usage: 8367.72 MB, CPU memory usage: 44096.98 MB`` · RETURNN ``step 95,
num_seqs 9, max_size:time 244905, mem_usage:cuda:3 8.8GB`` · Ultralytics `` 1/100  3.45G  1.2  ...`` beside a bar · hand-made
lines: ``[micro-batch 16] allocated +2624 MiB``, ``step 12 | mem 3.4 GiB``, ``[0][2/100] gpu mem 4433M``.

Units are binary, whatever the letters; a peak is since the start unless said otherwise. Growth "since the first" is
marked relative. DeepSpeed, Megatron, fairseq and summaries without a step have files of their own. Steps are also read
where no memory stands: Megatron's `` iteration       10/  500000 |``, bars, ``epoch 001:   10 / 2031``. Empty: nothing
printed memory or a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...units import parse_size
from ..facts import MemoryPoint, Progress
from ..text import Line, Window

SERIES = ("mem", "Mem", "lloc", "eserved")
_WORDS = ("mem", "lloc", "eserved", "cpu", "rss", "ram", "host")
STEPS = ("it/s", "s/it", "step", "iter", "poch", " it ")
LITERALS = ("mem", "allocated", "Mem", *STEPS)

_N = r"(\d{1,12}(?:\.\d{1,12})?)"
_SIZE = r"(\+?[\d.,]{1,16} ?[KMGT]i?B?)\b"
_NAMED = tuple(
    (metric, unit, re.compile(pattern, re.I if unit is None else 0))
    for metric, unit, pattern in (
        ("peak_allocated", "M", rf"\bmax_mem: {_N}M\b"),
        ("peak_allocated", "M", rf"\bmax mem: {_N}(?=,|\s|$)"),
        ("peak_allocated", "M", rf"\bmemory: {_N}(?=,|\s|$)"),
        ("peak_reserved", "G", rf"\bmemory: {{1,4}}{_N} ?GiB\("),
        ("peak_allocated", "G", rf"\bmax_memory_allocated_gb['\"]?[:=] ?{_N}"),
        ("peak_reserved", "G", rf"\bmax_memory_reserved_gb['\"]?[:=] ?{_N}"),
        ("host_used", "G", rf"\bcpu_memory_used_gb['\"]?[:=] ?{_N}"),
        ("peak_allocated", "G", rf"\bpeak_memory_alloc[:=] ?{_N}"),
        ("peak_reserved", "G", rf"\bpeak_memory_reserved[:=] ?{_N}"),
        ("reserved", "G", rf"^\s{{0,8}}\d{{1,6}}/\d{{1,6}}\s{{2,12}}{_N}G\s{{2,12}}[\d.]{{1,9}}\s"),
        ("used", None, r"\bmem_usage:(?P<device>cuda:\d{1,4}) ([\d.]{1,12} ?[KMG]B)"),
        ("host_used", None, rf"(?<!gpu )(?<!cuda )\b(?:cpu|host|ram|rss)\b[\w ()/-]{{0,30}}?[ :=]{{1,3}}{_SIZE}"),
        ("peak_allocated", None, rf"\b(?:peak|max)[\w ]{{0,40}}(?:alloc|mem)\w{{0,30}}[ :=]{{1,3}}{_SIZE}"),
        ("reserved", None, rf"\breserved[\w ]{{0,40}}[ :=]{{1,3}}{_SIZE}"),
        (
            "allocated",
            None,
            rf"\b(?:alloc\w{{0,30}}|gpu[_ ]?mem\w{{0,30}}|cuda[_ ]?mem\w{{0,30}}|mem(?:ory)?(?:[_ ]\w{{1,30}})?)[ :=]{{1,3}}{_SIZE}",
        ),
    )
)
"""(metric, unit of a number that stands without one, pattern); of overlapping readings the first in this order counts."""
_STEP = re.compile(
    r"(?<!\d:)\b(?:global[_ ]?)?(?:step|iter(?:ation)?|it|batch)s?\b\]?[ :=#\[]{0,12}(\d{1,15})(?:\s{0,9}/\s{0,9}(\d{1,15}))?",
    re.I,
)
_COUNT = re.compile(
    r"\b(?:accum\w{0,10}|optimization|total|max|min|warm-?up|logging|save|eval|num|number of|every|per|batch size)"
    r"[ _-]{0,2}(?:\w{1,20}[ _-])?(?:steps?|iters?|iterations?|batch(?:es)?)\b",
    re.I,
)
"""Words of a number of steps, which is no place in the run."""

_BRACKET = re.compile(r"\[\s*(\d{1,15})\s*/\s*(\d{1,15})\s*\]")
_MICRO = re.compile(r"\bmicro[-_ ]?(?:batch|step)\b[ :=#]{0,6}(\d{1,15})", re.I)
_NO_STEP = re.compile(r"slurmstepd|\bsrun:|StepId=|\bSTEP \d{1,15}\.\d|\bbest[ _-](?:step|iter|epoch|val)", re.I)
_FAIRSEQ = re.compile(r"\bepoch \d{1,6}: +(\d{1,15}) / (\d{1,15})\b")
_BAR = re.compile(r"\d{1,15}%\|.*?\| *(\d{1,15})/(\d{1,15}) \[")
_CHORE = re.compile(
    r"\b(?:(?:Fetch|Download|Extract|Load|Generat|Tokeniz|Cast|Group|Pack|Truncat|Apply|Convert|Captur|Sav|Resolv|Add|"
    r"Materializ|Quantiz)ing\b|Map\b|Filter\b|Running tokenizer|Processed prompts|[\w.-]{1,80}\.(?:safetensors|bin|json|model|"
    r"parquet|txt)\b)[^:|%]{0,80}: {0,9}\d{1,3}%\|"
)
"""A bar that counts files, shards or rows while a run gets ready: no place in the training."""
_ELSEWHERE = ("MemAllocated=", "Max_MA ", " memory (MB) | allocated", "cache flushes since", "gb_free")
"""Marks of lines whose memory a format of its own reads; their steps are read here."""
_LENGTH = re.compile(r"\b(?:seq(?:uence)?[_-]?len(?:gth)?|max_size:time|length|tokens)[ =:]{1,2}(\d{1,15})\b", re.I)


def parse(window: Window) -> Iterator[MemoryPoint | Progress]:
    """Memory points, and the steps that lines of progress show."""
    length: int | None = None
    for index, line in enumerate(window.lines):
        text = line.text
        low = text.lower()
        if ("len" in low or "tokens" in low or "max_size" in low) and (found := _LENGTH.search(text)):
            length = int(found[1])
        if not any(literal in text for literal in LITERALS) or "out of memory" in low or "Tried to allocate" in text:
            continue
        try:
            yield from _of_line(window, index, line, low, length)
        except ValueError:
            continue  # a number that is none, such as "1.2.3": this line says nothing, the others still do


def _of_line(window: Window, index: int, line: Line, low: str, length: int | None) -> Iterator[MemoryPoint | Progress]:
    text = line.text
    step, total, micro = _position(text, low)
    if step is None and micro is None:
        return
    source = window.source(index, around=0)
    if step is not None:
        yield Progress(source=source, rank=line.rank, step=step, total=total)
    if not (any(word in low for word in _WORDS) or "G " in text) or any(mark in text for mark in _ELSEWHERE):
        return
    read: list[tuple[int, int]] = []
    for metric, unit, pattern in _NAMED:
        found = pattern.search(text)
        if not found or any(start < found.end() and found.start() < end for start, end in read):
            continue
        printed = found[found.lastindex or 1]
        value = parse_size(printed.removeprefix("+") + (unit or ""))
        if value is None:
            continue
        read.append(found.span())
        yield MemoryPoint(
            source=source,
            rank=line.rank,
            metric=metric,
            value_bytes=value,
            step=step,
            micro_step=micro,
            series=found.groupdict().get("device") or metric,
            relative=printed.startswith("+") or " since " in text,
            seq_len=length,
        )


def _position(text: str, low: str) -> tuple[int | None, int | None, int | None]:
    """(step, total steps, micro-step) that a line states; a scheduler's job number and a best step are neither."""
    if ("step" in low or "srun" in low or "best" in low) and _NO_STEP.search(text):
        return None, None, None
    micro = int(found[1]) if "micro" in low and (found := _MICRO.search(text)) else None
    if "%|" in text and _CHORE.search(text):
        return None, None, micro
    if bar := ("%|" in text and _BAR.search(text)) or ("epoch " in text and _FAIRSEQ.search(text)):
        return int(bar[1]), int(bar[2]), micro
    rest = text if micro is None else _MICRO.sub("", text)
    if _STEP.search(rest):
        rest = _COUNT.sub("", rest)
    if found := _STEP.search(rest):
        return int(found[1]), int(found[2]) if found[2] else None, micro
    if found := _BRACKET.search(rest):
        return int(found[1]), int(found[2]), micro
    return None, None, micro
