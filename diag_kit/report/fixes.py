"""Fixes as people read them: each once, with the lines of the run's own framework first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..findings import Diagnosis, Finding, Fix

_TRAINER = re.compile(r"\btrainer\.py\b|Instantaneous batch size per device|\*{5} Running training")


@dataclass(frozen=True, slots=True)
class Shown:
    """A finding's fixes: those to print here, and those printed above, as pairs of action and where."""

    fixes: tuple[Fix, ...] = ()
    above: tuple[tuple[str, str], ...] = ()


def once(findings: Iterable[Finding]) -> list[Shown]:
    """For each finding in turn the fixes that no finding before it has, and the name of the one that has the rest."""
    printed: dict[str, str] = {}
    shown = []
    for finding in findings:
        fixes = () if finding.verdict == "ruled-out" else finding.fixes
        own = tuple(fix for fix in fixes if fix.action not in printed)
        above = tuple((fix.action, printed[fix.action]) for fix in fixes if fix.action in printed)
        printed |= {fix.action: finding.cause.replace("-", " ") for fix in own}
        shown.append(Shown(own, above))
    return shown


def framework(diagnosis: Diagnosis) -> str:
    """The framework whose lines this run can use, by its key in a fix's ``code``; plain PyTorch where none shows."""
    sources = [source for _, source in diagnosis.settings.values()]
    if diagnosis.failure:
        sources.append(diagnosis.failure.source)
    strategy = str(diagnosis.settings.get("strategy", ("",))[0]).lower()
    if any(s.path.endswith("training_args.json") or _TRAINER.search("\n".join((s.text, *s.context))) for s in sources):
        return "trainer"
    if strategy.startswith(("zero", "deepspeed")):
        return "deepspeed"
    if strategy.startswith("megatron"):
        return "megatron"
    return "inference" if diagnosis.figures.get("phase") == "generate" else "pytorch"


def ordered(code: Mapping[str, str], own: str) -> list[tuple[str, str]]:
    """A fix's lines, those of the run's own framework first, then plain PyTorch's."""
    return sorted(code.items(), key=lambda item: (item[0] != own, item[0] != "pytorch"))
