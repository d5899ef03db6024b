"""A good run beside the failed one: what they state differently, their memory at the same steps, lines of one alone.

What differs is evidence, no proof. A difference never confirms a cause; the only one that the evidence shows makes a
possible cause likely, where memory rises through it and it bears on no other cause; several at once make none likelier.
A run that is not known to have ended well changes no finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .beside import Comparison, Difference, OnlyHere
from .diagnosis import judge
from .differences import (
    MEMORY,
    STATES,
    Stated,
    beside,
    causes_of,
    change_text,
    differences_of,
    predicted,
    shown,
    signed,
)
from .errors import EvidenceError
from .evidence import origin
from .evidence.facts import Source
from .evidence.figures import Figures
from .evidence.run import OnProgress, Run, load_run
from .evidence.templates import Logs, known, only_in, places, versions
from .findings import VERDICTS, Finding, Missing, Statement
from .restart import without_secrets
from .units import format_bytes
from .wording import hedged

MOST_LINES, _MOST_DIFFERENCES = 20, 40
_DECIDED = dict.fromkeys(STATES.split(), ("model", "precision", "optimizer", "capacity_bytes"))
"""Causes that these settings alone decide: where a run that states the same ended well, it speaks against them."""
_BY_LENGTH, _OUTSIDE = ("long-sequence-outlier",), ("other-process",)


@dataclass(frozen=True, slots=True)
class Pair:
    """The good run, what both were read from, and ``places``: the good run's files by the names that its facts know.

    ``doubt``: why the good run proves nothing; empty where it may.
    """

    paths: Sequence[str | Path]
    text: str | None
    good: Run
    good_paths: Sequence[str | Path]
    good_text: str | None
    places: Mapping[str, Path]
    doubt: str

    def weigh(
        self, run: Run, figures: Figures, family: str, findings: Sequence[Finding]
    ) -> tuple[Comparison, tuple[Finding, ...]]:
        """The comparison, and the findings with what it says for and against them."""
        event, doubt = figures.origin.event, self.doubt or _came_as_far(self.good, figures.values.get("failed_step"))
        logs = Logs(run, self.paths, self.text, event.source.path if event else "")
        good_logs = Logs(self.good, self.good_paths, self.good_text)
        failed, good = _stated(run, logs), _stated(self.good, good_logs)
        if event and "capacity_bytes" in good and (total := figures.values.get("total_bytes")):
            failed.setdefault("capacity_bytes", (total, event.source))
        good = {name: (value, _placed(self, source)) for name, (value, source) in good.items()}
        differences, alike = differences_of(failed, good)
        deferred = figures.values.get("growth") == "per-micro-step"
        differences, all_together, assumed = predicted(differences, failed, good, deferred=deferred)
        sides = _Sides(self, figures, family, differences, failed, good, alike)
        weighed = tuple(findings) if doubt else _weighed(sides, findings)
        memory = beside(run, self.good, figures.origin.rank)
        if memory.good_source:
            memory = replace(memory, good_source=_placed(self, memory.good_source))
        if not memory.steps:
            memory = replace(memory, text=f"{memory.text}{_at_failure(figures)}")
        lines = only_in(run, logs, event, known(good_logs), MOST_LINES)
        partly = logs.partly + good_logs.partly
        comparison = Comparison(
            good=tuple(map(str, self.good_paths)) or ("pasted text",),
            doubt=doubt,
            alike=len(alike),
            differences=tuple(differences[:_MOST_DIFFERENCES]),
            predicted_bytes=all_together,
            assumed=assumed,
            memory=memory,
            lines=tuple(OnlyHere(without_secrets(where.text), count, after, where) for count, after, where in lines),
            read=f"of {partly:,} logs only the beginning and the end" if partly else "all lines of both runs' logs",
            verdict="",
            order=tuple(one.name for one in differences if one.counts),
        )
        return replace(comparison, verdict=_verdict(comparison, weighed, family)), weighed

    @staticmethod
    def with_rerun(
        comparison: Comparison, findings: Sequence[Finding], missing: Sequence[Missing]
    ) -> tuple[Missing, ...]:
        """What is missing, with the rerun that undoes the first difference: before the rest where it explains most."""
        rerun = None if comparison.doubt else _rerun(comparison.differences)
        if rerun is None or not findings or findings[0].verdict == "confirmed":
            return tuple(missing)
        rest = [one for one in missing if one.kind != rerun.kind][:5]
        telling = findings[0].cause in causes_of(comparison.differences[0])
        return (rerun, *rest) if telling else (*rest, rerun)


def read_good(
    paths: Sequence[str | Path],
    text: str | None,
    against: str | Path | Sequence[str | Path] | None,
    good_text: str | None,
    on_progress: OnProgress | None = None,
) -> Pair:
    """The good run, read and judged on its own.

    Raises:
        EvidenceError: it can't be read, or is the failed run itself; one line each.
    """
    good_paths = [against] if isinstance(against, str | Path) else list(against or ())
    try:
        run = load_run(good_paths, text=good_text, on_progress=on_progress)
    except EvidenceError as error:
        raise EvidenceError(f"the good run: {error}") from None
    where = places(good_paths)
    if {path.resolve() for path in where.values()} & {path.resolve() for path in places(paths).values()}:
        named = ", ".join(map(str, good_paths))
        raise EvidenceError(f"{named}: is the run itself, or one holds the other; name a good run in its own place")
    own = judge(run)
    doubt = ""
    if own.family != "ok":
        doubt = f"its own diagnosis is “{own.family}”: {own.summary.rstrip('.')}"
    elif own.figures.get("recovered"):
        doubt = "it met an out-of-memory itself, and survived it"
    elif origin.find(run).family != "ok":
        doubt = "its memory stays level, but nothing shows how it ended"
    return Pair(paths, text, run, good_paths, good_text, where, doubt)


def _stated(run: Run, logs: Logs) -> dict[str, tuple[Any, Source]]:
    said = {name: (setting.value, setting.source) for name, setting in run.settings.items()}
    return said | versions(logs)


def _placed(pair: Pair, source: Source) -> Source:
    """A place in the good run, named so that it can't be taken for one of the failed run."""
    path = pair.places.get(source.path, f"good run: {source.path}")
    return replace(source, path=str(path))


def _came_as_far(good: Run, failed_step: int | None) -> str:
    steps = [one.step for one in good.progress] + [one.step for one in good.points if one.step is not None]
    if failed_step and steps and max(steps) < failed_step:
        return f"it ended after step {max(steps):,}, and the failed run came to step {failed_step:,}"
    return ""


def _at_failure(figures: Figures) -> str:
    held, asked = figures.values.get("allocated_bytes"), figures.values.get("request_bytes")
    if held is None or asked is None:
        return ""
    return f"; the failed run held {format_bytes(held)} and asked for {format_bytes(asked)} more when it failed"


@dataclass(frozen=True, slots=True)
class _Sides:
    """What the findings are weighed by."""

    pair: Pair
    figures: Figures
    family: str
    differences: Sequence[Difference]
    failed: Stated
    good: Stated
    alike: Mapping[str, Any]

    @property
    def counted(self) -> list[Difference]:
        return [one for one in self.differences if one.counts]

    @property
    def sure(self) -> bool:
        """Whether no setting that memory depends on is stated by one run alone."""
        return not any(one.bears and not one.counts and not one.follows for one in self.differences)


def _weighed(sides: _Sides, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings with the comparison's lines for and against; none rises above likely, and at most one to it."""
    findings, rerun, counted = tuple(findings), _rerun(sides.differences), sides.counted
    weighed: list[Finding] = []
    borne: set[str] = set()
    for finding in findings:
        for_, against = _for(sides, finding.cause), _against(sides, finding.cause)
        changed = replace(finding, for_=(*finding.for_, *for_), against=(*finding.against, *against))
        if for_ and finding.verdict != "ruled-out":
            borne.add(finding.cause)
            if rerun and finding.verdict != "confirmed":
                rest = tuple(one for one in finding.missing if one.kind != rerun.kind)
                changed = replace(changed, missing=(rerun, *rest))
        if against and finding.verdict == "confirmed":
            changed = replace(changed, verdict="likely")
        weighed.append(changed)
    open_still = not any(one.verdict in ("confirmed", "likely") for one in findings)
    open_still = (
        open_still and sides.family != "undetermined" and not hedged(sides.figures.values, sides.family, findings)
    )
    if open_still and len(counted) == len(borne) == 1 and counted[0].raises and sides.sure:
        weighed = [replace(one, verdict="likely") if one.cause in borne and not one.against else one for one in weighed]
    return tuple(sorted(weighed, key=lambda one: VERDICTS.index(one.verdict)))


def _for(sides: _Sides, cause: str) -> list[Statement]:
    """Changes that memory rises by and that this cause would explain; where nothing changed, what lies outside."""
    counted = sides.counted
    among = f"one of {len(counted)} differences"
    if len(counted) == 1:
        among = "the only difference that the evidence shows" if sides.sure else "the only one that both runs state"
    said = [
        Statement(f"{change_text(one)} ({one.good_source}): {among}", one.failed_source)
        for one in counted
        if one.failed_source and cause in causes_of(one)
    ]
    example = next((name for name in MEMORY if name in sides.alike), None)
    if cause in _OUTSIDE and not counted and sides.sure and example and sides.figures.values.get("other_process_bytes"):
        same = f"the {len(sides.alike)} settings that both runs state are the same, such as {example}"
        text = f"{same} ({sides.good[example][1]}): none of them is what changed"
        said.append(Statement(text, sides.failed[example][1]))
    return said


def _against(sides: _Sides, cause: str) -> list[Statement]:
    """What a run that ended well with the same settings says against a cause that they alone decide."""
    alike, needed = sides.alike, _DECIDED.get(cause, ())
    if not sides.sure or any(one.bears for one in sides.counted):
        return []
    if needed and all(name in alike for name in needed):
        text = f"a run with the same {', '.join(needed[:-1])} ended well on a card of {format_bytes(alike[needed[-1]])}"
        return [Statement(text, sides.good[needed[0]][1])]
    length = sides.figures.values.get("failing_length")
    if cause in _BY_LENGTH and length and {"micro_batch", "capacity_bytes"} <= alike.keys():
        passed = next((point for point in sides.pair.good.points if (point.seq_len or 0) >= length), None)
        if passed:
            text = f"with the same settings, a batch {passed.seq_len:,} long passed in the run that ended well"
            return [Statement(text, _placed(sides.pair, passed.source))]
    return []


def _rerun(differences: Sequence[Difference]) -> Missing | None:
    first = next((one for one in differences if one.counts), None)
    if first is None:
        return None
    back = f"{first.name} set back to {shown(first.name, first.good)}"
    what = f"Whether the run ends well with {back}."
    return Missing("reproduction", what, f"rerun with {back}, and nothing else changed")


def _verdict(comparison: Comparison, findings: Sequence[Finding], family: str) -> str:
    """What the comparison says, in words, and no more than it says."""
    counted = [one for one in comparison.differences if one.counts]
    alone = [one.name for one in comparison.differences if not one.counts and not one.follows]
    names = ", ".join(alone[:5]) + (f" and {len(alone) - 5} more" if len(alone) > 5 else "")
    rest = f" Stated by one run alone, so that it may differ or not: {names}." if alone else ""
    if family == "ok":
        rest += " Nothing in this evidence stopped the run, so there is nothing to explain."
    if comparison.doubt:
        return f"The run given as good is not known to be good: {comparison.doubt}. What differs proves nothing.{rest}"
    if not counted and not comparison.alike:
        return f"The two runs state no setting in common, so their settings can't be compared.{rest}"
    if not counted:
        same = f"None of the {comparison.alike} settings and versions that both runs state differs."
        return f"{same} What changed lies elsewhere: the data, the code, the machine, or what neither states.{rest}"
    sizes = ""
    if comparison.predicted_bytes is not None:
        sizes = (
            f" All together: predicted {signed(comparison.predicted_bytes)} at the peak." if len(counted) > 1 else ""
        )
    memory = comparison.memory
    if memory.difference_bytes is not None and memory.metric:
        sizes += f" Measured at the same steps: {signed(memory.difference_bytes)} {memory.metric.replace('_', ' ')}."
    if len(counted) > 1:
        order = ", ".join(comparison.order[:10])
        many = f"{len(counted)} differences at once: none of them is proven."
        return f"{many} Change one at a time, in this order: {order}.{sizes}{rest}"
    causes = causes_of(counted[0])
    borne = [one.cause.replace("-", " ") for one in findings if one.cause in causes and one.verdict != "ruled-out"]
    bears = f"It supports {', '.join(borne)}" if borne else "It supports none of the causes found"
    if counted[0].raises is False:
        bears = "By itself it lowers memory, and explains no failure"
    word = "The only difference that both runs state" if alone else "The only difference that the evidence shows"
    return f"{word}: {change_text(counted[0])}. {bears}; a rerun with it undone would tell.{sizes}{rest}"
