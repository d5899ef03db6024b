"""The workbook: seven views over one state, shown one by one in a notebook's cells or together as one page."""

from __future__ import annotations

from pathlib import Path

import ipywidgets as w

from ..errors import DiagKitError
from .checklist_view import ChecklistView
from .comparison_view import ComparisonView
from .diagnosis_view import DiagnosisView
from .entries_view import EntriesView
from .evidence_view import EvidenceView
from .loop_view import LoopView
from .plot_view import kit
from .report_view import ReportView
from .state import WorkbookState
from .what_if_view import WhatIfView


class Workbook(w.VBox):
    """``evidence``, ``diagnosis``, ``what_if``, ``checklist``, ``report``, ``entries`` and ``loop`` over ``state``;
    itself all of them.
    """

    def __init__(self, state: WorkbookState) -> None:
        self.state = state
        kit()
        self.evidence = EvidenceView(state)
        self.diagnosis = DiagnosisView(state)
        self.what_if = WhatIfView(state)
        self.checklist = ChecklistView(state)
        self.report = ReportView(state, self.what_if.drawn)
        self.entries, self.loop = EntriesView(state), LoopView(state)
        self.diagnosis.children = (*self.diagnosis.children, ComparisonView(state))
        titled = (("Evidence", self.evidence), ("Diagnosis", self.diagnosis), ("What if", self.what_if),
                  ("Checklist", self.checklist), ("Report", self.report), ("Entries", self.entries),
                  ("Your own loop", self.loop))  # fmt: skip
        super().__init__([part for title, view in titled for part in (w.HTML(f"<h2>{title}</h2>"), view)])
        self.add_class("dk")


def workbook(run: str | Path | None = None) -> Workbook:
    """A workbook on ``run`` (a file or folder), or with nothing open; read to its end before this returns.

    A run that can't be read is said in one line in the evidence view; the rest of the page works.
    """
    return _open((str(run),) if run is not None else (), WorkbookState(), wait=True)


def open_workbook() -> Workbook:
    """The workbook on the run that the launcher was given, or on a bundled sample.

    A large run is read beside a bar: the cell ends at once, and the page fills when it is read. A notebook that runs
    without a person says ``book.state.wait()``.
    """
    state = WorkbookState()
    return _open(state.start_on(), state, wait=False)


def open_entries(id: str = "") -> EntriesView:
    """The encyclopedia with its search box, at this entry.

    Raises:
        EntryError: there is no such entry.
    """
    kit()
    view = EntriesView()
    if id:
        view.read(id)
    return view


def _open(paths: tuple[str, ...], state: WorkbookState, *, wait: bool) -> Workbook:
    problem = ""
    try:
        if paths:
            state.open(*paths, wait=wait)
    except DiagKitError as error:
        problem = str(error)
    book = Workbook(state)
    if problem:
        book.evidence.say(problem, error=True)
    return book
