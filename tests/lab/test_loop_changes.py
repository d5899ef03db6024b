"""The measure again with one thing changed, a Trainer, fake tensors, the child process, and what can't be looked at."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

from diag_kit import cli
from diag_kit.errors import DiagKitError
from diag_kit.lab.loop import LoopError, compare, inspect_loop, try_fix
from diag_kit.lab.loop.child import inspect_apart
from diag_kit.lab.loop.result import comparison_from_json, lines
from tests.lab.scripts import changes

SCRIPTS = Path(__file__).with_name("scripts")
CHANGES = f"{SCRIPTS}/changes.py"


def layers() -> int:
    """How many linear layers live in this process."""
    gc.collect()
    return sum(issubclass(type(one), torch.nn.Linear) for one in gc.get_objects())


def test_each_setting_is_changed_by_itself():
    """Two settings, two measures, each from the same start; the verdict is that of the bytes."""
    keep, batch, same = compare(
        f"{CHANGES}:with_settings", change={"keep": False, "batch": 4, "other": 1}, settings={"batch": 16}
    )
    assert (keep.verdict, batch.verdict, same.verdict) == ("gone", "reduced", "unchanged")
    assert keep.before_bytes == batch.before_bytes == 16 * (128 + 32) * 4
    assert keep.after_bytes == 0 and batch.after_bytes == 4 * (128 + 32) * 4
    assert comparison_from_json(json.loads(json.dumps(keep.to_json()))) == keep


def test_without_a_leak_the_peak_is_compared():
    """Where nothing stays alive the change is judged by the peak; one that fails has no verdict."""
    small, broken = compare(f"{CHANGES}:with_keywords", change={"batch": 8, "refuse": True})
    assert (small.measure, small.verdict) == ("peak", "reduced") and small.after_bytes < small.before_bytes
    assert broken.verdict is None and "no such thing" in broken.problem


def test_deferred_backward_is_moved_on_a_copy_and_learns_the_same():
    """Backward in each micro-step: the growth is gone, the gradients are the same, and the file is as it was."""
    source = Path(CHANGES).read_text()
    (first,) = try_fix(f"{CHANGES}:deferred")
    assert (first.verdict, first.gradients) == ("gone", "same")
    assert first.after_bytes < 64 < first.before_bytes
    assert first.line.text.startswith("total = total + model(x)") and "_loss.backward()" in first.new
    assert Path(CHANGES).read_text() == source


def test_a_state_is_detached_and_the_change_of_what_is_learnt_is_told():
    """Of an LSTM's state the edit helps, and the gradients are no longer those of before."""
    dropped, detached = try_fix(f"{SCRIPTS}/public_leaks.py:lstm_state_never_detached")
    assert dropped.verdict is None and "second time" in dropped.problem
    assert (detached.verdict, detached.gradients) == ("gone", "changed")


def test_what_is_kept_in_a_dictionary_is_detached_there():
    """Appending a dictionary of losses: each tensor in it is detached, and the graph's bytes are gone from the measure.
    One place of a dictionary: what is stored there.
    """
    (extra,) = try_fix(f"{SCRIPTS}/public_leaks.py:extra_losses_of_a_step")
    assert extra.verdict in ("gone", "reduced") and extra.after_bytes < extra.before_bytes / 2
    assert ".items()" in extra.new and extra.gradients == "same"
    *_, memory = try_fix(f"{SCRIPTS}/public_leaks.py:graph_memory_by_node")
    assert memory.verdict == "gone" and memory.new.endswith("= row.detach()")


def test_needless_retain_graph_is_dropped():
    """Where no second backward runs, dropping retain_graph=True is all that is needed."""
    first = try_fix(f"{CHANGES}:useless_retain")[0]
    assert (first.verdict, first.gradients) == ("gone", "same")
    assert "retain_graph" in first.line.text and "retain_graph" not in first.new


def test_no_claim_where_an_edit_breaks_the_loop():
    """A sum that backward needs can't be detached: no verdict, and the reason. So with a context's attribute."""
    (first,) = try_fix(f"{CHANGES}:detach_would_break_learning")
    assert first.verdict is None and "does not require grad" in first.problem
    (first,) = try_fix(f"{SCRIPTS}/public_leaks.py:output_on_its_own_context")
    assert first.verdict is None and "save_for_backward" in first.problem


def test_no_claim_where_an_edit_ends_the_training(tmp_path):
    """An edit after which the loop runs and no gradient arrives is no fix, whatever it keeps."""
    path = tmp_path / "cut.py"
    path.write_text(CUT)
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert [one.verdict for one in try_fix(f"{path}:factory")] == ["unchanged"]
    (one,) = compare(f"{path}:factory", change={"cut": True})
    assert one.verdict is None and "nothing would be learnt" in one.problem
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator"])
def test_a_step_that_runs_nothing_is_not_called_healthy(tmp_path, kind):
    """An async or a generator step gives an object that runs nothing: said, and no verdict on it."""
    word, gives = ("def" if kind == "generator" else "async def"), "return" if kind == "coroutine" else "yield"
    path = tmp_path / "lazy.py"
    path.write_text(f"import torch\ndef factory():\n    {word} step(m, b):\n        {gives} m(b).sum()\n"
                    "    return torch.nn.Linear(8, 8), torch.ones(2, 8), step\n")  # fmt: skip
    with pytest.raises(LoopError, match=f"gives back a {kind}"):
        inspect_loop(f"{path}:factory")


def test_the_file_is_run_as_it_stands_now_and_as_python_runs_it(tmp_path):
    """Changed since the last look, it is read again; annotations are what they are without our own __future__; an error
    that has no words is told all the same.
    """
    path = tmp_path / "now.py"
    head = "import torch\ndef f(x: int): pass\nassert f.__annotations__['x'] is int\n"
    path.write_text(head + CUT)
    assert inspect_loop(f"{path}:factory").holdings
    path.write_text(head + "class E(Exception):\n    def __str__(self): raise ValueError\ndef factory(): raise E\n")
    with pytest.raises(LoopError, match=r"now\.py:6: E: \(without words\)"):
        inspect_loop(f"{path}:factory")


LEAVES = """
import os, subprocess, sys, threading, time
import torch
def fork():
    if pid := os.fork():
        open(os.environ["TOLD"], "w").write(str(pid))
    else:
        os.setsid()
        time.sleep(300)
        os._exit(0)
    return plain()
def thread():
    threading.Thread(target=time.sleep, args=(300,)).start()
    return plain()
def waits():
    open(os.environ["TOLD"], "w").write(str(os.getpid()))
    time.sleep(300)
def plain():
    return torch.nn.Linear(8, 8), torch.ones(2, 8), lambda m, b: m(b).sum()
"""


@pytest.mark.parametrize("name", ["fork", "thread"])
def test_what_the_code_leaves_running_is_not_waited_for(tmp_path, name, monkeypatch):
    """A thread or a process in a session of its own that outlives the answer keeps it from nobody."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    told = tmp_path / "pid"
    monkeypatch.setenv("TOLD", str(told))
    try:
        loop, _ = inspect_apart(f"{tmp_path / 'leaves.py'}:{name}", seconds=100)
        assert loop.holdings == ()
    finally:
        if told.exists():
            os.kill(int(told.read_text()), signal.SIGKILL)


def test_nobody_s_loop_goes_on_alone(tmp_path):
    """Where the one who asked is killed outright, the process that runs the user's code ends too."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    told = tmp_path / "pid"
    call = f"from diag_kit.lab.loop import inspect_apart; inspect_apart({str(tmp_path / 'leaves.py') + ':waits'!r})"
    asks = subprocess.Popen([sys.executable, "-c", call], env={**os.environ, "TOLD": str(told)})
    try:
        assert _until(lambda: told.exists() and told.read_text())
    finally:
        asks.kill()
        asks.wait()
    pid = int(told.read_text())
    assert _until(lambda: not _runs(pid))


def _until(done, seconds=60):
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.1)
    return bool(done())


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_limit_is_a_time(seconds):
    """What is no time is told before anything is run."""
    with pytest.raises(LoopError, match="give a number above 0"):
        inspect_apart(f"{CHANGES}:prints", seconds=seconds)


CUT = """
import torch
def factory(cut=False):
    model, batch, kept = torch.nn.Linear(64, 64), torch.ones(32, 64), []
    def step(model, batch):
        loss = model(batch).sin().pow(2)
        loss = loss.mean(1).repeat(64)
        if cut:
            return loss.detach().sum()
        kept.append(loss)
        return loss.sum()
    return model, batch, step
"""


def test_detaching_is_measured_not_assumed():
    """Detached outputs still take their own bytes: reduced, not gone."""
    (first,) = try_fix(f"{SCRIPTS}/shapes.py:in_dict")
    assert first.verdict == "reduced" and first.after_bytes == 16 * 32 * 4


def test_model_too_big_to_run_is_looked_at_under_fake_tensors():
    """8 TiB of parameters: nothing is allocated, it is said, and the line is named all the same."""
    found = inspect_loop(f"{CHANGES}:big_and_leaking")
    assert found.fake and "8192.00 GiB is asked for" in found.notes[0]
    assert found.holdings[0].line.text.startswith("kept.append(out.square())")
    assert found.holdings[0].bytes_per_micro_step >= 4 * (1 << 21) * 4
    with pytest.raises(LoopError, match=r"8192\.00 GiB"):
        inspect_loop(f"{CHANGES}:big", fake=False)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("raising", "KeyError: 'data set'"),
        ("step_raises", "mat1 and mat2 shapes cannot be multiplied"),
        ("needs_gpu", "it needs a GPU"),
        ("takes_one_batch", "took 1 of 3 batches"),
        ("returns_nothing", "returned NoneType; it must return"),
        ("absent", "has no function absent"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said without a GPU")
def test_what_cannot_be_looked_at_is_one_line(name, told):
    """A factory or step that raises, needs a GPU, or takes no second batch: one line with what to do."""
    before = layers()
    with pytest.raises(LoopError) as error:
        inspect_loop(f"{CHANGES}:{name}")
    assert told in str(error.value) and "\n" not in str(error.value)
    assert layers() == before


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"micro_steps": 1}, "micro_steps"),
        ({"device": "tpu"}, "neither cpu nor cuda"),
        ({"settings": {"depth": 3}}, "takes no setting 'depth'; it takes width, batch, refuse"),
    ],
)
def test_bad_calls_are_one_line(given, told):
    """Numbers out of range, unknown devices and unknown settings say what would do."""
    with pytest.raises(LoopError, match=told):
        inspect_loop(f"{CHANGES}:with_keywords", **given)


def test_nothing_is_left_behind():
    """Afterwards no tensor of the model lives, and torch is as it was."""
    before = layers()
    state, hook = torch.get_rng_state(), sys.gettrace()
    backward, collector = torch.autograd.backward, gc.isenabled()
    inspect_loop(f"{SCRIPTS}/shapes.py:in_global")
    assert torch.equal(torch.get_rng_state(), state) and sys.gettrace() is hook
    assert torch.autograd.backward is backward and gc.isenabled() is collector and gc.get_freeze_count() == 0
    assert layers() == before


def test_a_callable_is_taken_too():
    """A factory need not be in a file of its own."""
    found = inspect_loop(changes.with_settings, settings={"keep": True})
    assert found.target.endswith("changes.py:with_settings")
    assert found.holdings[0].holder == "kept"
    with pytest.raises(LoopError, match="an edit is tried on a copy"):
        try_fix(changes.with_settings)


def test_a_trainer_is_looked_at_through_its_training_step(tmp_path):
    """A transformers Trainer that keeps its outputs is named by line; the same without keeps nothing."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from diag_kit.lab.loop import inspect_trainer

    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=128, n_positions=32)
    rows = [{"input_ids": torch.arange(16) % 128, "labels": torch.arange(16) % 128} for _ in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, report_to=[], use_cpu=True, disable_tqdm=True
    )

    class Keeping(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            self.seen = [*getattr(self, "seen", []), outputs.logits]
            return (loss, outputs) if return_outputs else loss

    def made(kind):
        return kind(model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=rows)

    found = inspect_trainer(made(Keeping))
    assert found.form == "trainer" and found.holdings[0].holder == "Keeping.seen"
    assert found.holdings[0].line.text.startswith("self.seen = [")
    assert not inspect_trainer(made(transformers.Trainer)).holdings


def test_command_prints_a_dozen_lines(capsys, monkeypatch):
    """The command says that the code was run, the bytes, the line and the verdict; prints of the code stay out."""
    monkeypatch.chdir(SCRIPTS)
    assert cli.main(["loop", "shapes.py:in_closure_sum", "--try-fix"]) == 0
    said = capsys.readouterr().out
    assert "was run" in said and "shapes.py:80  total = total + model(x).pow(2).mean()" in said
    assert "GONE" in said and len(said.splitlines()) < 25
    assert cli.main(["loop", "changes.py:prints", "--set", "batch"]) == 2
    assert "is no setting; write name=value" in capsys.readouterr().err
    assert cli.main(["loop", "changes.py:prints", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "diag_kit.loop/1"


@pytest.mark.parametrize(("name", "told"), [("hangs", "not done after"), ("dies", "died (status 7)")])
def test_a_hang_or_a_crash_of_the_code_is_one_line(name, told):
    """The child is ended, and what happened is one line."""
    with pytest.raises(DiagKitError) as error:
        inspect_apart(f"{CHANGES}:{name}", seconds=8 if name == "hangs" else 60)
    assert told in str(error.value)


def test_without_torch_it_is_one_line(tmp_path):
    """Where torch isn't installed the command says so."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import io; sys.stdin = io.StringIO('{\"factory\": \"x.py:f\", \"settings\": {}, \"how\": {}}')\n"
        "from diag_kit.lab.loop.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "needs torch" in json.loads(done.stdout)["error"]


def test_lines_of_a_report_show_the_edit():
    """Old line, new lines, and that the file was left alone."""
    base = inspect_loop(f"{CHANGES}:deferred")
    said = lines(base, try_fix(f"{CHANGES}:deferred", before=base))
    assert any(one.startswith("  - total = total +") for one in said)
    assert sum(one.startswith("  + ") for one in said) == 3
    assert any("your file is as it was" in one for one in said)
