"""What a strategy changes, by formula over the trace of one rank: held against the closed forms and against sense."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from diag_kit.errors import SettingsError
from diag_kit.memory import formulas
from diag_kit.memory.engine import Traces
from diag_kit.memory.estimates import Estimate
from diag_kit.memory.settings import Settings
from diag_kit.memory.sharing import by_trace, local

MODEL = {"n_layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "vocab": 300}
PARAMS = Settings.from_json({"model": MODEL}).model.params


@pytest.fixture(scope="module")
def traces() -> Traces:
    """One for all: ranks and strategies that compute alike share a trace."""
    return Traces()


def run(strategy: str, ranks: int = 8, **more: Any) -> Settings:
    shared = {"strategy": strategy, "world_size": ranks} | more.pop("parallelism", {})
    return Settings.from_json(
        {"model": MODEL, "micro_batch": 1, "seq_len": 64, "device": "cpu", "parallelism": shared, **more}
    )


def phases(e: Estimate, phase: str, category: str) -> set[int]:
    return {m.by_category[category] for m in e.timeline if m.phase == phase}


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        *((strategy, "amp-bf16") for strategy in ("ddp", "zero1", "zero2", "zero3", "megatron")),
        ("zero1", "fp32"),
        ("zero2", "fp32"),
    ],
)
def test_states_and_optimizer_are_those_of_the_closed_forms(strategy, precision, traces):
    """What a rank keeps between steps and needs in the optimizer's is, for every strategy, what the formula says."""
    s = run(strategy, precision=precision, optimizer="adamw-foreach")
    found, formula = traces.estimate(s), formulas.estimate(s)
    batch = 32 * 64  # which the formula keeps until the end, with positions that the model makes itself
    assert found.steady_state_bytes == pytest.approx(formula.steady_state_bytes - batch, rel=0.001)
    assert found.peak_by_phase["optimizer"] == pytest.approx(formula.peak_by_phase["optimizer"], abs=batch)
    for category in ("parameters", "optimizer_state"):
        here, there = (e.timeline[-1].by_category[category] for e in (found, formula))
        assert here == pytest.approx(there, rel=0.001, abs=200), category
    assert any("by formula for" in said and f"{strategy} on 8 ranks" in said for said in found.assumptions)


@pytest.mark.parametrize("strategy", ["zero2", "zero3", "megatron"])
def test_parts_sum_to_the_peak_and_both_ways_to_ask_agree(strategy, traces):
    """Components and terms at the peak each sum to it, and the peak alone is the estimate's."""
    s = run(strategy, precision="bf16")
    e = traces.estimate(s)
    assert sum(e.components_at_peak.values()) == e.peak_allocated_bytes == traces.peak_bytes(s)
    assert sum(term.bytes for term in e.terms) == e.peak_allocated_bytes


def test_activations_are_those_of_one_rank(traces):
    """A strategy leaves activations and logits alone; an engine computes in 16 bits without autocast's copies."""
    alone, shared = traces.estimate(run("none", 1, precision="bf16")), traces.estimate(run("zero2", precision="amp-bf16"))
    for category in ("activations", "logits"):
        assert phases(alone, "backward", category) == phases(shared, "backward", category), category


def test_ranks_and_stages_need_no_trace_of_their_own(traces):
    """Once one stage is traced, a slider over ranks or stages is answered at once."""
    traces.estimate(run("zero1", 4, precision="bf16"))
    assert traces.has(run("zero1", 64, precision="bf16"))
    assert traces.has(run("zero3", 8, precision="bf16"))
    assert local(run("zero1", 4)) == local(run("zero3", 8))


def test_more_ranks_keep_less(traces):
    """ZeRO-3's states fall with the ranks; its buffers do not."""
    few, many = (traces.estimate(run("zero3", n, precision="bf16")) for n in (2, 16))
    for category in ("parameters", "optimizer_state"):
        assert few.timeline[-1].by_category[category] == pytest.approx(
            8 * many.timeline[-1].by_category[category], rel=0.01
        )
    assert phases(few, "backward", "communication") == phases(many, "backward", "communication")


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_no_sync_changes_nothing_where_gradients_are_whole_anyway(strategy, traces):
    """DDP and ZeRO-1 keep whole gradients with or without no_sync."""
    peaks = {
        traces.peak_bytes(run(strategy, grad_accum=2, precision="bf16", parallelism={"no_sync": no_sync}))
        for no_sync in (True, False)
    }
    assert len(peaks) == 1


def test_ddp_holds_a_second_gradient_throughout(traces):
    """DDP's buckets are one more copy of the gradients, in every phase."""
    e = traces.estimate(run("ddp", precision="amp-bf16", optimizer="adamw-foreach"))
    assert {m.by_category["communication"] for m in e.timeline} == {4 * PARAMS}


def test_gradients_under_accumulation(traces):
    """From the second micro-step on a rank holds its share of the gradients; ZeRO-3 and Megatron hold it always."""
    share = {"zero1": 1, "zero2": 8}
    for strategy, ranks in share.items():
        e = traces.estimate(run(strategy, grad_accum=2, precision="bf16"))
        first = next(m for m in e.timeline if m.phase == "forward" and m.micro_step == 2)
        assert first.by_category["gradients"] == pytest.approx(2 * PARAMS / ranks, rel=0.001, abs=100)
    for strategy, bytes_ in (("zero3", 2 * PARAMS / 8), ("megatron", 4 * PARAMS)):
        e = traces.estimate(run(strategy, precision="bf16"))
        assert {m.by_category["gradients"] for m in e.timeline} == {round(bytes_)}


def test_offload(traces):
    """Offloaded optimizer state is not on the device, nor are ZeRO-2's gradients; one device alone can offload too."""
    for strategy, gradients in (("zero2", 0), ("zero1", 2 * PARAMS), ("none", 2 * PARAMS)):
        s = run(strategy, precision="bf16", parallelism={"offload": "optimizer"})
        e = traces.estimate(s)
        assert e.timeline[-1].by_category["optimizer_state"] == 0
        assert max(phases(e, "optimizer", "gradients")) == gradients
        assert max(phases(e, "optimizer", "temporaries")) == 0
        told = formulas.estimate(s).peak_by_phase["optimizer"]
        assert e.peak_by_phase["optimizer"] == pytest.approx(told, rel=0.02)
    e = traces.estimate(run("zero3", precision="bf16", parallelism={"offload": "all"}))
    assert e.timeline[-1].by_category["parameters"] == 0
    assert phases(e, "forward", "communication") == {2 * PARAMS + 2 * PARAMS}


def test_fsdp_by_formula_where_it_is_offloaded(traces):
    """FSDP under offload is no trace of its own: gathered layers, root and unsharded gradient by formula."""
    s = run("fsdp", precision="amp-bf16", parallelism={"offload": "optimizer"})
    assert not by_trace(s)
    e, formula = traces.estimate(s), formulas.estimate(s)
    here, there = (max(phases(e_, "backward", "communication")) for e_ in (e, formula))
    assert here == pytest.approx(there, rel=0.002)
    assert e.timeline[-1].by_category["parameters"] == pytest.approx(4 * PARAMS / 8, rel=0.001)


def test_tensor_parallelism_is_refused(traces):
    """Tensor and pipeline parallelism are known by formula only, whatever strategy they are combined with."""
    for strategy in ("megatron", "zero1"):
        with pytest.raises(SettingsError, match="by formula only"):
            traces.estimate(run(strategy, 8, parallelism={"tensor": 2}))


def test_reserved_bytes_follow_the_share(traces):
    """The allocator is replayed with a rank's states, not with the whole ones."""
    e = traces.estimate(run("zero3", 64, precision="bf16", device="cuda", optimizer="adamw-fused"))
    assert e.peak_allocated_bytes <= e.peak_reserved_bytes < e.peak_allocated_bytes + 64 * 2**20
