"""The figures of "Worked example" sections are those of the memory model and of data/measured, not of memory."""

import json
import re
from pathlib import Path

import pytest

from diag_kit import failures
from diag_kit.memory.formulas import estimate
from diag_kit.memory.settings import Settings
from diag_kit.units import GIB, MIB

MEASURED = Path(__file__).parents[2] / "data" / "measured" / "cpu_profiler.json"
LLAMA_1B = {"n_layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "gated_ffn": True, "vocab": 128256,
            "tied_embeddings": True}  # fmt: skip
LLAMA_7B = {"n_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, "gated_ffn": True, "vocab": 32000,
            "tied_embeddings": False}  # fmt: skip


def peak(model, **settings):
    """The closed forms' estimate, 4,096 tokens in bf16 unless said otherwise."""
    run = {"model": model, "seq_len": 4096, "precision": "bf16", "attention": "flash", "method": "formula"} | settings
    return estimate(Settings.from_json(run))


def gib(size):
    """As the pages print it."""
    return f"{size / GIB:.2f}"


def example(name):
    """The section, with its lines joined."""
    return " ".join(failures.entry(name).reading["Worked example"].split())


def test_accumulation():
    """Peaks with backward in each micro-step and deferred, the step, the slope, and the micro-step that fills 80 GiB."""
    ordinary = {n: peak(LLAMA_1B, grad_accum=n).peak_allocated_bytes for n in (1, 2, 8)}
    deferred = {n: peak(LLAMA_1B, grad_accum=n, backward="deferred").peak_allocated_bytes for n in (2, 7, 8)}
    parameters = peak(LLAMA_1B).components_at_peak["parameters"]
    text = example("gradient-accumulation-memory-spike")
    assert ordinary[2] == ordinary[8]
    assert deferred[8] - deferred[7] == (deferred[8] - deferred[2]) // 6
    assert deferred[7] < 80 * GIB < deferred[8]
    assert ordinary[2] - ordinary[1] == pytest.approx(parameters, rel=0.01)
    for said in (
        f"One micro-step: {gib(ordinary[1])} GiB", f"Two, and eight, with backward in each: {gib(ordinary[2])} GiB",
        f"higher by {gib(ordinary[2] - ordinary[1])} GiB", f"{gib(deferred[2])} GiB with two", f"{gib(deferred[8])} GiB with eight",
        f"adds {gib(deferred[8] - deferred[7])} GiB", "1.24 billion",
    ):  # fmt: skip
        assert said in text, said
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))["cases"]["llama-eager-deferred3"]
    assert measured["settings"]["grad_accum"] == 3 and measured["settings"]["seq_len"] == 384
    assert f"peaks at {measured['peak_bytes'] / MIB:.1f} MiB" in text


def test_activation():
    """Eager and fused, at a length and at twice that; the remedy that changes nothing; the logits' bytes."""
    eager, longer = peak(LLAMA_7B, attention="eager"), peak(LLAMA_7B, attention="eager", seq_len=8192)
    fused, fused_longer = peak(LLAMA_7B), peak(LLAMA_7B, seq_len=8192)
    recomputed = peak(LLAMA_7B, checkpointing="full")
    lean = peak(LLAMA_7B, checkpointing="full", optimizer="adamw-fused")
    small, small_fused = peak(LLAMA_1B), peak(LLAMA_1B, fused_loss=True)
    scores = [one.components_at_peak["attention_scores"] for one in (eager, longer)]
    logits = small.components_at_peak["logits"]
    text = example("activation-memory-spike")
    assert scores[1] == 4 * scores[0]
    assert fused.peak_phase == "optimizer"
    assert recomputed.peak_allocated_bytes == fused.peak_allocated_bytes
    assert logits == pytest.approx(14 * 4096 * LLAMA_1B["vocab"], rel=0.001)
    for said in (
        f"peaks at {gib(eager.peak_allocated_bytes)} GiB in backward, of which the scores are {gib(scores[0])}",
        f"{gib(longer.peak_allocated_bytes)} GiB, of which the scores are {gib(scores[1])}",
        f"{gib(fused.peak_allocated_bytes)} GiB at 4,096 tokens and at {gib(fused_longer.peak_allocated_bytes)} at 8,192",
        f"{gib(fused.peak_allocated_bytes)} GiB against {gib(fused.peak_by_phase['backward'])} in backward",
        f"still {gib(recomputed.peak_allocated_bytes)}", f"falls to {gib(lean.peak_allocated_bytes)}",
        f"{gib(small.peak_allocated_bytes)} GiB, of which {gib(logits)} are logits",
        f"takes it to {gib(small_fused.peak_allocated_bytes)}",
    ):  # fmt: skip
        assert said in text, said


def test_scores_as_the_page_says():
    """Eager attention saves 6 bytes for each of B x H x S x S in half precision, 4 in fp32, in each layer."""
    for precision, size in (("bf16", 6), ("fp32", 4)):
        one = {**LLAMA_7B, "n_layers": 20}
        two = {**LLAMA_7B, "n_layers": 21}
        held = [
            peak(m, attention="eager", precision=precision).components_at_peak["attention_scores"] for m in (one, two)
        ]
        assert held[1] - held[0] == size * 32 * 4096**2


@pytest.mark.parametrize("name", ["gradient-accumulation-memory-spike", "activation-memory-spike"])
def test_claims_agree_with_the_example(name):
    """A figure in GiB that a claim of the page gives for the models of its example stands in the example too, or is
    the difference of two that do, or is what foreach costs."""
    entry, text = failures.entry(name), example(name)
    numbers = {float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.\d\d", text)}
    differences = {round(a - b, 2) for a in numbers for b in numbers}
    foreach, loop = (peak(LLAMA_7B, optimizer=f"adamw-{how}").peak_by_phase["optimizer"] for how in ("foreach", "loop"))
    differences.add(float(gib(foreach - loop)))
    for claim in entry.claims:
        if "memory model" in claim.measured or claim.measured.startswith("Llama"):
            for figure in map(float, re.findall(r"\d+\.\d\d", claim.measured)):
                assert figure in numbers | differences, (claim.claim, figure)
