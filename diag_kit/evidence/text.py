"""Raw bytes of a log to clean lines that know their place, rank, process and time.

A line is what stands between two newlines *or* carriage returns (progress bars), counted by newlines as ``grep -n``
does. ANSI colour, box drawings and the prefixes that launchers stack before a line are taken off; indentation after
the prefix stays, since tracebacks need it. Grammars: torch's excepthook ``[rank3]: ``, torchrun ``[default0]:``, Ray
``(Worker[rank=3] pid=9) ``, docker compose ``name-1  | ``, mpirun ``[1,0]<stderr>:``, srun ``3: ``, logging prefixes
with time stamps, pytest's ``E   ``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .facts import Event, Source

MAX_LINE = 20_000
"""Characters kept of one line; the rest of a longer line carries no message that any format knows."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,15}))?"
_STAMP = re.compile(_TIME + r"(Z|[+-]\d\d:?\d\d)?")
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[rank(?P<rank>\d{1,15})\]:? ?",
        r"\[rank: (?P<rank>\d{1,15})\] ?",
        r"\[(?:default|trainer|worker|main)(?P<local>\d{1,15})\]:? ?",
        r"\[\d{1,15},(?P<rank>\d{1,15})\]<std(?:err|out)>: ?",
        r"\([A-Za-z_][\w.:-]*(?:\[rank=(?P<rank>\d{1,15})\])? pid=(?P<pid>\d{1,15})(?:, ip=(?P<host>[\w.:]+))?\) ?",
        r"[A-Za-z][\w.-]*(?:[-_]\d{1,15}\s*|\s{2,})\| ?",
        r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}): ?",
        r"\[(?P<host>[A-Za-z][\w.-]*):(?P<local>\d{1,15})\]:? ?",
        rf"\[?{_TIME}(?:Z|[+-]\d\d:?\d\d)?\]?(?: (?:stdout|stderr) [FP])?(?: - | \|\| |\s)",
        r"(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,15})? \[?[\w./-]+:\d{1,15}\] ?",
        r"E {3}",
    )
)
_RANK_INSIDE = re.compile(r"\[(?:Rank |RANK:|rank=)(\d{1,15})\]|\bGLOBAL_RANK: (\d{1,15})")
_PID_INSIDE = re.compile(r"\[PID:(\d{1,15})\]")
_BOX = re.compile(r"^\s*[│┃|](.*?)[│┃]?\s*$")
_TASK = re.compile(r"\s{0,4}(\d{1,5}): ?")
_RANK_IN_NAME = (
    re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d{1,15})", re.I),
    re.compile(r"(?:^|/)(?:attempt_\d{1,15}/)?(\d{1,15})/std(?:out|err)(?:\.log|\.txt)?$"),
    re.compile(r"(?:^|/)(?:std(?:out|err)|output|log)[._-](\d{1,15})(?:\.(?:txt|log|out|err))?$"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One clean line. ``rank`` is global, ``local_rank`` counts on its node; None where nothing says.

    ``width`` is the length before prefixes came off: lines of one full width were cut by a terminal.
    """

    number: int
    text: str
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    host: str | None = None
    time: float | None = None
    width: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive lines of one file."""

    path: str
    lines: Sequence[Line]

    def source(self, index: int, *, around: int = 2) -> Source:
        """Source of the line at ``index``, with its neighbours as context."""
        line = self.lines[index]
        near = self.lines[max(0, index - around) : index + around + 1]
        return Source(self.path, line.number, line.text[:2000], tuple(other.text[:400] for other in near))

    def event(self, index: int, *, kind: str, family: str, **said: Any) -> Event:
        """An event at ``index``: who, where and when as the line's prefix tells, unless ``said`` knows better."""
        line = self.lines[index]
        prefix = {name: getattr(line, name) for name in ("rank", "host", "pid", "local_rank", "time")}
        return Event(kind=kind, family=family, **{"source": self.source(index), **prefix, **said})

    def joined(self, index: int, *, lines: int = 6, stop: re.Pattern[str] | None = None) -> str:
        """The line at ``index`` and what follows it, as one string: undoes wrapping.

        Lines of one full width were cut in mid-word by a terminal and are put together as they stand; others by a
        space.
        """
        taken = [self.lines[index].text]
        width = self.lines[index].width
        cut = width >= 60 and index + 1 < len(self.lines) and self.lines[index + 1].width == width
        for line in self.lines[index + 1 : index + lines]:
            if not line.text.strip() or (stop and stop.search(line.text)):
                break
            taken.append(line.text if cut else line.text.strip())
        return ("" if cut else " ").join(taken)[:4000]


def rank_of_path(path: str) -> int | None:
    """Global rank that a file's name states, as in ``rank3.log`` or ``attempt_0/3/stderr.log``.

    >>> rank_of_path("logs/rank_12.txt"), rank_of_path("attempt_0/3/stderr.log"), rank_of_path("train.log")
    (12, 3, None)
    """
    for pattern in _RANK_IN_NAME:
        if found := pattern.search(path.replace("\\", "/")):
            return int(found[1])
    return None


def decode(data: bytes) -> str:
    """Text of any bytes: UTF-8 with broken bytes replaced; UTF-16 where a byte-order mark or its NULs say so."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    if len(data) > 3 and data[1::2].count(0) > len(data) * 0.4 and data[::2].count(0) < len(data) * 0.1:
        return data.decode("utf-16-le", "replace")
    return data.decode("utf-8", "replace").removeprefix("\ufeff")


def task_labelled(texts: Sequence[str]) -> bool:
    """Whether ``srun -l`` put the task's number before the lines; srun's own messages come without."""
    filled = [text for text in texts if text.strip()]
    return len(filled) >= 4 and sum(bool(_TASK.match(text)) for text in filled) >= 0.8 * len(filled)


def clean(raw: str, number: int, *, rank: int | None = None, labelled: bool = False) -> Line:
    """One line without colour, box and prefixes; what the prefixes said is kept beside it."""
    text = _ANSI.sub("", raw[:MAX_LINE]) if "\x1b" in raw else raw[:MAX_LINE]
    local_rank = pid = host = time = None
    stated_rank, width = None, len(text)
    if labelled and (task := _TASK.match(text)):
        stated_rank, text = int(task[1]), text[task.end() :]
    if time_found := _STAMP.search(text, 0, 80):
        time = _epoch(time_found)
    head = text[:1]
    for _ in range(5):
        if not head or head == " ":
            break
        for prefix in _PREFIXES:
            if found := prefix.match(text):
                said = found.groupdict()
                stated_rank = int(said["rank"]) if said.get("rank") else stated_rank
                local_rank = int(said["local"]) if said.get("local") else local_rank
                pid = int(said["pid"]) if said.get("pid") else pid
                host = said.get("host") or host
                text = text[found.end() :]
                break
        else:
            break
        head = text[:1]
    if text[:1] in "│┃" or text.lstrip()[:1] in ("│", "┃"):
        box = _BOX.match(text)
        text = box[1].rstrip()[1:] if box and box[1].startswith(" ") else (box[1].rstrip() if box else text)
    if stated_rank is None and ("ank" in text or "RANK" in text) and (inside := _RANK_INSIDE.search(text, 0, 400)):
        stated_rank = int(inside[1] or inside[2])
    if pid is None and "[PID:" in text and (found_pid := _PID_INSIDE.search(text)):
        pid = int(found_pid[1])
    return Line(number, text, stated_rank if stated_rank is not None else rank, local_rank, pid, host, time, width)


def lines_of(data: bytes, *, first_number: int = 1, rank: int | None = None) -> list[Line]:
    """Clean lines of raw bytes; ``first_number`` is the newline count before them plus one."""
    text = decode(data)
    # A log that was truncated while it was written to begins with NULs, as many as were cut.
    rows = (re.sub("\0{8,}", "", text) if "\0\0\0\0\0\0\0\0" in text else text).split("\n")
    if rows and not rows[-1]:
        rows.pop()
    labelled = task_labelled(rows[:50])
    return [
        clean(piece, number, rank=rank, labelled=labelled)
        for number, row in enumerate(rows, first_number)
        for piece in _pieces(row)
    ]


def _pieces(row: str) -> Iterator[str]:
    """The parts of a row that carriage returns separate; an empty row stays one empty line."""
    row = row.rstrip("\r")
    if "\r" not in row:
        yield row
        return
    yield from (piece for piece in row.split("\r") if piece)


def _epoch(found: re.Match[str]) -> float | None:
    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    try:
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None
    zone = found[8]
    if zone and zone != "Z":
        ahead = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        whole -= ahead if zone[0] == "+" else -ahead
    return whole + float("0." + (found[7] or "0"))
