"""The checklist: what the evidence ticks, and what people confirm, refute or set aside, each under a name."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Any

import ipywidgets as w

from ..checklist import EVIDENCE, Checklist, Item
from ..errors import DiagKitError, StateError
from ..report.words import STATES, again_rows
from ..reproduction import NAME, Script, commands, save
from . import places
from .controls import Board
from .html import render
from .state import WorkbookState

DECIDING = 3


class ChecklistView(w.VBox):
    """A board over the state's checklist, and a button that writes the reproduction script."""

    def __init__(self, state: WorkbookState) -> None:
        self.state = state
        self.board = Board(who=_login(), states=[list(pair) for pair in STATES.items()])
        self.script = w.Button(description="Write the reproduction script", layout=w.Layout(width="auto"))
        self.written = w.HTML("<div role='status'></div>")
        self.script.on_click(lambda _: self._write())
        self.again = w.HTML()
        super().__init__([self.board, self.again, self.script, self.written])
        self.add_class("dk").add_class("dk-stack")
        self.board.on_msg(self._mark)
        state.on("evidence", self._show_items)
        state.on("checklist", self._show_marks)
        self._show_items()

    def _show_items(self) -> None:
        diagnosis = self.state.diagnosis
        again = again_rows(diagnosis.repeats) if diagnosis and diagnosis.repeats else []
        self.again.value = render("again.html", rows=again) if again else ""
        self.written.value = "<div role='status'></div>"
        with self.board.hold_sync():
            self._show_marks()
            checklist = self.state.checklist
            first = deciding(checklist)
            groups = [
                (group.title, group.verdict, [i for i in group.items if i not in first]) for group in checklist.groups
            ]
            shown = [("What decides", "", first), *groups] if first else groups
            self.board.groups = [
                {"title": title, "verdict": verdict, "items": [item_json(item) for item in items]}
                for title, verdict, items in shown if items
            ]  # fmt: skip
            self.board.lead = len(first)

    def _show_marks(self) -> None:
        checklist = self.state.checklist
        current = {item.id: checklist.current(item.id) for item in checklist}
        first = [current[item.id] for item in deciding(checklist)]
        left, undecided = (sum(mark.state == "todo" for mark in marks) for marks in (current.values(), first))
        self.board.marks = {
            item: {"state": mark.state, "note": mark.note, "by": mark.by} for item, mark in current.items()
        }
        self.board.status = (
            f"{len(first) - undecided} of {len(first)} that decide settled; {len(current) - left} of all {len(current)}"
            if current
            else "Nothing to check."
        )

    def _write(self) -> None:
        try:
            path, made = self.write()
        except DiagKitError as error:
            self.written.value = render("line.html", line=str(error))
            return
        notes = (*made.assumed.values(), *made.left_out.values())
        self.written.value = render("script.html", path=path, commands=commands(path), notes=notes)

    def write(self) -> tuple[Path, Script]:
        """Write the script beside the reports; returns its path and what it stands on.

        Raises:
            DiagKitError: nothing is open, or the folder can't be written to.
        """
        state = self.state
        if state.diagnosis is None:
            raise DiagKitError("open evidence first: there is nothing to reproduce yet")
        folder = places.report_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiagKitError(f"{folder}: can't be made ({error.strerror}); start in another folder") from error
        return save(folder / NAME, state.diagnosis, [Path(one) for one in state.evidence])

    def _mark(self, _board: Any, message: dict[str, str], _buffers: Any) -> None:
        try:
            self.state.mark(message["item"], message["state"], self.board.who, message["note"])
        except StateError as error:
            self._show_marks()
            self.board.status = str(error)


def deciding(checklist: Checklist) -> list[Item]:
    """The items that decide first: what the evidence leaves open of the best finding, as its entry orders it."""
    asked = [
        [item for item in group.items if item.kind in ("check", "missing")]
        for group in checklist.groups
        if group.verdict != "ruled-out"
    ]
    best = next((items for items in asked if items), [])
    return sorted(best, key=lambda item: item.evidence is not None)[:DECIDING]


def item_json(item: Item) -> dict[str, Any]:
    """An item as the board shows it."""
    source = item.sources[0] if item.sources else None
    said = item.evidence
    return {
        "id": item.id, "kind": item.kind, "action": item.action, "expect": item.expect, "how": item.how,
        "cost": item.cost,
        "disturbs": item.disturbs, "evidence": said and {"state": said.state, "note": said.note},
        "where": str(source) if source else "", "line": source.text if source else "",
    }  # fmt: skip


def _login() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return "" if name == EVIDENCE else name
