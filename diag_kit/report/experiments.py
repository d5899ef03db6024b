"""Which experiments of the lab show what a finding says."""

from __future__ import annotations

from ..failures import load_entries
from ..findings import Finding
from ..lab import Experiment, experiments


def shown_by(finding: Finding) -> list[Experiment]:
    """Experiments of a finding's cause, those that the entry names for it first."""
    named = {cause.experiment for one in load_entries() if one.id == finding.entry
             for cause in one.causes if cause.id == finding.cause}  # fmt: skip
    found = [one for one in experiments() if one.id in named or (one.cause and one.cause == finding.cause)]
    return sorted(found, key=lambda one: one.id not in named)
