"""A loop of one's own in a page: the line that holds memory, the fix tried, the checklist ticked by measurement."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from diag_kit.lab.loop.result import Comparison, Holding, Line, Loop, Made, Peak
from diag_kit.workbook import places
from diag_kit.workbook.jobs import Job
from diag_kit.workbook.loop_view import BY, FIXED, Answer, LoopView, around, loop_figure
from diag_kit.workbook.state import WorkbookState

HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = """\
import torch
from torch import nn

kept = []


def factory():
    model = nn.Linear(64, 64)

    def step(model, x):
        out = model(x)
        loss = out.square().mean()
        loss.backward()
        kept.append(out)
        return loss

    return model, torch.randn(512, 64), step
"""


def answer(verdict: str | None = "gone", after: int = 0, until: str = "never", text: str = "kept.append(out)") -> Answer:
    """An answer as the lab gives it, of 1 MiB kept by each micro-step."""
    line = Line("train.py", 14, "step", text)
    made = (Made(line, "0", "addmm", (512, 64), "float32", 1 << 20),)
    held = Holding("graph", "graph-retention", "a tensor is kept", text, "step", line, 1 << 20, until, made, None, (), (),
                   "keep .detach() of it")  # fmt: skip
    loop = Loop("train.py:factory", "step", "cpu", False, 3, 2, (held,), 0, Peak(4 << 20, "backward", 3, made))
    tried = Comparison("detaching", verdict, "kept", 1 << 20, after if verdict else None, 4 << 20, 3 << 20, "same", line,
                       text, "" if verdict else "can't be run")  # fmt: skip
    return Answer(loop, (tried,))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkbookState:
    """A run that failed, open, its marks kept in a folder of their own."""
    monkeypatch.setenv("DIAG_KIT_DATA", str(tmp_path / "data"))
    made = WorkbookState()
    made.open(next(s.path for s in places.samples() if s.path.name == "accumulation-spike"))
    return made


@pytest.mark.parametrize(("verdict", "after", "mark"), [("gone", 0, "confirmed"), ("reduced", 1 << 19, "confirmed"),
                                                        ("unchanged", 1 << 20, "refuted"), (None, 0, "todo")])  # fmt: skip
def test_a_fix_that_was_measured_ticks_the_checklist(state: WorkbookState, verdict, after: int, mark: str) -> None:
    """Gone or reduced confirms, unchanged refutes, no verdict says nothing; the mark is the lab's, with its bytes."""
    LoopView(state).show(answer(verdict, after))
    current = state.checklist.current(FIXED)
    assert current.state == mark
    assert (current.by, "1.0 MiB" in current.note) == ((BY, True) if verdict else ("", False))


def test_without_an_open_run_nothing_is_ticked() -> None:
    """The answer is shown all the same."""
    view = LoopView(WorkbookState())
    view.show(answer())
    assert "On the checklist" not in view.tried.value
    assert "kept.append(out)" in view.answer.value


def test_the_line_stands_among_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source around the named line, that line marked; the line alone where the file is gone."""
    monkeypatch.chdir(tmp_path)
    line = Line("train.py", 14, "step", "kept.append(out)")
    assert [tuple(one) for one in around(line)] == [("kept.append(out)", True)]
    (tmp_path / "train.py").write_text(SCRIPT)
    shown = around(line)
    assert [one.text.strip() for one in shown if one.here] == ["kept.append(out)"]
    assert len(shown) == 7
    assert around(None) == []


def test_what_stays_alive_is_drawn_before_and_after() -> None:
    """What is never let go of climbs; what the window's end frees falls back there; the fix stands beside it."""
    climbs, fixed = loop_figure(answer()).spec["data"]
    assert climbs["y"] == [1, 2, 3, 4, 5, 6]
    assert fixed["y"] == [0] * 6
    (saw, _) = loop_figure(answer(until="the window ends")).spec["data"]
    assert saw["y"] == [1, 2, 0, 1, 2, 0]


def test_hostile_code_is_text(state: WorkbookState) -> None:
    """What a user's code is called never acts on the page, nor in the drawing."""
    view, bad = LoopView(state), answer(text=HOSTILE)
    bad = bad._replace(loop=replace(bad.loop, target=HOSTILE, notes=(HOSTILE,)), tried=(replace(bad.tried[0], change=HOSTILE),))
    view.show(bad)
    assert "<img" not in view.answer.value + view.words.value + view.tried.value
    assert "<img" not in loop_figure(bad).spec["data"][1]["name"]
    view._say(HOSTILE)
    assert "<img" not in view.status.value


def test_a_loop_is_run_and_its_line_is_named(state: WorkbookState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real code, in a process of its own: the line, the bytes and what the fix did are what was measured."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    view = LoopView(state)
    view.path.value = "train.py:factory"
    view.button.click()
    assert "<mark>        kept.append(out)</mark>" in view.answer.value
    assert "train.py:14" in view.answer.value
    assert view.plot.layout.display == ""
    assert "kept" in (tmp_path / "train.py").read_text()


@pytest.mark.parametrize("given", ["", "gone.py:factory", "train.py:nothing"])
def test_what_cannot_be_run_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """A missing name, file or function says so, and the button can be pressed again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    view = LoopView(WorkbookState())
    view.path.value = given
    view.button.click()
    assert 'role="alert"' in view.status.value
    assert "Traceback" not in view.status.value
    assert not view.button.disabled


def test_a_loop_that_hangs_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs there is a button to end it; pressed, the process is gone and the page says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    view = LoopView(WorkbookState())
    view.path.value = "train.py:factory"

    async def press() -> None:
        view.button.click()
        assert (view.button.disabled, view.halt.layout.display) == (True, "")
        await asyncio.sleep(0.3)
        view.halt.click()
        while view.job:
            await asyncio.sleep(0.05)

    asyncio.run(press())
    assert "stopped before it was done" in view.status.value
    assert (view.button.disabled, view.halt.layout.display) == (False, "none")


def test_a_job_that_fails_is_one_line() -> None:
    """Whatever goes wrong in the thread arrives as text, and what follows is called all the same."""
    done: list[int] = []

    def fails(_stop) -> None:
        raise RuntimeError("no\nluck")

    job: Job[None] = Job(fails, lambda: done.append(1))
    job.start()
    assert done == [1]
    assert job.problem.startswith("RuntimeError: no")
