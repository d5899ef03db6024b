"""A reproduction is a second run: what it printed is kept apart from the failed run's facts, and put together here."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .facts import Event, Fact, FileCoverage, MemoryPoint, Progress, Repetition, Source
from .parsers import torch_oom
from .text import Window, lines_of

_END = 1 << 62
_ENDS = ("originator", "victim", "teardown", "confirmation")
_STATED = {"small": bool, "change": dict, "assumed": list, "left_out": list, "device": str}


class _Part(Protocol):
    facts: list[Fact]
    coverage: FileCoverage


@dataclass(frozen=True, slots=True)
class SecondRun:
    """One execution of a reproduction, from its records; fields that are not there are empty.

    Attributes:
        verdict: the script's own word; empty where it was ended from outside.
        source: the line that tells the most of its end. started: its first record.
        failure: digest of the failure that it is of.
        whole: its start says at which size it ran, what was changed, assumed and left out.
        small: scaled down: tells nothing of the run's own peak.
        cuda: it ran on a GPU. gpu: that GPU's UUID.
        cap_bytes: what torch was held to. others_bytes: what other processes held when it began.
        change: the one variable that was changed, with its value.
        phase, asked_bytes, message: of its out-of-memory.
        shape, settings: what it ran with, as numbers and words.
        points: allocated memory after each micro-step, and the highest within.
    """

    run: str
    source: Source
    started: Source
    verdict: str = ""
    failure: str = ""
    whole: bool = False
    small: bool = False
    cuda: bool = False
    device: str = ""
    gpu: str = ""
    host: str = ""
    total_bytes: int | None = None
    cap_bytes: int | None = None
    others_bytes: int | None = None
    change: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    phase: str = ""
    asked_bytes: int | None = None
    message: str = ""
    steps: int = 0
    peak_bytes: int | None = None
    shape: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    points: tuple[MemoryPoint, ...] = ()


def set_apart(facts: Sequence[Fact]) -> list[Fact]:
    """The facts without those of lines between a reproduction's first and last record; its own records stay."""
    spans = _spans(facts)
    if not spans:
        return list(facts)
    return [fact for fact in facts if isinstance(fact, Repetition) or not _within(fact, spans)]


def told_by(parts: Sequence[_Part]) -> set[str]:
    """Paths of the files that hold a reproduction's output and nothing else."""
    spans = _spans([fact for part in parts for fact in part.facts])
    return {
        part.coverage.path
        for part in parts
        if any(isinstance(fact, Repetition) for fact in part.facts)
        and all(isinstance(fact, Repetition) or _within(fact, spans) for fact in part.facts)
    }


def _spans(facts: Sequence[Fact]) -> dict[str, list[tuple[int, int]]]:
    """Path -> (first, last line) of each execution, in order, none touching another.

    One that was ended from outside reaches to the next, or to the file's end; but only to its last record where what
    follows would take from the run its only word: a line that looks like a record must not hide the run's failure.
    """
    records: dict[str, dict[str, list[Repetition]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        if isinstance(fact, Repetition) and fact.source.line is not None:
            records[fact.source.path][fact.run].append(fact)
    spans: dict[str, list[tuple[int, int]]] = {}
    tails: dict[str, int] = {}
    for path, runs in records.items():
        told = sorted((min(lines), max(lines), any(one.record == "verdict" for one in run)) for run in runs.values()
                      for lines in [[one.source.line or 0 for one in run]])  # fmt: skip
        starts = [first for first, _, _ in told]
        found = []
        for first, last, ended in told:
            at = bisect_right(starts, last)
            following = starts[at] - 1 if at < len(starts) else _END
            found.append((first, last if ended else following))
        spans[path] = _joined(found)
        if spans[path][-1][1] == _END:
            tails[path] = max(last for _, last, _ in told)
    for path in [path for path in tails if not _spoken_for(path, facts, spans)]:
        spans[path][-1] = (spans[path][-1][0], tails[path])
    return spans


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order of their first line, those that overlap as one."""
    joined: list[tuple[int, int]] = []
    for first, last in spans:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _spoken_for(path: str, facts: Sequence[Fact], spans: Mapping[str, Sequence[tuple[int, int]]]) -> bool:
    """Whether the run tells its end elsewhere than after a reproduction in this file: in the file before it, or, where
    the file begins with the reproduction, in another.
    """
    own = [fact for fact in facts if isinstance(fact, Event | MemoryPoint | Progress) and not _within(fact, spans)]
    here = [fact for fact in own if fact.source.path == path]
    if here:
        return any(isinstance(fact, Event) and fact.role in _ENDS for fact in here)
    return any(isinstance(fact, Event | Progress) for fact in own)  # a table of sizes alone tells no end


def _within(fact: Fact, spans: Mapping[str, Sequence[tuple[int, int]]]) -> bool:
    line, told = fact.source.line, spans.get(fact.source.path)
    if line is None or not told:
        return False
    at = bisect_right(told, (line, _END)) - 1
    return at >= 0 and line <= told[at][1]


def second_runs(records: Sequence[Repetition]) -> tuple[SecondRun, ...]:
    """The executions whose start is told, in the order read."""
    runs: dict[str, dict[str, list[Repetition]]] = defaultdict(lambda: defaultdict(list))
    for one in records:
        runs[one.run][one.source.path].append(one)
    made = []
    for run, files in runs.items():  # the screen's copy and the file's: the one that tells more
        told = max(files.values(), key=len)
        if any(one.record == "start" for one in told):
            made.append(_second_run(run, told))
    return tuple(made)


def _second_run(run: str, told: Sequence[Repetition]) -> SecondRun:
    last = {one.record: one for one in told}
    start, oom, end = last["start"], last.get("oom"), last.get("verdict")
    said = start.said
    device, message = _text(said.get("device")), _text(oom.said.get("message")) if oom else ""
    return SecondRun(
        run=run,
        source=(oom or last.get("error") or end or told[-1]).source,
        started=start.source,
        verdict=_text(end.said.get("verdict")) if end else "",
        failure=_text(said.get("failure")),
        whole=all(isinstance(said.get(name), kind) for name, kind in _STATED.items()),
        small=said.get("small") is not False,
        cuda=bool(device) and device != "cpu",
        device=device,
        gpu=_text(said.get("gpu")),
        host=_text(said.get("host")),
        total_bytes=_whole(said.get("total_bytes")),
        cap_bytes=_whole(said.get("cap_bytes")),
        others_bytes=_whole(said.get("others_bytes")),
        change=_plain(said.get("change")),
        assumed=_names(said.get("assumed")),
        left_out=_names(said.get("left_out")),
        phase=_text(oom.said.get("phase")) if oom else "",
        asked_bytes=_asked(message),
        message=message,
        steps=(_whole(end.said.get("steps")) or 0) if end else 0,
        peak_bytes=_whole(end.said.get("max_allocated_bytes")) if end else None,
        shape=_plain(said.get("shape")),
        settings=_plain(said.get("settings")),
        points=tuple(point for one in told if one.record == "micro-step" for point in _points(one)),
    )


def _points(record: Repetition) -> list[MemoryPoint]:
    said, shape = record.said, record.said.get("shape")
    length = _whole(shape[1]) if isinstance(shape, list) and len(shape) == 2 else None
    step, micro_step = _whole(said.get("step")), _whole(said.get("micro_step"))
    return [
        MemoryPoint(source=record.source, metric=metric, value_bytes=size, step=step, micro_step=micro_step,
                    series=f"reproduction {record.run}", seq_len=length)
        for metric, name in (("allocated", "allocated_bytes"), ("peak_allocated", "max_allocated_bytes"))
        if (size := _whole(said.get(name))) is not None
    ]  # fmt: skip


def _asked(message: str) -> int | None:
    """What an allocation asked for, as torch's own message states it."""
    events = torch_oom.parse(Window("", lines_of(message.encode("utf-8", "replace"))))
    return next((asked for one in events if (asked := one.figures.get("tried_to_allocate_bytes"))), None)


def _text(value: Any) -> str:
    return value[:1000] if isinstance(value, str) else ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _END else None


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_text(one)[:60] for one in value[:40] if isinstance(one, str)) if isinstance(value, list) else ()


def _plain(value: Any) -> dict[str, Any]:
    items = value.items() if isinstance(value, dict) else ()
    return {str(k)[:60]: v for k, v in items if isinstance(v, bool | int | float | str) and len(str(v)) < 60}
