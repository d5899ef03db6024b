"""A reproduction is a second run: what it printed is kept apart from the failed run's facts, and put together here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .facts import Fact, FileCoverage, MemoryPoint, Repetition, Source
from .parsers import torch_oom
from .text import Window, lines_of

_END = 1 << 62
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
    alone = set()
    for part in parts:
        if any(isinstance(fact, Repetition) for fact in part.facts):
            spans = _spans(part.facts)
            if all(isinstance(fact, Repetition) or _within(fact, spans) for fact in part.facts):
                alone.add(part.coverage.path)
    return alone


def _spans(facts: Sequence[Fact]) -> dict[str, list[tuple[int, int]]]:
    """Path -> (first, last line) of each execution; one that was ended from outside reaches to the next, or the end."""
    records: dict[str, dict[str, list[Repetition]]] = defaultdict(lambda: defaultdict(list))
    for fact in facts:
        if isinstance(fact, Repetition) and fact.source.line is not None:
            records[fact.source.path][fact.run].append(fact)
    spans: dict[str, list[tuple[int, int]]] = {}
    for path, runs in records.items():
        starts = sorted(min(one.source.line or 0 for one in told) for told in runs.values())
        for told in runs.values():
            lines = [one.source.line or 0 for one in told]
            ended = any(one.record == "verdict" for one in told)
            following = next((start - 1 for start in starts if start > max(lines)), _END)
            spans.setdefault(path, []).append((min(lines), max(lines) if ended else following))
    return spans


def _within(fact: Fact, spans: Mapping[str, Sequence[tuple[int, int]]]) -> bool:
    line = fact.source.line
    return line is not None and any(first <= line <= last for first, last in spans.get(fact.source.path, ()))


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
