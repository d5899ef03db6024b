"""The lab in a page: an experiment as a card, and an entry's experiments as a truth table that fills as they run."""

from __future__ import annotations

import ipywidgets as w

from .. import lab
from ..errors import DiagKitError
from ..failures import Entry
from .controls import Page
from .figures import lab_figure
from .html import render
from .lab_runs import Runs, recorded, runs
from .plot_view import PlotView
from .state import AtRest, WorkbookState

PLOT_PIXELS = 230
"""Height of a plot without its legend."""


class LabCard(w.VBox):
    """One experiment: its claim, its code, a button, and what came of it. Nothing runs before the button is pressed.

    ``state`` gives the settings for "at your sizes", and the card follows them.
    """

    def __init__(self, id: str, state: WorkbookState, session: Runs | None = None) -> None:
        self.experiment, self.state, self.session = lab.experiment(id), state, session or runs()
        self.head = Page(value=render("lab_head.html", x=self.experiment))
        self.outcome, self.figures = w.HTML(), w.HTML()
        self.button = w.Button(description="Run it here", button_style="primary")
        self.button.tooltip = f"Measure: {self.experiment.title}"
        self.stop = w.Button(description="Stop", tooltip="End the measurement")
        self.line = w.HTML()
        self.tools = w.HBox([self.button, self.stop, self.line]).add_class("dk-line").add_class("dk-lab-tools")
        self.plot, self.words, self.sizes = PlotView(height=280), w.HTML(), w.HTML()
        self._drawn: lab.Outcome | None = None
        drawn = w.VBox([self.plot, self.words]).add_class("dk-figure")
        measured = w.GridBox([drawn, self.figures]).add_class("dk-lab-measured")
        super().__init__([self.head, self.tools, self.outcome, measured, self.sizes])
        self.add_class("dk").add_class("dk-card").add_class("dk-stack").add_class("dk-lab")
        self.button.on_click(lambda _: self.session.start([id]))
        self.stop.on_click(lambda _: self.session.stop())
        self._sizes_at_rest = AtRest(self._show_sizes)
        self.session.on(self._show)
        state.on("what_if", self._sizes_at_rest)
        self._show()
        self._show_sizes()

    def _show(self) -> None:
        id, session = self.experiment.id, self.session
        running, waits = session.running == id, id in session.waiting
        own, before = session.outcomes.get(id), recorded().get(id)
        shown = own if own and not own.problem else before.outcome if before else None
        self.button.disabled = running or waits
        self.button.description = "Run it again" if own and not own.problem else "Run it here"
        self.stop.layout.display = "" if running or waits else "none"
        self.line.value = render("lab_line.html", running=running, waits=waits, own=own, before=before if not own else
                                 None, problem=session.problem, processes=self.experiment.processes)  # fmt: skip
        quiet = shown is not own
        self.outcome.value = render("lab_outcome.html", o=shown, quiet=quiet) if shown else ""
        self.figures.value = render("lab_rows.html", rows=shown.rows, quiet=quiet) if shown and shown.rows else ""
        for view in (self.plot, self.words):
            view.layout.display = "" if shown and shown.lines else "none"
        if shown and shown.lines and shown is not self._drawn:
            self._drawn = shown
            figure = lab_figure(shown, self.experiment.title)
            self.plot.height = PLOT_PIXELS + figure.spec["layout"]["margin"]["t"]
            self.plot.draw(figure.spec, f"{figure.title}. {figure.text}")
            self.words.value = render("words.html", text=figure.text)
        self.plot.add_class("dk-quiet") if quiet else self.plot.remove_class("dk-quiet")

    def _show_sizes(self) -> None:
        settings, rows, problem = self.state.settings, tuple[lab.Carried, ...](), ""
        try:
            rows = lab.carry(self.experiment.id, settings)
        except DiagKitError as error:
            problem = str(error)
        top = max((row.bytes for row in rows), default=0) or 1
        self.sizes.value = render("lab_sizes.html", rows=rows, top=top, problem=problem, s=settings,
                                  example=self.state.example)  # fmt: skip


class LabView(w.VBox):
    """An entry's experiments: run one or all, and the truth of each claim as it was measured here.

    A card opens below the table when it is asked for; ``show`` does that too.
    """

    def __init__(self, state: WorkbookState, session: Runs | None = None) -> None:
        self.state, self.session = state, session or runs()
        self.experiments: tuple[lab.Experiment, ...] = ()
        self.title, self.table, self.progress = w.HTML(), Page(), w.HTML()
        self.all = w.Button(button_style="primary", tooltip="One after another, in a process of their own")
        self.stop = w.Button(description="Stop", tooltip="End the measurement")
        self.slot = w.VBox()
        self._cards: dict[str, LabCard] = {}
        tools = w.HBox([self.all, self.stop, self.progress]).add_class("dk-line").add_class("dk-lab-tools")
        super().__init__([self.title, tools, self.table, self.slot])
        self.add_class("dk").add_class("dk-stack").add_class("dk-lab-view")
        self.all.on_click(lambda _: self._run_all())
        self.stop.on_click(lambda _: self.session.stop())
        self.table.on_msg(lambda _page, message, _buffers: self.show(str(message.get("of"))))
        self.session.on(self._show)

    def _run_all(self) -> None:
        self.session.start([one.id for one in self.experiments])

    def about(self, entry: Entry) -> LabView:
        """Show the experiments of this entry, those that it names, and those of its causes; returns itself."""
        named = {cause.experiment for cause in entry.causes} | {claim.experiment for claim in entry.claims}
        causes = {cause.id for cause in entry.causes}
        self.experiments = tuple(one for one in lab.experiments()
                                 if one.entry == entry.id or one.id in named or one.cause in causes)  # fmt: skip
        self.layout.display = "" if self.experiments else "none"
        self.slot.children = ()
        self._show()
        return self

    def show(self, id: str) -> None:
        """Open an experiment's card below the table; the same again closes it."""
        if id not in {one.id for one in self.experiments}:
            return
        opened = self.slot.children
        card = self._cards.get(id) or self._cards.setdefault(id, LabCard(id, self.state, self.session))
        self.slot.children = () if opened == (card,) else (card,)
        self._show()
        if self.slot.children:
            card.head.into_view()

    def _show(self) -> None:
        if not self.experiments:
            return
        session, n = self.session, len(self.experiments)
        opened = next((card.experiment.id for card in self.slot.children), "")
        done = sum(x.id in session.outcomes for x in self.experiments)
        here = [x.id for x in self.experiments if x.id in (session.running, *session.waiting)]
        self.title.value = render("lab_title.html")
        self.all.description = "Run it here" if n == 1 else f"Run all {n} here"
        self.all.disabled = bool(here)
        self.stop.layout.display = "" if here else "none"
        where = next((kept.where for x in self.experiments if (kept := recorded().get(x.id))), "")
        self.progress.value = render("lab_progress.html", busy=bool(here), done=n - len(here), n=n, measured=done,
                                     problem=session.problem, where=where)  # fmt: skip
        rows = [(x, session.outcomes.get(x.id), recorded().get(x.id), x.id == session.running, x.id in session.waiting)
                for x in self.experiments]  # fmt: skip
        self.table.value = render("lab_table.html", rows=rows, opened=opened)
