"""Figures of data: memory as a run measured it, and the lengths of a data set under the peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..units import format_bytes, gib
from .figures import FLAT, LIMIT, RISING, Figure, Room, Spec, draw_room, layout_of, top_of, words_of

if TYPE_CHECKING:
    from ..evidence.facts import MemoryPoint
    from ..memory.lengths import Outlook

LINES = (FLAT, RISING, "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#8c8c8c")


def measured_figure(points: Sequence[MemoryPoint], room: Room, growth: str = "") -> Figure | None:
    """Memory as the evidence measured it, one line for each rank and metric; None where there is no series."""
    lines: dict[tuple[int | None, str], list[MemoryPoint]] = {}
    for point in points:
        if not point.metric.startswith("host"):
            lines.setdefault((point.rank, point.metric), []).append(point)
    series = {key: line for key, line in lines.items() if len(line) > 2}
    if not series:
        return None
    highest = {key: max(line, key=lambda p: p.value_bytes) for key, line in series.items()}
    shown = sorted(series, key=lambda key: -highest[key].value_bytes)[: len(LINES)]
    x_title, places = _places({key: series[key] for key in shown})
    data: list[Spec] = [
        {"type": "scatter", "mode": "lines+markers", "line": {"color": colour, "width": 2}, "marker": {"size": 4},
         "name": (f"rank {key[0]} " if key[0] is not None else "") + words_of(key[1]), "x": places[key],
         "y": [round(gib(p.value_bytes), 3) for p in series[key]], "text": [_moment(p) for p in series[key]],
         "hovertemplate": "%{y:.2f} GiB, %{text}"}
        for colour, key in zip(LINES, shown, strict=False)
    ]  # fmt: skip
    top = highest[shown[0]]
    layout = layout_of(x_title, top_of(top.value_bytes, room.capacity_bytes)) | {"hovermode": "closest"}
    draw_room(layout, room)
    text = f"Highest: {format_bytes(top.value_bytes)}, {_moment(top)} ({top.source})."
    if len(series) > len(shown):
        text += f" The {len(shown)} highest of {len(series)} series are drawn."
    if growth:
        text += f" {growth[0].upper()}{growth[1:]}."
    return Figure("Memory as measured", {"data": data, "layout": layout}, text, measured=True)


def _places(series: Mapping[Any, Sequence[MemoryPoint]]) -> tuple[str, dict[Any, list[float]]]:
    """Where each reading stands: at its step, micro-steps as parts of it; in their order where steps are not logged."""
    readings = [point for line in series.values() for point in line]
    if any(point.step is None for point in readings):
        return "reading, in the order logged", {key: list(range(1, len(line) + 1)) for key, line in series.items()}
    window: dict[int | None, int] = {}
    for point in readings:
        window[point.step] = max(window.get(point.step, 0), point.micro_step or 0)

    def place(point: MemoryPoint) -> float:
        last = window[point.step]
        part = 1.0 if point.micro_step is None else (point.micro_step - 1) / max(last, 1)
        return round((point.step or 0) + (part if last else 0), 4)

    return "step", {key: [place(point) for point in line] for key, line in series.items()}


def _moment(point: MemoryPoint) -> str:
    named = (("step", point.step), ("micro-step", point.micro_step))
    return ", ".join(f"{name} {value}" for name, value in named if value is not None) or "step not stated"


def lengths_figure(found: Outlook, room: Room, unit: str = "tokens") -> Figure:
    """Histogram of a data set's lengths, in the limit's colour where a batch won't fit, under the peak of a batch."""
    highest = max(b.peak_bytes for b in found.bins)
    top = min(top_of(highest, room.capacity_bytes), 2.2 * (room.capacity_bytes or highest))
    layout = layout_of(f"length in {unit}", top)
    data: list[Spec] = []
    for name, colour, fits in (("samples", FLAT, True), ("samples whose batch won't fit", LIMIT, False)):
        bins = [b for b in found.bins if (b.fits is not False) is fits]
        if bins:
            data.append({"type": "bar", "name": name, "x": [(b.low + b.high) / 2 for b in bins], "yaxis": "y2",
                         "width": [b.high - b.low + 1 for b in bins], "y": [b.samples for b in bins], "opacity": 0.55,
                         "text": [f"{b.low:,} to {b.high:,}" for b in bins], "textposition": "none",
                         "marker": {"color": colour}, "hovertemplate": "%{y:,} of %{text}"})  # fmt: skip
    data.append({"type": "scatter", "mode": "lines+markers", "name": "peak of a batch",
                 "x": [b.high for b in found.bins], "y": [round(gib(b.peak_bytes), 3) for b in found.bins],
                 "line": {"color": RISING, "width": 2.5}, "marker": {"size": 4},
                 "hovertemplate": "%{y:.1f} GiB"})  # fmt: skip
    layout["yaxis2"] = {
        "overlaying": "y", "side": "right", "showgrid": False, "fixedrange": True, "automargin": True, "nticks": 5,
        "tickmode": "auto",
        "title": {"text": "samples", "font": {"size": 12.5}}, "rangemode": "tozero",
    }  # fmt: skip
    layout["bargap"] = 0
    draw_room(layout, room, "right")
    text = (
        f"{found.samples:,} samples of {found.shortest:,} to {found.longest:,} {unit}, half of them up to "
        f"{found.median:,}, 99 % up to {found.p99:,}."
    )
    if found.longest_fit is None:
        text += " No capacity is known to hold them against."
    elif not found.bad_batches:
        text += f" All {found.batches:,} batches of an epoch fit."
    else:
        bad = f"{found.bad_batches:,.0f}" if found.bad_batches >= 10 else f"{found.bad_batches:.2g}"
        chance = "certainly" if found.chance_per_epoch > 0.9995 else f"with a chance of {found.chance_per_epoch:.1%}"
        text += (
            f" Batches fit up to {found.longest_fit:,}: of {found.batches:,} in an epoch about {bad} "
            f"do not, and an epoch meets one {chance}"
        )
        text += f", first near step {found.first_step:,.0f}." if found.first_step else "."
    return Figure("Lengths of the data set", {"data": data, "layout": layout}, text)
