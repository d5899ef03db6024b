"""Memory that trainers print at the end of a phase rather than by step, and what they say of the card.

* Hugging Face Trainer, ``skip_memory_metrics=False``: ``train_mem_gpu_alloc_delta = 693MB``, ``..._peaked_delta``,
  ``before_init_mem_gpu``, ``init_mem_cpu_alloc_delta``: of the main process and torch alone. A peak is before_init + the
  alloc deltas so far + the peaked delta.
* PEFT's and accelerate's examples: ``accelerator.process_index=0 GPU Memory before entering the loading : 0``, ``GPU
  Memory consumed at the end of the train (end-begin): 1420``, ``GPU Peak Memory consumed during the train (max-begin):
  20531``, ``GPU Total Peak Memory consumed during the train (max): 21951``; with CPU in place of GPU, of the process. MB.
* llama-recipes: ``Max CUDA memory allocated was 45 GB``, ``Max CUDA memory reserved was 51 GB``, ``Peak active CUDA memory
  was 46 GB``, ``CPU Total Peak Memory consumed during the train (max): 3 GB``, ``reserved memory is 16.7559 and allocated
  memory is 3.4788`` (GiB).
* axolotl: ``GPU memory usage after model load: 7.576GB (+0.294GB cache, +0.5GB misc)``: allocated, what is reserved above
  that, and what the device holds above both.
* torchtitan: ``CUDA memory usage for model: 12.34GiB(13.0%)``, ``3 CUDA memory allocation retries.``, ``1 CUDA OOM errors
  thrown.``
* RETURNN: ``Memory usage (cuda): alloc cur 1.9GB alloc peak 15.1GB reserved cur 17.4GB reserved peak 17.4GB``, ``MEMORY:
  total (main 4411, 2024-05-01, 12 procs): pss=3.7GB uss=3.3GB``.

All units are binary, whatever the letters. An empty result means that no trainer printed such a summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...units import parse_size
from ..facts import Event, MemoryPoint
from ..text import Window

LITERALS = (
    "_mem_gpu",
    "_mem_cpu",
    "Memory before entering the ",
    "Memory consumed ",
    "Max CUDA memory ",
    "Peak active CUDA memory was",
    "reserved memory is ",
    "CUDA memory usage for model",
    "CUDA memory allocation retries",
    "CUDA OOM errors thrown",
    "Memory usage (",
    "GPU memory usage ",
    "MEMORY: total (",
)

_SIZE = r"(-?[\d.,]{1,16} ?[KMGT]?i?B)"
_TRAINER = re.compile(
    rf"\b((?:before_init|init|train|eval|predict|test)_mem_(gpu|cpu)(?:_(alloc|peaked)_delta)?)['\"]?\s{{0,40}}[=:]\s{{1,8}}{_SIZE}"
)
_PHASED = re.compile(
    r"\b(GPU|CPU) ((?:Total )?Peak )?Memory (?:before entering|consumed (?:at the end of|during)) the (\w{1,20})"
    r"(?: \((end-begin|max-begin|max)\))? ?: ?(-?\d{1,9})(?: (GB|MB))?\b"
)
_CUDA_MAX = re.compile(r"(?:Max CUDA memory (allocated|reserved)|Peak (active) CUDA memory) was ([\d.]{1,12} GB)")
_LLAMA = re.compile(r"reserved memory is ([\d.]{1,16}) and allocated memory is ([\d.]{1,16})")
_TITAN = re.compile(r"CUDA memory usage for model: ([\d.]{1,12}GiB)")
_RETRIES = re.compile(r"\b(\d{1,9}) CUDA (memory allocation retries|OOM errors thrown)")
_AXOLOTL = re.compile(r"GPU memory usage ([\w ,-]{1,60}): ([\d.]{1,12} ?GB) \(")
_RETURNN = re.compile(r"Memory usage \((\w{1,8})(?::\d{1,4})?\): (.{0,300})")
_RETURNN_PART = re.compile(r"\b(alloc|reserved) (cur|peak) ([\d.]{1,12} ?[KMGT]?B)")
_PROCESSES = re.compile(r"MEMORY: total \(.{0,120}\): pss=([\d.]{1,12} ?[KMGT]?B)")


def parse(window: Window) -> Iterator[MemoryPoint | Event]:
    """Points without a step, with the phase as label; counts of retries as ``torch.retries``."""
    for index, line in enumerate(window.lines):
        text = line.text
        if not any(literal in text for literal in LITERALS):
            continue
        source = window.source(index, around=0)
        for metric, printed, series, label in _readings(text):
            size = parse_size(printed.removeprefix("-"))
            if size is not None:
                yield MemoryPoint(
                    source=source,
                    rank=line.rank,
                    metric=metric,
                    value_bytes=-size if printed.startswith("-") else size,
                    series=series,
                    label=label,
                    relative="delta" in series or "-begin" in label,
                )
        if found := _RETRIES.search(text):
            name = "num_alloc_retries" if "retries" in found[2] else "num_ooms"
            yield window.event(
                index,
                kind="torch.retries",
                family="gpu-oom",
                role="context",
                figures={name: int(found[1])},
                message=text.strip()[:300],
            )


def _readings(text: str) -> Iterator[tuple[str, str, str, str]]:
    """(metric, printed size, series, label) of each reading in a line."""
    for one in _TRAINER.finditer(text):
        metric = "host_used" if one[2] == "cpu" else "peak_allocated" if one[3] == "peaked" else "allocated"
        yield metric, one[4], one[1], one[1].partition("_mem_")[0]
    if found := _PHASED.search(text):
        peak = bool(found[2])
        metric = "host_used" if found[1] == "CPU" else "peak_allocated" if peak else "allocated"
        label = f"{found[3]} ({found[4]})" if found[4] else f"before {found[3]}"
        series: Any = f"{found[1]} {found[4] or 'begin'}"
        yield metric, f"{found[5]} {found[6] or 'MB'}", series, label
    if found := _CUDA_MAX.search(text):
        yield (
            "peak_reserved" if found[1] == "reserved" else "peak_allocated",
            found[3],
            "cuda max",
            found[1] or found[2],
        )
    if found := _LLAMA.search(text):
        yield "reserved", f"{found[1]} GiB", "llama-recipes", ""
        yield "allocated", f"{found[2]} GiB", "llama-recipes", ""
    if found := _TITAN.search(text):
        yield "allocated", found[1], "model", "model loaded"
    if found := _AXOLOTL.search(text):
        yield "allocated", found[2], "axolotl", found[1]
    if found := _RETURNN.search(text):
        for part in _RETURNN_PART.finditer(found[2]):
            metric = "allocated" if part[1] == "alloc" else "reserved"
            yield metric if part[2] == "cur" else f"peak_{metric}", part[3], "returnn", f"{part[1]} {part[2]}"
    if found := _PROCESSES.search(text):
        yield "host_used", found[1], "returnn pss", "all processes"
