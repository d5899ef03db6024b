"""Plans, measurements and a data set's lengths beside the what-if's plots."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diag_kit.evidence.facts import MemoryPoint, Source
from diag_kit.memory.formulas import estimate
from diag_kit.memory.plan import combinations, largest_pairs, remedies
from diag_kit.units import GIB, format_bytes
from diag_kit.workbook import Workbook
from diag_kit.workbook.lengths_view import LengthsView
from diag_kit.workbook.measured import passing, rows


def test_changes_come_with_the_line_of_the_chosen_framework(book: Workbook) -> None:
    """The run's framework is chosen at first; another choice shows its own lines, or that it has none."""
    plan = book.what_if.plan
    flash = next(r for r in remedies(book.state.settings) if r.id == "flash")
    for own in ("megatron", "pytorch"):
        plan.code.value = own
        assert flash.code[own].split("(")[0] in plan.remedies.value
    plan.code.value = "megatron"
    assert "Megatron-LM has no option for this" in plan.remedies.value


def test_each_change_says_what_predicted_it(book: Workbook) -> None:
    """Without a traced program all of them are closed forms, and nothing is offered that needs the exact peak."""
    assert "closed form" in book.what_if.plan.remedies.value
    assert ">traced<" not in book.what_if.plan.remedies.value
    assert book.what_if.plan.exactly.layout.display == "none"


def test_combinations_and_largest_shapes_are_those_of_the_plan(book: Workbook) -> None:
    """Every combination that the plan finds stands there with its peak; so does every shape worth telling."""
    s = book.state.settings
    plan = book.what_if.plan
    found = combinations(s).found
    assert found
    for one in found:
        assert format_bytes(one.peak_bytes) in plan.combinations.value
    for batch, length in largest_pairs(s):
        cells = f">{length:,}</td>" in plan.shapes.value and f">{batch * length:,}</td>" in plan.shapes.value
        assert cells or length < 64, batch


def point(size: int, metric: str, **more: object) -> MemoryPoint:
    return MemoryPoint(source=Source("m.csv", 1), metric=metric, value_bytes=size, series=metric, **more)


def test_measured_stands_beside_the_estimate_term_by_term(book: Workbook) -> None:
    """Series, a phase that a reading names, and the message's sizes, with difference and share; what was measured on the
    way to the failure is not held against the peak.
    """
    now, diagnosis = estimate(book.state.logged), book.state.diagnosis
    points = (
        point(10 * GIB, "allocated"), point(12 * GIB, "peak_allocated"), point(20 * GIB, "reserved"),
        point(8 * GIB, "allocated", label="after backward"), point(50 * GIB, "allocated", relative=True),
    )  # fmt: skip
    found = {row.term: row for row in rows(replace(diagnosis, points=points), now)}
    assert found["Tensors, highest"].measured_bytes == 12 * GIB
    assert found["Tensors, highest"].off_bytes == now.peak_allocated_bytes - 12 * GIB
    assert found["Tensors, highest"].share == pytest.approx(now.peak_allocated_bytes / (12 * GIB) - 1)
    assert found["Reserved by the allocator, highest"].predicted_bytes == now.peak_reserved_bytes
    assert found["Tensors, backward"].predicted_bytes == now.peak_by_phase["backward"]
    failed = found["Tensors when it failed"]
    assert failed.measured_bytes == 74 * GIB
    assert failed.on_the_way is (now.peak_allocated_bytes > 74 * GIB)
    assert found["with the request that failed"].measured_bytes == 82 * GIB
    assert "Estimate beside measured" in book.what_if.beside.value


def test_where_the_estimate_passes_what_was_asked_for(book: Workbook) -> None:
    """The moment of the estimate's step that first needs what the failed request would have made of it is named."""
    now = estimate(book.state.logged)
    said = passing(book.state.diagnosis, now)
    first = next((m for m in now.timeline if m.total_bytes >= 82 * GIB), None)
    assert (first.label in said and first.phase in said) if first else "never needs the 82.00 GiB" in said


@pytest.fixture
def lengths(book: Workbook, tmp_path: Path) -> LengthsView:
    """The view, on a file of a hundred samples, one of them far too long."""
    (tmp_path / "lengths.csv").write_text("id,length\n" + "".join(f"{i},{512 + i}\n" for i in range(99)) + "99,60000\n")
    view = next(child for child in book.what_if.children[0].children[1].children if isinstance(child, LengthsView))
    view.path.value = "lengths.csv"
    view.read.click()
    return view


def test_lengths_stand_over_the_peak(lengths: LengthsView) -> None:
    """How many samples, how many batches don't fit, what removes them; bars that don't fit have a colour of their own."""
    spec = json.loads(lengths.plot.spec)
    assert {trace["name"] for trace in spec["data"]} == {"samples", "samples whose batch won't fit", "peak of a batch"}
    assert sum(sum(trace["y"]) for trace in spec["data"] if trace["type"] == "bar") == 100
    assert "100 samples of 512 to 60,000 tokens" in lengths.page.value
    assert "an epoch meets one certainly" in lengths.page.value
    assert "length cap" in lengths.page.value
    assert "by closed forms" in lengths.page.value


def test_the_batch_rule_and_the_sliders_move_it(lengths: LengthsView) -> None:
    """Another rule or another setting is another outlook."""
    before = lengths.page.value
    lengths.rule.value = "token-budget"
    assert lengths.budget.layout.display == ""
    assert lengths.page.value != before
    before = lengths.page.value
    lengths.state.change(checkpointing="full", attention="flash", micro_batch=1)
    assert lengths.page.value != before


@pytest.mark.parametrize(
    ("name", "text", "column", "told"),
    [
        ("gone.csv", None, "", "gone.csv: can&#39;t be read"),
        ("empty.txt", "", "", "holds no length"),
        ("words.txt", "12\nmany\n", "", "words.txt"),
        ("a.csv", "id,length\n1,2\n", "<b>", "&lt;b&gt;"),
        ("", None, "", "type the path"),
    ],
)
def test_bad_lengths_are_one_line(
    lengths: LengthsView, tmp_path: Path, name: str, text: str | None, column: str, told: str
) -> None:
    """What can't be used is said in one line, and what was shown stays."""
    before = lengths.page.value
    if text is not None:
        (tmp_path / name).write_text(text)
    lengths.path.value, lengths.column.value = name, column
    lengths.read.click()
    assert told in lengths.status.value
    assert "\n" not in lengths.status.value.strip().split("</div>")[0]
    assert lengths.page.value == before
