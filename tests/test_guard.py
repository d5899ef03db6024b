"""Guards for a user's own tests: they fail on a loop that keeps memory and on a budget passed, and on nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from diag_kit.errors import DiagKitError
from diag_kit.guard import MemoryGrewError, PeakExceededError, assert_no_graph_retention, assert_peak_below

ROOT = Path(__file__).resolve().parents[1]


def net():
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))


def batches(n=5):
    return [torch.randn(16, 32) for _ in range(n)]


def test_a_leaking_loop_fails_and_the_line_is_named():
    """The message has the bytes, the holder, and the line that stores into it."""
    model, losses = net(), []

    def train():
        with assert_no_graph_retention(model=model) as guard:
            for x in guard.watch(batches()):
                losses.append(model(x).mean())  # the line to be named
                model(x).mean().backward()

    with pytest.raises(MemoryGrewError) as failure:
        train()
    said = str(failure.value)
    assert "10 KiB" not in said and "8 KiB stay alive per micro-step, held by losses" in said
    assert "losses.append(model(x).mean())" in said and Path(__file__).name in said


def test_a_healthy_loop_passes():
    """Gradients, optimizer state, numbers in a log and the last loss are no growth."""
    model, log = net(), []
    optimizer = torch.optim.AdamW(model.parameters())
    with assert_no_graph_retention(model=model) as guard:
        for x in guard.watch(batches()):
            loss = model(x).square().mean()
            loss.backward()
            log.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
    assert guard.holdings == () and guard.steps == 5


def test_as_a_call():
    """A step as a function is run and judged at once; so is its peak."""
    model, kept, x = net(), [], torch.randn(16, 32)
    assert_no_graph_retention(lambda: model(x).mean().backward(), model=model)
    with pytest.raises(MemoryGrewError, match=r"kept\.append"):
        assert_no_graph_retention(lambda: kept.append(model(x)), model=model)


def test_steps_may_be_told_by_hand():
    """A loop of one's own calls step(); too few micro-steps are no pass."""
    model = net()

    def carry():
        state = torch.zeros(16, 32)
        with assert_no_graph_retention() as guard:
            for x in batches():
                state = model(x + state).tanh()
                guard.step()

    with pytest.raises(MemoryGrewError, match="a state is carried on"):
        carry()
    with pytest.raises(DiagKitError, match="1 micro-steps were seen and 3 are needed"), assert_no_graph_retention() as one:
        one.step()


def test_budget_passed_names_what_is_largest():
    """The peak is exact: parameters, what was made, and nothing else; one byte less is too little."""
    model, x = net(), torch.randn(64, 32)
    with torch.no_grad():
        peak = assert_peak_below("1 GiB", lambda: model(x), model=model).peak_bytes
        weights = sum(p.numel() * 4 for p in model.parameters())
        assert peak == weights + 64 * 128 * 4 * 2
        assert_peak_below(peak, lambda: model(x), model=model)
        with pytest.raises(PeakExceededError) as failure:
            assert_peak_below(peak - 1, lambda: model(x), model=model)
    assert "above the budget" in str(failure.value) and "32 KiB by" in str(failure.value)
    assert Path(__file__).name in str(failure.value)


def test_attention_spike_is_told():
    """At the longest batch the scores pass the budget, and are named."""

    def attend():
        q = torch.randn(1, 2, 256, 16)
        return (q @ q.transpose(-1, -2)).softmax(-1) @ q

    with pytest.raises(PeakExceededError, match="attention scores"):
        assert_peak_below("600 KiB", attend)


def test_a_failure_inside_stays_what_it_is():
    """An exception of the block is neither swallowed nor replaced; torch is as it was."""
    backward = torch.autograd.backward
    with pytest.raises(ZeroDivisionError), assert_no_graph_retention():
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), assert_peak_below(1):
        torch.zeros(8).sum().item() / 0
    assert torch.autograd.backward is backward


@pytest.mark.parametrize("budget", ["much", "", 0, -1, True, 1.5e9, None])
def test_a_budget_is_a_size(budget):
    """What is no size is told in one line."""
    with pytest.raises(DiagKitError, match="is no size"):
        assert_peak_below(budget)


def test_fixture_and_marker_in_pytest_and_the_readme_s_smoke_test(tmp_path):
    """As a user has them: fixture and marker fail the leaking and the large test and pass the others; what the README
    gives to run after an upgrade is whole, and passes.
    """
    (tmp_path / "test_mine.py").write_text(
        "import pytest, torch\n"
        "kept = []\n"
        "w = torch.ones(64, 64, requires_grad=True)\n"
        "def test_leaks(memory_guard):\n    memory_guard.no_graph_retention(lambda: kept.append((w * 2).exp()))\n"
        "def test_keeps_nothing(memory_guard):\n    memory_guard.no_graph_retention(lambda: (w * 2).exp().sum().backward())\n"
        '@pytest.mark.memory_budget("1 KiB")\ndef test_large():\n    torch.zeros(1024)\n'
        '@pytest.mark.memory_budget("1 MiB")\ndef test_small():\n    torch.zeros(1024)\n'
    )
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = text[text.index("smoke test") :].split("```python\n")[1].split("```")[0]
    assert code.count("def test_") == 2
    (tmp_path / "test_readme.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "diag_kit.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers", str(tmp_path)],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert "2 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert "held by kept" in done.stdout and "above the budget of 1 KiB" in done.stdout


def test_importing_the_guard_needs_no_torch():
    """A test suite that doesn't use it doesn't pay for it."""
    code = "import sys, diag_kit.guard, diag_kit.pytest_plugin; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
