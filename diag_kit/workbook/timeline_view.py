"""The failure over time, rank by rank: lanes with marks, the lines of the chosen mark, and the same as a table."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import ipywidgets as w

from ..findings import Diagnosis
from ..report.lists import ROLES, Row, timed, timeline_rows, timeline_text
from ..report.words import clean, lines_around
from .controls import Table
from .figures import Figure, Spec
from .html import render
from .plot_view import PlotView
from .state import WorkbookState

LOOKS = {
    "originator": ("#D14500", "star", 17), "victim": ("#1F7BBF", "circle", 10), "teardown": ("#7d7d7d", "square", 9),
    "confirmation": ("#A9639A", "diamond", 10), "recovered": ("#00876B", "triangle-up", 11),
    "advisory": ("#A87400", "triangle-down", 10),
}  # fmt: skip
"""Role -> colour, told from the others by its symbol too, and at 3:1 or more on light and on dark; symbol; size."""
MAX_LANES, OWN_LANES, LANE_PIXELS = 24, 8, 24
BY_NODE = ("originator", "victim")
LINE_LIMIT = 1200
HOW = "Click a mark, or a place in the table, for its lines; drag across to zoom, double-click to go back."


def lanes_of(rows: Sequence[Row], first: int | None) -> list[tuple[str, list[int]]]:
    """Lanes from top to bottom, each with the indices of its rows.

    A lane for each rank where they fit. Of more, the rank that failed first and a few with an error of their own keep
    theirs; the others share one for each role, and for each node too where its ranks waited or failed.
    """
    alone: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        alone.setdefault((row.rank is None, row.rank or 0, row.who), []).append(i)
    if len(alone) <= MAX_LANES:
        return [(key[2], alone[key]) for key in sorted(alone)]
    suspects = list(dict.fromkeys(row.rank for row in rows if row.role == "originator" and row.rank is not None))
    own = {first, *(suspects if len(suspects) <= OWN_LANES else ())} - {None}
    lanes = [(f"rank {rank}", [i for i, row in enumerate(rows) if row.rank == rank]) for rank in sorted(own, key=int)]
    rest = [i for i, row in enumerate(rows) if row.rank not in own or row.rank is None]
    for parts in (lambda row: (row.role, row.host * (row.role in BY_NODE)), lambda row: (row.role, "")):
        groups: dict[tuple[str, str], list[int]] = {}
        for i in rest:
            groups.setdefault(parts(rows[i]), []).append(i)
        if len(groups) + len(lanes) <= MAX_LANES:
            break
    for (role, host), inside in sorted(groups.items(), key=lambda one: ([*ROLES].index(one[0][0]), one[0][1])):
        ranks = {rows[i].rank for i in inside} - {None}
        n, noun = (len(ranks), "rank") if ranks else (len(inside), "line")
        many = f"{n:,} {noun}{'s' * (n != 1)}"
        lanes.append((f"{many}{f' on {host}' if host else ''}: {ROLES[role]}", inside))
    return lanes


def timeline_figure(diagnosis: Diagnosis) -> Figure | None:
    """Lanes of ranks over time, or over the order of lines where no stamps tell them apart; None without two moments.

    Each mark's ``customdata`` is its row's index in `timeline_rows`.
    """
    rows, first = timeline_rows(diagnosis), diagnosis.initiating_rank
    if not rows:
        return None
    lanes = lanes_of(rows, first)
    lane = {i: n for n, (_, inside) in enumerate(lanes) for i in inside}
    places, gutter = _places(rows, lane)
    xs, layout = [at for _, at in places], _layout(rows, lanes, gutter)
    data: list[Spec] = []
    for role, (colour, symbol, size) in reversed(LOOKS.items()):  # an error of its own is drawn over the others
        ours = [i for i, row in enumerate(rows) if row.role == role]
        waits = [i for i in ours if places[i][0] != places[i][1]]
        if waits:
            data.append({"type": "scatter", "mode": "lines", "line": {"color": colour, "width": 7}, "opacity": 0.4,
                         "x": [x for i in waits for x in (*places[i], None)], "hoverinfo": "skip",
                         "y": [y for i in waits for y in (lane[i], lane[i], None)], "showlegend": False})  # fmt: skip
        if ours:
            data.append({"type": "scatter", "mode": "markers", "name": ROLES[role], "x": [xs[i] for i in ours],
                         "y": [lane[i] for i in ours], "customdata": ours, "text": [_hover(rows[i]) for i in ours],
                         "hovertemplate": "%{text}<extra></extra>",
                         "marker": {"color": colour, "symbol": symbol, "size": size,
                                    "line": {"width": 1, "color": "#fff"}}})  # fmt: skip
    began = next((i for i, row in enumerate(rows) if row.role == "originator" and row.rank == first), None)
    if first is not None and began is not None:
        layout["yaxis"]["ticktext"][lane[began]] = f"<b>rank {first} failed first</b>"
    text = timeline_text(rows, first, diagnosis.timeline_left_out)
    title = "What happened, rank by rank" if any(row.rank is not None for row in rows) else "What happened"
    return Figure(title, {"data": data, "layout": layout}, text, measured=True)


def _places(rows: Sequence[Row], lane: Mapping[int, int]) -> tuple[list[tuple[Any, Any]], str | None]:
    """(start, mark) of each row on the axis; what has no stamp stands left of it, in the gutter that is returned.

    There the first marks of a lane stand side by side, in their order, so that none hides another.
    """
    if not timed(rows):
        return [(n, n) for n in range(1, len(rows) + 1)], None
    stamps = [t for row in rows for t in (row.began, row.time) if t is not None]
    left, span = min(stamps), max(stamps) - min(stamps)
    before: Counter[int] = Counter()
    places = []
    for i, row in enumerate(rows):
        if row.time is None:
            place = _date(left - span * (0.08 - 0.024 * min(before[lane[i]], 2)))
            before[lane[i]] += 1
            places.append((place, place))
        else:
            places.append((_date(row.began or row.time), _date(row.time)))
    return places, _date(left - span * 0.07) if before else None


def _date(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S.%f}"


def _layout(rows: Sequence[Row], lanes: Sequence[tuple[str, Sequence[int]]], gutter: str | None) -> Spec:
    title = {"font": {"size": 12.5}, "standoff": 8}
    names = [escape(textwrap.shorten(name, 44, placeholder=" …"), quote=False) for name, _ in lanes]
    x_title = "time, as stamped" if timed(rows) else "order of the lines (no time stamps tell them apart)"
    x: Spec = {"title": {**title, "text": x_title}, "showgrid": True, "zeroline": False, "automargin": True}
    ordered = {"range": [0.5, len(rows) + 0.5], "nticks": 8, "tickformat": "d"}
    x |= {"type": "date", "nticks": 6} if timed(rows) else ordered
    layout: Spec = {
        "margin": {"l": 48, "r": 16, "t": 34, "b": 40}, "hovermode": "closest", "dragmode": "zoom", "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top", "font": {"size": 12},
                   "traceorder": "reversed", "itemsizing": "constant", "itemclick": False, "itemdoubleclick": False},
        "xaxis": x, "shapes": [], "annotations": [],
        "yaxis": {"tickvals": list(range(len(lanes))), "ticktext": names, "automargin": True,
                  "range": [len(lanes) - (0.4 if gutter is None else 0), -0.6],
                  "fixedrange": True, "zeroline": False},
    }  # fmt: skip
    if gutter:
        layout["annotations"].append({"x": gutter, "y": 0, "yref": "paper", "yanchor": "bottom", "text": "no stamp",
                                      "showarrow": False, "font": {"size": 11}})  # fmt: skip
    return layout


def _hover(row: Row) -> str:
    """What a mark says; plotly reads tags in it, so those of a log are escaped."""
    who = [row.who, row.host if row.rank is not None else "", row.when]
    wrapped = textwrap.wrap(row.what, 72, max_lines=4, placeholder=" …")
    said = [" · ".join(filter(None, who)), *wrapped, clean(str(row.source), 90)]
    return "<br>".join(escape(line, quote=False) for line in said)


class TimelineView(w.VBox):
    """Shows the state's timeline; a click on a mark, or on a row's place, shows the lines that say so."""

    def __init__(self, state: WorkbookState) -> None:
        self.state, self.title, self.plot, self.words = state, w.HTML(), PlotView(), w.HTML()
        self.table = Table(columns=[{"label": name} for name in ("When", "Who", "What kind", "What", "Where")],
                           find="Find")  # fmt: skip
        super().__init__([self.title, self.plot, self.words, self.table])
        self.add_class("dk-card").add_class("dk-stack").add_class("dk-timeline")
        self.plot.on_msg(self._choose)
        self.figure: Figure | None = None

    def _choose(self, _plot: Any, message: Mapping[str, Any], _buffers: Any) -> None:
        if self.figure and message.get("chosen") in range(len(self.table.rows)):
            self.table.chosen = message["chosen"]

    def show(self, diagnosis: Diagnosis | None) -> None:
        """Draw this diagnosis; hidden where it has no two moments."""
        self.figure = timeline_figure(diagnosis) if diagnosis else None
        self.layout.display = "" if self.figure else "none"
        if diagnosis is None or self.figure is None:
            return
        rows, first = timeline_rows(diagnosis), diagnosis.initiating_rank
        self.title.value = f"<h3>{self.figure.title}</h3>"
        self.plot.height = 120 + LANE_PIXELS * len(lanes_of(rows, first))
        self.plot.draw(self.figure.spec, f"{self.figure.title}. {self.figure.text}")
        self.words.value = render("words.html", text=f"{self.figure.text} {HOW}")
        cells = [[[row.when, row.time if row.time is not None else -1],
                  [row.who, -1 if row.rank is None else row.rank], ROLES[row.role], row.what,
                  clean(str(row.source), LINE_LIMIT)] for row in rows]  # fmt: skip
        self.table.fill(f"The same as a table: {len(rows):,} lines", cells, details=[_lines(row) for row in rows])


def _lines(row: Row) -> list[Any]:
    near = [[clean(line.text, LINE_LIMIT), line.here] for line in lines_around(row.source)]
    return [f"{row.who}, {ROLES[row.role]}: {clean(str(row.source), LINE_LIMIT)}", near]
