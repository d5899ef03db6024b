"""A judgement in words: what failed where, who only reported it, the summary for a tired engineer, the next action."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .evidence.facts import Event
from .evidence.figures import Figures
from .evidence.first import began, one_clock
from .evidence.origin import Origin
from .evidence.run import Run
from .evidence.text import YEARLESS_END
from .findings import LISTED, Collateral, Failure, Finding, Missing, Moment
from .units import format_bytes


def words(name: str, value: Any) -> str:
    """A figure as a person writes it.

    >>> words("request_bytes", 3 << 30), words("cached_share", 0.254), words("phase", None)
    ('3.00 GiB', '25 %', 'unknown')
    """
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes") and isinstance(value, int | float):
        return format_bytes(value)
    if name.endswith("_share") and isinstance(value, int | float):
        return f"{value:.0%}".replace("%", " %")
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, frozenset | set | list | tuple):
        return ", ".join(sorted(map(str, value)))
    return str(value)


def failure_of(figures: Figures, run: Run) -> Failure | None:
    """What stopped the run, with place and sizes as stated; None where the evidence does not show it."""
    origin = figures.origin
    event = origin.event
    if event is None:
        return None
    values = figures.values
    operation = values.get("operation")
    host = event.host or next(
        (e.host for e in run.events if e.host and e.rank == event.rank and e.rank is not None), None
    )
    last = figures.growth.points[-1] if figures.growth and values.get("growth") == "per-micro-step" else None
    return Failure(
        source=event.source,
        rank=event.rank if event.rank is not None else origin.rank,
        device=event.device,
        host=host,
        step=last.step if last and last.step is not None else values.get("failed_step"),
        micro_step=last.micro_step if last else None,
        phase=values.get("phase", "unknown"),
        operation=operation.replace("-", " ") if operation and operation != values.get("phase") else None,
        time=event.time if event.time is not None and event.time >= YEARLESS_END else None,
        message=event.message,
        facts={
            name: value
            for name, value in event.figures.items()
            if name.endswith("_bytes") or name.startswith("tensor_")
        },
    )


def collateral_of(figures: Figures) -> tuple[tuple[Collateral, ...], int]:
    """Ranks that only report the failure of another, each kind of report once, by rank; and how many ranks in all."""
    origin = figures.origin
    # Of a rank that failed as well a launcher's line says nothing more; a wait that came before may.
    failed = {e.rank for e in origin.told if e.role == "originator" and e.rank is not None}
    victims = [e for e in origin.victims if e.rank not in failed or e.kind.startswith("nccl.")]
    victims = [e for e in victims if e.rank is None or e.rank != origin.rank]
    seen: dict[tuple[int | None, str], Event] = {}
    named = any(event.rank is not None for event in victims)
    for event in sorted(victims, key=lambda e: (e.rank is None, e.rank or 0)):
        if event.rank is not None or not named:
            seen.setdefault((event.rank, event.kind), event)
    shown = [Collateral(event.rank, _what(event), event.source) for event in list(seen.values())[:_MOST_COLLATERAL]]
    return tuple(shown), len({rank for rank, _ in seen})


_MOST_COLLATERAL = 200
_MOST_MOMENTS = 2048
"""Moments kept of each role: a page draws one for each of a thousand ranks, and says how many more there are."""


def timeline_of(origin: Origin) -> tuple[tuple[Moment, ...], dict[str, int]]:
    """What ranks did and reported, who began it first, and by role how many moments were left out.

    Within a role by when it began, where one clock stamps all of it, else as the files show it. Equal lines of one rank
    are one moment. What is cut is cut from the end of its role: the originator never.
    """
    groups: dict[str, dict[tuple[object, ...], list[Event]]] = {role: {} for role in LISTED}
    for event in origin.told:
        # Another process that a launcher stops is no other moment; another process that fails by itself is.
        who = (event.rank, event.host, event.kind, None if event.role == "teardown" else event.pid)
        groups[event.role].setdefault(who, []).append(event)
    moments: list[Moment] = []
    for role in LISTED:
        firsts = [(same[0], len(same)) for same in groups[role].values()]
        if one_clock(event for event, _ in firsts):
            firsts.sort(key=lambda one: began(one[0]) or one[0].time or 0.0)
        if role == "originator" and origin.event:
            begun = origin.event.source
            firsts.sort(key=lambda one: one[0].source != begun)
        moments += [_moment(role, event, count) for event, count in firsts[:_MOST_MOMENTS]]
    beyond = {role: len(alike) - _MOST_MOMENTS for role, alike in groups.items() if len(alike) > _MOST_MOMENTS}
    return tuple(moments), beyond


def _moment(role: str, event: Event, count: int) -> Moment:
    dated = event.time is not None and event.time >= YEARLESS_END
    return Moment(
        role=role,
        what=_what(event),
        source=event.source,
        rank=event.rank,
        host=event.host,
        time=event.time if dated else None,
        began=began(event) if dated else None,
        count=count,
    )


_MARKS = re.compile(r"^(?:\[[^\]]{0,200}\]:? ?){1,6}")
"""Of a C++ log's line: level, time, source and group, which say nothing of what happened."""


def _what(event: Event) -> str:
    if event.kind == "nccl.timeout":
        waited = event.figures.get("waited_seconds")
        return f"waited for another rank in a collective{f', {waited:.0f} s' if waited else ''}"
    if event.role == "teardown":
        return "the launcher stopped the processes that were left"
    said = _MARKS.sub("", " ".join(event.message.split()))
    if event.kind == "nccl.remote-error":
        said = f"lost its peer in a collective: {said}"
    return said if len(said) <= 160 else f"{said[:160].rpartition(' ')[0] or said[:160]} …"


_HEDGED_WORDS = {
    "gpu-oom": "was refused by a GPU library, which a full device may explain",
    "host-oom": "was killed by a signal, which a lack of host memory may explain",
    "shared-memory": "lost a process to a bus error, which a lack of shared memory may explain",
}
_FAMILY_WORDS = {
    "gpu-oom": "ran out of GPU memory",
    "host-oom": "was killed or stopped for want of host memory",
    "shared-memory": "ran out of shared memory (/dev/shm)",
    "not-memory": "was stopped by something other than memory",
}


def summary_of(figures: Figures, family: str, failure: Failure | None, findings: Sequence[Finding]) -> str:
    """One sentence that a tired engineer understands: who, what, where, and the best finding with its verdict."""
    values, origin = figures.values, figures.origin
    if family == "ok":
        survived = (
            " An out-of-memory was met and survived."
            if values.get("recovered")
            else " Memory warnings are advice, not errors."
            if values.get("advisory")
            else ""
        )
        growth = f" In its series, {figures.growth.text}." if figures.growth else ""
        return f"Nothing in this evidence stopped the run.{survived}{growth}"
    best = next((f for f in findings if f.verdict != "ruled-out"), None)
    cause = (
        f" {best.verdict.capitalize()}: {best.cause.replace('-', ' ')}."
        if best and best.cause != "undetermined"
        else ""
    )
    if failure is None:
        if origin.disagreement:
            how = (
                "Ranks met in one collective with other operations or sizes"
                if values["parted_in_one"]
                else "No rank was gone, yet they waited in different collectives"
            )
            return f"{how}, {values['parted']}: the code parted, not memory."
        if origin.rank is not None:
            return f"{origin.reason[:1].upper()}{origin.reason[1:]}: nothing else here says why."
        if origin.victims:
            return "Only ranks that waited for another are shown; the rank that failed first is not among them."
        growth = f" In its series, {figures.growth.text}." if figures.growth else ""
        return f"This evidence shows no end of the run.{growth}{cause}"
    who = "Every rank shown" if origin.alike else f"Rank {failure.rank}" if failure.rank is not None else "The run"
    where = f" in phase {failure.phase}" if failure.phase != "unknown" else ""
    what = f" ({failure.operation})" if failure.operation and failure.operation != failure.phase else ""
    step = f" after step {failure.step}" if failure.step else " in the first step" if failure.step == 0 else ""
    if failure.micro_step is not None:
        within = f" of step {failure.step}" if failure.step is not None else ""
        step = f" after micro-step {failure.micro_step}{within}"
    asked, free = values.get("request_bytes"), values.get("free_bytes")
    sizes = (
        f": it asked for {format_bytes(asked)}" + (f" with {format_bytes(free)} free" if free is not None else "")
        if asked and family == "gpu-oom"
        else ""
    )
    if values.get("request_impossible"):
        read = f"{format_bytes(asked or 0)}, read from a collective that had timed out"
        size = read if values.get("operation") == "object-collective" else "an impossible size"
        return f"{who} asked for {size}: a corrupted number, not a need for memory.{cause}"
    outlived = " An out-of-memory before it was survived." if values.get("recovered") else ""
    happened = _FAMILY_WORDS.get(family, "stopped")
    if hedged(figures.values, family, findings):
        happened = _HEDGED_WORDS[family]
    if family == "not-memory":
        return f"{who} {happened}{where}{step}: {_error(failure)}{cause}{outlived}"
    return f"{who} {happened}{where}{what}{step}{sizes}.{cause}{outlived}"


_HEAD = re.compile(
    r"^(?:.{0,300}?(?:it/s|s/it)[^\]]{0,60}\] ?)?(?:[WEIF]\d{3,4} [\d:.]{8,18} \d{1,18} \S{1,200}\] )?"
    r"(?:\[[^\]]{1,200}\]:? ?){0,6}(?:(?:Process group|NCCL) watchdog thread terminated with exception: )?"
    r"(?:[\w.]{1,200}\.(?=[A-Z]\w{1,60}(?:Error|Exception)\b))?"
)
"""What stands before the error itself: a bar, stamps and ranks in brackets, a watchdog's introduction, a module."""


def hedged(figures: Mapping[str, Any], family: str, findings: Sequence[Finding]) -> bool:
    """Whether the family rests on what something else can explain: a signal, a library's refusal, a bus error."""
    best = next((f for f in findings if f.verdict != "ruled-out"), None)
    weak = str(figures.get("event_kind")).startswith(("exit.", "cudnn.", "cublas.", "thrust.", "dataloader.bus"))
    return family in _HEDGED_WORDS and weak and (best is None or best.verdict == "possible")


def _error(failure: Failure) -> str:
    """The error's own words, short enough for a headline."""
    said = " ".join(_HEAD.sub("", failure.message).split())
    return _sentence(said if len(said) <= 140 else said[:139] + "…")


def next_action_of(
    figures: Mapping[str, Any],
    family: str,
    failure: Failure | None,
    findings: Sequence[Finding],
    missing: Sequence[Missing],
) -> str:
    """The first fix of a finding that stands, or the one fact that would settle it, with the command that gets it."""
    best = next((f for f in findings if f.verdict != "ruled-out"), None)
    if family == "ok":
        if figures.get("recovered"):
            return "The run went on, but lost what it skipped: cap the tokens of a batch, so that none is skipped."
        return "Nothing to mend. Keep this run as the healthy one to compare a failed run with."
    if family == "not-memory" and failure and best and best.verdict in ("confirmed", "likely"):
        fix = f" {_sentence(best.fixes[0].action)}" if best.fixes else ""
        if figures.get("request_impossible") and fix:
            return fix.strip()
        return f"Handle the error at {failure.source}: {_error(failure)}{fix}"
    if best and best.verdict in ("confirmed", "likely") and best.fixes:
        fix_first = best.fixes[0]
        check = (
            f"First find out: {_lower(_sentence(best.missing[0].what))} Then: "
            if best.missing and best.verdict == "likely"
            else ""
        )
        return f"{check}{_sentence(fix_first.action)}" + (
            f" Verify: {_sentence(fix_first.verify)}" if fix_first.verify else ""
        )
    if missing:
        return f"Get the fact that would settle it: {_sentence(missing[0].what)} How: {missing[0].how}"
    return "Read the failing line in its context, and walk the checklist of the first finding."


def _lower(text: str) -> str:
    """Fit to stand after a colon; names such as GPU keep their capitals."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else text + "."
