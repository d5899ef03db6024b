"""Worked examples of the sibling entries state what the memory model gives: each figure is computed and looked for in the text."""

import pytest

from diag_kit import estimate
from diag_kit.failures import entry
from diag_kit.units import GIB

SHAPES = {
    "1B": (16, 2048, 32, 8, 8192, 128256, True),
    "7B": (32, 4096, 32, 32, 11008, 32000, False),
    "8B": (32, 4096, 32, 8, 14336, 128256, False),
}
LORA = {"rank": 16, "targets": ["q_proj", "v_proj"]}
SMALL_LORA = {"rank": 8, "targets": ["q_proj", "v_proj"]}
ONE = {"micro_batch": 1, "seq_len": 4096, "precision": "bf16", "checkpointing": "full"}
SHORT = {"micro_batch": 4, "seq_len": 1024, "precision": "bf16"}


def ranks(strategy, count=8, **more):
    """Settings of a strategy over that many ranks."""
    return {"parallelism": {"strategy": strategy, "world_size": count, **more}}


def predicted(shape, settings):
    """The closed forms' document for a model of these sizes."""
    keys = ("n_layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "tied_embeddings")
    model = {"gated_ffn": True, **dict(zip(keys, SHAPES[shape], strict=True))}
    return estimate({"model": model, "method": "formula", **settings}).to_json()


def value(document, what):
    """Bytes at a path such as ``components_at_peak.logits``."""
    for key in what.split("."):
        document = document[key]
    return document


PEAK = "peak_allocated_bytes"
ROWS = [
    ("logits-loss-peak", "8B", ONE | {"lora": LORA}, {PEAK: "22.96", "components_at_peak.logits": "6.85"}),
    ("logits-loss-peak", "8B", ONE | {"lora": LORA, "fused_loss": True}, {PEAK: "17.10"}),
    ("logits-loss-peak", "1B", ONE | {"micro_batch": 4}, {PEAK: "35.57", "components_at_peak.logits": "27.40"}),
    ("logits-loss-peak", "1B", ONE | {"micro_batch": 4, "fused_loss": True}, {PEAK: "11.53"}),
    ("model-states-too-large", "7B", ONE | {"precision": "amp-bf16"}, {PEAK: "125.5"}),
    ("model-states-too-large", "7B", ONE, {PEAK: "62.8"}),
    ("model-states-too-large", "7B", ONE | {"optimizer": "adamw-8bit"}, {PEAK: "38.4"}),
    ("model-states-too-large", "7B", ONE | ranks("fsdp"), {PEAK: "9.0"}),
    ("model-states-too-large", "7B", ONE | {"lora": SMALL_LORA}, {PEAK: "15.4"}),
    ("model-states-too-large", "7B", ONE | {"lora": SMALL_LORA, "base_quantization": "nf4"}, {PEAK: "6.7"}),
    ("optimizer-state-first-step", "7B", ONE, {
        PEAK: "62.77", "components_at_peak.optimizer_state": "25.10", "components_at_peak.temporaries": "12.57"}),
    ("optimizer-state-first-step", "7B", ONE | {"optimizer": "adamw-fused"}, {PEAK: "50.72", "peak_by_phase.optimizer": "50.22"}),
    ("optimizer-state-first-step", "7B", ONE | {"optimizer": "adamw-8bit"}, {PEAK: "38.37"}),
    ("optimizer-state-first-step", "7B", ONE | {"optimizer": "sgd"}, {"peak_by_phase.backward": "25.6"}),
    ("resume-duplicate-states", "7B", ONE, {PEAK: "62.77", "components_at_peak.parameters": "12.55"}),
    ("evaluation-peak", "1B", SHORT, {
        PEAK: "20.47", "peak_by_phase.eval": "11.85", "components_at_peak.activations": "6.70"}),
    ("checkpoint-peak", "7B", ONE | ranks("fsdp"), {
        "components_at_peak.parameters": "1.57", "components_at_peak.optimizer_state": "3.14"}),
    ("communication-buffers", "7B", ONE, {PEAK: "62.77"}),
    ("communication-buffers", "7B", ONE | ranks("ddp"), {PEAK: "75.32", "components_at_peak.communication": "12.55"}),
    ("communication-buffers", "7B", ONE | ranks("fsdp"), {PEAK: "9.00", "components_at_peak.communication": "2.00"}),
    ("unsharded-gradients", "7B", ONE | {"grad_accum": 4} | ranks("fsdp"), {PEAK: "10.53", "components_at_peak.gradients": "1.57"}),
    ("unsharded-gradients", "7B", ONE | {"grad_accum": 4} | ranks("fsdp", no_sync=True), {
        PEAK: "21.51", "components_at_peak.gradients": "12.55"}),
    ("unsharded-gradients", "7B", ONE | {"grad_accum": 4, "gradient_dtype": "bf16"} | ranks("zero1"), {PEAK: "38.30"}),
    ("unsharded-gradients", "7B", ONE | {"grad_accum": 4, "gradient_dtype": "fp32"} | ranks("zero1"), {PEAK: "50.85"}),
    ("imbalance-across-ranks", "8B", ONE | {"grad_accum": 8} | ranks("megatron", 4, pipeline=4), {
        PEAK: "40.68", "components_at_peak.retained_graphs": "1.12"}),
    ("host-memory", "7B", ONE | ranks("zero3"), {PEAK: "18.20"}),
    ("host-memory", "7B", ONE | ranks("zero3", offload="optimizer"), {PEAK: "7.21"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "settings", "figures"), ROWS)
def test_a_worked_example_states_what_the_model_gives(name, shape, settings, figures):
    """Each figure stands in the entry's worked example, to its last digit."""
    document, text = predicted(shape, settings), entry(name).reading["Worked example"]
    for what, words in figures.items():
        decimals = len(words.partition(".")[2])
        assert f"{value(document, what) / GIB:.{decimals}f}" == words, what
        assert words in text


def test_the_cache_of_the_example():
    """The cache's bytes for a token follow from the model's sizes."""
    text = " ".join(entry("kv-cache").reading["Worked example"].split())
    layers, _, _, kv_heads, *_ = SHAPES["8B"]
    token = 2 * layers * kv_heads * 128 * 2
    assert f"{token // 1024} KiB for each token" in text
    assert f"8,192 tokens are {token * 32 * 8192 // GIB} GiB" in text
    weights = predicted("8B", ONE)["components_at_peak"]["parameters"]
    assert f"{weights / GIB:.2f} GiB of weights" in text
