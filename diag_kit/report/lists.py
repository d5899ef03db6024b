"""The long lists of a diagnosis as rows to show: what happened around the failure, and what was read of each file.

Every text is cleaned of what a screen would obey; whoever renders it still escapes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ..evidence.facts import FileCoverage, Source
from ..findings import Diagnosis, Moment
from .words import clean

ROLES = {
    "originator": "error of its own",
    "victim": "waited for another rank",
    "teardown": "stopped from outside",
    "confirmation": "reported later",
    "recovered": "recovered",
    "advisory": "warning",
}
"""Roles of a moment -> what a person reads, in a legend's order; an error of its own alone makes no rank the first."""
UNREAD, PART, WHOLE = "not read", "in part", "whole"
NAME_LIMIT, WHAT_LIMIT = 60, 300
OWN_ROWS, FEW_ROWS = 8, 3
"""Ranks with an error of their own, and lines of another role, that stand one by one on paper."""


class Row(NamedTuple):
    """A moment as shown. ``time`` and ``began`` in seconds since the epoch, as stamped; None where no line says."""

    role: str
    rank: int | None
    host: str
    who: str
    when: str
    time: float | None
    began: float | None
    what: str
    source: Source


def timeline_rows(diagnosis: Diagnosis) -> list[Row]:
    """The moments in order; empty where there are less than two: one is no timeline."""
    moments = diagnosis.timeline
    days = {clock(m.time)[:10] for m in moments if m.time is not None}
    return [_row(m, date=len(days) > 1) for m in moments] if len(moments) > 1 else []


def _row(moment: Moment, *, date: bool) -> Row:
    host, time, began = clean(moment.host or "", NAME_LIMIT), moment.time, moment.began
    if clock(time) == "":
        time = None
    if time is None or began is None or clock(began) == "" or began >= time:
        began = None
    who = f"rank {moment.rank}" if moment.rank is not None else host or "rank not stated"
    when = clock(time)[0 if date else 11 :].removesuffix(".000") if time is not None else ""
    what = clean(moment.what.strip() or moment.source.text.strip(), WHAT_LIMIT)
    if time is not None and began is not None and (waited := f"{time - began:,.0f} s") not in what:
        what += f" (for {waited})"
    what += f" (×{moment.count:,})" if moment.count > 1 else ""
    role = moment.role if moment.role in ROLES else "advisory"
    return Row(role, moment.rank, host, who, when, time, began, what, moment.source)


def clock(time: float | None) -> str:
    """``2026-04-07 14:02:11.306``, as stamped; empty where no clock shows it."""
    try:
        return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (OverflowError, ValueError, OSError):
        return ""


def gathered(rows: Sequence[Row], first: int | None) -> list[Row]:
    """The rows for a page of paper: what many ranks did alike is one row, with its ranks and the earliest one's line.

    The rank that failed first stands alone, and so does whoever has an error of its own, where those are few.
    """
    count = Counter(row.role for row in rows)

    def alone(row: Row) -> bool:
        few = OWN_ROWS if row.role == "originator" else FEW_ROWS
        return count[row.role] <= few or (row.role == "originator" and row.rank is not None and row.rank == first)

    alike: dict[object, list[Row]] = {}
    for i, row in enumerate(rows):
        alike.setdefault(i if alone(row) else row.role, []).append(row)
    return [same[0] if len(same) == 1 else _together(same) for same in alike.values()]


def _together(rows: Sequence[Row]) -> Row:
    ranks = {row.rank for row in rows if row.rank is not None}
    many = f"{len(ranks):,} ranks ({ranges(ranks)})" if len(ranks) > 1 else f"{rows[0].who}, {len(rows):,} lines"
    stamped = sorted((row.time, row.when) for row in rows if row.time is not None)
    when = " – ".join(dict.fromkeys(at for _, at in (stamped[:1] + stamped[-1:])))
    starts = [row.began or row.time for row in rows if row.time is not None]
    what = f"{rows[0].what}; {len(rows) - 1:,} more of this kind"
    return rows[0]._replace(rank=None, host="", who=many, when=when, time=stamped[-1][0] if stamped else None,
                            began=min(filter(None, starts), default=None), what=what)  # fmt: skip


def timed(rows: Iterable[Row]) -> bool:
    """Whether rows can stand on an axis of time: at least two different stamps."""
    return len({time for row in rows for time in (row.time, row.began)} - {None}) > 1


def timeline_text(rows: Sequence[Row], first: int | None, left_out: Mapping[str, int]) -> str:
    """The timeline in words.

    Args:
        rows: from `timeline_rows`.
        first: the rank that the evidence shows to have failed first, or None.
        left_out: role -> moments that ``rows`` lack.
    """
    said = [] if first is None else [f"Rank {first} failed first."]
    for role, word in ROLES.items():
        ours = [row for row in rows if row.role == role]
        ranks = {row.rank for row in ours if row.rank is not None}
        if not ours or (role == "originator" and ranks == {first}):
            continue
        waits = [row.time - row.began for row in ours if row.time is not None and row.began is not None]
        many = f"{len(ranks):,} ranks ({ranges(ranks)}): " if len(ranks) > 1 else f"Rank {next(iter(ranks), '')}: "
        text = f"{many}{word}" if ranks else f"{word.capitalize()}{f', in {len(ours):,} lines' * (len(ours) > 1)}"
        text += f", the longest for {max(waits):,.0f} s" if waits else ""
        said.append(text + (f"; {left_out[role]:,} more lines say so." if left_out.get(role) else "."))
    unstamped = sum(row.time is None for row in rows)
    if not timed(rows):
        said.append("No time stamps tell them apart: they stand in the order of their lines, which between files is "
                    "no order in time.")  # fmt: skip
    elif unstamped:
        said.append(f"{unstamped:,} of {len(rows):,} carry no time stamp.")
    return " ".join(said)


def ranges(numbers: Iterable[int], limit: int = 6) -> str:
    """Numbers as ranges, at most ``limit`` of them.

    >>> ranges([0, 1, 2, 4, 6, 7])
    '0–2, 4, 6–7'
    """
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    shown = [str(a) if a == b else f"{a}–{b}" for a, b in spans[:limit]]
    return ", ".join(shown + ["…"] * (len(spans) > limit))


def status_of(file: FileCoverage) -> str:
    """How much of a file was read."""
    if file.read_bytes >= file.size_bytes and file.kind not in ("unread", "binary"):
        return WHOLE
    return PART if file.read_bytes else UNREAD


def files_in_order(files: Iterable[FileCoverage]) -> list[FileCoverage]:
    """What was not read first, then what was read in part; otherwise as read."""
    return sorted(files, key=lambda file: (UNREAD, PART, WHOLE).index(status_of(file)))


def files_text(files: Sequence[FileCoverage]) -> str:
    """How many files there are, and how many of them were not read whole."""
    count = Counter(map(status_of, files))
    parts = [f"{count[status]:,} {'read ' * (status != UNREAD)}{status}" for status in (UNREAD, PART, WHOLE)
             if count[status]]  # fmt: skip
    return f"{len(files):,} {'file' if len(files) == 1 else 'files'}: {', '.join(parts)}"
