"""The one place that draws: a small view over plotly.js, which every plot of a page shares.

A plot is one trait, ``spec``: what a page reloads is what was last set. The kernel sends plain JSON; the browser
redraws with ``Plotly.react``, never queues more than one redraw, follows the theme, and fills its box.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import anywidget
import traitlets as t
from ipywidgets import Widget, widget_serialization

from ..report.bundle import plotly_js
from .places import STATIC


class Kit(anywidget.AnyWidget):
    """What all views of a page share: plotly.js, evaluated once, the style sheet, and the way with the keyboard."""

    # The bundle is UMD: a local ``module`` takes its export, so that a page's own ``window.Plotly`` is left alone.
    _esm = t.Unicode().tag(sync=True)
    _css = STATIC / "workbook.css"

    def __init__(self) -> None:
        before = "const module = { exports: {} }, theirs = globalThis.Plotly;\n"
        super().__init__(_esm=f"{before}{plotly_js()}\n{(STATIC / 'kit.js').read_text(encoding='utf-8')}")


@cache
def kit() -> Kit:
    """The shared widget of this kernel."""
    return Kit()


class PlotView(anywidget.AnyWidget):
    """One plot. ``draw`` sets it; ``alt`` says in words what it shows, for a reader who can't see it.

    A click on a point that has ``customdata`` arrives as a message ``{chosen: customdata}``.
    """

    _esm = STATIC / "plot_view.js"

    spec = t.Unicode('{"data":[],"layout":{}}').tag(sync=True)
    alt = t.Unicode("").tag(sync=True)
    height = t.Int(320).tag(sync=True)
    kit = t.Instance(Widget).tag(sync=True, **widget_serialization)

    def __init__(self, **traits: Any) -> None:
        super().__init__(kit=kit(), **traits)

    def draw(self, spec: dict[str, Any], alt: str) -> None:
        """Show ``spec`` (plotly's ``data`` and ``layout`` as plain JSON values)."""
        with self.hold_sync():
            self.spec, self.alt = json.dumps(spec, separators=(",", ":")), alt
