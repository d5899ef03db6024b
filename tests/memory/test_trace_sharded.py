"""FSDP2 by trace: held against memory by hand, and against a run of two processes."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from diag_kit.errors import SettingsError  # noqa: E402
from diag_kit.memory.engine import Traces, estimate  # noqa: E402
from diag_kit.memory.settings import Settings  # noqa: E402
from diag_kit.memory.trace import sharded  # noqa: E402
from diag_kit.memory.trace.recording import Recording  # noqa: E402
from diag_kit.memory.trace.sharded import pretended_group  # noqa: E402
from diag_kit.memory.trace.step import Session  # noqa: E402

MODEL = {"n_layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "vocab": 300}
NUMBERS = Settings.from_json({"model": MODEL}).model
LAYER = NUMBERS.layer_params
ROOT = NUMBERS.params - 3 * LAYER


def run(ranks: int = 4, no_sync: bool = False, **more: Any) -> Settings:
    shared = {"strategy": "fsdp", "world_size": ranks, "no_sync": no_sync}
    return Settings.from_json(
        {"model": MODEL, "micro_batch": 2, "seq_len": 64, "device": "cpu", "parallelism": shared} | more
    )


def record(s: Settings) -> Recording:
    with pretended_group(s.parallelism.data):
        return Session(s).record(s.micro_batch, s.seq_len, s.grad_accum)


def most(r: Recording) -> dict[str, dict[tuple[str, int], int]]:
    """By category: the most bytes alive in each (phase, micro-step)."""
    live: dict[str, int] = defaultdict(int)
    found: dict[str, dict[tuple[str, int], int]] = defaultdict(lambda: defaultdict(int))
    for mark, end in r.spans():
        for category, size in live.items():
            found[category][mark.phase, mark.micro_step] = size
        for event in r.events[mark.event : end]:
            own = r.allocations[abs(event) - 1]
            live[own.category] += own.bytes if event > 0 else -own.bytes
            at = (mark.phase, mark.micro_step)
            found[own.category][at] = max(found[own.category][at], live[own.category])
    return found


@pytest.mark.parametrize(("precision", "kept", "used", "reduced"), [("fp32", 4, 4, 4), ("amp-bf16", 4, 2, 4)])
def test_a_rank_by_hand(precision, kept, used, reduced):
    """States over the ranks; what is gathered and reduced, as torch's FSDPParamGroup holds it.

    In forward the root, a layer's parameters, the buffer they came in and, until then, that of the layer before; in
    backward the root, a layer's parameters, the buffer of the layer prefetched, and gradients that are being reduced.
    """
    found = most(record(run(precision=precision)))
    assert found["parameters"]["base", 0] == kept * NUMBERS.params // 4
    assert found["gradients"]["optimizer", 0] == kept * NUMBERS.params // 4
    counters = 4 * (3 * 9 + 3)  # one step count for each parameter
    assert found["optimizer_state"]["base", 0] == 2 * kept * NUMBERS.params // 4 + counters
    assert found["communication"]["base", 0] == 0
    assert found["communication"]["forward", 1] == (ROOT + 3 * LAYER) * used
    cast = LAYER * used // 4 if used != kept else 0  # the shard in 16 bits, while it is sent
    assert found["communication"]["backward", 1] == (ROOT + 2 * LAYER) * used + cast + LAYER * reduced


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("amp-bf16", 4)])
def test_no_sync_keeps_whole_gradients(precision, width):
    """Under no_sync each rank holds every gradient, in the dtype it is reduced in, until the last micro-step."""
    with_, without = (most(record(run(no_sync=no, precision=precision, grad_accum=2))) for no in (True, False))
    kept = (4 if precision.startswith("amp-") else 2) * NUMBERS.params // 4
    assert with_["gradients"]["forward", 2] == width * NUMBERS.params
    assert without["gradients"]["forward", 2] == kept
    assert with_["gradients"]["optimizer", 0] == without["gradients"]["optimizer", 0] == kept


def test_uneven_shards():
    """Rank 0 of three has the longest part of each tensor: its rows, divided and rounded up."""
    r = record(run(3))
    with torch.device("meta"):
        from diag_kit.memory.trace.models import build

        rows = [(p.shape[0], p.numel() // p.shape[0]) for p in build(run(3)).model.parameters()]
    assert most(r)["parameters"]["base", 0] == sum(4 * -(-n // 3) * width for n, width in rows)


def test_depth_length_and_accumulation_stay_exact():
    """Programs of a sharded model miss one more trace by no byte, and no group is left behind."""
    s = run(8, no_sync=True, model=MODEL | {"n_layers": 7}, precision="amp-bf16", grad_accum=4, micro_batch=1)
    traces = Traces()
    e = traces.estimate(s)
    assert e.method == "trace"
    at = {"micro_batch": 1, "seq_len": 64, "layers": 4, "grad_accum": 4}
    assert e.details["self_check"] == {"at": at, "off_bytes": 0}
    assert any("FSDP2 (fully_shard) over 8 ranks" in said for said in e.assumptions)
    assert sum(e.components_at_peak.values()) == e.peak_allocated_bytes == traces.peak_bytes(s)
    assert not dist.is_initialized()
    assert traces.has(s.with_(grad_accum=9, seq_len=72, model=MODEL | {"n_layers": 12}))


def test_a_group_never_outlives_a_failure():
    """Whatever fails within, the process group and the hook that torch installs with it are gone afterwards."""
    hook = sys.excepthook
    with pytest.raises(ZeroDivisionError), pretended_group(4):
        raise ZeroDivisionError
    assert not dist.is_initialized()
    assert sys.excepthook is hook


def test_a_process_group_of_the_users_own_is_left_alone():
    """In a process that has a group a trace is refused in one line, and closed forms answer where they may."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pytest.raises(SettingsError, match="has a process group of its own") as refused:
            estimate(run(method="trace"))
        assert "\n" not in str(refused.value)
        e = estimate(run())
        assert e.method == "formula"
        assert "process group of its own" in e.assumptions[0]
        assert dist.get_world_size() == 2
    finally:
        dist.destroy_process_group()


def test_a_model_that_torch_cannot_shard_is_answered_by_formula(monkeypatch):
    """Where fully_shard refuses, states and communication come by formula over the trace of a rank, and it is said."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("uniform original parameter dtype\nand more")

    monkeypatch.setattr(sharded, "fully_shard", refuse)
    e = Traces().estimate(run(micro_batch=1, precision="bf16"))
    assert e.assumptions[0].startswith("FSDP by formula: fully_shard refuses LlamaForCausalLM: ")
    assert e.timeline[-1].by_category["parameters"] == pytest.approx(2 * NUMBERS.params / 4, rel=0.001)
    assert max(m.by_category["communication"] for m in e.timeline) == 2 * (ROOT + 4 * LAYER)


def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "measure_sharded.py"
    spec = importlib.util.spec_from_file_location("measure_sharded", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_processes_hold_what_the_trace_says():
    """Two ranks over gloo, real tensors, in mixed precision under no_sync: the profiler's peak, to a ten-thousandth."""
    measure = benchmark()
    settings = measure.document({"precision": "amp-bf16", "grad_accum": 2, "parallelism": {"no_sync": True}})
    real = measure.real_peaks(settings)
    traced = measure.traced_peak(Settings.from_json(settings))
    assert real == pytest.approx([traced, traced], rel=1e-4)
