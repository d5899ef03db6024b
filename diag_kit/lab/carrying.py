"""What an effect comes to at a run's own sizes, from the closed forms of the memory model. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..memory.formulas import estimate, micro_step_curve, peak_bytes
from ..memory.settings import Settings
from .records import Carried


def graph_bytes(s: Settings) -> int:
    """What one micro-batch leaves on the device until its backward has run, the loss's own tensors included."""
    curve = micro_step_curve(s, 4, "deferred")
    return curve[3] - curve[2]


def term_bytes(s: Settings, *names: str) -> int:
    """Bytes of these terms of the estimate together, as many times as each is there at most."""
    return sum(term.unit_bytes * term.count for term in estimate(s).terms if term.name in names)


def category_bytes(s: Settings, category: str) -> int:
    """The most that a category of the estimate takes at any moment."""
    return max(moment.by_category[category] for moment in estimate(s).timeline)


def peaks(s: Settings, label: str, cases: Iterable[tuple[str, dict[str, Any]]]) -> tuple[Carried, ...]:
    """The predicted peak after each change of settings; ``label`` holds ``{}`` for the change's own words."""
    return tuple(Carried(label.format(words), peak_bytes(s.with_(**change)), "") for words, change in cases)
