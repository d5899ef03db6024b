"""The workbook's comparison: a path or an upload gives the table; what can't be used is one line and changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from diag_kit.errors import EvidenceError
from diag_kit.workbook import Workbook
from diag_kit.workbook.comparison_view import ComparisonView, compare
from diag_kit.workbook.state import WorkbookState

GOOD = "torchrun --nproc_per_node 1 train.py --per_device_train_batch_size 1\nstep 1 loss 2.3\nstep 2 loss 2.2\n"
ENDED = "{'train_runtime': 12.5, 'train_loss': 2.1, 'epoch': 1.0}\n"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A run that ended well with half the micro-batch, and a line of markup."""
    folder = tmp_path / "good"
    folder.mkdir()
    (folder / "train.log").write_text(GOOD + ENDED, encoding="utf-8")
    (folder / "<b>x.yaml").write_text("max_seq_length: 1024\n", encoding="utf-8")
    return folder


@pytest.fixture
def view(book: Workbook) -> ComparisonView:
    """The view that stands under the diagnosis."""
    (found,) = [child for child in book.diagnosis.children if isinstance(child, ComparisonView)]
    return found


def test_a_path_gives_the_table(book: Workbook, view: ComparisonView, good: Path) -> None:
    """Typed and entered: values and places of both runs, escaped; the what-if that was set stays."""
    book.what_if.controls["seq_len"].value = 2048
    view.path.value = "good"  # relative to where the workbook was started
    view._on_enter(view.path, {"event": "submit"}, [])
    shown = view.page.value
    assert "micro_batch" in shown and "seq_len" in shown and "differences at once" in shown
    assert "good/&lt;b&gt;x.yaml" in shown and "<b>x" not in shown
    assert book.state.settings.seq_len == book.what_if.controls["seq_len"].value == 2048
    assert book.state.diagnosis.comparison is not None


def test_nothing_is_compared_before_a_run_is_open(view: ComparisonView) -> None:
    """The field stands there once there is a run to hold beside another."""
    assert view.layout.display == ""
    assert ComparisonView(WorkbookState()).layout.display == "none"


def test_an_upload_gives_it_too(view: ComparisonView) -> None:
    """The good run's log from another machine."""
    content = (GOOD + ENDED).encode()
    view.upload.value = ({"name": "g.log", "type": "", "size": len(content), "content": memoryview(content),
                          "last_modified": datetime.now(UTC)},)  # fmt: skip
    assert "pasted text" in view.page.value and "micro_batch" in view.page.value


def test_another_run_is_not_compared(book: Workbook, view: ComparisonView, good: Path, run: Path) -> None:
    """What is opened next starts without a comparison."""
    compare(book.state, good)
    assert view.page.value
    book.state.open(run / "train.log")
    assert view.page.value == "" and book.state.diagnosis.comparison is None


@pytest.mark.parametrize("path", ["", "gone", "run"])
def test_what_cannot_be_used_is_one_line(book: Workbook, view: ComparisonView, path: str) -> None:
    """Nothing typed, a missing path, the open run itself: one line, read aloud, and the diagnosis stays."""
    before = book.state.diagnosis
    view.path.value = path
    view.compare.click()
    assert "dk-error" in view.status.value and view.page.value == ""
    assert book.state.diagnosis is before


def test_pasted_evidence_is_compared_too(good: Path) -> None:
    """The open run may be text; without an open run there is nothing to compare."""
    state = WorkbookState()
    with pytest.raises(EvidenceError, match="open the failed run first"):
        compare(state, good)
    state.open(text="python t.py --per_device_train_batch_size 2\nRuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n")
    compare(state, good)
    assert state.diagnosis.comparison.order == ("micro_batch",)
