"""Figures say the same in the drawing and in words, and draw only what they were given."""

from __future__ import annotations

import json

import plotly.graph_objects
import pytest

from diag_kit.evidence.facts import MemoryPoint, Source
from diag_kit.memory.formulas import estimate
from diag_kit.memory.settings import Settings
from diag_kit.units import GIB, format_bytes
from diag_kit.workbook.data_figures import measured_figure
from diag_kit.workbook.figures import (
    CATEGORIES,
    Curve,
    Room,
    last_fit,
    length_figure,
    micro_step_figure,
    step_figure,
)

SETTINGS = Settings.from_json({
    "model": {"n_layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256, "tied_embeddings": True},
    "precision": "bf16", "seq_len": 4096, "grad_accum": 4, "attention": "eager", "capacity_bytes": 40 * GIB,
})  # fmt: skip


def texts(figure) -> str:
    """All that stands in the drawing: annotations and the names of what is drawn."""
    names = [trace.get("name", "") for trace in figure.spec["data"]]
    return " | ".join([a["text"] for a in figure.spec["layout"]["annotations"]] + names)


def test_step_figure_stacks_to_the_estimate() -> None:
    """The areas sum to each moment's total, and the peak is named with its size in drawing and words."""
    made = estimate(SETTINGS)
    figure = step_figure(made, Room(40 * GIB, 37 * GIB))
    areas = [trace for trace in figure.spec["data"] if trace.get("stackgroup")]
    sums = [sum(values) for values in zip(*(trace["y"] for trace in areas), strict=True)]
    assert sums == pytest.approx([moment.total_bytes / GIB for moment in made.timeline], abs=0.01)
    peak = format_bytes(made.peak_allocated_bytes)
    assert f"peak {peak}" in texts(figure)
    assert peak in figure.text
    assert "capacity 40.00 GiB" in texts(figure)


def test_step_figure_knows_every_category() -> None:
    """A category of the memory model without a colour would vanish from the stack."""
    assert set(CATEGORIES) == set(estimate(SETTINGS).components_at_peak)


def test_no_capacity_is_drawn_where_none_is_known() -> None:
    """Without a capacity there is no line, no band and no word of fitting."""
    figure = step_figure(estimate(SETTINGS.with_(capacity_bytes=None)), Room())
    assert "capacity" not in texts(figure)
    assert "band" not in figure.text


def test_length_figure_says_where_each_stops_fitting() -> None:
    """Each curve's last fitting length stands in the drawing and in the words; the current point carries its size."""
    lengths = [1024, 2048, 4096]
    eager = Curve("eager, quadratic", [10 * GIB, 30 * GIB, 90 * GIB], "#C95700", 2300)
    fused = Curve("fused, linear", [8 * GIB, 12 * GIB, 20 * GIB], "#1F7BBF", 9000)
    figure = length_figure(lengths, eager, fused, (2048, 30 * GIB), Room(40 * GIB, 37 * GIB))
    assert "eager, quadratic: fits to 2,300" in texts(figure)
    assert "2,048 tokens: 30.00 GiB" in texts(figure)
    assert "Eager attention fits up to 2,300 tokens." in figure.text
    assert "Fused attention fits up to 9,000 tokens." in figure.text
    nowhere = length_figure(
        lengths, Curve("eager, quadratic", eager.peaks, "#000", None), fused, (2048, 1), Room(GIB, GIB)
    )
    assert "Eager attention fits at no length." in nowhere.text


def test_micro_step_figure_tells_growth_from_a_flat_line() -> None:
    """The words give the bytes that each micro-step adds, and how many fit."""
    peaks = [GIB * n for n in range(10, 50, 5)]
    room = Room(40 * GIB, 37 * GIB)
    kept = Curve("graphs kept", peaks, "#C95700", last_fit(peaks, room))
    each = Curve("backward each micro-step", [12 * GIB] * 8, "#1F7BBF", 8)
    figure = micro_step_figure(kept, each, (4, 25 * GIB), room)
    assert "each micro-step adds 5.00 GiB" in figure.text
    assert "fit for 6 micro-steps" in figure.text
    assert "micro-step 4: 25.00 GiB" in texts(figure)


def reading(value: int, **more) -> MemoryPoint:
    return MemoryPoint(
        source=Source("m.csv", value), metric=more.pop("metric", "allocated"), value_bytes=value * GIB, **more
    )


def test_measured_figure_places_micro_steps_within_their_step() -> None:
    """Readings stand at their step, micro-steps as parts of it; ranks are lines of their own, host memory is none."""
    points = [reading(n + 1, step=n // 2, micro_step=n % 2 + 1, rank=rank) for rank in (0, 1) for n in range(6)]
    points += [reading(n, step=n, metric="host_used") for n in range(5)]
    figure = measured_figure(points, Room(40 * GIB), "it grows")
    assert [trace["name"] for trace in figure.spec["data"]] == ["rank 0 allocated", "rank 1 allocated"]
    assert figure.spec["data"][0]["x"] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert "Highest: 6.00 GiB, step 2, micro-step 2 (m.csv:6)" in figure.text
    assert figure.text.endswith("It grows.")


def test_measured_figure_needs_a_series() -> None:
    """One or two readings are facts, not a series."""
    assert measured_figure([reading(1, step=1), reading(2, step=2)], Room()) is None


def test_measured_figure_limits_its_lines() -> None:
    """Of many ranks the highest are drawn, and the words say how many there are."""
    points = [reading(rank + step, step=step, rank=rank) for rank in range(20) for step in range(4)]
    figure = measured_figure(points, Room())
    assert len(figure.spec["data"]) == 8
    assert figure.spec["data"][0]["name"] == "rank 19 allocated"
    assert "8 highest of 20" in figure.text


def test_specs_are_plain_json_that_plotly_knows() -> None:
    """A spec travels as JSON: no NaN, no object of ours; every property is one that plotly's own schema has."""
    room = Room(40 * GIB, 37 * GIB)
    curve = Curve("eager, quadratic", [10 * GIB, 50 * GIB], "#C95700", 1500)
    points = [reading(n + 1, step=n) for n in range(4)]
    for figure in (
        step_figure(estimate(SETTINGS), room), length_figure([1024, 2048], curve, curve, (1024, GIB), room),
        micro_step_figure(curve, curve, (1, GIB), room), measured_figure(points, room),
    ):  # fmt: skip
        plotly.graph_objects.Figure(json.loads(json.dumps(figure.spec, allow_nan=False)))
