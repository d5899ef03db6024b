"""A guided walk through one entry: its answer, its claims, and the experiments and what-ifs that show them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import ipywidgets as w

from ..errors import DiagKitError
from ..failures import entry
from . import places
from .checklist_view import ChecklistView
from .controls import Page
from .entries_view import part_of
from .html import render
from .lab_view import LabCard, LabView
from .loop_view import LoopView
from .plot_view import kit
from .report_view import ReportView
from .state import WorkbookState
from .what_if_view import WhatIfView


class Walk:
    """The parts of an entry as views. ``what_if`` starts from settings that show a claim; the experiment that was shown
    just before says what it comes to at these settings. The checklist and the report are of the run that was given to
    the launcher, else of the bundled run in folder ``sample``.

    Raises:
        EntryError: there is no such entry.
    """

    def __init__(self, entry_id: str, sample: str = "") -> None:
        self.entry, self._sample = entry(entry_id), sample
        kit()
        self._latest: WorkbookState | None = None
        self._run: WorkbookState | None = None

    def _part(self, name: str) -> w.VBox:
        return w.VBox([Page(value=part_of(self.entry, name))]).add_class("dk")

    @property
    def answer(self) -> w.VBox:
        """The quick answer, and how far the entry was held against measurements."""
        return self._part("answer")

    @property
    def symptoms(self) -> w.VBox:
        """What one sees, and why."""
        return self._part("symptoms")

    @property
    def claims(self) -> w.VBox:
        """Each claim with whether it is so, under which condition, and what was measured."""
        return self._part("claims")

    @property
    def checks(self) -> w.VBox:
        """How to confirm it, what to expect, and what that costs."""
        return self._part("checks")

    @property
    def fixes(self) -> w.VBox:
        """What to change, with code, cost and the way to verify it."""
        return self._part("fixes")

    @property
    def questions(self) -> w.VBox:
        """What readers ask."""
        return self._part("questions")

    @property
    def lab(self) -> LabView:
        """All experiments of the entry: run one or all, and the truth as it is measured here."""
        return LabView(_example()).about(self.entry)

    def experiment(self, id: str) -> LabCard:
        """One experiment as a card; it runs when its button is pressed.

        Raises:
            LabError: there is no such experiment.
        """
        self._latest = _example()
        return LabCard(id, self._latest)

    def what_if(self, **settings: Any) -> WhatIfView:
        """Controls and plots that start from these settings; ``model`` may name a published shape."""
        state, self._latest = self._latest or WorkbookState(), None
        state.start_from(**settings)
        return WhatIfView(state, brief=True)

    def _opened(self) -> WorkbookState:
        """The run that the launcher was given, else the bundled sample; without either, nothing is open."""
        if self._run is None:
            self._run = WorkbookState()
            paths = [one.path for one in places.samples() if one.path.name == self._sample]
            if given := os.environ.get(places.RUN):
                paths = [Path(given)]
            with contextlib.suppress(DiagKitError):  # the workbook says what is wrong with a run; a walk goes on
                if paths:
                    self._run.open(*paths[:1])
        return self._run

    @property
    def loop(self) -> LoopView:
        """Your own loop, run small; a fix that was measured ticks the checklist below."""
        return LoopView(self._opened())

    @property
    def checklist(self) -> w.VBox:
        """The checklist of a run that shows the entry."""
        state = self._opened()
        return w.VBox([w.HTML(render("on_run.html", label=state.label)), ChecklistView(state)]).add_class("dk")

    @property
    def report(self) -> ReportView:
        """The report of that run."""
        return ReportView(self._opened(), list)


def _example() -> WorkbookState:
    """Settings at which effects show: the example model on batches that one trains on."""
    state = WorkbookState()
    state.change(micro_batch=4, seq_len=4096, precision="amp-bf16")
    return state
