"""Memory series from files of rows: CSV, TSV, JSON lines, a Trainer's ``trainer_state.json``, what GPU tools print.

Read here: any table with a header (Lightning's ``metrics.csv`` with its sparse rows too); exports of ``nvidia-smi
--query-gpu`` and ``--query-compute-apps`` with or without header and units; ``nvidia-smi dmon``; ``dcgmi dmon``;
Prometheus text such as ``DCGM_FI_DEV_FB_USED{gpu="0"} 12345`` (MiB); TensorBoard's event files (``tfevents``). All is
streamed; a bad row is counted. What a column means is told in ``columns``.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from .columns import Row, points_of
from .facts import Fact
from .tfevents import rows_of as tfevents_rows

MAX_LINE = 1 << 18
"""Characters read of one line; a longer one is a broken file's, counted and left out."""

_STAMP = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}(?:,|$)")
_EXPORT = re.compile(
    r"(?:timestamp|index|name|uuid|gpu_\w{2,12}|pid|process_name|memory\.\w{4,8}|used_memory)[^,]{0,12},"
)
_CELL_MIB = re.compile(r"\d{1,12} MiB$")
_PROMETHEUS = re.compile(r"(\w{3,80})\{([^}]{0,2000})\} ([\d.eE+]{1,30})(?: (\d{1,20}))?\s*$")
_LABEL = re.compile(r'(gpu|device|minor_number|UUID|uuid|pid)="(?:nvidia)?([^"]{1,80})"')
_MONITOR = re.compile(r"#\s{0,8}(?:gpu\b|Date\s+Time\s+gpu\b|Time\s+gpu\b|Entity\b)", re.I)


def kind_of(name: str, head: bytes) -> str | None:
    """The reader that a file's name (lower case) or first bytes ask for: tfevents, jsonl, csv, monitor, metrics."""
    if ".tfevents." in name or name.startswith("tfevents."):
        return "tfevents"
    if name.endswith(".jsonl"):
        return "jsonl"
    text = head[:4096].decode("utf-8-sig", "replace")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if _MONITOR.match(first):
        return "monitor"
    if name.endswith(".prom") or first.startswith("# HELP ") or _PROMETHEUS.match(first):
        return "metrics"
    exported = _EXPORT.match(first) and re.search(r"memory\.used|used_(?:gpu_)?memory", first)
    bare = _STAMP.match(first) and _names_of_values([cell.strip() for cell in first.split(",")])
    return "csv" if name.endswith((".csv", ".tsv")) or exported or bare else None


def read(kind: str, path: str, stream: BinaryIO) -> tuple[list[Fact], list[str]]:
    """Facts and notes of a file of rows in UTF-8, or of an event file; ``kind`` is what ``kind_of`` said."""
    notes: list[str] = []
    if kind == "tfevents":
        facts, more = points_of(path, tfevents_rows(stream, notes))
        return facts, notes + more
    text = io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="\n")
    reader = {"jsonl": _jsonl, "csv": _csv, "monitor": _monitor, "metrics": _metrics}[kind]
    facts, more = points_of(path, reader(_lines(text, notes), notes))
    text.detach()
    return facts, notes + more


def parse_trainer_state(path: str, data: dict[str, Any]) -> tuple[list[Fact], list[str]]:
    """Points of ``log_history`` in a Hugging Face ``trainer_state.json``."""
    history = data.get("log_history")
    rows = [(None, "", row) for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    return points_of(path, rows)


def _lines(text: io.TextIOWrapper, notes: list[str]) -> Iterator[tuple[int, str]]:
    """(number, line) of each line of bearable length, without NULs; the numbers are those of ``grep -n``."""
    number = long = 0
    while line := text.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith("\n"):
            long += 1
            while (rest := text.readline(MAX_LINE)) and not rest.endswith("\n"):
                pass
            continue
        yield number, line.replace("\0", "").rstrip("\r\n")
    if long:
        notes.append(f"{long:,} lines are longer than {MAX_LINE:,} characters and were left out")


def _csv(lines: Iterable[tuple[int, str]], notes: list[str]) -> Iterator[Row]:
    """Rows of a table; each line is one row, since no column that is read holds line breaks."""
    names: list[str] | None = None
    header: list[str] = []
    delimiter, broken = ",", 0
    for number, line in lines:
        if not line.strip() or (names is None and line.startswith("sep=")):
            continue
        if names is None:
            delimiter = max(",\t;|", key=line.count)
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
        except csv.Error:
            broken += 1
            continue
        if names is None:
            guessed = _names_of_values(cells)
            header, names = cells, guessed or _header(cells)
            if guessed:
                notes.append(f"has no header; its columns are told by their values ({', '.join(guessed)})")
            else:
                if len({*cells}) < len(cells):
                    notes.append("columns of one name were told apart by their place")
                continue
        elif cells == header:
            continue  # a restarted writer puts its header in again
        broken += len(cells) > len(header)
        row = dict(zip(names, cells, strict=False))
        yield number, line[:300], row | {"reading": str(number)} if "reading" in names else row
    if broken:
        notes.append(f"{broken:,} rows do not fit the header; what stands under a name was read")


def _header(cells: list[str]) -> list[str]:
    """Names of columns; those of ``nvidia-smi`` as its readings are known, a repeated name with its place."""
    tool = any(cell.startswith(("memory.used", "used_memory", "used_gpu_memory", "DCGM_FI_")) for cell in cells)
    names = ["gpu" if tool and cell == "index" else cell for cell in cells]
    if tool and "timestamp" not in names:
        names.append("reading")  # rows come in the order of time
    return [f"column {i + 1}: {name}" if name and name in names[:i] else name for i, name in enumerate(names)]


def _names_of_values(cells: list[str]) -> list[str]:
    """Names for the columns of a first row that is no header but a GPU tool's reading; none where it is a header."""
    sizes = {i: int(cell.split()[0]) for i, cell in enumerate(cells) if _CELL_MIB.match(cell)}
    stamp = next((i for i, cell in enumerate(cells) if _STAMP.match(cell)), None)
    index = next((i for i, cell in enumerate(cells) if cell.isdigit() and int(cell) < 64), None)
    if stamp is not None and not sizes:
        sizes = {i: int(cell) for i, cell in enumerate(cells) if cell.isdigit() and len(cell) < 12 and i != index}
    if not sizes or (stamp is None and len(sizes) + (index is not None) < len(cells)):
        return []
    total = max(sizes, key=lambda i: sizes[i]) if len(sizes) > 1 else None
    used = next(i for i in sizes if i != total)
    named = {stamp: "timestamp", index: "gpu", total: "memory.total", used: "memory.used"}
    names = [named.get(i, f"column {i + 1}") for i in range(len(cells))]
    return names if stamp is not None else [*names, "reading"]


def _jsonl(lines: Iterable[tuple[int, str]], notes: list[str]) -> Iterator[Row]:
    """Objects, one a line; a line that is no JSON object is counted and skipped."""
    broken = 0
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            broken += 1
            continue
        if isinstance(row, dict):
            for key in ("data", "metrics", "summary"):
                if isinstance(inside := row.get(key), dict):
                    row |= inside
            yield number, line.strip()[:300], row
    if broken:
        notes.append(f"{broken:,} lines are no JSON and were left out")


def _monitor(lines: Iterable[tuple[int, str]], notes: list[str]) -> Iterator[Row]:
    """``nvidia-smi dmon`` and ``dcgmi dmon``: names in a line that begins with ``#``, values beneath in blanks."""
    names: list[str] = []
    for number, line in lines:
        cells = line.split()
        if line.startswith("#"):
            found = [cell for cell in line.lstrip("# ").split() if cell]
            if found[:1] in (["gpu"], ["Entity"], ["Time"], ["Date"]):
                names = ["gpu" if name == "Entity" else name for name in found]
        elif names and cells[:1] in (["GPU"], ["gpu"]):
            cells = cells[1:]
        if not names or not cells or line.startswith("#") or len(cells) != len(names):
            continue
        row = dict(zip(names, cells, strict=True))
        if day := row.pop("Date", None):
            row["timestamp"] = f"{day[:4]}-{day[4:6]}-{day[6:8]} {row.get('Time', '')}"
        row.pop("Time", None)
        yield number, line[:300], row | {"reading": number}


def _metrics(lines: Iterable[tuple[int, str]], notes: list[str]) -> Iterator[Row]:
    """Prometheus text, of one scrape or many: name, labels, value, and the time in milliseconds where it stands."""
    for number, line in lines:
        if found := _PROMETHEUS.match(line):
            labels = {name.lower(): value for name, value in _LABEL.findall(found[2])}
            device = next((labels[k] for k in ("gpu", "minor_number", "device", "uuid") if k in labels), None)
            row = {found[1]: found[3], "gpu": device, "pid": labels.get("pid"), "reading": number}
            yield number, line[:300], row | ({"timestamp": int(found[4]) / 1000} if found[4] else {})
