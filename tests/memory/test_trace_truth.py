"""The trace held against what is true: real steps on this machine's CPU, recorded ones, and peaks published from GPUs."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing is traced here")
pytest.importorskip("transformers", reason="transformers is not installed: nothing is traced here")

from diag_kit.memory import engine
from diag_kit.memory.kept import FOLDER_VARIABLE
from diag_kit.memory.settings import Settings
from tests.memory.test_measured import benchmark

trace_cpu = benchmark("trace_cpu")
published = benchmark("published")
RECORDED = json.loads(trace_cpu.OUT.read_text(encoding="utf-8"))["cases"]

TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1200}
TINY_LLAMA = {**trace_cpu.LLAMA, **TINY, "num_key_value_heads": 2, "intermediate_size": 160}
NOW = {
    "accumulated": {"model": {"hf_config": TINY_LLAMA}, "seq_len": 200, "attention": "eager", "grad_accum": 2},
    "deferred, bf16": {
        "model": {"hf_config": TINY_LLAMA},
        "seq_len": 130,
        "grad_accum": 3,
        "backward": "deferred",
        "precision": "bf16",
    },
    "encoder, dropout, foreach": {
        "model": {"hf_config": {**trace_cpu.BERT, **TINY, "intermediate_size": 256}},
        "micro_batch": 3,
        "seq_len": 150,
        "attention": "eager",
        "dropout": 0.1,
        "optimizer": "adamw-foreach",
    },
    "encoder-decoder, amp": {
        "model": {
            "hf_config": {**trace_cpu.T5, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "vocab_size": 1200}
        },
        "micro_batch": 2,
        "seq_len": 96,
        "precision": "amp-bf16",
    },
}
RETRACED = (
    "llama-eager",
    "llama-sdpa-amp",
    "llama-sdpa-selective",
    "llama-sdpa-deferred3-ckpt",
    "llama-foreach",
    "llama-fused-loss",
    "qwen2-lora-bf16",
    "qwen2-windows-sdpa",
    "gemma2-eager-ckpt",
    "gpt2-sdpa-dropout-ckpt",
    "bert-sdpa-accum4-ckpt",
    "vit-sdpa",
    "t5-eager",
)
"""A third of the recorded configurations: each architecture, and each feature, at least once."""


STRATA = {
    # of rows whose settings are all stated, in allocated bytes, of transformers' code: (rows, median error, largest)
    "LoRA, checkpointing, eager": (7, 0.002, 0.005),
    "LoRA, checkpointing, eager, 4-bit base": (20, 0.005, 0.015),
    "LoRA, checkpointing, fused": (8, 0.002, 0.01),
    "LoRA, checkpointing, fused, 4-bit base": (21, 0.005, 0.09),
    "full training, checkpointing, fused": (1, 0.01, 0.01),
}


@pytest.mark.parametrize("name", NOW)
def test_a_real_step_needs_what_its_trace_says(name):
    """A step run now on tensors that hold memory peaks within 0.05 % of its trace."""
    s = Settings.from_json({**NOW[name], "device": "cpu"})
    assert trace_cpu.trace(s) == pytest.approx(trace_cpu.measure(s)["peak_bytes"], rel=trace_cpu.TOLERANCE)


def test_an_estimate_is_true_in_every_phase(tmp_path, monkeypatch):
    """What a user gets, polynomials and all, is within 0.05 % of a real step at its peak and 1 % in each phase."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    s = Settings.from_json({"model": {"hf_config": TINY_LLAMA}, "seq_len": 208, "device": "cpu"})
    real, e = trace_cpu.measure(s), engine.estimate(s.with_(method="trace"))
    assert e.method == "trace"
    assert e.peak_allocated_bytes == pytest.approx(real["peak_bytes"], rel=trace_cpu.TOLERANCE)
    for phase, value in real["highest_bytes"].items():
        assert e.peak_by_phase[phase] == pytest.approx(value, rel=0.01), phase


@pytest.mark.parametrize("name", RETRACED)
def test_recorded_steps_need_what_their_traces_say(name):
    """What the profiler saw of a real step, recorded with its settings, is traced within 0.05 %."""
    case = RECORDED[name]
    assert case["settings"] == trace_cpu.document(name)
    traced = trace_cpu.trace(Settings.from_json(case["settings"]))
    assert traced == pytest.approx(case["peak_bytes"], rel=trace_cpu.TOLERANCE)


def test_every_configuration_is_recorded():
    """The file holds each configuration of the benchmark as it stands there, and they are what they are said to be."""
    assert RECORDED.keys() == trace_cpu.CASES.keys()
    for name, case in RECORDED.items():
        assert case["settings"] == trace_cpu.document(name)
        assert case["peak_bytes"] == max(case["highest_bytes"].values())
    settings = [case["settings"] for case in RECORDED.values()]
    assert len(settings) >= 20
    assert len({s["model"]["hf_config"]["model_type"] for s in settings}) >= 5


def test_published_peaks_by_stratum():
    """What was traced of published rows, as the file has it, lies within each stratum's recorded bounds: medians far below
    2 %, and no row off by more than 8 % without its reason beside it."""
    table = list(published.told(recorded=True))
    found = published.strata([t for t in table if t.complete and t.row.group not in published.OTHER_CODE])
    assert {name: count for name, (count, *_) in found.items()} == {name: count for name, (count, *_) in STRATA.items()}
    for name, (_, median, largest) in STRATA.items():
        assert found[name][1] <= median, name
        assert found[name][2] <= largest, name
    assert not [t.row.id for t in table if t.complete and t.unexplained]


def test_a_published_row_is_traced_as_recorded():
    """One row traced now gives the bytes and the moment that the file holds."""
    row = next(t.row for t in published.told("fc-smollm2-135m-fp16-sdpa-bs2", recorded=True))
    assert list(published.trace(row)) == json.loads(published.TRACED.read_text(encoding="utf-8"))[row.id]


def test_what_peers_said_is_kept():
    """Each row has the answer of every peer, bytes or a reason, given to its present settings; formulas are restated so
    that they answer the same now."""
    kept = published.peers.held()["rows"]
    for _, name, question, _ in published.peers.questions():
        assert kept[name]["settings"] == question.digest, name
        for peer in published.peers.PEERS:
            said = kept[name]["answers"][peer]
            assert isinstance(said, int | str), (name, peer)
            if peer in ("Megatron-LM", "train_memory", "EleutherAI"):
                assert published.peers.answer(peer, question) == said, (name, peer)
