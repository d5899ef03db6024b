"""The traced engine on real models: exact at held-out points, proven, kept, and in one line where it can't answer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from diag_kit.errors import SettingsError
from diag_kit.memory import engine, kept
from diag_kit.memory.exact import Exact, identity
from diag_kit.memory.program import Point
from diag_kit.memory.settings import Settings
from diag_kit.memory.terms import CATEGORIES
from diag_kit.memory.trace.step import Session

LLAMA = {"n_layers": 7, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "vocab": 500}
GPT = {"n_layers": 7, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 500, "gated_ffn": False, "positions": 2048,
       "tied_embeddings": True}  # fmt: skip
WINDOWED = {
    "model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 64, "num_hidden_layers": 7,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 500,
    "sliding_window": 1024, "max_position_embeddings": 4096,
}  # fmt: skip
SHORT_BERT = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 64, "num_hidden_layers": 7,
    "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 500, "max_position_embeddings": 128,
}  # fmt: skip


def settings(**document) -> Settings:
    return Settings.from_json({"model": LLAMA, "method": "trace", **document})


@pytest.mark.parametrize(
    ("document", "held_out"),
    [
        ({"precision": "bf16"}, [(1, 1000, 7, 1), (1, 33, 4, 1)]),
        ({"micro_batch": 2, "grad_accum": 2, "precision": "amp-bf16"}, [(5, 777, 6, 2), (3, 200, 4, 5)]),
        ({"micro_batch": 2, "grad_accum": 3, "backward": "deferred", "device": "cpu"}, [(4, 100, 5, 4), (2, 777, 7, 2)]),
        ({"model": GPT, "micro_batch": 4, "attention": "eager", "checkpointing": "full"}, [(2, 500, 6, 1), (7, 129, 4, 1)]),
        ({"model": {"hf_config": WINDOWED}, "micro_batch": 2, "seq_len": 1500, "gpu": "T4"}, [(3, 2000, 6, 1), (2, 1024, 7, 1)]),
        ({"model": {"hf_config": WINDOWED}, "seq_len": 500}, [(1, 600, 6, 1), (1, 1023, 7, 1)]),
        ({"model": {"hf_config": SHORT_BERT}, "micro_batch": 3, "seq_len": 96}, [(5, 128, 6, 1), (2, 40, 4, 1)]),
    ],
)
def test_a_program_is_exact_at_held_out_points(document, held_out):
    """Each program proves itself to the byte, and gives every byte of traces far from those it was made of."""
    s = settings(**document)
    exact = Exact(s)
    for b, n, layers, k in held_out:
        traced, p = exact.at(s.with_(micro_batch=b, seq_len=n, grad_accum=k))
        assert traced.off_bytes == 0
        recording = Session(s, layers).record(b, n, k)
        for own in recording.allocations:
            if s.device == "cuda":
                own.bytes = -(-own.bytes // 512) * 512
        assert traced.program.peak_bytes(p._replace(layers=layers)) == recording.peak_bytes()
    assert len(exact.programs) <= 2


def test_what_is_no_polynomial_is_traced_live(monkeypatch):
    """A course that changes with the length is found by the self-check; the point itself is traced, and said so."""
    from diag_kit.memory import exact as module

    monkeypatch.setattr(module, "_off", lambda *_: 4096)
    s = settings(model={**LLAMA, "n_layers": 3}, seq_len=200, grad_accum=4, device="cpu")
    traced, p = Exact(s).at(s)
    assert traced.off_bytes is None
    assert "4096 bytes off" in traced.said and "live" in traced.said
    assert traced.program.peak_bytes(p) == Session(s).record(1, 200, 4).peak_bytes()


def test_a_kept_program_answers_without_torch(tmp_path, monkeypatch):
    """A second process reads what the first has traced and imports no torch; a damaged file is traced anew."""
    monkeypatch.setenv(kept.FOLDER_VARIABLE, str(tmp_path))
    document = {"model": {**LLAMA, "hidden": 32}, "method": "trace"}
    first = engine.Traces().estimate(Settings.from_json(document)).to_json()
    (file,) = tmp_path.glob("*.npz")
    code = (
        "import json, sys; from diag_kit.memory.engine import estimate\n"
        "print(json.dumps(estimate(json.loads(sys.argv[1])).to_json())); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(document)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(json.dumps(first))
    file.write_bytes(b"no archive")
    assert engine.Traces().estimate(Settings.from_json(document)).to_json() == first


def test_an_estimate_by_trace_keeps_the_contract():
    """Components sum to the peak, phases have their largest moments, and what is assumed or unknown is said."""
    s = settings(precision="amp-bf16", micro_batch=2, grad_accum=3, capacity_bytes=16 << 30)
    e = engine.estimate(s)
    document = e.to_json()
    assert document["method"] == "trace"
    assert set(document["components_at_peak"]) == set(CATEGORIES)
    assert sum(document["components_at_peak"].values()) == document["peak_allocated_bytes"]
    assert sum(term.bytes for term in e.terms) == document["peak_allocated_bytes"]
    assert max(v for k, v in document["peak_by_phase"].items() if k in ("forward", "loss", "backward", "optimizer")) == (
        document["peak_allocated_bytes"]
    )
    low, high = document["band_bytes"]
    assert low <= document["device_bytes"] <= high
    assert document["fits"] is True
    assert document["self_check"]["off_bytes"] == 0
    assert document["attention_kernels"] and document["decisions"] is not None
    assert any("0 bytes off" in line for line in document["assumptions"])
    assert engine.Traces().peak_bytes(s) == document["peak_allocated_bytes"]


def test_the_timeline_names_every_micro_step_and_what_leads():
    """The winning moment carries the operator; each shown micro-step has its forward, loss and backward."""
    e = engine.estimate(settings(grad_accum=5, attention="eager", seq_len=1024, micro_batch=2))
    shown = {(m.phase, m.micro_step) for m in e.timeline}
    assert {(phase, m) for phase in ("forward", "loss", "backward") for m in (1, 2, 4, 5)} | {("optimizer", None)} == shown
    assert " in model.layers.*" in e.peak.label or "loss" in e.peak.label


def test_moving_a_number_traces_nothing(monkeypatch):
    """Batch, length, depth and accumulation beyond the first are answered by the program: no model runs."""
    traces = engine.Traces()
    s = settings(micro_batch=2, grad_accum=2)
    traces.peak_bytes(s)
    monkeypatch.setattr(Session, "record", lambda *_: pytest.fail("traced again"))
    for change in ({"seq_len": 4096}, {"micro_batch": 9}, {"grad_accum": 64}, {"model": {**LLAMA, "n_layers": 40}}):
        moved = s.with_(**change)
        assert identity(moved) == identity(s) and traces.has(moved)
        assert traces.peak_bytes(moved) > traces.peak_bytes(s) - 1
        traces.sketch(moved)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"parallelism": {"strategy": "megatron", "world_size": 4, "tensor": 2}}, ["tensor", "formula"]),
        ({"model": {"hf_config": {"model_type": "nonesuch"}}}, ["nonesuch"]),
        ({"model": {"hf_config": {**WINDOWED, "num_attention_heads": 5}}, "seq_len": 512}, ["heads", "configuration"]),
        ({"model": {"hf_config": {**SHORT_BERT}}, "seq_len": 4096}, ["seq_len", "128"]),
        ({"model": {"factory": "no_such_module:build"}}, ["no_such_module"]),
    ],
)
def test_what_cannot_be_traced_is_one_line(document, words):
    """Sizes that don't divide, unknown architectures, sequences too long, factories that aren't there."""
    with pytest.raises(SettingsError) as error:
        engine.estimate(settings(**document))
    assert "\n" not in str(error.value)
    assert all(word in str(error.value).lower() for word in words)


def test_without_torch_auto_is_by_formula_and_trace_says_what_to_install(monkeypatch):
    """No library, no trace: closed forms answer where they can, and one line says what is missing where they can't."""
    monkeypatch.setattr(engine, "missing_for_trace", lambda: "torch")
    assert engine.estimate({"model": LLAMA}).method == "formula"
    with pytest.raises(SettingsError, match=r"diag-kit\[torch\]"):
        engine.estimate({"model": LLAMA, "method": "trace"})
    with pytest.raises(SettingsError, match=r"diag-kit\[torch\]"):
        engine.estimate({"model": {"factory": "mine:build"}})


def test_what_no_trace_can_shard_is_known_as_such_to_remedies():
    """An engine that answers from what is traced takes the same models by formula as the one that it stands on."""
    s = settings(parallelism={"strategy": "fsdp", "world_size": 4})
    traces = engine.Traces()
    traces._unshardable[identity(s)] = "FSDP by formula"
    assert engine.Known(traces).exact(s) is traces.exact(s)
    assert traces.exact(s).s.parallelism.strategy == "none"


def test_programs_of_the_users_own_code_are_not_kept(tmp_path, monkeypatch):
    """It may be other code the next time: nothing is written that would never be read."""
    monkeypatch.setenv(kept.FOLDER_VARIABLE, str(tmp_path / "kept"))
    code = tmp_path / "own.py"
    code.write_text(
        "import torch\n\ndef build(micro_batch, seq_len):\n"
        "    return torch.nn.Linear(4, 4), torch.zeros(micro_batch, seq_len, 4), lambda m, x: m(x).sum()\n"
    )
    s = settings(model={"factory": f"{code}:build"}, micro_batch=2, seq_len=16)
    assert Exact(s).at(s)[0].off_bytes == 0
    assert not (tmp_path / "kept").exists()


def test_layers_that_repeat_are_not_built(monkeypatch):
    """A hundred layers cost no more to trace than five."""
    built: list[int | None] = []
    original = Session.__init__

    def noted(self, s, layers=None):
        built.append(layers)
        original(self, s, layers)

    monkeypatch.setattr(Session, "__init__", noted)
    s = settings(model={**LLAMA, "n_layers": 100, "hidden": 48})
    traced, p = Exact(s).at(s)
    assert traced.off_bytes == 0 and p == Point(1, 1024, 100, 1)
    assert max(layers or 1000 for layers in built) <= 4


def test_no_polynomial_goes_on_where_the_model_ends():
    """Beyond its learned positions a model has no step: one line, and the largest length stops there."""
    from diag_kit.memory.plan import largest

    s = settings(model={"hf_config": SHORT_BERT}, micro_batch=3, seq_len=96, capacity_bytes=64 << 30)
    traces = engine.Traces()
    assert largest(s, "seq_len", traces) == 128
    with pytest.raises(SettingsError, match="128 learned positions"):
        traces.peak_bytes(s.with_(seq_len=129))
