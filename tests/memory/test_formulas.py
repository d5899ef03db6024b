"""The closed forms: what an estimate promises, and the claims about memory that follow from it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from diag_kit.memory import formulas
from diag_kit.memory.device import context_bytes, workspace_bytes
from diag_kit.memory.formulas import estimate, micro_step_curve, peak_bytes, peak_curve
from diag_kit.memory.settings import Settings
from diag_kit.memory.terms import CATALOG, CATEGORIES
from diag_kit.units import GIB, MIB

ONE_B = {
    "n_layers": 16,
    "hidden": 2048,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 8192,
    "vocab": 128256,
    "tied_embeddings": True,
}
SEVEN_B = {"n_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000}
BERT = {
    "n_layers": 24,
    "hidden": 1024,
    "heads": 16,
    "ffn": 4096,
    "vocab": 30522,
    "gated_ffn": False,
    "positions": 512,
    "lm_head": False,
    "encoder": True,
}


def run(model=ONE_B, **settings):
    """Settings of a bf16 run of 2048 tokens, changed as given."""
    return Settings.from_json({"model": model, "precision": "bf16", "seq_len": 2048, **settings})


VARIETY = [
    run(),
    run(attention="eager", dropout=0.1, grad_accum=3),
    run(grad_accum=5, backward="deferred", checkpointing="full"),
    run(SEVEN_B, precision="amp-bf16", checkpointing="selective"),
    run(BERT, precision="amp-fp16", attention="eager", dropout=0.1, gpu="V100"),
    run(lora={"rank": 8}, base_quantization="nf4", checkpointing="full"),
    run(parallelism={"strategy": "fsdp", "world_size": 8}, precision="amp-bf16"),
    run(parallelism={"strategy": "zero3", "world_size": 8}, precision="amp-bf16", grad_accum=2),
    run(parallelism={"strategy": "megatron", "world_size": 8, "tensor": 2, "pipeline": 2}, grad_accum=4),
    run(parallelism={"strategy": "ddp", "world_size": 2}, fused_loss=True, capacity_bytes=80 * GIB),
    run(optimizer="adafactor", device="cpu"),
    run(optimizer="none", attention="efficient", keep_logits=False),
]


@pytest.mark.parametrize("s", VARIETY)
def test_components_sum_to_the_peak_and_the_peak_is_a_moment(s):
    """Components sum to the peak exactly; the peak is the largest moment, below the sum of the phases' peaks."""
    e = estimate(s)
    assert sum(e.components_at_peak.values()) == e.peak_allocated_bytes
    assert set(e.components_at_peak) == set(CATEGORIES)
    assert e.peak_allocated_bytes == max(m.total_bytes for m in e.timeline) == peak_bytes(s)
    assert e.peak_by_phase[e.peak_phase] == e.peak_allocated_bytes
    assert e.peak_allocated_bytes < sum(bytes_ or 0 for bytes_ in e.peak_by_phase.values())
    assert all(value >= 0 for m in e.timeline for value in m.by_category.values())
    assert e.band_bytes[0] <= e.device_bytes <= e.band_bytes[1]
    assert e.steady_state_bytes < e.peak_allocated_bytes <= e.peak_reserved_bytes <= e.device_bytes


@pytest.mark.parametrize("s", VARIETY)
def test_every_term_says_what_it_is(s):
    """Each term of an estimate has a category, a formula, an assumption, a source, and phases in which it lives."""
    for term in estimate(s).terms:
        assert term.category in CATEGORIES
        assert term.formula
        assert term.assumption
        assert term.source
        assert term.live_in
        assert term.bytes == term.unit_bytes * term.count > 0


def test_the_catalog_holds_no_term_that_no_run_has():
    """Every entry of the catalog appears in some estimate."""
    settings = [
        *VARIETY,
        run(parallelism={"strategy": "zero2", "world_size": 2}),
        run(precision="fp16", attention="eager"),
        run(BERT, precision="fp32", dropout=0.1),
    ]
    assert {term.name for s in settings for term in estimate(s).terms} == set(CATALOG)


@pytest.mark.parametrize(
    ("s", "traced_gib"),
    [
        (run(attention="eager", seq_len=1024, micro_batch=8), 54.13),
        (run(seq_len=1024, micro_batch=8), 29.39),
        (run(attention="eager", seq_len=4096), 64.22),
        (run(seq_len=4096), 15.85),
        (run(SEVEN_B, attention="eager", seq_len=4096), 134.61),
    ],
)
def test_first_step_of_real_models_as_traced(s, traced_gib):
    """Peaks of a first step of a 1B and a 7B Llama: tensor lifetimes of the Hugging Face code, traced on a CPU.

    Tolerance 0.05 %: the forms name every tensor that is alive there. In a first step there are no moments yet.
    """
    e = estimate(s.with_(device="cpu"))
    moments = next(t.bytes for t in e.terms if t.name == "optimizer moments")
    assert (e.peak_allocated_bytes - moments) / GIB == pytest.approx(traced_gib, rel=5e-4)


@pytest.mark.parametrize(("optimizer", "traced_gib"), [("adamw-loop", 50.69), ("adamw-foreach", 62.76)])
def test_optimizer_step_as_traced(optimizer, traced_gib):
    """The optimizer step of a 7B in bf16: foreach adds one list of moments over the loop (traced, ±0.05 %)."""
    e = estimate(run(SEVEN_B, seq_len=4096, device="cpu", optimizer=optimizer))
    assert e.peak_by_phase["optimizer"] / GIB == pytest.approx(traced_gib, rel=5e-4)


def test_attention_is_quadratic_when_eager_and_linear_when_fused():
    """Doubling a long sequence quadruples the eager scores; fused kernels have none and grow linearly."""
    scores = [estimate(run(attention="eager", seq_len=n)).components_at_peak["attention_scores"] for n in (8192, 16384)]
    assert scores[1] == 4 * scores[0]
    flash = [estimate(run(attention="flash", seq_len=n)) for n in (8192, 16384, 24576)]
    assert flash[0].components_at_peak["attention_scores"] == 0
    peaks = [e.peak_allocated_bytes for e in flash]
    assert peaks[2] - peaks[1] == peaks[1] - peaks[0]


def test_dropout_keeps_three_copies_of_the_scores():
    """In fp32 on a CPU eager attention saves the probabilities, the mask and the dropped-out copy, 4 bytes each."""
    e = estimate(run(BERT, precision="fp32", attention="eager", dropout=0.1, device="cpu", seq_len=512))
    scores = sum(t.unit_bytes for t in e.terms if t.category == "attention_scores")
    assert scores == 12 * 16 * 512**2


def test_a_silent_fall_to_the_math_path_is_quadratic():
    """sdpa on a CPU with dropout runs the math path, and says so."""
    e = estimate(run(BERT, precision="fp32", dropout=0.1, device="cpu"))
    assert e.components_at_peak["attention_scores"] > 0
    assert "math" in e.assumptions[0]


def test_sdpa_is_what_torch_picks_on_the_gpu():
    """sdpa runs flash on an A100; on a T4 fp16 runs the efficient kernel, with grouped heads repeated, and bf16 none."""
    assert estimate(run(gpu="A100")).assumptions[0].startswith("attention runs the flash")
    assert estimate(run(gpu="Tesla T4", precision="fp16")).assumptions[0].startswith("attention runs the efficient")
    assert estimate(run(gpu="Tesla T4")).assumptions[0].startswith("attention runs the math")
    assert peak_bytes(run(gpu="T4")) > peak_bytes(run(gpu="T4", precision="fp16")) > peak_bytes(run(gpu="A100"))


def test_backward_has_a_workspace_of_its_own():
    """Two of 8 MiB + 128 KiB before Hopper, two of 32 MiB since: autograd multiplies in another thread, none on a CPU."""
    assert workspace_bytes(run(gpu="Tesla T4")) == 2 * (8 * MIB + 128 * 1024)
    assert [workspace_bytes(run(gpu=gpu)) for gpu in ("H100", "B200", "RTX 5090")] == [64 * MIB] * 3
    assert workspace_bytes(run(device="cpu")) == 0


def test_deferred_backward_retains_one_graph_per_micro_step():
    """Deferred: exactly one graph more per micro-step. Ordinary: flat from the second micro-step on."""
    s = run(checkpointing="none")
    graph = next(t for t in estimate(s.with_(grad_accum=4, backward="deferred")).terms if t.name == "retained graph")
    deferred = micro_step_curve(s, 8, "deferred")
    assert {b - a for a, b in pairwise(deferred)} == {graph.unit_bytes}
    ordinary = micro_step_curve(s, 8, "each-micro-batch")
    assert ordinary[1] - ordinary[0] <= 2 * s.model.params * 2
    assert len(set(ordinary[1:])) == 1
    peaks = [peak_bytes(s.with_(grad_accum=k, backward="deferred")) for k in (2, 3, 4)]
    assert peaks[1] - peaks[0] == peaks[2] - peaks[1] == graph.unit_bytes


def test_gradients_persist_from_the_second_micro_step_on():
    """Accumulation raises the peak once, by at most one copy of the gradients and one layer's; then it is flat."""
    one, two, eight = (peak_bytes(run(grad_accum=k)) for k in (1, 2, 8))
    assert one < two == eight
    assert two - one <= 2 * run().model.params * 1.01


def test_optimizer_state_does_not_grow_with_the_batch():
    """State is a matter of trainable parameters: 8 bytes each in fp32, whatever batch or accumulation."""
    for s in (run(precision="fp32"), run(precision="fp32", micro_batch=8, grad_accum=16)):
        assert estimate(s).components_at_peak["optimizer_state"] == 8 * s.model.params


def test_no_sync_costs_memory_under_fsdp_and_nothing_under_ddp():
    """FSDP without synchronisation holds unsharded gradients: the difference is all but one rank's part of them."""

    def peak(strategy, no_sync):
        parallelism = {"strategy": strategy, "world_size": 8, "no_sync": no_sync}
        return peak_bytes(run(SEVEN_B, grad_accum=4, parallelism=parallelism, optimizer="sgd"))

    assert peak("ddp", True) == peak("ddp", False)
    assert peak("fsdp", True) - peak("fsdp", False) > 0.8 * 2 * 6.7e9 * 7 / 8


def test_persistent_gradient_buffers_make_accumulation_free():
    """Megatron's fp32 buffer is there from the start: accumulation changes nothing; 18 bytes per parameter in all."""
    s = run(SEVEN_B, precision="amp-bf16", parallelism={"strategy": "megatron", "world_size": 2})
    assert peak_bytes(s) == peak_bytes(s.with_(grad_accum=8))
    e = estimate(s)
    states = sum(e.components_at_peak[name] for name in ("parameters", "gradients", "optimizer_state"))
    assert states == pytest.approx(18 * s.model.params, rel=1e-6)


def test_checkpointing_keeps_layer_inputs_and_one_layer():
    """Full checkpointing: activations at the last layer's backward are its layer inputs and one recomputed layer."""
    s = run(SEVEN_B, seq_len=4096, checkpointing="full", optimizer="sgd")
    layer_inputs = next(t for t in estimate(s).terms if t.name == "layer input")
    assert layer_inputs.bytes == 32 * 4096 * 4096 * 2
    assert peak_bytes(s) < peak_bytes(s.with_(checkpointing="selective")) < peak_bytes(s.with_(checkpointing="none"))


def test_an_encoder_without_a_language_model_head_has_no_logits():
    """A classifier's logits are nothing; its peak has no loss over the vocabulary."""
    assert estimate(run(BERT)).components_at_peak["logits"] == 0
    assert estimate(run({**BERT, "lm_head": True})).components_at_peak["logits"] > 0


def test_fused_loss_never_holds_all_logits():
    """A fused loss takes the logits' copies away; dropping the outputs takes one copy away."""
    s = run(seq_len=8192, checkpointing="full")
    copies = 8192 * 128256
    assert peak_bytes(s) - peak_bytes(s.with_(keep_logits=False)) == 2 * copies
    assert peak_bytes(s) - peak_bytes(s.with_(fused_loss=True)) > 9 * copies


def test_lora_trains_few_parameters_and_saves_no_frozen_inputs():
    """Adapters have gradients and state; the frozen base has neither, and a 4-bit base is about a quarter in size."""
    lora = run(SEVEN_B, lora={"rank": 8, "targets": ["q_proj", "v_proj"]})
    e = estimate(lora)
    adapters = 32 * 2 * 8 * (4096 + 4096)
    assert next(t.bytes for t in e.terms if t.name == "optimizer moments") == 8 * adapters
    assert next(t.bytes for t in e.terms if t.name == "gradients of attention") == 4 * adapters
    assert not any(t.name in ("down-projection input", "normalised values") for t in e.terms)
    nf4 = estimate(lora.with_(base_quantization="nf4"))
    assert nf4.components_at_peak["parameters"] < 0.33 * e.components_at_peak["parameters"]


def test_headroom_and_fit_agree():
    """Headroom is the capacity minus what the device needs; without a capacity neither is known."""
    e = estimate(run(capacity_bytes=24 * GIB))
    assert e.headroom_bytes == 24 * GIB - e.device_bytes
    assert e.fits is (e.headroom_bytes >= 0)
    assert (estimate(run()).headroom_bytes, estimate(run()).fits) == (None, None)
    assert estimate(run(capacity_bytes=e.device_bytes)).fits is True
    assert estimate(run(capacity_bytes=e.device_bytes - 1)).fits is False


@pytest.mark.parametrize(
    ("settings", "low", "high"),
    [
        ({"gpu": "Tesla T4"}, 141, 141),
        ({"gpu": "NVIDIA A100-SXM4-80GB"}, 3 * 108, 1024),
        ({"gpu": "H200"}, 3 * 132, 1024),
        ({"gpu": "another"}, 140, 1024),
        ({"gpu": "H100", "parallelism": {"strategy": "fsdp", "world_size": 8}}, 3 * 132, 1024 + 688),
        (
            {"gpu": "H100", "parallelism": {"strategy": "megatron", "world_size": 8, "tensor": 2, "pipeline": 2}},
            3 * 132,
            1024 + 3 * 688,
        ),
        ({"device": "cpu", "parallelism": {"strategy": "ddp", "world_size": 2}}, 0, 0),
    ],
)
def test_what_a_process_holds_outside_the_allocator(settings, low, high):
    """In MiB: a context by the GPU's multiprocessors, as published, and NCCL's buffers for each process group."""
    assert context_bytes(run(**settings)) == (low * MIB, high * MIB)


@pytest.mark.parametrize("s", VARIETY)
def test_length_curve_is_the_estimate_at_each_length(s):
    """The curve equals the estimate at lengths that it was not solved from, to a byte per thousand million."""
    lengths = [64, 333, 1000, 5000, 20000]
    direct = [estimate(s.with_(seq_len=n)).peak_allocated_bytes for n in lengths]
    assert peak_curve(s, lengths) == pytest.approx(direct, rel=1e-9)


def test_curves_evaluate_the_model_a_few_times_whatever_their_length(monkeypatch):
    """A curve of any number of points costs four evaluations, a micro-step curve one: a slider stays quick."""
    count = 0
    inner = formulas._model

    def counted(s):
        nonlocal count
        count += 1
        return inner(s)

    monkeypatch.setattr(formulas, "_model", counted)
    peak_curve(run(), range(1, 1000))
    assert count == 4
    micro_step_curve(run(), 500, "deferred")
    assert count == 5


def test_timeline_stays_small_however_long_the_window():
    """A window of 512 micro-steps is shown by its first three and its last."""
    e = estimate(run(grad_accum=512))
    assert {m.micro_step for m in e.timeline} == {1, 2, 3, 512, None}
    assert len(e.timeline) < 60


def test_document_is_the_contracts():
    """``to_json`` has the contract's keys; evaluation and saving have figures of their own, which the peak leaves out."""
    document = estimate(run()).to_json()
    assert document["schema"] == "diag_kit.estimate/1"
    assert document["method"] == "formula"
    assert document["peak_by_phase"]["eval"] and document["peak_by_phase"]["checkpoint"]
    assert document["fits"] is None
    assert {
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "device_bytes",
        "peak_phase",
        "components_at_peak",
        "headroom_bytes",
        "band_bytes",
        "assumptions",
    } <= set(document)


def test_an_estimate_takes_a_document_and_shows_what_it_used():
    """A mapping is read as settings; the document of an estimate holds all of them and names those at their default."""
    shape = {"n_layers": 2, "hidden": 64, "heads": 4, "vocab": 100}
    document = estimate({"model": shape, "seq_len": 128}).to_json()
    assert Settings.from_json(document["settings"]) == Settings.from_json({"model": shape, "seq_len": 128})
    [usual] = [line for line in document["assumptions"] if line.startswith("settings at their default")]
    assert "micro_batch 1" in usual
    assert "checkpointing none" in usual
    assert "seq_len" not in usual


def test_the_largest_settings_overflow_nothing():
    """At every upper bound at once there is still an estimate, and a curve."""
    most = 10**9
    shape = dict.fromkeys(("n_layers", "hidden", "heads", "ffn", "vocab"), most)
    for attention in ("eager", "flash"):
        s = Settings.from_json(
            {"model": shape, "micro_batch": most, "seq_len": most, "grad_accum": most, "attention": attention}
        )
        assert estimate(s).peak_allocated_bytes > most**3
        assert peak_curve(s, [most])[0] > most**3


@pytest.mark.parametrize(
    ("gated", "attention", "precision", "shape", "vocab", "real_mib"),
    [
        (True, "eager", "fp32", (2, 1024), 8000, 177.0),
        (True, "eager", "bf16", (1, 2048), 500, 341.3),
        (True, "sdpa", "bf16", (2, 1024), 8000, 170.7),
        (True, "sdpa", "amp-bf16", (2, 1024), 8000, 194.4),
        (False, "eager", "fp32", (2, 1024), 8000, 170.9),
        (False, "sdpa", "bf16", (2, 1024), 8000, 168.2),
    ],
)
def test_evaluation_is_what_real_execution_held(gated, attention, precision, shape, vocab, real_mib):
    """Within 2.5 % of the highest live bytes of a forward pass under no_grad, executed on a CPU (transformers 5.24:
    LlamaForCausalLM and GPT2LMHeadModel, 4 layers of width 256, every storage counted).
    """
    llama = {"ffn": 688, "kv_heads": 4}
    gpt = {"ffn": 1024, "gated_ffn": False, "tied_embeddings": True, "activation": "gelu_new", "positions": 2048}
    model = {"n_layers": 4, "hidden": 256, "heads": 8, "vocab": vocab, **(llama if gated else gpt)}
    document = {"model": model, "micro_batch": shape[0], "seq_len": shape[1], "attention": attention}
    s = Settings.from_json({**document, "precision": precision, "device": "cpu", "optimizer": "none"})
    assert estimate(s).peak_by_phase["eval"] / MIB == pytest.approx(real_mib, rel=0.025)


def test_headroom_is_over_every_phase():
    """With a fused loss training never holds all logits, evaluation does: it decides the headroom, the step the fit."""
    s = run(fused_loss=True, checkpointing="full", micro_batch=8, optimizer="none", capacity_bytes=20 * GIB)
    e = estimate(s)
    assert e.peak_by_phase["eval"] > e.peak_allocated_bytes == max(m.total_bytes for m in e.timeline)
    assert e.headroom_phase == "eval" and e.fits and e.headroom_bytes < 0
    assert sum(e.components_at_peak.values()) == e.peak_allocated_bytes
    alone = estimate(run(micro_batch=8, capacity_bytes=20 * GIB))
    assert alone.headroom_phase == alone.peak_phase
    assert alone.headroom_bytes == 20 * GIB - alone.device_bytes


def test_saving_gathers_only_where_weights_are_sharded():
    """A rank writes what it holds; a full state dict of FSDP or ZeRO-3 brings the largest matrix together."""
    steady = {p: estimate(run(parallelism={"strategy": p, "world_size": 8})) for p in ("ddp", "fsdp", "zero3")}
    more = {p: e.peak_by_phase["checkpoint"] - e.timeline[-1].total_bytes for p, e in steady.items()}
    assert more["ddp"] == 0
    assert more["fsdp"] == more["zero3"] == ONE_B["vocab"] * ONE_B["hidden"] * 2
