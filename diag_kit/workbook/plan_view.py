"""What would make it fit: each change alone, combinations, the largest shapes, and the line of code of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as w

from ..errors import SettingsError
from ..memory.estimates import Estimate
from ..memory.plan import FORMULAS, Engine, Remedy, changed, combinations, largest_pairs, remedies
from ..memory.settings import Settings
from ..report.fixes import framework
from ..report.words import fit_of
from .controls import Choice
from .html import render
from .state import AtRest, WorkbookState

FRAMEWORKS = {"pytorch": "PyTorch", "trainer": "Trainer", "deepspeed": "DeepSpeed", "megatron": "Megatron-LM"}
FIRST = 6
"""Changes that stand open; the rest is folded."""
SHORTEST = 64
"""Of a shape that is worth telling."""
MOST = 400
"""Evaluations that a search for combinations may cost: one is a program or a closed form here, never a trace."""


class PlanView(w.VBox):
    """Tables over settings. ``show`` makes the changes, and the rest once that is drawn; ``trace`` asks for programs of
    the changes.
    """

    def __init__(self, state: WorkbookState, trace: Callable[[list[Settings]], None]) -> None:
        self.state, self._trace = state, trace
        self.code = Choice(label="Code for", options=[list(pair) for pair in FRAMEWORKS.items()], value="pytorch")
        self.exactly = w.Button(description="Trace these changes", tooltip="One after another; a minute or so for each")
        self.remedies, self.combinations, self.shapes = w.HTML(), w.HTML(), w.HTML()
        self._rows: list[tuple[Remedy, str]] = []
        self._found: tuple[Remedy, ...] = ()
        self._searched = ""
        self._settings = state.settings
        self._engine: Engine = FORMULAS
        self._rest = AtRest(self._show_rest)
        self.tools = w.HBox([self.code, self.exactly]).add_class("dk-plan-tools")
        super().__init__([self.tools, self.remedies, self.combinations, self.shapes])
        self.add_class("dk-stack")
        self.code.observe(lambda _: self._draw(), "value")
        self.exactly.on_click(lambda _: self._trace([changed(self._settings, r.change) for r, _ in self._rows]))
        state.on("evidence", self.choose)
        self.choose()

    def choose(self) -> None:
        """The framework of the run that is open."""
        own = framework(self.state.diagnosis) if self.state.diagnosis else ""
        self.code.value = own if own in FRAMEWORKS else "pytorch"
        self.code.origin, self.code.assumed = ("of the run", False) if own in FRAMEWORKS else ("assumed", True)

    def show(self, s: Settings, engine: Engine) -> None:
        """The changes of these settings, each as this engine predicts it."""
        self._settings, self._engine = s, engine
        self._rows = [(r, fit(engine.estimate(changed(s, r.change)))) for r in remedies(s, engine)]
        self._found = ()
        self._draw()
        self._rest()

    def _show_rest(self) -> None:
        s, engine = self._settings, self._engine
        search = combinations(s, engine, most=MOST)
        self._found = search.found
        self._searched = "" if search.complete else f"The search ended after {search.evaluations} evaluations."
        self._draw()
        try:
            pairs = largest_pairs(s, engine)
        except SettingsError:
            pairs = ()
        rows = [(batch, length, batch * length) for batch, length in pairs if length >= SHORTEST or batch == 1]
        self.shapes.value = render("shapes.html", rows=rows, here=(s.micro_batch, s.seq_len),
                                   capacity=s.capacity_bytes)  # fmt: skip

    def _draw(self) -> None:
        own = self.code.value
        traced = sum(r.method == "trace" for r, _ in self._rows)
        self.tools.layout.display = "" if self._rows else "none"
        self.exactly.layout.display = "" if self._engine.method == "trace" else "none"
        self.exactly.disabled = traced == len(self._rows)
        shown: dict[str, Any] = {"own": own, "framework": FRAMEWORKS[own]}
        self.remedies.value = render("remedies.html", rows=self._rows, first=FIRST, traced=traced, **shown)
        self.combinations.value = render("combinations.html", rows=self._found, searched=self._searched, **shown)


def fit(now: Estimate) -> str:
    """Whether an estimate fits, in the word of reports."""
    return fit_of(now.band_bytes, now.device_bytes, now.settings.capacity_bytes)
