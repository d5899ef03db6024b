"""The closed forms beside published memory peaks, row by row, good and bad.

    .venv/bin/python benchmarks/closed_forms.py              # table, medians by group, time of a workbook refresh
    .venv/bin/python benchmarks/closed_forms.py --markdown OUT.md      # the table as Markdown

Reads data/measured/published_peaks.csv: peaks that others measured on GPUs, with their source, each with the settings
that the source states. No row is fitted. Beside the prediction stand two rules of thumb, as the ratio to what was
measured: "34sbh" (16 bytes per trainable parameter, 2 per frozen one, plus 34·s·b·h per layer) and "16 B" (without
activations).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diag_kit.memory.estimates import Estimate
from diag_kit.memory.formulas import estimate, micro_step_curve, peak_curve
from diag_kit.memory.settings import Settings
from diag_kit.memory.states import share
from diag_kit.units import MIB, gib

PEAKS = Path(__file__).parents[1] / "data" / "measured" / "published_peaks.csv"
V100_CONTEXT_BYTES = 1343 * MIB
"""CUDA context and kernels as printed on the page of the rows measured by NVML."""


@dataclass(frozen=True)
class Row:
    """One published peak beside what is predicted of it."""

    id: str
    group: str
    model: str
    metric: str
    source_url: str
    settings: Settings
    published_bytes: int
    predicted_bytes: int
    moment: str

    @property
    def error(self) -> float:
        """Predicted over published, minus one."""
        return self.predicted_bytes / self.published_bytes - 1

    def thumb(self, activations: bool) -> float:
        """A rule of thumb over published: 16 bytes per trainable parameter, and 34·s·b·h per layer or none."""
        s = self.settings
        trainable = share(s).trainable
        states = (16 * trainable + (2 * s.model.params if s.lora else 0)) / s.parallelism.world_size
        layers = 34 * s.seq_len * s.micro_batch * s.model.hidden * s.model.n_layers if activations else 0
        return (states + layers) / self.published_bytes

    @property
    def described(self) -> str:
        """The settings in a few words."""
        s = self.settings
        p = s.parallelism
        words = [
            f"{s.micro_batch}×{s.seq_len}",
            s.precision,
            s.base_quantization,
            s.attention,
            s.optimizer,
            s.lora and "LoRA",
            f"checkpointing {s.checkpointing}" if s.checkpointing != "none" else None,
            "fused loss" if s.fused_loss else None,
            f"{p.strategy} {p.world_size}" if p.world_size > 1 else None,
        ]
        return ", ".join(str(word) for word in words if word)


def rows(path: Path = PEAKS) -> Iterator[Row]:
    """Published peaks that the closed forms cover, each with its prediction of the same metric."""
    with path.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            s = Settings.from_json(json.loads(record["settings"]))
            e = estimate(s)
            yield Row(
                record["id"],
                record["group"],
                record["model"],
                record["metric"],
                record["source_url"],
                s,
                int(record["value_bytes"]),
                predicted(e, record["metric"]),
                e.peak.label,
            )


def predicted(e: Estimate, metric: str) -> int:
    """An estimate's bytes of the metric that was published."""
    if metric == "nvidia_smi":
        return e.peak_reserved_bytes + V100_CONTEXT_BYTES
    return e.peak_reserved_bytes if metric == "max_reserved" else e.peak_allocated_bytes


def medians(table: list[Row]) -> dict[str, tuple[int, float, float]]:
    """Group -> rows, median absolute error, largest absolute error; the whole table under ``all``."""
    groups = {row.group: [abs(r.error) for r in table if r.group == row.group] for row in table}
    groups["all"] = [abs(row.error) for row in table]
    return {name: (len(errors), statistics.median(errors), max(errors)) for name, errors in groups.items()}


def markdown(table: list[Row]) -> str:
    """The table and the medians as Markdown."""
    lines = ["| group | rows | median error | largest error |", "|---|---:|---:|---:|"]
    lines += [f"| {name} | {n} | {median:.1%} | {most:.1%} |" for name, (n, median, most) in medians(table).items()]
    lines += [
        "",
        "| id | settings | metric | published GiB | predicted GiB | error | 34·s·b·h | 16 B |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {f'[{r.id}]({r.source_url})' if r.source_url.startswith('http') else r.id} | {r.described} | {r.metric} | {gib(r.published_bytes):.2f} "
        f"| {gib(r.predicted_bytes):.2f} | {r.error:+.1%} | ×{r.thumb(True):.2f} | ×{r.thumb(False):.2f} |"
        for r in table
    ]
    return "\n".join(lines) + "\n"


def refresh_seconds() -> float:
    """Time of what one move of a slider computes: a timeline, two length curves of 65 points, two micro-step curves."""
    s = Settings.from_json(
        {
            "model": {"n_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256},
            "precision": "bf16",
            "grad_accum": 8,
            "micro_batch": 2,
        }
    )
    lengths = [128 * n for n in range(1, 66)]
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        estimate(s)
        for attention in ("eager", "flash"):
            peak_curve(s.with_(attention=attention), lengths)
        for backward in ("each-micro-batch", "deferred"):
            micro_step_curve(s, 8, backward)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Print the table; write it as Markdown where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, metavar="OUT.md", help="write the table as Markdown")
    arguments = parser.parse_args()
    table = list(rows())
    for r in table:
        print(
            f"{r.id:40} {r.described:74.74} {r.metric:13} {gib(r.published_bytes):7.2f} "
            f"{gib(r.predicted_bytes):7.2f} GiB {r.error:+7.1%}  "
            f"34sbh ×{r.thumb(True):5.2f}  16 B ×{r.thumb(False):5.2f}  {r.moment:48}  {r.source_url}"
        )
    print()
    for name, (n, median, most) in medians(table).items():
        print(f"{name:32} {n:3} rows   median error {median:6.1%}   largest {most:6.1%}")
    thumbs = [abs(r.thumb(True) - 1) for r in table]
    median, most = statistics.median(thumbs), max(thumbs)
    print(f"{'rule of thumb 34sbh':32} {len(table):3} rows   median error {median:6.1%}   largest {most:6.1%}")
    print(f"\none refresh of the workbook's curves: {refresh_seconds() * 1e3:.1f} ms")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(table), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
