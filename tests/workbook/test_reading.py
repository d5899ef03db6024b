"""Large evidence is read in a thread: progress, an early end that is judged, and one reading at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diag_kit import diagnose
from diag_kit.errors import EvidenceError, StopReading
from diag_kit.workbook import Workbook, open_workbook, places, state
from diag_kit.workbook.state import QUICK_BYTES, WorkbookState, is_large

TOTAL = 1 << 30


class Slow:
    """Stands for a reader of a large run: reports until it is let go or stopped, then judges what it has."""

    def __init__(self, answer: Callable[[], object]) -> None:
        self.answer, self.go, self.started, self.stopped = answer, threading.Event(), threading.Event(), threading.Event()

    def __call__(self, *paths, text=None, on_progress=None):
        if on_progress is None:
            return self.answer()
        for done in range(100_000):
            try:
                on_progress("rank7.log", min(TOTAL, done << 20), TOTAL)
            except StopReading:
                self.stopped.set()
                return self.answer()
            self.started.set()
            if self.go.wait(0.001):
                return self.answer()
        raise AssertionError("never let go")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    folder = tmp_path / "large"
    folder.mkdir()
    with (folder / "rank7.log").open("wb") as file:
        file.truncate(QUICK_BYTES + 1)
    return folder


@pytest.fixture
def slow(run: Path, monkeypatch: pytest.MonkeyPatch) -> Slow:
    made = Slow(lambda: diagnose(run))
    monkeypatch.setattr(state, "diagnose", made)
    monkeypatch.setattr(state, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr("diag_kit.workbook.evidence_view.BAR_AFTER_SECONDS", 0.0)
    return made


async def until(true: Callable[[], object]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that within 5 s")


def test_large_means_bytes_or_files(large: Path, run: Path, tmp_path: Path) -> None:
    """A few megabytes or a few hundred files tell; a path that is not there is for the reader to refuse."""
    assert is_large([large])
    assert not is_large([run, tmp_path / "gone"])
    for n in range(201):
        (run / f"{n}.log").write_text("x")
    assert is_large([run])


def test_progress_is_shown_and_the_loop_stays_free(book: Workbook, large: Path, slow: Slow) -> None:
    """The click returns at once, the bar says file, percent and speed, and the page fills when it is read."""
    view = book.evidence

    async def open_it() -> str:
        before = book.diagnosis.page.value
        view.path.value = str(large)
        view.open_path.click()
        assert book.state.reading is not None
        await until(lambda: "rank7.log" in view.bar.value)
        shown = view.bar.value
        assert view.progress.layout.display == ""
        assert book.diagnosis.page.value == before
        book.what_if.controls["seq_len"].value = 2048  # the kernel answers meanwhile
        slow.go.set()
        await until(lambda: book.state.reading is None)
        return shown

    shown = asyncio.run(open_it())
    assert 'role="progressbar"' in shown
    assert "of 1.00 GiB" in shown
    assert "/s" in shown
    assert view.progress.layout.display == "none"
    assert "Open: large" in view.status.value


def test_stopped_early_it_is_judged(book: Workbook, large: Path, slow: Slow) -> None:
    """The button ends the reading; what was read is shown, and a second press is not needed."""
    view = book.evidence

    async def stop_it() -> None:
        view.path.value = str(large)
        view.open_path.click()
        await until(slow.started.is_set)
        view.stop.click()
        await until(lambda: book.state.reading is None)

    asyncio.run(stop_it())
    assert slow.stopped.is_set()
    assert "Open: large" in view.status.value
    assert view.progress.layout.display == "none"


def test_a_second_opening_drops_the_first(book: Workbook, large: Path, slow: Slow, tmp_path: Path) -> None:
    """What is opened last is shown, whichever ends first; a wrong path drops nothing."""
    other = tmp_path / "other.log"
    other.write_text("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")

    async def open_two() -> None:
        book.state.open(large, wait=False)
        first = book.state.reading
        await until(slow.started.is_set)
        slow.answer, kept = lambda: (_ for _ in ()).throw(EvidenceError("gone: no such file")), slow.answer
        with pytest.raises(EvidenceError):
            book.state.open(tmp_path / "gone", wait=False)
        assert book.state.reading is first
        slow.answer = kept
        book.state.open(other, wait=False)
        assert book.state.reading is None
        await until(lambda: not first.thread.is_alive())
        await asyncio.sleep(0.05)

    asyncio.run(open_two())
    assert slow.stopped.is_set()
    assert book.state.evidence == (str(other),)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (EvidenceError("rank7.log: binary, not text"), "rank7.log: binary, not text"),
        (MemoryError("no room"), "reading failed (MemoryError: no room); point at fewer files"),
        (StopReading("stopped"), "stopped before there was anything to judge"),
    ],
)
def test_an_error_of_the_thread_is_one_line(book: Workbook, large: Path, slow: Slow, error, told: str) -> None:
    """Whatever ends a reading, the page says it in one line and keeps what was open."""

    def fail() -> None:
        raise error

    slow.answer = fail
    slow.go.set()
    before = book.state.diagnosis

    async def open_it() -> None:
        book.state.open(large, wait=False)
        await until(lambda: book.state.reading is None)

    asyncio.run(open_it())
    assert told in book.evidence.status.value
    assert 'role="alert"' in book.evidence.status.value
    assert book.state.diagnosis is before


def test_without_a_loop_it_waits(large: Path, slow: Slow) -> None:
    """A script that opens a large run has it when the call returns."""
    made = WorkbookState()
    made.open(large, wait=False)
    assert made.reading is None
    assert made.diagnosis is not None


def test_a_notebook_without_a_person_can_wait(large: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook's cell returns at once on a large run; `wait` has it read before the next cell."""
    monkeypatch.setenv(places.RUN, str(large))
    monkeypatch.delenv(places.STARTED, raising=False)

    async def cells() -> Workbook:
        book = open_workbook()
        assert book.state.diagnosis is None
        assert "Reading" in book.evidence.status.value
        slow.go.set()
        book.state.wait()
        assert book.state.diagnosis is not None
        return book

    book = asyncio.run(cells())
    assert "Open: large" in book.evidence.status.value


def test_coverage_says_what_an_early_end_left_out(book: Workbook, large: Path, slow: Slow) -> None:
    """What was not read leads the list of files."""
    whole = slow.answer

    def cut():
        diagnosis = whole()
        files = tuple(replace(f, read_bytes=0, notes=("reading was ended before this file",)) if f.path == "train.log" else f
                      for f in diagnosis.files)  # fmt: skip
        return replace(diagnosis, files=files)

    slow.answer = cut
    book.state.open(large, wait=True)
    assert book.evidence.files.title.startswith("3 files: 1 not read")
    assert book.evidence.files.rows[0][0] == "train.log"
