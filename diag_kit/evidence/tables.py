"""Memory series from tables: CSV, TSV, JSON lines, and a Trainer's ``trainer_state.json``.

A column of memory is one whose name speaks of memory and tells its unit by a suffix (``_bytes``, ``_mib``, ``_gb`` ...)
or by the size of its values. Columns of step, micro-step, rank and length are known by name. Rows are read in a stream
and thinned evenly once there are more than a plot can show.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ..units import GIB, KIB, MIB
from .facts import Fact, MemoryPoint, Source

MAX_ROWS = 20_000

_STEP = re.compile(r"^(?:global_?step|step|iter(?:ation)?|it|train/global_step|_step|trainer/global_step|batch)$", re.I)
_MICRO = re.compile(r"^(?:micro_?-?(?:batch|step)(?:_?(?:idx|index))?|accum_?step|microbatch)$", re.I)
_RANK = re.compile(r"^(?:global_)?rank$", re.I)
_LENGTH = re.compile(
    r"^(?:seq(?:uence)?_?len(?:gth)?|max_(?:seq_?)?len(?:gth)?|length|(?:num_)?tokens(?:_per_sample)?|padded_length|"
    r"longest)$",
    re.I,
)
_MEMORY = re.compile(r"mem|alloc|reserved|vram|cuda", re.I)
_NOT_MEMORY = re.compile(r"retries|ooms?$|percent|pct|util|count|num_|time|fraction|_ms$", re.I)
_HOST = re.compile(r"host|rss|cpu|ram(?!_gpu)", re.I)
_UNITS = (
    (re.compile(r"(?:^|[_(/ .])bytes?\)?$", re.I), 1),
    (re.compile(r"(?:^|[_(/ .])k(?:i?b)\)?$", re.I), KIB),
    (re.compile(r"(?:^|[_(/ .])m(?:i?b)\)?$", re.I), MIB),
    (re.compile(r"(?:^|[_(/ .])g(?:i?b)\)?$", re.I), GIB),
)


def parse_csv(path: str, lines: Iterable[str]) -> tuple[list[Fact], list[str]]:
    """Points of a CSV or TSV with a header row."""
    stream = iter(lines)
    header = next(stream, "")
    delimiter = (
        "\t" if header.count("\t") > header.count(",") else ";" if header.count(";") > header.count(",") else ","
    )
    try:
        names = next(csv.reader([header], delimiter=delimiter), [])
        reader = csv.reader(stream, delimiter=delimiter)
        rows = (
            (number, delimiter.join(row), dict(zip(names, row, strict=False))) for number, row in enumerate(reader, 2)
        )
        return _points(path, rows)
    except csv.Error as error:
        return [], [f"not readable as a table ({error})"]


def parse_jsonl(path: str, lines: Iterable[str]) -> tuple[list[Fact], list[str]]:
    """Points of JSON lines; a line that is no JSON object is counted and skipped."""
    broken = [0]

    def rows() -> Iterator[tuple[int, str, dict[str, Any]]]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                broken[0] += 1
                continue
            if isinstance(row, dict):
                yield number, line.strip()[:300], row

    facts, notes = _points(path, rows())
    return facts, notes + ([f"{broken[0]} lines are no JSON and were left out"] if broken[0] else [])


def parse_trainer_state(path: str, data: dict[str, Any]) -> tuple[list[Fact], list[str]]:
    """Points of ``log_history`` in a Hugging Face ``trainer_state.json``."""
    history = data.get("log_history")
    rows = [(None, "", row) for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    return _points(path, rows)


def _points(path: str, rows: Iterable[tuple[int | None, str, dict[str, Any]]]) -> tuple[list[Fact], list[str]]:
    points: list[MemoryPoint] = []
    columns: list[tuple[str, str, int]] | None = None
    every, seen = 1, 0
    for number, line, row in rows:
        seen += 1
        if columns is None:
            columns = [found for name in row if (found := _column(str(name), row[name]))]
            if not columns:
                return [], ["a table without a column of memory (names such as allocated_bytes, gpu_mem_gb)"]
        if seen % every:
            continue
        step, micro, rank, length = (_whole(row, pattern) for pattern in (_STEP, _MICRO, _RANK, _LENGTH))
        if step is None and micro is None:
            continue
        for name, metric, unit in columns:
            if (value := _float(row.get(name))) is not None:
                points.append(
                    MemoryPoint(
                        source=Source(path, number, line or f"{name} = {row.get(name)}"),
                        rank=rank,
                        metric=metric,
                        value_bytes=round(value * unit),
                        step=step,
                        micro_step=micro,
                        series=name,
                        relative="minus" in name or "delta" in name or "growth" in name,
                        seq_len=length,
                    )
                )
        if len(points) > MAX_ROWS * len(columns):
            points, every = _every_other(points), every * 2
    points = _in_step_order(points)
    if not points and seen:
        return [], ["a table of memory without a column of steps (step, iteration, micro_step)"]
    return [*points], [f"one row in {every} kept of {seen:,}"] if every > 1 else []


def _by_series(points: Iterable[MemoryPoint]) -> dict[tuple[str, int | None], list[MemoryPoint]]:
    groups: dict[tuple[str, int | None], list[MemoryPoint]] = {}
    for point in points:
        groups.setdefault((point.series, point.rank), []).append(point)
    return groups


def _every_other(points: list[MemoryPoint]) -> list[MemoryPoint]:
    """Half of the points, evenly in each column and rank."""
    return [point for group in _by_series(points).values() for point in group[::2]]


def _in_step_order(points: list[MemoryPoint]) -> list[MemoryPoint]:
    """Points with their place within the step as micro-step, where a table has several rows for each step."""
    ordered: list[MemoryPoint] = []
    for group in _by_series(points).values():
        rows = Counter(point.step for point in group)
        if any(point.micro_step is not None for point in group) or sum(count >= 3 for count in rows.values()) < 2:
            ordered += group
            continue
        seen: Counter[int | None] = Counter()
        for point in group:
            ordered.append(replace(point, micro_step=seen[point.step]))
            seen[point.step] += 1
    return ordered


def _column(name: str, value: Any) -> tuple[str, str, int] | None:
    """(name, metric, unit in bytes) if a column holds memory."""
    if not _MEMORY.search(name) or _NOT_MEMORY.search(name) or _float(value) is None:
        return None
    unit = next((size for pattern, size in _UNITS if pattern.search(name)), None)
    if unit is None:
        number = abs(_float(value) or 0)
        unit = 1 if number >= 1e7 or (number == 0 and isinstance(value, int)) else MIB if number >= 300 else GIB
    low = name.lower()
    peak = "max" in low or "peak" in low
    if _HOST.search(low) and not re.search(r"gpu|cuda|vram", low):
        return name, "host_used", unit
    if "reserved" in low or "cached" in low:
        return name, "peak_reserved" if peak else "reserved", unit
    if "alloc" in low:
        return name, "peak_allocated" if peak else "allocated", unit
    return name, "peak_allocated" if peak else "used", unit


def _whole(row: dict[str, Any], pattern: re.Pattern[str]) -> int | None:
    for name, value in row.items():
        if pattern.match(str(name).strip()) and (number := _float(value)) is not None:
            return int(number)
    return None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if abs(number) < 1e18 else None
