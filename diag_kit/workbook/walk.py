"""A guided walk through one entry of the encyclopedia: its answer, its claims, and what-ifs that show them."""

from __future__ import annotations

from typing import Any

import ipywidgets as w

from ..failures import entry
from .html import render
from .plot_view import kit
from .state import WorkbookState
from .what_if_view import WhatIfView


class Walk:
    """The parts of an entry as views. ``what_if`` starts from settings that show a claim.

    Raises:
        EntryError: there is no such entry.
    """

    def __init__(self, entry_id: str) -> None:
        self.entry = entry(entry_id)
        kit()

    def _part(self, name: str) -> w.VBox:
        return w.VBox([w.HTML(render("entry.html", part=name, e=self.entry))]).add_class("dk")

    @property
    def answer(self) -> w.VBox:
        """The quick answer, and how far the entry was held against measurements."""
        return self._part("answer")

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

    def what_if(self, **settings: Any) -> WhatIfView:
        """Controls and plots that start from these settings; ``model`` may name a published shape."""
        state = WorkbookState()
        state.start_from(**settings)
        view = WhatIfView(state)
        view.keep.layout.display = "none"  # there is no report here
        return view
