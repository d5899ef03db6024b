"""A data set's lengths over the peak: which batches won't fit, how likely an epoch meets one, what removes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets as w

from ..errors import DiagKitError
from ..evidence.streams import open_text
from ..memory.lengths import Lengths, outlook, read
from . import places
from .answers import Answers
from .controls import Choice, Number, field
from .curves import room_of
from .data_figures import lengths_figure
from .html import render
from .plot_view import PlotView
from .state import AtRest, WorkbookState

RULES = {
    "fixed": "micro-batch at random, padded to its longest", "grouped": "micro-batch of like length",
    "token-budget": "as many as a token budget holds", "packed": "packed into blocks of the sequence length",
}  # fmt: skip


class LengthsView(w.VBox):
    """One field for the file, its batch rule, and what that means for the settings as they stand."""

    def __init__(self, state: WorkbookState, answers: Answers) -> None:
        self.state, self.answers = state, answers
        self.lengths: Lengths | None = None
        self.path = w.Text(placeholder="lengths.csv, samples.jsonl, or one number a line")
        self.column = w.Text(placeholder="column, if not length")
        self.read = w.Button(description="Read lengths", tooltip="Hold a data set's lengths against the peak")
        self.rule = Choice(label="Batches", options=[list(pair) for pair in RULES.items()], value="fixed")
        self.budget = Number(label="Token budget", unit="tokens", value=16384, high=1e9,
                             stops=[float(1 << k) for k in range(10, 22)], origin="padding included")  # fmt: skip
        self.status, self.plot, self.page = w.HTML(), PlotView(height=300), w.HTML()
        self.title = w.HTML("<h3>Lengths of the data set</h3>")
        line = w.HBox([self.path, self.column, self.read]).add_class("dk-line")
        rule = w.GridBox([self.rule, self.budget]).add_class("dk-pair")
        super().__init__([self.title, field("File of sequence lengths", line), rule, self.status, self.plot, self.page])
        self.add_class("dk-stack").add_class("dk-lengths")
        self._rest = AtRest(self._show)
        self.read.on_click(lambda _: self.load())
        self.path.on_msg(self._on_enter)
        for control in (self.rule, self.budget):
            control.observe(lambda _: self._rest(), "value")
        state.on("what_if", self._rest)
        self._show()

    def _on_enter(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        if message.get("event") == "submit":
            self.load()

    def load(self) -> None:
        """Read the file that the field names; what can't be read is one line, and what was shown stays."""
        given = self.path.value.strip()
        if not given:
            self._say("type the path of a file of lengths: CSV, JSON lines, or one number a line")
            return
        try:
            with open_text(places.start_folder() / Path(given).expanduser()) as stream:
                lengths = read(stream, given, self.column.value.strip() or None)
                if stream.note:
                    self._say(f"{given}: {stream.note}")
                    return
        except DiagKitError as error:
            self._say(str(error))
        except OSError as error:
            self._say(f"{given}: can't be read ({error.strerror or error})")
        else:
            self.lengths = lengths
            self._show()

    def _say(self, line: str) -> None:
        self.status.value = render("status.html", line=line, error=True, notes=()) if line else ""

    def _show(self) -> None:
        self._say("")
        self.budget.layout.display = "" if self.rule.value == "token-budget" else "none"
        self.plot.layout.display = self.page.layout.display = "" if self.lengths else "none"
        if self.lengths is None:
            return
        s = self.state.settings
        rule = f"token-budget:{int(self.budget.value)}" if self.rule.value == "token-budget" else self.rule.value
        try:
            found = outlook(s, self.lengths, rule, self.answers.beside(s))
        except DiagKitError as error:
            self._say(str(error))
            return
        figure = lengths_figure(found, room_of(s), self.lengths.unit)
        self.plot.draw(figure.spec, f"{figure.title}. {figure.text}")
        self.page.value = render("lengths.html", o=found, text=figure.text, exact=self.answers.exact(s))
