"""Which engine answers the what-if, in one line, with a bar while it traces and the button that begins or ends that."""

from __future__ import annotations

import ipywidgets as w

from .answers import Standing
from .html import render
from .state import WorkbookState


class EngineView(w.HBox):
    """The line beside the plots. ``show`` sets it; the button's click is whoever holds the view's."""

    def __init__(self, state: WorkbookState) -> None:
        self.state, self.line = state, w.HTML()
        self.button = w.Button(description="Trace this model", tooltip="Run the model on fake tensors, without a GPU")
        self.stop = w.Button(description="Stop tracing", tooltip="Stay with closed forms; what is traced is kept")
        super().__init__([self.line, self.button, self.stop])
        self.add_class("dk-engine")

    def show(self, standing: Standing, *, example: bool) -> None:
        """Say which engine answers. ``example``: of a model that nobody named."""
        self.line.value = render("engine.html", s=standing, example=example)
        self.button.layout.display = "" if standing.can and not example else "none"
        self.stop.layout.display = "" if standing.busy else "none"
