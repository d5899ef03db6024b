"""Which engine answers the what-if: programs that are kept, closed forms until then, and a process that makes them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from diag_kit.memory import exact, formulas, traced
from diag_kit.memory.background import Background
from diag_kit.memory.engine import Traces
from diag_kit.memory.plan import remedies
from diag_kit.memory.settings import Settings
from diag_kit.units import GIB
from diag_kit.workbook import answers, workbook
from diag_kit.workbook.answers import Answers, neighbours
from diag_kit.workbook.curves import Curves, textbook
from diag_kit.workbook.state import WorkbookState
from diag_kit.workbook.what_if_view import WhatIfView

SMALL = Settings.from_json({
    "model": {"n_layers": 4, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn": 256, "vocab": 1000, "tied_embeddings": True},
    "micro_batch": 2, "seq_len": 512, "precision": "bf16", "attention": "eager", "capacity_bytes": GIB,
})  # fmt: skip


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program of ``SMALL``, traced by the process that the workbook starts."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIAG_KIT_CACHE", str(folder))
        background = Background([SMALL])
        background.wait(300)
        assert not background.running
        assert background.errors == {}
    return folder


@pytest.fixture
def kept(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, and no trace beside it: one that begins fails the test."""
    monkeypatch.setenv("DIAG_KIT_CACHE", str(programs))

    def begun(*_: object) -> None:
        raise AssertionError("a trace began")

    monkeypatch.setattr(exact.Exact, "_trace", begun)
    return programs


def view_of(settings: Settings) -> WhatIfView:
    """A what-if of a model that a person named."""
    state = WorkbookState()
    state.logged = state.settings = settings
    state.origins = {"model": "this test"}
    return WhatIfView(state)


def test_what_the_process_kept_is_exact_here_without_torch(kept: Path) -> None:
    """The kernel reads the program of another process, answers as a trace would, and imports neither torch nor
    transformers for it.
    """
    code = (
        f"""
import sys
from diag_kit.memory.settings import Settings
from diag_kit.workbook.answers import Answers
a, s = Answers(), Settings.from_json({json.dumps(SMALL.to_json())!s})
assert a.exact(s)
print(a.standing(s).line, a.sketch(s).method, *(name for name in ("torch", "transformers") if name in sys.modules))
""".replace("null", "None")
        .replace("true", "True")
        .replace("false", "False")
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    assert said == "Exact: traced from LlamaForCausalLM, self-check 0 bytes off trace\n"


def test_a_move_evaluates_and_neither_traces_nor_replays(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One estimate for the step's plot; the curves come from one product for all lengths, once for each axis."""
    view = view_of(SMALL)
    assert "exact" in view.engine.line.value
    monkeypatch.setattr(traced, "replay", lambda *_, **__: pytest.fail("the allocator was replayed"))
    asked: list[str] = []
    for name in ("sketch", "estimate", "curve"):
        real = getattr(Traces, name)
        monkeypatch.setattr(Traces, name, lambda self, *a, n=name, r=real: (asked.append(n), r(self, *a))[1])
    view._tables = lambda: None  # comes once the controls rest
    view.controls["seq_len"].value = 640
    assert asked.count("sketch") <= 1
    assert "estimate" not in asked
    asked.clear()
    view.controls["seq_len"].value = 768  # on the same axis: only the point moves
    assert "curve" not in asked


def test_settings_of_another_family_are_closed_forms_at_once(kept: Path) -> None:
    """A change that no kept program covers is answered, by formula, and said to be."""
    view = view_of(SMALL)
    view.controls["checkpointing"].value = "full"
    assert "closed forms" in view.engine.line.value
    assert "not traced yet" in view.engine.line.value
    assert view.engine.button.layout.display == ""
    expected = formulas.estimate(view.state.settings).peak_allocated_bytes
    assert view.answers.sketch(view.state.settings).peak_allocated_bytes == expected


def test_an_example_model_is_not_offered_for_tracing() -> None:
    """Nobody named the model: tracing it would cost a minute for a number of nobody's run."""
    view = workbook().what_if
    assert "example model" in view.engine.line.value
    assert view.engine.button.layout.display == "none"


def test_without_torch_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed forms answer, the line names what is missing, and nothing is offered that can't be done."""
    monkeypatch.setattr(answers, "missing_for_trace", lambda: "torch")
    view = view_of(SMALL)
    assert "torch is not installed here" in view.engine.line.value
    assert view.engine.button.layout.display == "none"


class Told:
    """A tracing process as the view sees it."""

    def __init__(self, settings: list[Settings]) -> None:
        self.settings, self.at, self.errors, self.layers = tuple(settings), 0, dict[int, str](), dict[int, int]()
        self.what, self.done, self.meant, self.running = "tracing micro-batch 2", 3, 7, True

    def stop(self) -> None:
        self.running = False


def test_progress_is_a_line_and_a_bar_and_another_family_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of seven traces are told; a second request for the same is none, for another ends the first; what fails is
    told once and not begun again.
    """
    pytest.importorskip("transformers")
    monkeypatch.setattr(answers, "Background", Told)
    view = view_of(SMALL)
    view.engine.button.click()
    first = view.answers.background
    assert first.settings == tuple(dict.fromkeys((SMALL, *neighbours(SMALL))))
    assert "traced model not ready (3 of 7 traces)" in view.engine.line.value
    assert 'role="progressbar"' in view.engine.line.value
    assert 'aria-valuenow="3"' in view.engine.line.value
    view.state.change(seq_len=1024)
    view.trace()
    assert view.answers.background is first
    view.state.change(optimizer="sgd")
    view.trace()
    second = view.answers.background
    assert (second is first, first.running) == (False, False)
    second.errors, second.at, second.running = {0: "the model can't be built: <b>no</b>"}, len(second.settings), False
    view.answers.heard()
    assert "can&#39;t be built: &lt;b&gt;no&lt;/b&gt;" in view.engine.line.value
    view.trace()
    assert view.answers.background is second
    view.engine.stop.click()
    assert view.answers.background is None


def test_nothing_is_traced_before_the_what_if_is_touched(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening evidence starts no process; a control that a person moved does, once it rests on a kernel's loop."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(answers, "Background", Told)
    monkeypatch.setattr("diag_kit.workbook.what_if_view.REST_SECONDS", 0.05)

    async def moves() -> None:
        book = workbook(run)
        view = book.what_if
        await asyncio.sleep(0.15)
        assert view.answers.background is None
        view.controls["seq_len"].value = 2048
        assert view.answers.background is None
        await asyncio.sleep(0.5)
        assert view.answers.background.settings[0].seq_len == 2048
        view.answers.background.running = False

    asyncio.run(moves())


def test_the_process_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """A kernel that is killed leaves no tracing behind."""
    pytest.importorskip("torch")
    code = (
        "import sys, time\nfrom diag_kit.memory.background import Background\nfrom diag_kit.memory.settings import Settings\n"
        f"import json\nb = Background([Settings.from_json(json.loads({json.dumps(SMALL.to_json())!r}))])\n"
        "print(b._process.pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(300):
        try:
            os.kill(child, 0)
            if Path(f"/proc/{child}/stat").read_text().split(")")[1].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.1)
    pytest.fail("the tracing process outlived its parent")


def test_a_process_that_is_stopped_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """``stop`` waits for the end, and is no error."""
    background = Background([SMALL])
    background.stop()
    assert not background.running
    assert background.errors == {}
    assert background._process.poll() is not None


def test_changes_that_are_not_traced_are_taken_off_the_exact_peak(kept: Path) -> None:
    """A traced change is exact; of another the saving is the closed forms', and each says which it is."""
    held = Answers()
    engine = held.beside(SMALL)
    now = held.peak_bytes(SMALL)
    found = {r.id: r for r in remedies(SMALL, engine)}
    assert found["length-cap" if "length-cap" in found else "half-length"].method == "trace"
    loss = found["fused-loss"]
    after = replace(SMALL, fused_loss=True)
    assert loss.method == "formula"
    assert loss.saves_bytes == formulas.peak_bytes(SMALL) - formulas.peak_bytes(after)
    assert loss.peak_bytes == now - loss.saves_bytes


def test_the_length_curve_is_the_programs_and_names_its_kinks(kept: Path) -> None:
    """Every point of a traced curve is the peak at that length; where another moment leads, length and moment are said."""
    held = Answers()
    curves = Curves(held)
    figure = curves.length(SMALL)
    own = next(t for t in figure.spec["data"] if (t.get("name") or "").startswith("eager, quadratic"))
    assert "closed form" not in own["name"]
    for x, y in list(zip(own["x"], own["y"], strict=True))[::9]:
        assert y == round(held.peak_bytes(SMALL.with_(seq_len=x)) / GIB, 3)
    lengths = tuple(own["x"])
    for length, lead in curves.shape(SMALL, lengths).kinks:
        before, after = held.traces.curve(SMALL, [length - 8, length])
        assert (before.phase, before.label) != (after.phase, after.label)
        assert f"From {length:,} tokens on, {lead.phase} (aten::{lead.label}) leads" in figure.text
    off = 100 * (textbook(SMALL, 512) - held.peak_bytes(SMALL)) / held.peak_bytes(SMALL)
    assert f"{off:+.0f} % off".replace("-", "−") in figure.text
    assert any(t.get("name") == "textbook formula" for t in figure.spec["data"])
