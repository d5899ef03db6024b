"""Rows of any table to memory points: which columns are memory, in which unit, and which rows are kept.

A column of memory is one whose name speaks of memory; its unit stands in the name or the cell, or follows from the
size of its values. Each series (column, rank, device) keeps its head and tail densely and is thinned evenly between,
by whole steps, so that an accumulation window is kept or left out but never cut. Memory is bounded whatever comes.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any

from ..units import GIB, KIB, MIB
from .facts import Event, Fact, MemoryPoint, Setting, Source
from .text import clean, rank_of_path

Row = tuple[int | None, str, Mapping[str, Any]]
"""(line or record, counted from 1; its text; cells by column)."""

MAX_ROWS, MAX_SERIES, EDGE, MAX_WINDOW = 40_000, 2_000, 256, 512
"""Rows kept between heads and tails of all series; series; rows of a head or tail; rows of a window kept whole."""

_KEYS = {
    "step": r"(?:(?:train|trainer)/)?(?:global_?step|step|iter(?:ation)?|it|_step)",
    "optimizer": r"optimizer_?step|update_?step",
    "batch": r"batch(?:_idx)?",
    "epoch": r"epoch",
    "micro": r"micro_?-?(?:batch|step)(?:_?(?:idx|index))?|accum(?:ulation)?_?step|microbatch|view",
    "rank": r"(?:global_)?rank|process_index",
    "device": r"gpu(?:_?(?:id|idx|index|uuid))?|device(?:_?(?:id|index))?|uuid|minor_number",
    "pid": r"pid",
    "time": r"timestamp|_?time(?:_?stamp)?|wall_?time|_timestamp|date_?time",
    "length": r"seq(?:uence)?_?len(?:gth)?|max_(?:seq_?)?len(?:gth)?|length|(?:num_)?tokens(?:_per_sample)?|"
    r"padded_length|longest",
    "outcome": r"outcome|status|result|error|exception|failure",
}
_KEY = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _KEYS.items()), re.I)
_MEMORY = re.compile(
    r"mem|alloc|reserved|vram|cuda|\bfb\b|fb_?us[e]?d|active_bytes|^live_|gpu[\w. ]{0,20}[kmg]i?b\b|gpu_[kmg]i?b$", re.I
)
_NOT_MEMORY = re.compile(
    r"retries|ooms?$|percent|pct|%|util|count|num_|time|fraction|_ms$|freed|\.allocated$|pool|inactive|requested|"
    r"oversize|allocation\.|segment\.|clock|temp|power|bandwidth|free|avail|memoryAllocated$|gpu\.\d{1,4}\.memory$|"
    r"^memory\.reserved",
    re.I,
)
_HOST = re.compile(r"host|rss|cpu|ram(?!_gpu)|system\.(?:proc\.)?mem|virtual", re.I)
_CAPACITY = re.compile(r"^(?:gpu_?)?mem(?:ory)?[._ ]?total\b|^(?:DCGM_FI_DEV_)?FB_?T(?:OTA)?L$", re.I)
_IN_MIB = re.compile(r"^memory\.(?:used|total)$|^(?:DCGM_FI_DEV_)?FB(?:_?[A-Z]+)?$|^fb$")
_UNITS = ((r"k(?:i?b)?", KIB), (r"m(?:i?b)?", MIB), (r"g(?:i?b)?", GIB))
_UNIT_IN_NAME = tuple((re.compile(rf"(?:^|[_(\[/ .]|(?<=[a-z])(?=[A-Z])){unit}[)\]]?$", re.I), s) for unit, s in _UNITS)
_UNIT_OF_CELL = re.compile(r"\s*(-?\d{1,20}(?:\.\d{1,20})?)\s*([KMG])i?B\s*$", re.I)
_INDEX_IN_NAME = re.compile(r"(?:gpu|cuda|device|device_id|gpu_id)[.:_ /]{1,2}(?:process\.)?(\d{1,4})(?!\d)", re.I)
_OOM = re.compile(r"\bOOM\b|out of memory", re.I)
_NOT_GPU = re.compile(r"\b(?:host|cpu|ram)\b", re.I)
_COLLECTIVE = re.compile(r"collective|nccl|all[-_ ]?(?:reduce|gather)", re.I)


@dataclass(frozen=True, slots=True)
class Column:
    """What a column of memory holds; ``unit`` in bytes, None where values must tell; ``relative`` may be below 0."""

    metric: str
    unit: int | None
    device: int | None
    relative: bool = False


_Cell = tuple[str, Column, float, int | None]
"""(name, column, value, unit that the cell states)."""


@dataclass(slots=True)
class _Series:
    """The readings of one column, rank and device: tuples that end in value, window and place within the window."""

    column: Column
    head: list[tuple[Any, ...]] = field(default_factory=list)
    middle: list[tuple[Any, ...]] = field(default_factory=list)
    tail: deque[tuple[Any, ...]] = field(default_factory=deque)
    every: int = 1
    window: int = -1
    place: int = 0
    seen: int = 0
    last: tuple[Any, ...] | None = None
    unit: int | None = None

    def add(self, moment: tuple[Any, ...], key: tuple[int | None, int | None], value: float) -> bool:
        """Take a reading; True where the middle grew. ``key`` is (step, micro-step)."""
        step, micro = key
        anew = self.last is None or (step is None and micro is None) or step != self.last[0]
        anew = anew or (micro is not None and micro <= (self.last or (0, -1))[1])
        self.place = 0 if anew else self.place + 1
        if anew or self.place >= MAX_WINDOW:  # a window without an end is thinned row by row
            self.window += 1
        self.last, self.seen = (step, micro if micro is not None else -1), self.seen + 1
        reading = (*moment, *key, value, self.window, self.place)
        if len(self.head) < EDGE or self.head[-1][-2] == self.window:
            self.head.append(reading)
            return False
        self.tail.append(reading)
        if len(self.tail) <= EDGE:
            return False
        out = self.tail.popleft()
        if out[-2] % self.every == 0:
            self.middle.append(out)
            return True
        return False

    def thin(self) -> int:
        """Keep every other window between head and tail; how many rows went."""
        before, self.every = len(self.middle), self.every * 2
        self.middle = [reading for reading in self.middle if reading[-2] % self.every == 0]
        return before - len(self.middle)

    def kept(self) -> list[tuple[Any, ...]]:
        """All readings kept; of a window that thinning cut at the tail's border, none."""
        first = self.tail[0] if self.tail else None
        cut = first is not None and first[-1] > 0 and first[-2] % self.every
        tail = (r for r in self.tail if not (cut and first and r[-2] == first[-2]))
        return [*chain(self.head, self.middle, tail)]


def points_of(path: str, rows: Iterable[Row]) -> tuple[list[Fact], list[str]]:
    """Points, capacities and outcomes of a table's rows, in their order; notes on what was left out."""
    series: dict[tuple[str, int | None, Any, Any], _Series] = {}
    facts: dict[Any, Fact] = {}
    middle = seen = bad = refused = 0
    columns = placed = False
    default_rank = rank_of_path(path)
    for number, line, row in rows:
        seen += 1
        cells: list[_Cell] = []
        places, of_memory = _plan(tuple(row))
        keys = {what: cell for name, what in places if (cell := row[name]) not in (None, "")}
        for name, column in of_memory:
            columns = True
            if (found := _number(cell := row[name])) is not None:
                cells.append((name, column, *found))
            elif cell not in (None, "", "N/A", "[N/A]"):
                bad += 1
        if not cells:
            continue
        step, micro, rank, length = (_whole(keys.get(name)) for name in ("step", "micro", "rank", "length"))
        if step is None and micro is None:
            counts = (_whole(keys.get(name)) for name in ("batch", "optimizer", "epoch"))
            step = next((count for count in counts if count is not None), None)
        elif (update := _whole(keys.get("optimizer"))) is not None:  # a step beside it counts micro-steps
            step, micro = update, step if micro is None else micro
        time = _time(keys.get("time"))
        rank = default_rank if rank is None else rank
        device, pid = _whole(keys.get("device")), _whole(keys.get("pid"))
        which = keys.get("device") if device is None else None
        if step is None and micro is None and time is None and "reading" not in row:
            said = str(keys.get("outcome", ""))[:300]
            if _OOM.search(said) and not _NOT_GPU.search(said) and len(facts) < 100:
                facts["oom", number] = _outcome(Source(path, number, line), rank, said, cells)
            continue
        placed = True
        if micro is None and "micro" in keys:
            continue  # a word where the micro-step's number stands: a reading of another moment, such as after the step
        for name, column, value, unit in cells:
            at = column.device if column.device is not None else device
            if column.metric == "capacity":
                size = round(value * (unit or column.unit or MIB))
                setting = Setting(source=Source(path, number, line), rank=rank, name="capacity_bytes", value=size)
                facts.setdefault((name, at, size), setting) if size > 0 and len(facts) < 200 else None
                continue
            if value < 0 and not column.relative:
                bad += 1
                continue
            key = (name, rank, at if at is not None else which, pid)
            if key not in series and len(series) >= MAX_SERIES:
                refused += 1
                continue
            one = series.setdefault(key, _Series(column))
            one.unit = unit or one.unit
            middle += one.add((number, line, time, length), (step, micro), value)
        if middle > MAX_ROWS:
            middle -= sum(one.thin() for one in series.values())
    points = [point for key, one in series.items() for point in _points(path, key, one)]
    notes = []
    if thinned := max((one.every for one in series.values()), default=1) - 1:
        notes.append(f"one step in {thinned + 1} kept of {seen:,} rows, beside the first and last {EDGE}")
    if bad:
        notes.append(f"{bad:,} cells of memory are no sizes and were left out")
    if refused:
        notes.append(f"{refused:,} readings beyond {MAX_SERIES:,} series were left out")
    if not seen:
        notes.append("no rows below the header")
    elif not columns:
        notes.append("a table without a column of memory (names such as allocated_bytes, gpu_mem_gb)")
    elif not placed and not facts:
        notes.append("a table of memory without a column of steps or time (step, iteration, micro_step, timestamp)")
    return [*facts.values(), *points], notes


def _points(path: str, key: tuple[str, int | None, Any, Any], one: _Series) -> Iterable[MemoryPoint]:
    name, rank, device, pid = key
    column = one.column
    kept = one.kept()
    top = max(abs(reading[-3]) for reading in kept)
    unit = one.unit or column.unit or (1 if top >= 1e7 else MIB if top >= 300 else GIB)
    # Several rows for each step, without a number of their own, are micro-steps in the order written.
    windows = Counter(reading[-2] for reading in kept)
    ordered = all(reading[5] is None for reading in kept) and sum(count >= 3 for count in windows.values()) >= 2
    label = name + (f" of {device}" if isinstance(device, str) else "")
    label += f", process {pid}" if pid is not None else ""
    for number, line, time, length, step, micro, value, _, place in kept:
        yield MemoryPoint(
            source=Source(path, number, line or f"{name} = {value:g}"),
            rank=rank,
            metric=column.metric,
            value_bytes=round(value * unit),
            step=step,
            micro_step=place if ordered else micro,
            series=label,
            relative=column.relative,
            seq_len=length,
            time=time,
            device=device if isinstance(device, int) else None,
        )


def _outcome(source: Source, rank: int | None, said: str, cells: Iterable[_Cell]) -> Event:
    """The out-of-memory that a row of trials states for itself, with the sizes that stand beside it."""
    figures: dict[str, int] = {}
    for _, column, value, unit in cells:
        figure = {"capacity": "total"}.get(column.metric, column.metric.removeprefix("peak_"))
        if figure in ("total", "reserved") or column.metric == "allocated":
            figures.setdefault(f"{figure}_bytes", round(value * (unit or column.unit or (1 if value >= 1e7 else MIB))))
    kind = "nccl.oom" if _COLLECTIVE.search(said) else "table.oom"
    return Event(source=source, rank=rank, kind=kind, family="gpu-oom", message=said, figures=figures)


@lru_cache(256)
def _plan(names: tuple[Any, ...]) -> tuple[list[tuple[str, str]], list[tuple[str, Column]]]:
    """(name, key) of the columns that place a row, the first of a kind counts most, and (name, column) of memory."""
    told = [(name, _what(name)) for name in names if isinstance(name, str) and len(name) <= 200]
    places = [(name, what) for name, what in reversed(told) if isinstance(what, str)]
    return places, [(name, what) for name, what in told if isinstance(what, Column)]


@lru_cache(4096)
def _what(name: str) -> str | Column | None:
    """The key that a column is (``step``, ``rank`` ...), or the memory that it holds, or None."""
    name = name.strip()
    if found := _KEY.fullmatch(name):
        return found.lastgroup
    low = name.lower()
    unit = next((size for pattern, size in _UNIT_IN_NAME if pattern.search(name)), None)
    unit = 1 if "bytes" in low else MIB if _IN_MIB.search(name) else unit
    index = _INDEX_IN_NAME.search(name)
    device = int(index[1]) if index else None
    if _CAPACITY.search(name):
        return Column("capacity", unit, device)
    if not _MEMORY.search(name) or _NOT_MEMORY.search(name):
        return None
    peak = "peak_" if "max" in low or "peak" in low else ""
    if _HOST.search(low) and not re.search(r"gpu|cuda|vram", low):
        metric = "host_used"
    elif "reserved" in low or "cached" in low:
        metric = peak + "reserved"
    elif low.startswith(("system.gpu", "gpu.")):  # what the driver counts, whatever the logger calls it
        metric = "used"
    elif "alloc" in low or "active" in low or low.startswith("live_"):
        metric = peak + "allocated"
    else:
        metric = "peak_allocated" if peak else "used"
    return Column(metric, unit, device, any(word in low for word in ("minus", "delta", "growth")))


def _number(cell: Any) -> tuple[float, int | None] | None:
    """(value, unit in bytes where the cell states one); None where it is no finite number."""
    if isinstance(cell, bool) or cell is None or cell == "":
        return None
    try:
        number = float(cell if not isinstance(cell, str) else cell[:60])
    except (TypeError, ValueError, OverflowError):
        found = _UNIT_OF_CELL.match(cell[:60]) if isinstance(cell, str) else None
        return (float(found[1]), {"k": KIB, "m": MIB, "g": GIB}[found[2].lower()]) if found else None
    return (number, None) if abs(number) < 1e18 else None


def _whole(cell: Any) -> int | None:
    number = _number(cell)
    return int(number[0]) if number else None


def _time(cell: Any) -> float | None:
    """Seconds of a time stamp: since the epoch, or as a logger counts; None where it is none."""
    if (number := _number(cell)) is not None:
        return number[0] / 1000 if number[0] > 1e11 else number[0]
    if not isinstance(cell, str):
        return None
    if stamp := clean(cell.strip()[:40].replace("/", "-"), 1).time:
        return stamp
    try:
        return datetime.fromisoformat(cell.strip()[:40]).timestamp()
    except ValueError:
        return None
