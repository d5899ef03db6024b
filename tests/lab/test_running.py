"""Experiments really run, in a process of their own; whatever happens to it, the caller gets outcomes and one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag_kit import lab
from diag_kit.cli import main
from diag_kit.failures import load_entries
from diag_kit.lab import running

pytest.importorskip("torch")
FAST = (
    "retained-graph", "kept-outputs", "hidden-references", "detached-tensors", "first-step-jump", "accumulation-buffer",
    "grad-scaler", "eval-mode", "activation-budget", "model-states",
)  # fmt: skip
TRUTHS = {said.experiment: said.truth for entry in load_entries() for said in (*entry.causes, *entry.claims)}


def children() -> set[str]:
    """Processes whose parent is this one."""
    status = [path.read_text().split() for path in Path("/proc").glob("[0-9]*/stat") if os.access(path, os.R_OK)]
    return {words[0] for words in status if words[3] == str(os.getpid()) and words[2] != "Z"}


def test_a_subset_runs_and_agrees_with_the_entries() -> None:
    """Ten experiments in one child: each verdict is the entry's, each cheap, and nothing is left here."""
    started: list[str] = []
    told: list[lab.Outcome] = []
    before = children()
    outcomes = lab.run(FAST, device="cpu", on_outcome=told.append, on_start=lambda one: started.append(one.id))
    assert [o.problem for o in outcomes] == [None] * len(FAST)
    assert [o.experiment for o in outcomes] == started == [o.experiment for o in told] == list(FAST)
    assert {o.experiment: o.verdict for o in outcomes} == {id: TRUTHS[id] for id in FAST}
    assert all(o.lines and o.rows and o.device == "cpu" and o.torch and o.cpu_seconds < 5 for o in outcomes)
    assert children() == before


@pytest.mark.skipif("DIAG_KIT_LAB" not in os.environ, reason="the whole lab takes a minute; DIAG_KIT_LAB=1 runs it")
def test_the_whole_lab_runs_within_what_is_promised() -> None:
    """Every experiment runs here, says what the entries say, and takes under 5 s and all together under 90 s of CPU."""
    outcomes = lab.run(device="cpu")
    assert [o.problem for o in outcomes] == [None] * len(lab.experiments())
    assert {o.experiment: o.verdict for o in outcomes if o.experiment in TRUTHS}.items() <= TRUTHS.items()
    assert max(o.cpu_seconds for o in outcomes) < 5
    assert sum(o.cpu_seconds for o in outcomes) < 90


TAPE = """
import json, torch
from torch.profiler import ProfilerActivity, profile
from diag_kit.lab.tape import Bench
from diag_kit.lab.toys import Decoder, language_loss
torch.set_num_threads(1)
bench, model, ids = Bench("cpu"), Decoder(), torch.randint(0, 512, (4, 64))
def step(mark=lambda: None):
    loss = language_loss(model, ids)
    mark()
    loss.backward()
    model.zero_grad(set_to_none=True)
step()
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as reference:
    step()
sizes = [e.nbytes() for e in sorted(reference.profiler.kineto_results.events(), key=lambda e: e.start_ns()) if e.name() == "[memory]"]
live = peak = 0
for size in sizes:
    live += size
    peak = max(peak, live)
with bench.tape() as tape:
    step(tape.mark)
    tape.mark()
before = torch.zeros(1 << 20)
with bench.tape() as other:
    del before
    one = torch.zeros(1000)
    other.mark()
now, most = iter([100, 150, 170]), iter([200, 260, 120])
torch.cuda.synchronize = torch.cuda.reset_peak_memory_stats = lambda: None
torch.cuda.memory_allocated, torch.cuda.max_memory_allocated = lambda: next(now), lambda: next(most)
with Bench("cuda").tape() as cuda:
    cuda.mark()
    cuda.mark()
print(json.dumps([peak, live, tape.peak, tape.live, tape.highest, other.live, other.peak, [cuda.live, cuda.highest, cuda.peak]]))
"""


def test_a_tape_has_the_profilers_bytes() -> None:
    """Peak and rest are those of torch's public profiler; what was there before the tape and is freed in it counts nothing."""
    done = subprocess.run(
        [sys.executable, "-c", TAPE], capture_output=True, check=True, text=True, cwd=Path(lab.__file__).parents[2]
    )
    peak, rest, taped, live, highest, other, most, cuda = json.loads(done.stdout)
    assert (taped, live[1], max(highest)) == (peak, rest, peak)
    assert 0 < live[0] < peak
    assert other == [4000] and most == 4000
    assert cuda == [[50, 70], [100, 160], 160]  # allocator statistics, from the start of the tape


def script(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let the lab's process be this script, with the ids as arguments."""
    monkeypatch.setattr(running, "_command", lambda device, ids: [sys.executable, "-c", text, device, *ids])


SPEAK = """
import json, os, sys, time
def say(**document): print(json.dumps(document), flush=True)
def outcome(id): say(outcome={"schema": "diag_kit.lab/1", "experiment": id, "verdict": "true", "says": "1 B.", "lines": [], "rows": []})
say(ready="2.0", device="cpu")
for id in sys.argv[2:]:
    say(start=id)
    ACT
    outcome(id)
"""


def test_a_child_that_dies_costs_one_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome says how it ended; the next experiments run in a new process."""
    script(monkeypatch, SPEAK.replace("ACT", "id == 'kept-loss' and os.kill(os.getpid(), 9)"))
    outcomes = lab.run(["eval-mode", "kept-loss", "long-batch"])
    assert [o.verdict for o in outcomes] == ["true", None, "true"]
    problem = outcomes[1].problem
    assert problem and "SIGKILL" in problem and "\n" not in problem


def test_a_child_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time limit its outcome says so, what it started ends with it, and the next one runs."""
    script(monkeypatch, SPEAK.replace("ACT", "id == 'kept-loss' and time.sleep(600)"))
    before, start = children(), time.monotonic()
    outcomes = lab.run(["kept-loss", "long-batch"], limit_s=1)
    assert time.monotonic() - start < 60
    assert "longer than 1 s" in str(outcomes[0].problem) and outcomes[1].verdict == "true"
    assert children() == before


def test_a_caller_that_stops_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the caller's own function ends the child, too."""
    script(monkeypatch, SPEAK.replace("ACT", "time.sleep(0.1)"))
    before = children()
    with pytest.raises(KeyboardInterrupt):
        lab.run(["eval-mode", "long-batch"], on_outcome=lambda outcome: (_ for _ in ()).throw(KeyboardInterrupt))
    assert children() == before


def test_without_torch_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each outcome has the problem; the command prints it once and ends with 2."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["lab", "kept-loss", "eval-mode"]) == 2
    out, err = capsys.readouterr()
    assert out.count("NOT RUN") == 2 and err.count("pip install torch") == 1 and len(err.splitlines()) == 1
    assert "Traceback" not in out + err


def test_cuda_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked for CUDA where torch finds none, the command says so and ends with 2."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["lab", "eval-mode", "--device", "cuda"]) == 2
    err = capsys.readouterr().err
    assert "finds no CUDA device; use --device cpu" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["nothing"], ["eval-mode", "--device", "tpu"], ["kept-los", "--list"]])
def test_bad_calls_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown id lists those there are, an unknown device the devices; status 2."""
    try:
        status = main(["lab", *arguments])
    except SystemExit as stop:
        status = stop.code
    err = capsys.readouterr().err
    assert status == 2 and len(err.splitlines()) == 1 and ("retained-graph" in err or "cuda" in err)


def test_listing_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """--list names every experiment, --json is a document of outcomes, and a terminal gets claim, verdict and numbers."""
    assert main(["lab", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(one.id in listed and one.title in listed for one in lab.experiments())
    assert main(["lab", "--list", "--json", "kept-loss"]) == 0
    assert json.loads(capsys.readouterr().out)["experiments"][0]["claim"] == lab.experiment("kept-loss").claim
    script(monkeypatch, SPEAK.replace("ACT", "pass"))
    assert main(["lab", "kept-loss", "--json"]) == 0
    assert lab.Outcome.from_json(json.loads(capsys.readouterr().out)["outcomes"][0]).verdict == "true"
    assert main(["lab", "kept-loss"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("TRUE ") and "claim: Adding up" in shown and "measured: 1 B." in shown and "1 true" in shown
