"""The long lists of a diagnosis as rows to show: what happened around the failure, and what was read of each file.

Every text is cleaned of what a screen would obey; whoever renders it still escapes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ..evidence.facts import FileCoverage, Source
from ..findings import Diagnosis, Moment
from .words import clean

ROLES = {
    "originator": "error of its own",
    "victim": "waited for another rank",
    "teardown": "stopped from outside",
    "confirmation": "later report",
    "recovered": "recovered",
    "advisory": "warning",
}
"""Roles of a moment -> what a person reads, in a legend's order; an error of its own alone makes no rank the first."""
UNREAD, PART, WHOLE = "not read", "in part", "whole"
NAME_LIMIT, WHAT_LIMIT = 60, 300


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


def moments_of(diagnosis: Diagnosis) -> tuple[Moment, ...]:
    """The diagnosis' timeline; where it has none, its failure and the ranks that only reported it."""
    failure = diagnosis.failure
    if diagnosis.timeline or failure is None:
        return diagnosis.timeline
    first = Moment("originator", failure.message, failure.source, failure.rank, failure.host, failure.time)
    return (first, *(Moment("confirmation", one.what, one.source, one.rank) for one in diagnosis.collateral))


def timeline_rows(diagnosis: Diagnosis) -> list[Row]:
    """The moments in order; empty where there are less than two: one is no timeline."""
    moments = moments_of(diagnosis)
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


def timed(rows: Iterable[Row]) -> bool:
    """Whether rows can stand on an axis of time: at least two different stamps."""
    return len({time for row in rows for time in (row.time, row.began)} - {None}) > 1


def timeline_text(rows: Sequence[Row], first: int | None) -> str:
    """The timeline in words. ``first``: the rank that the evidence shows to have failed first, or None."""
    said = [] if first is None else [f"Rank {first} failed first."]
    for role, word in ROLES.items():
        ours = [row for row in rows if row.role == role]
        ranks = {row.rank for row in ours if row.rank is not None}
        if not ours or (role == "originator" and ranks == {first}):
            continue
        waits = [row.time - row.began for row in ours if row.time is not None and row.began is not None]
        many = f"{len(ranks):,} ranks ({ranges(ranks)}): " if len(ranks) > 1 else f"Rank {next(iter(ranks), '')}: "
        text = f"{many}{word}" if ranks else f"{word.capitalize()}{f', in {len(ours):,} lines' * (len(ours) > 1)}"
        said.append(text + (f", the longest for {max(waits):,.0f} s." if waits else "."))
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
