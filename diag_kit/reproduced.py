"""What reproductions of a failure say of it: whether it failed again, elsewhere too, and what one variable changes.

A script that ran scaled down, or on a CPU, says nothing of the peak on a GPU, and settles nothing that hangs on it. One
that had to assume settings can confirm only what it hits in phase and size alike, and refutes nothing by running
through. It holds the run's settings, never its code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from .beside import Again, Repeats, Tick
from .errors import SettingsError
from .evidence import series
from .evidence.figures import Figures
from .evidence.run import Run
from .evidence.second_runs import SecondRun, second_runs
from .failures import load_entries
from .findings import Failure, Finding
from .units import GIB, MIB, format_bytes

_REPRODUCED, _NOT = "reproduced", "not reproduced"
_ALIKE = 0.03
"""Cards are of one size, and peaks the same, within this share."""
_MOVES = 0.05
_STRANGERS_BYTES = GIB // 2


def failure_key(failure: Failure | None) -> str:
    """What a reproduction is of: a digest of the failure's sizes as stated and its phase; empty without a failure."""
    if failure is None:
        return ""
    sizes = {name: value for name, value in failure.facts.items() if name.endswith("_bytes")}
    text = json.dumps([sizes, failure.phase], default=str, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def repeats_of(run: Run, failure: Failure | None, figures: Figures) -> Repeats | None:
    """What the run's reproductions say; None where there are none. What they settle becomes a figure of its own.

    Args:
        run: whose evidence holds their output.
        failure: the failure on GPU memory that stopped the run; None where something else did, or nothing.
        figures: the run's own, to which those are added.
    """
    runs = second_runs(run.repetitions)
    if not runs:
        return None
    judged = [(one, *_judged(one, failure)) for one in runs]
    ticks = dict(_settled(judged, figures))
    for name, tick in ticks.items():
        figures.put(tick.source, **{name: tick.state == "confirmed"})
    return Repeats(tuple(_again(one, says) for one, _, says in judged), tuple(ticks.items()))


def _judged(one: SecondRun, failure: Failure | None) -> tuple[str, str]:
    """(state, what it means): confirmed or refuted where it settles whether the failure comes again, else nothing."""
    if one.verdict not in (_REPRODUCED, _NOT):
        return "", f"{'failed otherwise' if one.verdict else 'was ended from outside'}, before it could tell"
    ended = f"ran out of memory in {one.phase}" if one.verdict == _REPRODUCED else f"ran through {one.steps} steps"
    if one.verdict == _NOT and not one.steps:
        return "", "it ran no step: that tells nothing"
    if not one.whole:
        return "", f"{ended}, but its start is not whole: nothing tells at which size"
    if one.small or not one.cuda:
        return "", f"{ended}, scaled down: that says nothing of the run's peak on its GPU"
    if one.change:
        return "", f"{ended} with {_changed(one)}"
    if failure is None or one.failure != failure_key(failure):
        return "", f"{ended}, but is a reproduction of another failure than this evidence shows"
    unsure = [*(f"{name} assumed" for name in one.assumed), *(f"without {name}" for name in one.left_out)]
    guessed = f" ({', '.join(unsure)})" if unsure else ""
    if one.verdict == _NOT:
        return _of_success(one, failure, ended + guessed, bool(unsure))
    return _of_failure(one, failure, ended + guessed, bool(unsure))


def _of_success(one: SecondRun, failure: Failure, ended: str, unsure: bool) -> tuple[str, str]:
    had, there = failure.facts.get("total_bytes"), one.cap_bytes or one.total_bytes
    if unsure:
        return "", f"{ended}: with settings that are not known to be the run's that refutes nothing"
    if not had or not there or abs(there - had) > _ALIKE * had:
        return "", f"{ended}, with {format_bytes(there)} where the run had {format_bytes(had)}: not the same card"
    return "refuted", (
        f"{ended} on a card of the same size: the settings alone do not fail, which leaves the run's own code, its "
        "data and its machine"
    )


def _of_failure(one: SecondRun, failure: Failure, ended: str, unsure: bool) -> tuple[str, str]:
    wanted, asked = failure.facts.get("tried_to_allocate_bytes"), one.asked_bytes
    if (one.others_bytes or 0) > _STRANGERS_BYTES:
        return "", f"{ended}, beside other processes that held {format_bytes(one.others_bytes)}: no clean start"
    if failure.phase in ("", "unknown") or one.phase != failure.phase:
        return "", f"{ended}, the run in {failure.phase}: not known to be the same failure"
    same = bool(wanted and asked and abs(asked - wanted) <= max(2 * MIB, 0.01 * wanted))
    sizes = f"asked for {format_bytes(asked)}, as the run for {format_bytes(wanted)}" if wanted and asked else ""
    if same or not (unsure or (wanted and asked)):
        return "confirmed", f"{ended}, as the run{f', and {sizes}' if sizes else ''}"
    return "", f"{ended}, as the run, but {sizes or 'no size says that it is the same request'}"


def _settled(judged: Sequence[tuple[SecondRun, str, str]], figures: Figures) -> Iterator[tuple[str, Tick]]:
    """(figure, tick) of each question that the reproductions settle."""
    plain = [(one, state, says) for one, state, says in judged if state]
    if states := {state for _, state, _ in plain}:
        state = "confirmed" if "confirmed" in states else "refuted"
        one, _, says = next(entry for entry in plain if entry[1] == state)
        yield "reproduced", Tick(state, f"{_where(one)}: {says}", one.source)
    if elsewhere := _elsewhere(judged):
        yield "reproduced_elsewhere", elsewhere
    if scaled := _scaled(judged, figures):
        yield "reproduced_scaled", scaled


def _elsewhere(judged: Sequence[tuple[SecondRun, str, str]]) -> Tick | None:
    """The same on another device, or not: two executions of one script, of which one at least failed as the run."""
    first = next((one for one, state, _ in judged if state == "confirmed"), None)
    if first is None:
        return None
    alike = [(one, state) for one, state, _ in judged if _comparable(first, one) and _other_device(first, one)]
    if again := next((one for one, state in alike if state == "confirmed"), None):
        text = f"{_where(first)} and {_where(again)}: both ran out of memory in {again.phase}, as the run"
        return Tick("confirmed", text, again.source)
    if through := next((one for one, _ in alike if one.verdict == _NOT and one.steps), None):
        held = f"; other processes held {format_bytes(first.others_bytes)} there" if first.others_bytes else ""
        text = f"{_where(first)}: out of memory in {first.phase}; {_where(through)}: ran through{held}"
        return Tick("refuted", text, through.source)
    return None


def _comparable(one: SecondRun, other: SecondRun) -> bool:
    sizes = [run.cap_bytes or run.total_bytes or 0 for run in (one, other)]
    same = (other.failure, other.settings, other.shape) == (one.failure, one.settings, one.shape)
    near = abs(sizes[0] - sizes[1]) <= _ALIKE * max(sizes)
    return same and near and other.whole and other.cuda and not (other.small or other.change)


def _other_device(one: SecondRun, other: SecondRun) -> bool:
    if one.gpu and other.gpu and len(one.gpu) > 8 and len(other.gpu) > 8:
        return one.gpu != other.gpu
    return bool(one.host and other.host and one.host != other.host)


def _scaled(judged: Sequence[tuple[SecondRun, str, str]], figures: Figures) -> Tick | None:
    """Whether the symptom that the run shows, growth with the micro-steps, shows scaled down too: in structure alone,
    and only where the evidence states how backward is called, since otherwise the script was made to show it.
    """
    if figures.values.get("growth") != "per-micro-step":
        return None
    for one, *_ in judged:
        grows = _growth(one)
        if one.whole and one.small and not one.change and "backward" not in one.assumed and grows is not None:
            how = "memory does not grow with the micro-steps; the settings alone do not make it grow"
            if grows:
                how = f"memory rises by {format_bytes(grows)} with each micro-step; the settings alone make it grow"
            text = f"scaled down, in one process: {how}"
            return Tick("confirmed" if grows else "refuted", text, one.points[-1].source)
    return None


def with_variables(repeats: Repeats | None, run: Run, findings: Sequence[Finding]) -> Repeats | None:
    """The same with what changing one variable at a time settles about the best finding's cause, at the run's own size:
    confirmed where a variable that its fixes change moves the peak and another does not, refuted where none of them
    does.
    """
    whole = [one for one in second_runs(run.repetitions) if one.whole and one.cuda and not one.small and one.peak_bytes]
    base = next((one for one in whole if not one.change), None)
    cause = next((finding.cause for finding in findings if finding.verdict != "ruled-out"), "")
    named = variables_of(cause)
    if repeats is None or base is None or not named:
        return repeats
    moved: dict[bool | None, dict[str, SecondRun]] = {True: {}, False: {}, None: {}}
    for one in whole:
        if one.change and (one.failure, one.device) == (base.failure, base.device):
            moved[_moves(base, one)] |= {_changed(one): one}
    mine = {
        state: {what: one for what, one in some.items() if set(one.change) <= named} for state, some in moved.items()
    }
    others = {state: [what for what in some if what not in mine[state]] for state, some in moved.items()}
    if mine[True] and others[False] and not others[True]:
        text = f"the peak moves with {' and '.join(mine[True])}, and does not with {' and '.join(others[False])}"
        tick = Tick("confirmed", text, next(iter(mine[True].values())).source)
    elif mine[False] and not mine[True] and not mine[None]:
        text = f"the peak does not move with {' and '.join(mine[False])}, which {cause.replace('-', ' ')} hangs on"
        tick = Tick("refuted", text, next(iter(mine[False].values())).source)
    else:
        return repeats
    return replace(repeats, ticks=(*repeats.ticks, ("reproduced_one_variable", tick)))


def variables_of(cause: str) -> frozenset[str]:
    """Settings that the fixes of a cause change."""
    entries = [entry for entry in load_entries() if any(one.id == cause for one in entry.causes)]
    fixes = [fix for entry in entries for fix in entry.fixes if not fix.causes or cause in fix.causes]
    return frozenset(name for fix in fixes for name in fix.saves or ())


def _moves(base: SecondRun, one: SecondRun) -> bool | None:
    """Whether a change moved the outcome; None where both ran out of memory, or one did not get so far."""
    if {base.verdict, one.verdict} == {_REPRODUCED, _NOT}:
        return True
    if (base.verdict, one.verdict) != (_NOT, _NOT):
        return None
    before, after = base.peak_bytes or 0, one.peak_bytes or 0
    return abs(after - before) > _MOVES * before


def _again(one: SecondRun, says: str) -> Again:
    predicted, growth = _predicted(one)
    return Again(
        verdict=one.verdict,
        says=says,
        where=_where(one),
        host=one.host,
        small=one.small,
        change=_changed(one),
        phase=one.phase,
        asked_bytes=one.asked_bytes,
        peak_bytes=one.peak_bytes,
        predicted_bytes=predicted,
        growth_bytes=_growth(one),
        predicted_growth_bytes=growth,
        source=one.source,
    )


def _growth(one: SecondRun) -> int | None:
    """Bytes that each micro-step adds; 0 where memory does not grow with them, None where the output can't tell."""
    grown = series.judge([point for point in one.points if point.metric == "allocated"])
    if grown is None or grown.kind in ("insufficient", "unclear"):
        return None
    return grown.slope_bytes if grown.kind == "per-micro-step" else 0


def _predicted(one: SecondRun) -> tuple[int | None, int | None]:
    """(peak, growth per micro-step) that closed forms predict for what it ran with, where they cover it."""
    from .memory.architecture import Architecture
    from .memory.formulas import micro_step_curve, peak_bytes
    from .memory.settings import Settings

    named = ("micro_batch", "grad_accum", "backward", "precision", "optimizer", "attention", "checkpointing", "dropout")
    try:
        settings: dict[str, Any] = {name: one.settings[name] for name in named}
        s = Settings(Architecture(**one.shape), seq_len=one.settings["longest"], device="cuda" if one.cuda else "cpu",
                     gpu=one.device if one.cuda else None, **settings)  # fmt: skip
        curve = micro_step_curve(s.with_(seq_len=one.settings["seq_len"]), 4, s.backward)
        return peak_bytes(s), curve[3] - curve[2]
    except (KeyError, TypeError, SettingsError):
        return None, None


def _changed(one: SecondRun) -> str:
    return ", ".join(f"{name}={value}" for name, value in one.change.items())


def _where(one: SecondRun) -> str:
    return f"{one.device or 'an unnamed device'} of {one.host or 'an unnamed host'}"
