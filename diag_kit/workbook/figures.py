"""Figures as plain plotly specs, each with the sentence that says the same in words. No arithmetic beyond axis units.

Colours are Okabe and Ito's set (https://jfly.uni-koeln.de/color/), told apart with any common colour vision, those of
lines and text shifted so that they read on light and on dark; wide areas carry their names in the drawing. A spec sets
no colour of text, grid or paper: those are the theme's, and a report's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..units import GIB, KIB, MIB, format_bytes, gib

if TYPE_CHECKING:
    from ..lab import Outcome
    from ..memory.estimates import Estimate, Lead

Spec = dict[str, Any]

CATEGORIES = {
    "parameters": ("#0072B2", "#fff"), "buffers": ("#8c8c8c", "#000"), "optimizer_state": ("#56B4E9", "#000"),
    "gradients": ("#009E73", "#fff"), "communication": ("#882255", "#fff"), "activations": ("#E69F00", "#000"),
    "attention_scores": ("#D55E00", "#fff"), "retained_graphs": ("#F0E442", "#000"), "logits": ("#CC79A7", "#000"),
    "temporaries": ("#bdbdbd", "#000"),
}  # fmt: skip
"""Category of the memory model -> colour of its area and ink on it, in the order they are stacked."""

RISING, FLAT, LIMIT = "#C95700", "#1F7BBF", "#DB4325"
PLOT_PIXELS, HALF_PIXELS, PIXELS_A_LETTER = 700, 480, 8
"""How wide a plot is at least on a usual screen, one that shares its row, and a letter of an area's name at most."""
DOT = {"size": 9, "color": "#fff", "line": {"width": 2.5, "color": "#222"}}
"""The point of the current settings: seen on light and on dark."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot: its title, its spec (plotly ``data`` and ``layout``), and the same in words.

    ``measured``: it shows what the evidence holds, not what the memory model predicts.
    """

    title: str
    spec: Spec
    text: str
    measured: bool = False


def words_of(category: str) -> str:
    """A name of the code as people write it."""
    return category.replace("_", " ")


def layout_of(x_title: str, top_bytes: float) -> Spec:
    """A layout of GiB over something, up to so many bytes."""
    title = {"font": {"size": 12.5}, "standoff": 8}
    axis = {"fixedrange": True, "automargin": True}
    return {
        "margin": {"l": 48, "r": 12, "t": 34, "b": 40}, "hovermode": "x unified", "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal",
                   "font": {"size": 12}, "itemclick": False, "itemdoubleclick": False},
        "xaxis": {**axis, "title": {**title, "text": x_title}, "showgrid": False, "zeroline": False},
        "yaxis": {**axis, "title": {**title, "text": "GiB"}, "range": [0, gib(top_bytes)], "nticks": 6},
        "shapes": [], "annotations": [],
    }  # fmt: skip


def _note(x: Any, y_bytes: float, text: str, **more: Any) -> Spec:
    return {"x": x, "y": gib(y_bytes), "text": text, "showarrow": False, **more}


@dataclass(frozen=True, slots=True)
class Room:
    """What the device has, and how much of it tensors may take: the rest is context, workspaces and fragmentation."""

    capacity_bytes: int | None = None
    tensors_bytes: int | None = None


def draw_room(layout: Spec, room: Room, side: str = "left") -> None:
    """Add the capacity and what of it tensors can't take, named at one side."""
    if room.capacity_bytes is None:
        return
    top, usable = gib(room.capacity_bytes), gib(room.tensors_bytes or room.capacity_bytes)
    across = {"xref": "paper", "x0": 0, "x1": 1, "layer": "above"}
    layout["shapes"] += [
        {"type": "rect", **across, "y0": usable, "y1": top, "fillcolor": LIMIT, "opacity": 0.18, "line": {"width": 0}},
        {"type": "line", **across, "y0": top, "y1": top, "line": {"color": LIMIT, "width": 2}},
    ]
    layout["annotations"].append(
        _note(int(side == "right"), room.capacity_bytes, f"capacity {format_bytes(room.capacity_bytes)}", xref="paper",
              xanchor=side, yanchor="bottom", font={"color": LIMIT, "size": 12}, bgcolor="rgba(255,255,255,0.85)")
    )  # fmt: skip


def _point(x: float, y_bytes: float, marker: Spec) -> Spec:
    return {"type": "scatter", "mode": "markers", "x": [x], "y": [gib(y_bytes)], "marker": marker, "hoverinfo": "skip",
            "showlegend": False}  # fmt: skip


def top_of(*sizes: int | None) -> float:
    """Where an axis ends that shows these bytes, with room for a name above."""
    return 1.18 * max((s for s in sizes if s), default=1)


def step_figure(estimate: Estimate, room: Room) -> Figure:
    """Memory over one optimizer step, stacked by category, with its peak and the capacity."""
    moments, peak = estimate.timeline, estimate.timeline.index(estimate.peak)
    highest = estimate.peak_allocated_bytes
    top = top_of(highest, room.capacity_bytes)
    xs = list(range(len(moments)))
    data: list[Spec] = []
    labels, base = [], [0] * len(moments)
    for category, (colour, ink) in CATEGORIES.items():
        sizes = [m.by_category.get(category, 0) for m in moments]
        if not any(sizes):
            continue
        data.append({"type": "scatter", "mode": "lines", "name": words_of(category), "stackgroup": "memory", "x": xs,
                     "y": [round(gib(s), 3) for s in sizes], "fillcolor": colour,
                     "line": {"width": 0.75, "color": "#fff"}, "hovertemplate": "%{y:.2f} GiB"})  # fmt: skip
        if (place := _room_for(words_of(category), sizes)) is not None and sizes[place] > 0.055 * top:
            middle = base[place] + sizes[place] / 2
            labels.append(_note(place, middle, words_of(category), font={"color": ink, "size": 11.5}))
        base = [b + s for b, s in zip(base, sizes, strict=True)]
    layout = layout_of("one optimizer step, from left to right", top)
    ticks, edges, inner = _groups(moments)
    layout["xaxis"] |= {"tickvals": [x for x, _ in ticks], "ticktext": [name for _, name in ticks], "tickangle": 0,
                        "range": [-0.1, len(xs) - 0.9], "ticks": ""}  # fmt: skip
    layout["shapes"] = [{"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper",
                         "line": {"color": "#888", "width": 1, "dash": dash}}
                        for places, dash in ((edges, "solid"), (inner, "dot")) for x in places]  # fmt: skip
    layout["annotations"] = labels
    draw_room(layout, room)
    data.append({"type": "scatter", "mode": "lines", "x": xs, "y": [round(gib(m.total_bytes), 3) for m in moments],
                 "name": "in all", "showlegend": False, "text": [m.label for m in moments],
                 "hovertemplate": "<b>%{y:.2f} GiB</b>: %{text}", "line": {"width": 0}})  # fmt: skip
    data.append(_point(peak, highest, DOT))
    side = "right" if peak > len(moments) / 2 else "left"
    layout["annotations"].append(
        _note(peak, highest, f"<b>peak {format_bytes(highest)}</b>", xanchor=side, yanchor="bottom", yshift=8)
    )
    largest = sorted(estimate.components_at_peak.items(), key=lambda item: -item[1])[:3]
    at = estimate.peak
    where = ("aten::" * (estimate.method == "trace") + at.label + f", in {at.phase}" * (at.phase not in at.label)
             + (f", micro-step {at.micro_step}" if at.micro_step else ""))  # fmt: skip
    phases = ", ".join(f"{name} {format_bytes(size)}" for name, size in estimate.peak_by_phase.items() if size)
    most = ", ".join(f"{words_of(name)} {format_bytes(size)}" for name, size in largest if size)
    text = f"The step peaks at {format_bytes(highest)}: {where}. Most of it is {most}."
    text += f" The highest of each phase: {phases}."
    if room.tensors_bytes:
        text += " The band under the capacity is what the context, workspaces and fragmentation take."
    return Figure("Memory over one optimizer step", {"data": data, "layout": layout}, text)


def _room_for(text: str, sizes: Sequence[int]) -> int | None:
    """Where an area is high for long enough to carry its name; None where it is a narrow spike."""
    highest = max(sizes)
    runs = [(len(run := list(places)), run) for high, places in
            groupby(range(len(sizes)), key=lambda x: sizes[x] > 0.7 * highest) if high]  # fmt: skip
    length, run = max(runs)
    return run[length // 2] if length * PLOT_PIXELS / len(sizes) > PIXELS_A_LETTER * len(text) else None


def _groups(moments: Sequence[Any]) -> tuple[list[tuple[float, str]], list[float], list[float]]:
    """Phases at the middle of their moments, the first of a micro-step over its number, and the edges of both.

    Only what is wide enough carries its name.
    """
    spans: dict[tuple[int | None, str], list[int]] = {}
    for x, moment in enumerate(moments):
        spans.setdefault((moment.micro_step, moment.phase), []).append(x)
    pixels = PLOT_PIXELS / len(moments)
    ticks, seen = list[tuple[float, str]](), set[int | None]()
    edges, inner = list[float](), list[float]()
    for (step, phase), xs in spans.items():
        first = step not in seen
        seen.add(step)
        name = phase if pixels * len(xs) > PIXELS_A_LETTER * len(phase) else ""
        number = f"<br><b>{'micro-step ' * (len(seen) == 1)}{step}</b>" if first and step else ""
        if name or number:
            ticks.append(((xs[0] + xs[-1]) / 2, f"{name or '&nbsp;'}{number}"))
        if xs[0]:
            (edges if first else inner).append(xs[0] - 0.5)
    return ticks, edges, inner


@dataclass(frozen=True, slots=True)
class Curve:
    """Peaks in bytes over an axis. ``fits_to``: the largest value that fits, where one does."""

    name: str
    peaks: Sequence[int]
    colour: str
    fits_to: int | None


def _draw_curves(xs: Sequence[int], curves: Sequence[Curve]) -> list[Spec]:
    """Traces of the curves, and a cross where each stops fitting; its name says that too."""
    data: list[Spec] = []
    for curve in curves:
        fits_to = curve.fits_to if curve.fits_to is not None and xs[0] <= curve.fits_to < xs[-1] else None
        name = curve.name if fits_to is None else f"{curve.name}: fits to {fits_to:,}"
        data.append({"type": "scatter", "mode": "lines", "name": name, "x": list(xs),
                     "y": [round(gib(p), 3) for p in curve.peaks], "line": {"color": curve.colour, "width": 2.5},
                     "hovertemplate": "%{y:.1f} GiB"})  # fmt: skip
        if fits_to is not None:
            i = next(i for i, x in enumerate(xs) if x >= fits_to)
            part = (fits_to - xs[i - 1]) / (xs[i] - xs[i - 1]) if i else 1
            size = curve.peaks[i - 1] + part * (curve.peaks[i] - curve.peaks[i - 1]) if i else curve.peaks[0]
            data.append(_point(fits_to, size, {"symbol": "x", "size": 9, "color": curve.colour}))
    return data


def _draw_here(layout: Spec, at: int, size: int, name: str, room: Room, *, left: bool) -> Spec:
    """The point of the current settings, named above it, or below where the capacity would run through the name."""
    top, y = layout["yaxis"]["range"][1], gib(size)
    below = abs(gib(room.capacity_bytes or 0) - (y + 0.17 * top)) < 0.1 * top and y > 0.25 * top
    layout["annotations"].append(
        {"x": at, "y": y, "text": f"<b>{name}: {format_bytes(size)}</b>", "showarrow": True, "arrowhead": 0,
         "arrowwidth": 1, "arrowcolor": "#888", "standoff": 6, "ax": 0, "ay": 36 if below else -36,
         "xanchor": "right" if left else "left"}
    )  # fmt: skip
    return _point(at, size, DOT)


def _curves_top(curves: Sequence[Curve], now: int, room: Room) -> float:
    """The axis ends a little above the capacity or the point of interest: a steep curve may leave the plot."""
    ends = [curve.peaks[-1] for curve in curves]
    return min(top_of(*ends, room.capacity_bytes, now), 2.2 * max(room.capacity_bytes or max(ends), now))


def _tokens(n: int) -> str:
    return f"{n:,} token{'s' * (n != 1)}"


def length_figure(
    lengths: Sequence[int], eager: Curve, fused: Curve, here: tuple[int, int], room: Room,
    kinks: Sequence[tuple[int, Lead]] = (), textbook: tuple[Sequence[int], int] | None = None,
) -> Figure:  # fmt: skip
    """Peak against sequence length: eager attention beside a fused kernel. ``here``: current length and its peak.

    ``kinks``: where another moment takes the lead on the curve that ``here`` is on: the length, and that moment.
    ``textbook``: the textbook formula's bytes over ``lengths``, and at the current one.
    """
    at, now = here
    top = _curves_top((eager, fused), now, room)
    layout = layout_of("sequence length in tokens", top)
    data: list[Spec] = []
    if textbook:
        data.append({"type": "scatter", "mode": "lines", "name": "textbook formula", "x": list(lengths),
                     "y": [round(gib(p), 3) for p in textbook[0]], "line": {"color": "#8c8c8c", "width": 1.5,
                     "dash": "dot"}, "hovertemplate": "%{y:.1f} GiB"})  # fmt: skip
    data += _draw_curves(lengths, (eager, fused))
    if kinks:
        data.append({"type": "scatter", "mode": "markers", "showlegend": False, "x": [n for n, _ in kinks],
                     "y": [round(gib(lead.peak_bytes), 3) for _, lead in kinks],
                     "text": [f"from here {_leader(lead)} leads" for _, lead in kinks], "hovertemplate": "%{text}",
                     "marker": {"symbol": "diamond-open", "size": 9, "color": "#888"}})  # fmt: skip
    data.append(_draw_here(layout, at, now, _tokens(at), room, left=at > lengths[-1] / 2))
    draw_room(layout, room, "right")
    text = f"At {_tokens(at)} the peak is {format_bytes(now)}."
    for curve in (eager, fused):
        kernel = f"{curve.name.split(',')[0].capitalize()} attention"
        if room.tensors_bytes is None:
            text += f" {kernel} needs {format_bytes(curve.peaks[-1])} at {lengths[-1]:,} tokens."
        else:
            text += f" {kernel} {f'fits up to {_tokens(curve.fits_to)}' if curve.fits_to else 'fits at no length'}."
    for length, lead in kinks:
        text += f" From {_tokens(length)} on, {_leader(lead)} leads."
    if textbook:
        text += f" The textbook's 34·s·b·h + 5·a·s²·b for each layer is {_off(textbook[1], now)} here."
    return Figure("Peak against sequence length", {"data": data, "layout": layout}, text)


def _leader(lead: Lead) -> str:
    return f"{lead.phase} (aten::{lead.label})"


def _off(predicted: int, exact: int) -> str:
    return f"{100 * (predicted - exact) / exact:+.0f} % off".replace("-", "−")


def micro_step_figure(deferred: Curve, each: Curve, here: tuple[int, int], room: Room) -> Figure:
    """Highest memory in each micro-step of a window: graphs kept to its end beside a backward each micro-step."""
    at, now = here
    top = _curves_top((deferred, each), now, room)
    steps = range(1, len(each.peaks) + 1)
    layout = layout_of("micro-step of the accumulation window", top)
    layout["xaxis"]["range"] = [0.5, steps[-1] + 0.5]
    data = _draw_curves(steps, (deferred, each))
    data.append(_draw_here(layout, at, now, f"micro-step {at}", room, left=at > steps[-1] / 2))
    draw_room(layout, room, "right")
    grows = deferred.peaks[-1] - deferred.peaks[-2]
    text = (
        f"In micro-step {at} memory reaches {format_bytes(now)}. With graphs kept, each micro-step adds "
        f"{format_bytes(grows)}; with a backward in each, the line is flat from the second on."
    )
    if deferred.fits_to and deferred.fits_to < steps[-1]:
        text += f" Kept graphs fit for {deferred.fits_to} micro-step{'s' * (deferred.fits_to > 1)}."
    return Figure("Memory against micro-step", {"data": data, "layout": layout}, text)


def last_fit(peaks: Sequence[int], room: Room) -> int | None:
    """How many of the first peaks fit; None without a capacity."""
    if room.tensors_bytes is None:
        return None
    return next((i for i, peak in enumerate(peaks) if peak > room.tensors_bytes), len(peaks))


MOST_TICKS = 12
LINES = ((RISING, "solid", "circle"), (FLAT, "solid", "square"), ("#00876B", "dash", "diamond"),
         ("#A9639A", "dot", "triangle-up"), ("#7d7d7d", "dashdot", "x"), ("#A87400", "longdash", "cross"))  # fmt: skip
"""Colour, dash and mark of measured lines: told apart without colour, and where one lies on another."""


def lab_figure(outcome: Outcome, title: str) -> Figure:
    """An experiment's measured bytes over what was varied, in the unit that its highest fits."""
    top = max(size for line in outcome.lines for size in line.bytes)
    name, unit = next(((n, u) for n, u in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if top >= u), ("bytes", 1))
    low = min(0, *(size for line in outcome.lines for size in line.bytes))
    layout = layout_of(outcome.x_title, top)
    layout["yaxis"] |= {"title": {**layout["yaxis"]["title"], "text": name},
                        "range": [1.08 * low / unit, max(1.12 * top / unit, 1)]}  # fmt: skip
    xs = {x for line in outcome.lines for x in line.x}
    if all(x == int(x) for x in xs) and max(xs) - min(xs) <= MOST_TICKS:
        layout["xaxis"]["dtick"] = 1
    names = dict.fromkeys(_of(line.label, outcome) for line in outcome.lines)
    data: list[Spec] = []
    for line in outcome.lines:
        own = _of(line.label, outcome)
        colour, dash, mark = LINES[[*names].index(own) % len(LINES)]
        second = own != line.label
        data.append({"type": "scatter", "mode": "lines+markers", "name": escaped(line.label), "x": list(line.x),
                     "y": [round(size / unit, 4) for size in line.bytes], "hovertemplate": f"%{{y:.2f}} {name}",
                     "line": {"color": colour, "width": 1.2 if second else 2.5, "dash": "dot" if second else dash},
                     "marker": {"symbol": mark, "size": 4 if second else 8, "color": colour},
                     "showlegend": not second})  # fmt: skip
    layout["margin"] |= {"t": 14 + 20 * legend_rows(names)}
    told = [line for line in outcome.lines if line.label in names]
    ends = "; ".join(f"{line.label} {_course(line.bytes)}" for line in told)
    first, last = outcome.lines[0].x[0], outcome.lines[0].x[-1]
    text = f"Over {outcome.x_title} {first:g} to {last:g}: {ends}."
    if len(told) < len(outcome.lines):
        text += " Thin dots: the same line's " + ", ".join(dict.fromkeys(
            line.label.rpartition(": ")[2] for line in outcome.lines if line.label not in names)) + "."  # fmt: skip
    return Figure(title, {"data": data, "layout": layout}, text, measured=True)


def legend_rows(names: Collection[str]) -> int:
    """Rows that a legend of these names takes above a plot of half a page."""
    columns = max(1, HALF_PIXELS // (PIXELS_A_LETTER * max(map(len, names), default=1) + 48))
    return -(-len(names) // columns)


def _of(label: str, outcome: Outcome) -> str:
    """The line that this one says more of, as ``DDP: peak`` does of ``DDP``; itself where it stands alone."""
    before = label.rpartition(": ")[0]
    return before if before in {line.label for line in outcome.lines} else label


def _course(sizes: Sequence[int]) -> str:
    first, last, top = (format_bytes(size, 1) for size in (sizes[0], sizes[-1], max(sizes)))
    if max(sizes) > 1.05 * max(sizes[0], sizes[-1]):
        return f"{first} to {last}, {top} at the highest"
    return f"stays at {first}" if first == last else f"{first} to {last}"


def escaped(text: str) -> str:
    """A name that plotly, which reads tags in it, shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
