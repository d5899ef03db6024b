"""Settings: the contract's defaults, one clear line for each mistake, and shapes read from transformers configs."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from diag_kit.errors import SettingsError
from diag_kit.memory.architecture import from_hf_dict, from_numbers
from diag_kit.memory.formulas import estimate
from diag_kit.memory.settings import Settings, from_run, known_keys

MODEL = {"n_layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 100}


def test_defaults_are_the_contracts():
    """A document with a model only stands for the contract's default run."""
    s = Settings.from_json({"model": MODEL})
    assert (s.micro_batch, s.seq_len, s.grad_accum, s.backward) == (1, 1024, 1, "each-micro-batch")
    assert (s.precision, s.optimizer, s.attention, s.checkpointing) == ("fp32", "adamw", "sdpa", "none")
    assert (s.fused_loss, s.dropout, s.lora, s.parallelism.world_size) == (False, 0.0, None, 1)
    assert (s.device, s.method, s.capacity_bytes, s.gpu) == ("cuda", "auto", None, None)


def test_settings_read_back_equal():
    """What ``to_json`` writes reads back equal, through real JSON."""
    s = Settings.from_json(
        {
            "model": MODEL,
            "lora": {"rank": 4, "targets": ["q_proj"], "dtype": "bf16"},
            "base_quantization": "nf4",
            "parallelism": {"strategy": "fsdp", "world_size": 4, "no_sync": True},
            "capacity_bytes": 80 * 2**30,
        }
    )
    assert Settings.from_json(json.loads(json.dumps(s.to_json()))) == s


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"micro_bach": 2}, ["micro_bach", "micro_batch", "seq_len"]),
        ({"micro_batch": 0}, ["micro_batch", "from 1", "0"]),
        ({"micro_batch": True}, ["micro_batch", "True"]),
        ({"seq_len": "4096"}, ["seq_len", "'4096'"]),
        ({"precision": "int8"}, ["precision", "int8", "amp-bf16"]),
        ({"optimizer": None}, ["optimizer", "adamw-8bit"]),
        ({"dropout": 1.0}, ["dropout", "below 1"]),
        ({"fused_loss": "yes"}, ["fused_loss", "true or false"]),
        ({"lora": {"rank": 8, "target": ["q_proj"]}}, ["lora", "target", "targets"]),
        ({"lora": {"targets": []}}, ["lora.targets", "no layer"]),
        ({"seq_len": 10**10}, ["seq_len", "to 1000000000"]),
        ({"micro_batch": 10**6000}, ["micro_batch", "digits"]),
        ({"capacity_bytes": 10**19}, ["capacity_bytes", "digits"]),
        ({"model": {**MODEL, "vocab": 10**10}}, ["model.vocab", "to 1000000000"]),
        ({"model": {**MODEL, "hidden": 66}}, ["model.hidden", "heads", "head_dim"]),
        ({"model": {**MODEL, "kv_heads": 0}}, ["model.kv_heads", "from 1"]),
        ({"lora": {"targets": ["c_attn"]}}, ["lora.targets", "c_attn", "q_proj"]),
        ({"lora": 8}, ["lora", "object"]),
        ({"base_quantization": "nf4"}, ["base_quantization", "lora"]),
        ({"parallelism": {"strategy": "zero4"}}, ["parallelism.strategy", "zero4", "zero3"]),
        ({"parallelism": {"strategy": "zero2", "world_size": 2, "no_sync": True}}, ["no_sync", "ZeRO"]),
        ({"parallelism": {"strategy": "megatron", "world_size": 6, "tensor": 4}}, ["world_size", "6"]),
        ({"method": "guess"}, ["method", "formula"]),
        ({"capacity_bytes": -1}, ["capacity_bytes"]),
        ({"model": {**MODEL, "layers": 2}}, ["model", "layers", "n_layers"]),
        ({"model": {"n_layers": 2}}, ["model", "hidden", "hf_config"]),
        ({"model": {**MODEL, "heads": 2.5}}, ["model.heads", "2.5"]),
        ({"model": {**MODEL, "kv_heads": 3}}, ["model.kv_heads", "divide"]),
        ({"model": {**MODEL, "gated_ffn": 1}}, ["model.gated_ffn"]),
        ({"model": {**MODEL, "qkv_bias": float("nan")}}, ["model.qkv_bias", "true or false"]),
        ({"model": {"factory": "mine"}}, ["factory", "module:function"]),
        ({"model": {"factory": "mine:build", "hidden": 1}}, ["hidden", "factory"]),
        ({"model": {"hf_config": "a.json", "hidden": 1}}, ["hf_config", "hidden"]),
        ({"model": 7}, ["model"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_and_where(document, words):
    """Each wrong document raises SettingsError, one line, naming the setting and what is allowed."""
    with pytest.raises(SettingsError) as error:
        Settings.from_json({"model": MODEL, **document})
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith("settings")
    assert all(word in text for word in words), text


def test_unknown_key_lists_the_known_ones():
    """The error for an unknown key names every key that would do."""
    with pytest.raises(SettingsError) as error:
        Settings.from_json({"model": MODEL, "batch": 2})
    assert all(key in str(error.value) for key in known_keys())


def test_files_that_are_no_settings(tmp_path):
    """A missing file, broken JSON and a list each give one line that names the file."""
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    for name in ("absent.json", "broken.json", "list.json"):
        with pytest.raises(SettingsError):
            Settings.load(tmp_path / name)


@pytest.mark.parametrize("which", ["settings", "hf_config"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "large", "deep", "binary", "absent"])
def test_a_file_that_is_no_document_is_refused_at_once(tmp_path, which, kind):
    """A pipe, a folder, a huge, deep, binary or missing file: one line, no wait, as settings and as hf_config."""
    path = tmp_path / "x.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "absent":
        content = {"large": b" " * (4 * 2**20 + 1), "deep": b"[" * 200_000, "binary": b"\xff\x00\xfe"}[kind]
        path.write_bytes(content)
    with pytest.raises(SettingsError) as error:
        Settings.load(path) if which == "settings" else Settings.from_json({"model": {"hf_config": str(path)}})
    assert "x.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_may_be_spelled_as_frameworks_do():
    """A settings document takes the spellings that runs print, and holds the contract's words."""
    s = Settings.from_json(
        {
            "model": MODEL,
            "precision": "torch.bfloat16",
            "optimizer": "adamw_torch",
            "attention": "flash_attention_2",
            "checkpointing": True,
            "gradient_dtype": "float32",
            "parallelism": {"strategy": "ZeRO-2", "world_size": 2},
            "lora": {"dtype": "bfloat16"},
        }
    )
    assert (s.precision, s.optimizer, s.attention, s.checkpointing) == ("bf16", "adamw", "flash", "full")
    assert s.lora is not None
    assert (s.gradient_dtype, s.parallelism.strategy, s.lora.dtype) == ("fp32", "zero2", "bf16")


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
QWEN = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
    "architectures": ["BertForSequenceClassification"],
}


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA, 8030261248),
        ({**LLAMA, "model_type": "mistral", "vocab_size": 32000}, 7241732096),
        (QWEN, 1543714304),
        (
            {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_ctx": 1024, "vocab_size": 50257},
            124439808,
        ),
        (BERT, 335141888),
    ],
    ids=["llama-3-8b", "mistral-7b", "qwen2.5-1.5b", "gpt2", "bert-large"],
)
def test_parameter_counts_are_the_published_ones(config, published):
    """The shapes that a transformers config gives count to the parameters that the model is published with."""
    assert from_hf_dict(config).params == published


def test_logits_exist_only_under_a_language_model_head():
    """An encoder has logits over its vocabulary only as ForMaskedLM; a decoder always."""
    assert not from_hf_dict(BERT).lm_head
    assert from_hf_dict({**BERT, "architectures": ["BertForMaskedLM"]}).lm_head
    assert from_hf_dict({**BERT, "architectures": ["BertForPreTraining"]}).lm_head
    assert not from_hf_dict({**BERT, "architectures": ["BertModel"]}).lm_head
    assert not from_hf_dict({**BERT, "architectures": None}).lm_head
    assert from_hf_dict(LLAMA).lm_head
    assert from_hf_dict({**LLAMA, "architectures": ["LlamaForCausalLM"]}).lm_head
    for name in ("LlamaForSequenceClassification", "LlamaForTokenClassification", "LlamaModel"):
        assert not from_hf_dict({**LLAMA, "architectures": [name]}).lm_head


@pytest.mark.parametrize(
    ("said", "logits"),
    [
        ({"model_type": "bert"}, False),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, True),
        ({"model_type": "bert", "lm_head": True}, True),
        ({"model_type": "bertforsequenceclassification"}, False),
        ({"model_type": "llama"}, True),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, False),
        ({}, True),
    ],
)
def test_a_runs_model_has_logits_only_under_a_language_model_head(said, logits):
    """What a run says of its model's kind decides whether logits are counted."""
    s, _ = from_run({"model": {**MODEL, **said}})
    assert s is not None
    assert s.model.lm_head is logits
    assert s.model.encoder is str(said.get("model_type")).startswith("bert")


def test_hf_config_is_read_beside_the_settings_file(tmp_path):
    """A relative hf_config starts from the settings file's folder; gpt2's gelu is the one of elementary operations."""
    gpt2 = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "vocab_size": 100,
        "activation_function": "gelu_new",
    }
    (tmp_path / "config.json").write_text(json.dumps(gpt2), encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps({"model": {"hf_config": "config.json"}}), encoding="utf-8")
    m = Settings.load(tmp_path / "run.json").model
    assert (m.activation, m.gated_ffn, m.ffn, m.tied_embeddings) == ("gelu_new", False, 256, True)


@pytest.mark.parametrize(
    "config", [{**LLAMA, "num_local_experts": 8}, {"model_type": "llama"}], ids=["experts", "no shape"]
)
def test_a_config_that_is_not_covered_is_refused(config):
    """A mixture of experts, or a config without a shape, is refused in one line rather than guessed."""
    with pytest.raises(SettingsError, match="hf_config"):
        from_hf_dict(config)


def test_with_merges_parallelism():
    """``with_`` changes what is named and keeps the rest, within parallelism too."""
    s = Settings.from_json({"model": MODEL, "parallelism": {"strategy": "fsdp", "world_size": 4, "no_sync": True}})
    changed = s.with_(parallelism={"no_sync": False}, seq_len=2048)
    assert (changed.parallelism.strategy, changed.parallelism.world_size, changed.parallelism.no_sync) == (
        "fsdp",
        4,
        False,
    )
    assert changed.seq_len == 2048


def test_run_settings_are_mapped_from_frameworks_spellings():
    """Loose values as logs state them become the contract's words; facts and (value, source) pairs are read alike."""
    s, missing = from_run(
        {
            "model": SimpleNamespace(value={**MODEL, "n_layers": "2", "name": "mine"}),
            "micro_batch": ("4", None),
            "precision": "bf16: true",
            "optimizer": "adamw_torch_fused",
            "attention": "flash_attention_2",
            "checkpointing": True,
            "strategy": "ZeRO-3",
            "world_size": 8,
        }
    )
    assert s is not None
    assert (s.micro_batch, s.precision, s.optimizer) == (4, "amp-bf16", "adamw-fused")
    assert (s.attention, s.checkpointing, s.parallelism.strategy, s.parallelism.world_size) == (
        "flash",
        "full",
        "zero3",
        8,
    )
    assert missing == ["seq_len", "grad_accum"]
    assert from_run({"model": MODEL, "precision": "bfloat16"})[0] == Settings(from_numbers(MODEL), precision="bf16")


def test_run_settings_name_what_is_needed():
    """Without a model's shape there are no settings, and the missing names are told; nonsense never raises."""
    assert from_run({"micro_batch": 4}) == (None, ["model"])
    assert from_run({"model": {"n_layers": 2, "hidden": 64}}) == (None, ["model.heads", "model.vocab"])
    s, missing = from_run(
        {"model": MODEL, "micro_batch": -3, "seq_len": "long", "optimizer": "muon", "world_size": "many"}
    )
    assert s == Settings(from_numbers(MODEL))
    assert {"micro_batch", "seq_len", "optimizer"} <= set(missing)


ODD = [
    None,
    True,
    -1,
    10**30,
    10**6000,
    1e308,
    float("nan"),
    float("inf"),
    "9" * 6000,
    "²",
    "\x00",
    "",
    [],
    {},
    ({}, 1),
    (1, 2),
]


@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_no_mapping_makes_run_settings_raise(value):
    """Whatever a log's settings hold, there are settings or there are none, and an estimate of them is a number."""
    names = [*known_keys(), "strategy", "world_size", "n_params"]
    documents = [{"model": MODEL, name: value} for name in names] + [
        {"model": {**MODEL, name: value}} for name in MODEL
    ]
    documents += [{"model": {**MODEL, "model_type": value, "architectures": value}}, {value.__class__: value}]
    for document in documents:
        s, _ = from_run(document)
        assert s is None or estimate(s).peak_allocated_bytes > 0
