"""The encyclopedia in a page: an entry with its experiments, and a browser of all of them with a search box."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import ipywidgets as w

from .. import lab
from ..failures import Entry, entry, load_entries
from ..failures.search import search
from ..report.entry_text import grouped
from .controls import Finder, Page
from .html import render
from .lab_view import LabView
from .state import WorkbookState

PARTS = (("answer", "Answer"), ("mechanism", "Why"), ("claims", "Is it so?"), ("checks", "Confirm"), ("fixes", "Fix"),
         ("more", "Questions"))  # fmt: skip
TESTED = "claims"
"""The part beside which the experiments stand."""


@cache
def titles() -> dict[str, str]:
    """Title of every entry."""
    return {one.id: one.title for one in load_entries()}


@cache
def experiment_titles() -> dict[str, str]:
    """Title of every experiment."""
    return {one.id: one.title for one in lab.experiments()}


def part_of(one: Entry, part: str) -> str:
    """One part of an entry as HTML, all of its text escaped."""
    return render("entry.html", part=part, e=one, parts=PARTS, titles=experiment_titles(), entries=titles())


@cache
def page_of(id: str) -> str:
    """An entry as HTML with its parts as tabs; made once.

    Raises:
        EntryError: there is no such entry.
    """
    return part_of(entry(id), "")


class EntryView(w.VBox):
    """One entry, with its experiments below its claims. A link to another entry opens that in its place."""

    def __init__(self, state: WorkbookState) -> None:
        self.page, self.lab, self.id = Page(part=PARTS[0][0]), LabView(state), ""
        super().__init__([self.page, self.lab])
        self.add_class("dk").add_class("dk-stack")
        self.page.on_msg(self._asked)
        self.page.observe(lambda _: self._show_part(), "part")
        self._show_part()

    def show(self, id: str, part: str = PARTS[0][0]) -> None:
        """Show this entry, at this part.

        Raises:
            EntryError: there is no such entry.
        """
        html = page_of(id)
        if id != self.id:
            self.lab.about(entry(id))
        self.id = id
        with self.page.hold_sync():
            self.page.part, self.page.value = part, html
        self._show_part()

    def experiment(self, id: str) -> None:
        """Open an experiment of this entry."""
        self.page.part = TESTED
        if not any(card.experiment.id == id for card in self.lab.slot.children):
            self.lab.show(id)

    def _show_part(self) -> None:
        self.lab.layout.display = "" if self.page.part == TESTED and self.lab.experiments else "none"

    def _asked(self, _page: Any, message: Mapping[str, Any], _buffers: Any) -> None:
        of = str(message.get("of"))
        if message.get("ask") == "entry" and of in titles():
            self.show(of)
            self.page.into_view()
        elif message.get("ask") == "experiment":
            self.experiment(of)


class Reader(w.VBox):
    """An entry that opens where it is asked for, and closes."""

    def __init__(self, state: WorkbookState) -> None:
        self.entry = EntryView(state)
        self.shut = w.Button(description="Close", tooltip="Close this entry")
        super().__init__([self.shut, self.entry])
        self.add_class("dk-card").add_class("dk-reader")
        self.layout.display = "none"
        self.shut.on_click(lambda _: self.hide())

    def hide(self) -> None:
        """Close it."""
        self.layout.display = "none"

    def ask(self, message: Mapping[str, Any]) -> None:
        """Open what a button of a page asks for: ``entry``, or ``experiment`` as ``entry/experiment``."""
        what, of = message.get("ask"), str(message.get("of"))
        id, _, experiment = of.partition("/")
        if what not in ("entry", "experiment") or id not in titles():
            return
        self.layout.display = ""
        self.entry.show(id)
        if what == "experiment" and experiment in experiment_titles():
            self.entry.experiment(experiment)
        else:
            self.entry.page.into_view()


class EntriesView(w.GridBox):
    """All entries: a search box that answers as one types, the list, and the entry beside it."""

    def __init__(self, state: WorkbookState | None = None) -> None:
        self.state = state or WorkbookState()
        self.finder = Finder(label="Find in the encyclopedia", hint="symptom, cause or remedy")
        self.entry = EntryView(self.state)
        self._chosen = False
        box = w.VBox([self.entry]).add_class("dk-card").add_class("dk-entry-box")
        super().__init__([self.finder, box])
        self.add_class("dk").add_class("dk-entries")
        self.finder.observe(lambda _: self._find(), "query")
        self.finder.on_msg(self._choose)
        self.entry.page.observe(lambda _: self._follow(), "value")
        self.state.on("evidence", self._start)
        self._find()
        self._start()

    def read(self, id: str) -> None:
        """Show this entry.

        Raises:
            EntryError: there is no such entry.
        """
        self._chosen = True
        self.entry.show(id)

    def _start(self) -> None:
        """Until a reader chooses, the entry of the first finding, or the first of all."""
        if not self._chosen:
            findings = self.state.diagnosis.findings if self.state.diagnosis else ()
            first = next((one.entry for one in findings if one.entry in titles()), next(iter(titles())))
            self.entry.show(first)

    def _choose(self, _finder: Any, message: Mapping[str, Any], _buffers: Any) -> None:
        if message.get("chosen") in titles():
            self.read(message["chosen"])

    def _follow(self) -> None:
        self.finder.chosen = self.entry.id

    def _find(self) -> None:
        query = self.finder.query.strip()
        if not query:
            groups = [{"group": title, "items": [_item(one) for one in found]} for title, found in
                      grouped(load_entries())]  # fmt: skip
            self._list(groups, f"{len(titles())} entries")
            return
        found, said = search(query), ""
        if found.suggestion:
            found, said = search(found.suggestion), f"Nothing has these words; for “{found.suggestion}”: "
        items = [_item(hit.entry, hit.line) for hit in found.hits]
        n = len(items)
        near = "" if found.whole else ", none with all words"
        told = f"{said}{n} {'entry' if n == 1 else 'entries'}{near}" if n else "No entry speaks of it."
        self._list([{"group": "", "items": items}] if items else [], told)

    def _list(self, groups: list[dict[str, Any]], status: str) -> None:
        with self.finder.hold_sync():
            self.finder.rows, self.finder.status = groups, status


def _item(one: Entry, line: str = "") -> dict[str, str]:
    return {"id": one.id, "title": one.title, "line": line}
