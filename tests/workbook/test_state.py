"""The page's state without a widget: prefilled from the evidence, kept in the user's data folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diag_kit.errors import EvidenceError, SettingsError, StateError
from diag_kit.prefill import ASSUMED_CAPACITY_BYTES
from diag_kit.units import GIB
from diag_kit.workbook import places
from diag_kit.workbook.state import AtRest, WorkbookState


@pytest.fixture
def state(run: Path) -> WorkbookState:
    made = WorkbookState()
    made.open(run)
    return made


def test_settings_come_from_the_evidence(state: WorkbookState) -> None:
    """What the evidence states fills the what-if, each with its file and line."""
    assert (state.logged.micro_batch, state.logged.grad_accum, state.logged.seq_len) == (2, 4, 4096)
    assert state.logged.attention == "eager"
    assert state.origins["seq_len"] == "settings.yaml:3"
    assert state.logged.capacity_bytes == pytest.approx(79.15 * GIB, rel=1e-6)
    assert state.origins["capacity_bytes"].startswith("train.log:")


def test_what_the_evidence_does_not_state_is_assumed(tmp_path: Path) -> None:
    """A bare message gives no model and no length: both are assumed, and origins do not claim otherwise."""
    state = WorkbookState()
    state.open(text="RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n")
    assert not {"model", "seq_len", "capacity_bytes"} & set(state.origins)
    assert state.logged.capacity_bytes == ASSUMED_CAPACITY_BYTES


def test_a_length_that_no_setting_states_is_the_failing_steps() -> None:
    """The series says how long the failing batch was; the what-if starts there, with that reading's line."""
    state = WorkbookState()
    state.open(next(s.path for s in places.samples() if s.title == "Long-batch outlier"))
    assert state.logged.seq_len == 4096
    assert state.origins["seq_len"].startswith("metrics.jsonl:")


def test_capacity_is_less_what_others_hold() -> None:
    """Other processes' memory is taken off the card, and the page says how much of what."""
    state = WorkbookState()
    state.open(next(s.path for s in places.samples() if s.title == "Many ranks"))
    others = state.diagnosis.figures["other_process_bytes"]
    assert state.logged.capacity_bytes == state.diagnosis.figures["total_bytes"] - others > 0
    assert state.capacity_note.endswith("less 58.21 GiB that other processes hold")


def test_prediction_and_evidence_are_told_apart(state: WorkbookState, run: Path) -> None:
    """A run that died although its settings fit is said to have hidden ones; one that agrees gets no such line."""
    assert state.compared == ()
    (run / "settings.yaml").write_text("per_device_train_batch_size: 1\nmax_seq_length: 128\n", encoding="utf-8")
    state.open(run)
    (line,) = state.compared
    assert line.parts
    assert "which fits, yet the run ran out of GPU memory with 74.00 GiB allocated" in line.text
    assert "Assumed: accumulation, attention kernel" in line.text


def test_growth_is_predicted_beside_what_was_measured() -> None:
    """Where each micro-step's growth was measured, the predicted one stands beside it."""
    state = WorkbookState()
    state.open(next(s.path for s in places.samples() if s.title == "Accumulation spike"))
    assert state.compared == (("2.12 GiB measured, 1.97 GiB predicted for each micro-step.", False),)


def test_growth_per_micro_step_sets_backward() -> None:
    """Where the measured series grows with each micro-step, the what-if starts with the graphs kept."""
    state = WorkbookState()
    state.open(next(s.path for s in places.samples() if s.title == "Accumulation spike"))
    assert state.logged.backward == "deferred"
    assert state.origins["backward"] == "growth per micro-step"


def test_bad_evidence_changes_nothing(state: WorkbookState, tmp_path: Path) -> None:
    """A missing path is one line, and what was open stays open."""
    before = state.diagnosis
    with pytest.raises(EvidenceError, match="no such file"):
        state.open(tmp_path / "gone.log")
    assert state.diagnosis is before


def test_a_refused_value_changes_nothing(state: WorkbookState) -> None:
    """The memory model's refusal reaches the caller, and the what-if keeps its last good settings."""
    before = state.settings
    with pytest.raises(SettingsError):
        state.change(micro_batch=0)
    assert state.settings is before


def test_what_if_and_marks_survive_a_restart(state: WorkbookState, run: Path) -> None:
    """A new kernel on the same evidence finds sliders, kept what-ifs and marks again."""
    item = next(item for item in state.checklist if item.evidence is None)
    state.change(seq_len=2048)
    state.explore()
    state.mark(item.id, "confirmed", "Ada", "seen twice")
    again = WorkbookState()
    again.open(run)
    assert again.settings.seq_len == 2048
    assert again.logged.seq_len == 4096
    assert [one["settings"]["seq_len"] for one in again.explored] == [2048]
    assert again.checklist.current(item.id).note == "seen twice"


def test_reset_and_forget(state: WorkbookState) -> None:
    """Back to the run as logged, and no what-if kept."""
    state.change(seq_len=2048)
    state.explore()
    state.reset()
    state.forget_explored()
    assert state.settings == state.logged
    assert state.explored == []


def test_a_mark_needs_a_name_and_todo_takes_it_back(state: WorkbookState) -> None:
    """Nobody's mark is refused; the same person's bare `todo` removes theirs."""
    item = next(item for item in state.checklist if item.evidence is None)
    with pytest.raises(StateError, match="name"):
        state.mark(item.id, "confirmed", " ")
    state.mark(item.id, "refuted", "Ada")
    state.mark(item.id, "todo", "Ada")
    assert state.checklist.marks(item.id) == ()


def test_an_unwritable_data_folder_stops_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where history can't be kept, the diagnosis still stands and one line says so."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("DIAG_KIT_DATA", str(blocked))
    state = WorkbookState()
    state.open(run)
    assert state.diagnosis is not None
    assert "can't keep or read your work" in state.notice


def test_opens_on_run_then_on_what_was_opened_last(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's run comes first; after a kernel restart, what a person opened since then does."""
    monkeypatch.setenv(places.RUN, str(run / "train.log"))
    monkeypatch.setenv(places.STARTED, "2000-01-01T00:00:00.000+00:00")
    assert WorkbookState().start_on() == (str(run / "train.log"),)
    WorkbookState().open(run)
    assert WorkbookState().start_on() == (str(run),)
    monkeypatch.setenv(places.STARTED, "2999-01-01T00:00:00.000+00:00")
    assert WorkbookState().start_on() == (str(run / "train.log"),)


def test_opens_on_a_sample_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a run, the sample that the index marks as default."""
    monkeypatch.delenv(places.RUN, raising=False)
    (path,) = WorkbookState().start_on()
    assert Path(path).name == "accumulation-spike"


def test_relative_paths_mean_the_folder_of_the_command(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs elsewhere; a relative path is taken from where the command was given."""
    monkeypatch.setenv(places.START, str(run.parent))
    state = WorkbookState()
    state.open("run")
    assert state.evidence == (str(run),)


def test_series_is_a_table() -> None:
    """The measured readings as a pandas frame, one row each, with its line."""
    state = WorkbookState()
    state.open(next(s.path for s in places.samples() if s.title == "Accumulation spike"))
    frame = state.series()
    assert list(frame.columns) == ["rank", "step", "micro_step", "metric", "bytes", "where"]
    assert frame["bytes"].max() == max(point.value_bytes for point in state.diagnosis.points)


def test_at_rest_calls_once() -> None:
    """Many requests in a row give one call, after the last; `now` does not wait; `cancel` forgets."""
    calls: list[int] = []

    async def moves() -> None:
        rest = AtRest(lambda: calls.append(1), seconds=0.01)
        for _ in range(5):
            rest()
        await asyncio.sleep(0.05)
        assert len(calls) == 1
        rest()
        rest.now()
        rest.now()
        rest()
        rest.cancel()
        await asyncio.sleep(0.05)

    asyncio.run(moves())
    assert len(calls) == 2
