"""Small controls with a name, a unit and a place to say where their value comes from.

Native inputs, so that a keyboard and a screen reader work: ipywidgets' sliders have no accessible name.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

import anywidget
import ipywidgets as w
import traitlets as t

from .places import STATIC


class Number(anywidget.AnyWidget):
    """A slider paired with a number box. The slider walks ``stops``; the box takes any value from ``low`` to ``high``.

    ``origin`` says where the value comes from ("train.log:12", "assumed"); ``assumed`` sets the tone.
    """

    _esm = STATIC / "number.js"

    value = t.Float(0).tag(sync=True)
    stops = t.List(t.Float()).tag(sync=True)
    low = t.Float(1).tag(sync=True)
    high = t.Float(1e9).tag(sync=True)
    whole = t.Bool(True).tag(sync=True)
    label = t.Unicode("").tag(sync=True)
    unit = t.Unicode("").tag(sync=True)
    origin = t.Unicode("").tag(sync=True)
    assumed = t.Bool(True).tag(sync=True)


class Choice(anywidget.AnyWidget):
    """A named choice among ``options``, pairs of value and what is shown."""

    _esm = STATIC / "choice.js"

    value = t.Unicode("").tag(sync=True)
    options = t.List().tag(sync=True)
    label = t.Unicode("").tag(sync=True)
    origin = t.Unicode("").tag(sync=True)
    assumed = t.Bool(True).tag(sync=True)


class Board(anywidget.AnyWidget):
    """A checklist: ``groups`` of items as the evidence has them, ``marks`` as they stand.

    groups: ``[{title, verdict, items: [{id, kind, action, expect, how, cost, disturbs, evidence, where, line}]}]``.
    lead: how many items of the first group decide first; where there are any, the other groups are folded.
    marks: ``{id: {state, note, by}}``. states: pairs of state and word. ``status`` is read aloud when it changes. A
    person's mark arrives as a message ``{item, state, note}``, so that two in a row can't undo each other.
    """

    _esm = STATIC / "board.js"

    groups = t.List().tag(sync=True)
    lead = t.Int(0).tag(sync=True)
    marks = t.Dict().tag(sync=True)
    states = t.List().tag(sync=True)
    who = t.Unicode("").tag(sync=True)
    status = t.Unicode("").tag(sync=True)


class Page(anywidget.AnyWidget):
    """HTML of the templates, which escape, with tabs, code to copy, and buttons that ask.

    ``part``: the tab in front of those in group ``part``. A button arrives as a message ``{ask, of}``; `into_view`
    brings the page before the reader.
    """

    _esm = STATIC / "page.js"

    value = t.Unicode("").tag(sync=True)
    part = t.Unicode("").tag(sync=True)

    def into_view(self) -> None:
        """Scroll so that the page is seen, where it is shown."""
        self.send({"into_view": True})


class Finder(anywidget.AnyWidget):
    """A search box over a list: ``query`` comes from the reader, ``rows`` and ``status`` from whoever finds.

    rows: ``[{group, items: [{id, title, line}]}]``. A row that is chosen arrives as a message ``{chosen: id}``.
    """

    _esm = STATIC / "finder.js"

    label = t.Unicode("Find").tag(sync=True)
    hint = t.Unicode("").tag(sync=True)
    query = t.Unicode("").tag(sync=True)
    rows = t.List().tag(sync=True)
    chosen = t.Unicode("").tag(sync=True)
    status = t.Unicode("").tag(sync=True)


class Table(anywidget.AnyWidget):
    """A folded table that is sorted, filtered and paged in the browser: thousands of rows cost what fifty do.

    columns: ``[{label, number}]``. find: label of the filter. chosen: index of the row whose lines stand above the
    table; a row's last cell chooses it. ``fill`` sets the rest.
    """

    _esm = STATIC / "table.js"

    title = t.Unicode("").tag(sync=True)
    columns = t.List().tag(sync=True)
    body = t.Unicode('{"rows":[],"tones":[],"details":[]}').tag(sync=True)
    chosen = t.Int(-1).tag(sync=True)
    find = t.Unicode("").tag(sync=True)

    def fill(self, title: str, rows: list[Any], *, tones: Sequence[str] = (), details: Sequence[Any] = ()) -> None:
        """Show other rows, none of them chosen; as one text, which costs a fraction of nested traits.

        Args:
            title: what the table holds, on its fold.
            rows: lists of cells, each a text or ``[text, what to sort by]``.
            tones: for each row the class of its second cell, or nothing.
            details: for each row ``[heading, [[line, here], ...]]``.
        """
        self.rows, self.tones, self.details = rows, tones, details
        with self.hold_sync():
            self.title, self.chosen = title, -1
            self.body = json.dumps({"rows": rows, "tones": tones, "details": details}, separators=(",", ":"))


class Download(anywidget.AnyWidget):
    """A link that saves ``content`` under ``name`` wherever the browser runs."""

    _esm = STATIC / "download.js"

    name = t.Unicode("").tag(sync=True)
    mime = t.Unicode("").tag(sync=True)
    content = t.Bytes(b"").tag(sync=True)


def field(title: str, control: w.Widget) -> w.VBox:
    """A control under its title."""
    return w.VBox([w.HTML(f"<span>{html.escape(title)}</span>"), control]).add_class("dk-field")
