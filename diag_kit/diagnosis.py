"""Facts held against failure entries: findings with what is for, against and missing.

The engine knows no failure by name. Entries say which figures speak for or against a cause and how strongly:

* a decisive sign against rules a cause out; a decisive sign for confirms it, unless a strong sign speaks against it or
  a rival is confirmed as well (then both are likely at best);
* a strong sign for makes a cause likely, a weak one possible; a strong sign against takes one step off.

Confirmed therefore means that the evidence entails it. What would settle the rest is asked for, most useful first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import restart
from .errors import EvidenceError, SettingsError
from .evidence.decode import decode, implied
from .evidence.derived import figures_of
from .evidence.facts import Source
from .evidence.figures import Figures
from .evidence.run import OnProgress, Run, load_run
from .failures import Entry, load_entries
from .failures.conditions import holds
from .failures.records import CAUSES, FailureFix, Sign, Signature
from .findings import Diagnosis, Finding, Fix, Missing, Statement, cause_fits
from .missing import missing_of
from .reproduced import repeats_of, with_variables
from .units import format_bytes
from .wording import collateral_of, failure_of, hedged, next_action_of, summary_of, timeline_of, words

_STRENGTH = {"decisive": 0, "strong": 1, "weak": 2}
_TIER = {"confirmed": 0, "likely": 1, "possible": 2, "ruled-out": 3}
_MOST_POSSIBLE, _MOST_RULED_OUT = 5, 3
_PLACE = {cause: place for place, cause in enumerate(CAUSES)}
_PLACEHOLDER = re.compile(r"\{([a-z_][\w.]*)\}")
_QUIET_FIGURES = ("family", "event_kind", "has_sizes", "single_process")


def diagnose(
    *paths: str | Path | Sequence[str | Path],
    text: str | None = None,
    against: str | Path | Sequence[str | Path] | None = None,
    against_text: str | None = None,
    on_progress: OnProgress | None = None,
) -> Diagnosis:
    """Diagnose what a failed run left.

    Args:
        paths: logs, settings, tables, or folders of them.
        text: pasted log text, instead of or beside paths.
        against: logs or folders of a run that ended well, to hold this one against.
        against_text: the same, pasted.
        on_progress: called with (path, bytes read, bytes of all files).

    Raises:
        EvidenceError: nothing could be read; one line says what, where and what to do.
    """
    named = [one for path in paths for one in ([path] if isinstance(path, str | Path) else path or ())]
    if text is not None and not isinstance(text, str):
        raise EvidenceError(f"text is {type(text).__name__}; give the log as a string, or its path")
    if against is None and against_text is None:
        return judge(load_run(named, text=text, on_progress=on_progress))
    from .comparison import read_good  # only who compares pays for it
    good = read_good(named, text, against, against_text, on_progress)
    return judge(load_run(named, text=text, on_progress=on_progress), beside=good)


def judge(run: Run, entries: Sequence[Entry] | None = None, *, beside: Any = None) -> Diagnosis:
    """The diagnosis of a run that was read already; ``beside`` (`comparison.Pair`) holds a good run against it."""
    figures = figures_of(run)
    origin = figures.origin
    settings = {name: (setting.value, setting.source) for name, setting in run.settings.items()}
    if origin.event and "capacity_bytes" not in settings and (total := origin.event.figures.get("total_bytes")):
        settings["capacity_bytes"] = (total, origin.event.source)
    known = _memory_settings({name: value for name, (value, _) in settings.items()})
    if known is not None and "backward" not in settings and figures.values.get("growth") == "per-micro-step":
        known = known.with_(backward="deferred")  # what grows with the micro-steps is predicted as if graphs were kept
    if known is not None and _undescribed(known, settings, max(origin.crew.world or 1, len(origin.ranks))):
        known = None
    _decode(figures, {name: value for name, (value, _) in settings.items()})
    family = origin.family
    if (
        family == "undetermined"
        and origin.event is None
        and not origin.victims
        and figures.values.get("growth") in ("plateau", "none")
    ):
        family = "ok"
    figures.values["family"] = family
    failure = failure_of(figures, run)
    repeats = repeats_of(run, failure if family == "gpu-oom" else None, figures)
    findings = () if family == "ok" else _findings(figures, family, entries or load_entries(), known)
    compared, findings = beside.weigh(run, figures, family, findings) if beside else (None, findings)
    repeats = with_variables(repeats, run, findings)
    missing = missing_of(figures, family, findings)
    missing = beside.with_rerun(compared, findings, missing) if beside else missing
    again = restart.line(run, known) if family == "gpu-oom" else None
    collateral, waited = collateral_of(figures)
    timeline, left_out = timeline_of(origin)
    return Diagnosis(
        family=family,
        summary=summary_of(figures, family, failure, findings),
        failure=failure,
        initiating_rank=origin.rank,
        initiating_reason=origin.reason,
        collateral=collateral,
        collateral_count=waited,
        findings=findings,
        missing=missing,
        next_action=next_action_of(figures.values, family, failure, findings, missing),
        coverage=run.coverage(),
        settings=settings,
        points=tuple(run.points),
        restart=again,
        growth=figures.growth.text if figures.growth else "",
        content_key=run.content_key,
        figures=dict(figures.values),
        hedged=hedged(figures.values, family, findings),
        timeline=timeline,
        timeline_left_out=left_out,
        files=run.files,
        comparison=compared,
        repeats=repeats,
    )


def _memory_settings(settings: Mapping[str, Any]) -> Any:
    """Settings of the memory model, or None; the model is loaded only where the evidence states an architecture."""
    if "model" not in settings:
        return None
    from .memory.settings import from_run

    return from_run(settings)[0]


def _undescribed(known: Any, settings: Mapping[str, Any], ranks: int) -> bool:
    """Whether the prediction can't be this run's: its batch or length would be a guess; or ranks share the model in a
    way that nothing states, and the peak is far beyond the card on which they ran.
    """
    if "micro_batch" not in settings or "seq_len" not in settings:
        return True
    if "strategy" in settings or ranks < 2 or "capacity_bytes" not in settings:
        return False
    from .memory.formulas import peak_bytes

    return bool(peak_bytes(known) > 1.25 * settings["capacity_bytes"][0])


def _decode(figures: Figures, settings: Mapping[str, Any]) -> None:
    """The tensor that the failed request was, where its size and the settings tell."""
    values, event = figures.values, figures.origin.event
    asked, operation = values.get("request_bytes"), values.get("operation")
    if not asked or event is None or "size_matches" in values:
        return
    decoded = decode(asked, settings, text=event.message, operation=operation)
    claimed = decoded.claimed if decoded else None
    model, total = settings.get("model"), values.get("total_bytes")
    layers = model.get("n_layers") if isinstance(model, Mapping) and settings.get("checkpointing") != "full" else None
    figures.put(
        figures.sources.get("request_bytes"),
        size_matches=claimed,
        size_shape=decoded.words if decoded and claimed else None,
        size_candidates=decoded.words if decoded and not claimed else None,
        size_implied=implied(asked, settings, operation) if claimed is None else None,
        size_in_layers_share=layers * asked / total if claimed and total and isinstance(layers, int) else None,
    )


# --- findings -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Weighed:
    entry: Entry
    signature: Signature
    for_: list[Sign]
    against: list[Sign]

    def count(self, side: str, strength: str) -> int:
        return sum(sign.strength == strength for sign in (self.for_ if side == "for" else self.against))

    @property
    def verdict(self) -> str | None:
        if not self.for_:
            return None
        if self.count("against", "decisive"):
            return "ruled-out"
        doubted = self.count("against", "strong") > 0
        if self.count("for", "decisive"):
            return "likely" if doubted else "confirmed"
        if self.count("for", "strong"):
            return "possible" if doubted else "likely"
        return None if doubted else "possible"

    @property
    def score(self) -> int:
        weight = {"decisive": 9, "strong": 3, "weak": 1}
        return sum(weight[s.strength] for s in self.for_) - sum(weight[s.strength] for s in self.against)


def _findings(figures: Figures, family: str, entries: Iterable[Entry], known: Any) -> tuple[Finding, ...]:
    weighed = []
    for entry in entries:
        for signature in entry.signatures:
            if not cause_fits(signature.cause, family):
                continue
            one = _Weighed(
                entry,
                signature,
                [s for s in signature.for_ if holds(s.when, figures.values)],
                [s for s in signature.against if holds(s.when, figures.values)],
            )
            if one.verdict:
                weighed.append(one)
    confirmed = [one for one in weighed if one.verdict == "confirmed"]
    doubtful = len(confirmed) > 1 or figures.values.get("sizes_consistent") is False
    cap = "possible" if family == "undetermined" else "likely" if doubtful else "confirmed"

    def verdict(one: _Weighed) -> str:
        reached = one.verdict or "possible"
        if cap == "confirmed" and confirmed and reached == "likely":
            return "possible"  # where one cause is entailed, its rivals explain nothing better
        return reached if _TIER[reached] >= _TIER[cap] else cap

    weighed.sort(
        key=lambda one: (
            _TIER[verdict(one)],
            one.count("against", "strong") > 0,
            -one.score,
            _PLACE[one.signature.cause],
        )
    )
    kept: list[Finding] = []
    room = {"possible": _MOST_POSSIBLE, "ruled-out": _MOST_RULED_OUT}
    for one in weighed:
        reached = verdict(one)
        if room.get(reached, 1) < 1:
            continue
        room[reached] = room.get(reached, 99) - 1
        kept.append(_finding(one, reached, figures, known))
    if not kept and family in ("gpu-oom", "host-oom", "shared-memory", "undetermined"):
        kept.append(
            Finding(
                cause="undetermined",
                entry="",
                title="Not settled by this evidence",
                verdict="possible",
                claim="No cause is better supported than another.",
            )
        )
    return tuple(kept)


def _finding(one: _Weighed, verdict: str, figures: Figures, known: Any) -> Finding:
    cause = one.signature.cause
    explained = next((c for c in one.entry.causes if c.id == cause), None)
    needs = [
        need
        for need in one.entry.needs
        if (not need.causes or cause in need.causes) and not (need.unless and holds(need.unless, figures.values))
    ]
    fixes = _meant(one.entry.fixes, cause, figures.values)
    return Finding(
        cause=cause,
        entry=one.entry.id,
        title=one.entry.title,
        verdict=verdict,
        for_=tuple(_statement(sign, figures) for sign in _telling(one.for_)),
        against=tuple(_statement(sign, figures) for sign in one.against),
        missing=() if verdict == "confirmed" else tuple(Missing(need.kind, need.what, need.how) for need in needs),
        fixes=() if verdict == "ruled-out" else _lowering(_fix(fix, known) for fix in fixes),
        claim=explained.mechanism if explained else "",
    )


def _meant(fixes: Sequence[FailureFix], cause: str, figures: Mapping[str, Any]) -> list[FailureFix]:
    """Remedies of a cause for this run: those made for what it shows first, those made for another run left out."""
    fitting = [
        fix for fix in fixes if fix.remedy and (not fix.causes or cause in fix.causes) and holds(fix.when, figures)
    ]
    return sorted(fitting, key=lambda fix: fix.when is None)


def _telling(signs: Sequence[Sign]) -> list[Sign]:
    """The signs to show, strongest first, without those whose main figure a stronger one has spoken of."""
    shown: list[Sign] = []
    said: set[str] = set()
    for sign in sorted(signs, key=lambda one: _STRENGTH[one.strength]):
        names = _in_order(sign.when)
        if not names or names[0] not in said:
            shown.append(sign)
            said.update(names)
    return shown


def _in_order(when: Mapping[str, Any]) -> list[str]:
    """Names of the figures of a condition as its writer put them, the quiet ones left out where others are there."""
    names: list[str] = []
    for key, wanted in when.items():
        inner = wanted if key == "any" else [wanted] if key == "not" else None
        names += [key] if inner is None else [name for one in inner for name in _in_order(one)]
    return [name for name in names if name not in _QUIET_FIGURES] or names


def _statement(sign: Sign, figures: Figures) -> Statement:
    return Statement(
        _PLACEHOLDER.sub(lambda found: words(found[1], figures.values.get(found[1])), sign.because),
        _source(sign.when, figures),
    )


def _source(when: Mapping[str, Any], figures: Figures) -> Source:
    """The place of the most telling figure that a condition reads."""
    for name in sorted(_in_order(when), key=lambda name: name in _QUIET_FIGURES):
        if name == "events":
            kinds = re.findall(r"'has': '([\w.-]+)'", str(dict(when)))
            for kind in kinds:
                if f"events:{kind}" in figures.sources:
                    return figures.sources[f"events:{kind}"]
        elif name in figures.sources:
            return figures.sources[name]
    event = figures.origin.event
    return event.source if event else next(iter(figures.sources.values()), Source("the evidence"))


def _lowering(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Without those that this run's settings predict to raise the peak: half of a micro-batch of one is still one."""
    return tuple(fix for fix in fixes if fix.saves_bytes is None or fix.saves_bytes >= 0)


def _fix(fix: FailureFix, known: Any) -> Fix:
    saves, peak, basis = None, None, ""
    if fix.saves and known is not None:
        from .memory import plan
        from .memory.formulas import peak_bytes

        try:
            changed = plan.changed(known, fix.saves)
            if changed != known:  # what the settings already say, or don't tell, predicts nothing
                before, peak = peak_bytes(known), peak_bytes(changed)
                saves = before - peak
                basis = f"closed forms for this run's settings, which predict a peak of {format_bytes(before)}"
        except SettingsError:  # a remedy that this run's settings rule out
            pass
    return Fix(
        action=fix.action,
        saves_bytes=saves,
        cost=fix.cost,
        verify=fix.verify,
        undo=fix.undo,
        code=fix.code,
        basis=basis,
        peak_bytes=peak,
    )
