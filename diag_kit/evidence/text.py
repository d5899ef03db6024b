"""Raw bytes of a log to clean lines that know their place, rank, process and time.

A line is what stands between two newlines *or* carriage returns (progress bars), counted by newlines as ``grep -n``
does. ANSI colour, box drawings and the prefixes that launchers stack before a line are taken off; indentation after
the prefix stays, since tracebacks need it. Grammars, in any order and depth:

* global rank: torch's excepthook ``[rank3]: ``, Lightning ``[rank: 3] ``, Ray ``(Worker[rank=3] pid=9) ``, mpirun
  ``[1,0]<stderr>:``, determined.ai ``a1b2c3 [rank=3] || ``, axolotl ``[PID:9] [RANK:3]``, SGLang ``[2025-01-29 08:52:43
  TP5] `` (with DP or PP beside it TP counts within a group, so then it is none).
* rank on a node: torchrun ``[default0]:``, open-r1 ``[node12:0]:``.
* node: docker compose ``name-1  | ``, kubeflow ``job-worker-1: ``, ``[pod/job-worker-1/main] ``, pdsh ``host: ``, NCCL
  ``host:pid:tid [dev] NCCL``; ``srun -l`` ``03: `` is a rank only with one process per task, else the node.
* ``[Rank 3]`` inside a line is the rank within a group: it counts where neither prefix nor file name says more, and
  only in the default group.
* time: ISO stamps; ``E1129 11:56:59.123`` and ``[E317 04:11:58.123 x.cpp:9]`` without a year, which take the year of
  another stamp of the file, or are kept apart as a clock of their own (``YEARLESS_END``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from .facts import Event, Source

MAX_LINE = 20_000
"""Characters kept of one line; the rest of a longer line carries no message that any format knows."""

YEARLESS_END = float(3 * 366 * 86400)
"""Times below this come from stamps without a year: month and day stand in 1972, comparable only among themselves."""

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_TIME = r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,15}))?"
_STAMP = re.compile(_TIME + r"(Z|[+-]\d\d:?\d\d)?")
_GLOG = re.compile(r"(?:^|[\[:\s])[EWIF](1[0-2]|0?[1-9])([0-3]\d) (\d\d):(\d\d):(\d\d)\.(\d{1,15})")
_R, _L, _H = r"(?P<rank>\d{1,6})", r"(?P<local>\d{1,6})", r"(?P<host>[A-Za-z][\w.-]{0,100})"


def _any(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


_STAMPED = rf"\[?{_TIME}(?:Z|[+-]\d\d:?\d\d)?\]?(?: (?:stdout|stderr) [FP])?(?: - | \|\| |\s)"
_BRACKET = _any(
    rf"\[rank{_R}\]:? ?",
    rf"\[rank: {_R}\] ?",
    rf"\[(?:default|trainer|worker|main|actor|learner|train){_L}\]:? ?",
    rf"\[[A-Za-z_]{{1,30}}{_L}[|:/, ]{{1,3}}rank[ =]?{_R}\]:? ?",
    rf"\[\d{{1,15}},{_R}\]<std(?:err|out)>: ?",
    rf"\[{_H}:{_L}\]:? ?",
    rf"\[{_TIME} TP{_R}\] ?",
    rf"\[{_TIME}(?: (?:DP|TP|PP|EP|ATTN_TP)\d{{1,5}}){{1,4}}\] ?",
    _STAMPED,
    rf"\[pod/{_H}/[\w.-]{{1,80}}\] ?",
    rf"\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\] \[[\w.:-]{{1,100}}\] \[PID:(?P<pid>\d{{1,10}})\] \[RANK:{_R}\] ?",
)
_PAREN = _any(
    rf"\([A-Za-z_][\w.:-]*(?:\[rank={_R}\])? pid=(?P<pid>\d{{1,15}})(?:, ip=(?P<host>[\w.:]+))?\) ?",
)
_DIGIT = _any(_STAMPED, r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}): ?")
_COMPOSE = _any(r"[A-Za-z][\w.-]*(?:[-_]\d{1,15}\s*|\s{2,})\| ?")
_LETTER = _any(
    r"(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,15})? \[?[\w./-]+:\d{1,15}\] ?",
    r"[EWIF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} \d{1,10} torch/distributed/elastic/[\w./-]{1,200}:\d{1,6}\] ?",
    r"[EWIF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} (?P<pid>\d{1,10}) [\w./-]{1,200}:\d{1,6}\] ?",
    r"E {3}",
)
_POD = _any(r"(?P<host>[a-z0-9][a-z0-9.-]{0,100}-(?:worker|master|launcher|chief|ps|node)-\d{1,6}): ?")
_DETERMINED = _any(rf"(?:[0-9a-f]{{4,12}} )?\[rank={_R}\] \|\| ?")
_RANK_INSIDE = re.compile(r"\[(?:RANK:|rank=)(\d{1,6})\]|\bGLOBAL_RANK: (\d{1,6})")
_GROUP_RANK = re.compile(
    r"\[(?:PG (?:ID )?(?P<group>\w{1,40}) (?:PG GUID \w{1,40}(?:\((?P<name>[^)]{0,80})\))? )?)?Rank (?P<rank>\d{1,6})\]"
)
_PID_INSIDE = re.compile(r"\[PID:(\d{1,15})\]")
_NCCL = re.compile(r"([\w.-]{1,100}):(\d{1,10}):\d{1,10} \[\d{1,4}\] (?:[\w./-]{1,100}:\d{1,6} )?NCCL ")
_BOX = re.compile(r"^\s*[│┃|](.*?)[│┃]?\s*$")
_TASK = re.compile(r"\s{0,4}(\d{1,5}):(?: |$)")  # no time of day and no address of a device
_HOST_LABEL = re.compile(r"([A-Za-z](?=[\w.-]{0,60}\d)[\w.-]{1,80}|\d{1,3}(?:\.\d{1,3}){3}): ?")
_ELASTIC = ("[rank", "[default", "torch.distributed", "torch/distributed/elastic", "torchrun")
_RANK_IN_NAME = (
    re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?!\d)", re.I),
    re.compile(r"(?:^|/)(?:attempt_\d{1,15}/)?(\d{1,6})/std(?:out|err)(?:\.log|\.txt)?$"),
    re.compile(r"(?:^|/)std(?:out|err)[._-](\d{1,6})(?:\.(?:txt|log|out|err))?$"),
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

    def split(self, text: str) -> list[Window]:
        """What stands between the lines that have this text in them, without those."""
        pieces: list[list[Line]] = [[]]
        for line in self.lines:
            if text in line.text:
                pieces.append([])
            else:
                pieces[-1].append(line)
        return [Window(self.path, lines) for lines in pieces if lines]

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


def labels_of(text: str) -> str:
    """What a launcher put before nearly every line: ``task`` (``srun -l``, a rank), ``node`` (the same, where each task
    starts ranks of its own), ``host`` (pdsh), or nothing. srun's and pdsh's own messages come without.
    """
    filled = [row for row in text[: 1 << 14].split("\n")[:50] if row.strip()]
    if len(filled) < 4:
        return ""
    if sum(bool(_TASK.match(row)) for row in filled) >= 0.8 * len(filled):
        return "node" if any(sign in text for sign in _ELASTIC) else "task"
    hosts = [found[1] for row in filled if (found := _HOST_LABEL.match(row))]
    return "host" if len(hosts) >= 0.8 * len(filled) and len(set(hosts)) <= len(hosts) / 2 else ""


def clean(raw: str, number: int, *, rank: int | None = None, labels: str = "") -> Line:
    """One line without colour, box and prefixes; what the prefixes said is kept beside it.

    Args:
        raw: the line as written.
        number: newlines before it plus one.
        rank: what the file's name says; a prefix knows better, a rank within a group does not.
        labels: what ``labels_of`` said of the file.
    """
    text = _ANSI.sub("", raw[:MAX_LINE]) if "\x1b" in raw else raw[:MAX_LINE]
    local_rank = pid = host = time = None
    stated_rank, width = None, len(text)
    if labels and (label := (_HOST_LABEL if labels == "host" else _TASK).match(text)):
        text = text[label.end() :]
        if labels == "task":
            stated_rank = int(label[1])
        else:
            host = label[1] if labels == "host" else f"task {int(label[1])}"
    head = text[:1]
    if "-" in text[:72] and (dated := _STAMP.search(text, 0, 80)):
        time = _epoch(dated)
    elif head and head in "[EWIF" and (glog := _GLOG.search(text, 0, 60)):
        time = _yearless(glog)
    for _ in range(6):
        if not head or head == " ":
            break
        for prefix in _prefixes(head, text):
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
    if head in "│┃" or text.lstrip()[:1] in ("│", "┃"):
        box = _BOX.match(text)
        text = box[1].rstrip()[1:] if box and box[1].startswith(" ") else (box[1].rstrip() if box else text)
    if stated_rank is None and ("ank" in text or "RANK" in text):
        if inside := _RANK_INSIDE.search(text, 0, 400):
            stated_rank = int(inside[1] or inside[2])
        elif rank is None and "[" in text and (member := _GROUP_RANK.search(text, 0, 400)):
            whole = member["group"] in (None, "0") or member["name"] == "default_pg"
            stated_rank = int(member["rank"]) if whole else None
    if pid is None and "[PID:" in text and (found_pid := _PID_INSIDE.search(text)):
        pid = int(found_pid[1])
    if " NCCL " in text[:200] and (process := _NCCL.match(text)):
        host, pid = process[1], int(process[2])
    return Line(number, text, stated_rank if stated_rank is not None else rank, local_rank, pid, host, time, width)


def _prefixes(head: str, text: str) -> tuple[re.Pattern[str], ...]:
    """The grammars that a line may begin with, told by its first character: most lines need to try none."""
    first = _DETERMINED if "||" in text and "] ||" in text[:60] else ()
    if head == "[":
        return first + _BRACKET
    if head == "(":
        return _PAREN
    if "0" <= head <= "9":
        return first + _DIGIT
    if "|" in text:
        first += _COMPOSE
    if head in "IWECDF":
        return first + _LETTER
    return first + _POD if "-" in text and ": " in text else first


def lines_of(data: bytes, *, first_number: int = 1, rank: int | None = None, labels: str | None = None) -> list[Line]:
    """Clean lines of raw bytes; ``first_number`` is the newline count before them plus one.

    ``labels`` is what ``labels_of`` said of the whole file, where ``data`` is a part of it.
    """
    text = decode(data)
    # A log that was truncated while it was written to begins with NULs, as many as were cut.
    text = re.sub("\0{8,}", "", text) if "\0\0\0\0\0\0\0\0" in text else text
    labels = labels_of(text) if labels is None else labels
    rows = text.split("\n")
    if rows and not rows[-1]:
        rows.pop()
    lines = [
        clean(piece, number, rank=rank, labels=labels)
        for number, row in enumerate(rows, first_number)
        for piece in _pieces(row)
    ]
    stamps = [line.time for line in lines if line.time is not None]
    full = next((time for time in stamps if time >= YEARLESS_END), None)
    if full is None or min(stamps) >= YEARLESS_END:
        return lines
    return [line if line.time is None else replace(line, time=_dated(line.time, full)) for line in lines]


def _yearless(found: re.Match[str]) -> float | None:
    whole = stamp("1972", *found.groups()[:5])
    return None if whole is None else whole + float("0." + found[6])


def _dated(time: float, full: float) -> float:
    """A stamp without a year in the year that brings it nearest to another stamp of the same file."""
    if time >= YEARLESS_END:
        return time
    moment, year = datetime.fromtimestamp(time, UTC), datetime.fromtimestamp(full, UTC).year
    options = []
    for one in (year - 1, year, year + 1):
        with contextlib.suppress(ValueError):  # a 29th of February, or a year beyond all years
            options.append(moment.replace(year=one).timestamp())
    return min(options, key=lambda option: abs(option - full), default=time)


def _pieces(row: str) -> Iterator[str]:
    """The parts of a row that carriage returns separate; an empty row stays one empty line."""
    row = row.rstrip("\r")
    if "\r" not in row:
        yield row
        return
    yield from (piece for piece in row.split("\r") if piece)


def stamp(*parts: str) -> float | None:
    """Seconds since the epoch of year, month, day, hour, minute and second as printed; None where there is no such."""
    day, (hour, minute, second) = _day(*parts[:3]), (int(part) for part in parts[3:6])
    if day is None or hour > 23 or minute > 59 or second > 59:
        return None
    return day + hour * 3600 + minute * 60 + second


def _epoch(found: re.Match[str]) -> float | None:
    whole = stamp(*found.groups()[:6])
    if whole is None:
        return None
    zone = found[8]
    if zone and zone != "Z":
        ahead = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        whole -= ahead if zone[0] == "+" else -ahead
    return whole + float("0." + (found[7] or "0"))


@lru_cache(maxsize=64)
def _day(year: str, month: str, day: str) -> float | None:
    """Start of a day; a log has few of them, and the calendar is what a stamp costs most."""
    try:
        return datetime(int(year), int(month), int(day), tzinfo=UTC).timestamp()
    except ValueError:
        return None
