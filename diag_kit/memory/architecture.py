"""The numbers of a transformer that memory depends on: shapes, and parameters counted part by part.

Covered: decoder stacks of the llama kind (RMS norm, rotary positions, gated feed-forward, grouped key/value heads),
of the GPT kind (layer norm, learned positions, plain feed-forward, biases), and encoders of the BERT kind.
Mixture-of-experts models are refused rather than guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from .documents import check_whole, read_json, shown

ACTIVATIONS = ("silu", "gelu", "gelu_new")
_GATED = {
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo",
    "olmo2",
    "granite",
    "cohere",
    "stablelm",
    "smollm3",
    "internlm2",
    "yi",
    "baichuan",
    "exaone",
}
_TIED_BY_DEFAULT = {"gemma", "gemma2", "gemma3_text", "cohere", "gpt2", "opt", "bloom", "bert", "roberta", "distilbert"}
_ENCODERS = {"bert", "roberta", "xlm-roberta", "distilbert", "electra", "camembert", "deberta", "deberta-v2", "vit"}
_QKV_BIAS = {"qwen2"}
_LM_HEAD = r"ForCausalLM|LMHead|ForMaskedLM|ForPreTraining|ForConditionalGeneration"
_OTHER_HEAD = r"For\w*Classification|ForQuestionAnswering|ForMultipleChoice|ForNextSentencePrediction"
"""Endings of transformers' classes with logits over the vocabulary, and of those without; a bare one ends in Model."""
_CLASS = re.compile(rf"(\w+?)(?:{_LM_HEAD}|{_OTHER_HEAD})\w*", re.IGNORECASE)
_NAMES = {
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner", "hidden_dim"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx"),
}
DEPTHS = _NAMES["n_layers"]
"""What configurations call the number of layers."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Shape of a transformer stack. The first eight are the settings' own; the rest follow from them unless given.

    Attributes:
        ffn: width of the feed-forward layer; ``gated_ffn`` has three matrices, plain two.
        vocab: rows of the token embedding. ``lm_head`` False: no logits over it (an encoder with a small head).
        norm: ``rms`` as Hugging Face's LlamaRMSNorm, or ``layer``.
        activation: ``gelu_new`` is written in elementary operations and saves four copies where ``gelu`` saves one.
        fused_qkv: one projection for query, key and value.
        positions: rows of a learned position table, 0 with rotary positions.
    """

    n_layers: int
    hidden: int
    heads: int
    vocab: int
    ffn: int = 0
    kv_heads: int = 0
    gated_ffn: bool = True
    tied_embeddings: bool = False
    head_dim: int = 0
    norm: str = ""
    activation: str = ""
    bias: bool | None = None
    qkv_bias: bool | None = None
    fused_qkv: bool | None = None
    positions: int = 0
    lm_head: bool = True
    encoder: bool = False

    def __post_init__(self) -> None:
        for name in ("n_layers", "hidden", "heads", "vocab"):
            check_whole(f"model.{name}", getattr(self, name), 1)
        for name in ("ffn", "kv_heads", "head_dim", "positions"):
            check_whole(f"model.{name}", getattr(self, name), 0)
        for name in ("gated_ffn", "tied_embeddings", "lm_head", "encoder"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"settings.model.{name}: must be true or false, got {shown(getattr(self, name))}")
        for name in ("bias", "qkv_bias", "fused_qkv"):
            if not isinstance(getattr(self, name), bool | None):
                raise SettingsError(f"settings.model.{name}: must be true or false, got {shown(getattr(self, name))}")
        if not self.head_dim and self.hidden % self.heads:
            raise SettingsError(
                f"settings.model.hidden: {self.hidden} is no multiple of heads ({self.heads}); give head_dim as well"
            )
        gated = self.gated_ffn
        defaults = {
            "ffn": 4 * self.hidden,
            "kv_heads": self.heads,
            "head_dim": self.hidden // self.heads,
            "norm": "rms" if gated else "layer",
            "activation": "silu" if gated else "gelu",
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        for name, value in (("bias", not gated), ("fused_qkv", not gated and not self.encoder)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.qkv_bias is None:
            object.__setattr__(self, "qkv_bias", self.bias)
        if self.norm not in ("rms", "layer"):
            raise SettingsError(f"settings.model.norm: {shown(self.norm)} is not one of rms, layer")
        if self.activation not in ACTIVATIONS:
            raise SettingsError(
                f"settings.model.activation: {shown(self.activation)} is not one of {', '.join(ACTIVATIONS)}"
            )
        if self.heads % self.kv_heads:
            raise SettingsError(f"settings.model.kv_heads: must divide heads ({self.heads}), got {self.kv_heads}")

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> dict[str, tuple[int, int]]:
        """Linear layers of one block by Hugging Face's llama names: name -> (inputs, outputs)."""
        h, q, k, f = self.hidden, self.q_width, self.kv_width, self.ffn
        named = {"q_proj": (h, q), "k_proj": (h, k), "v_proj": (h, k), "o_proj": (q, h)}
        if self.gated_ffn:
            named["gate_proj"] = (h, f)
        return named | {"up_proj": (h, f), "down_proj": (f, h)}

    @property
    def layer_linear_params(self) -> int:
        """Weights of the linear layers of one block, without biases: what is quantised and what autocast copies."""
        return sum(a * b for a, b in self.layer_matrices.values())

    @property
    def layer_params(self) -> int:
        """All parameters of one block: weights, biases, two norms."""
        biases = 0
        if self.bias:
            biases = sum(out for name, (_, out) in self.layer_matrices.items() if name[0] not in "qkv")
        if self.qkv_bias:
            biases += self.q_width + 2 * self.kv_width
        return self.layer_linear_params + biases + 2 * self.norm_params

    @property
    def norm_params(self) -> int:
        return self.hidden * (1 if self.norm == "rms" else 2)

    @property
    def embedding_params(self) -> int:
        return self.vocab * self.hidden + self.positions * self.hidden

    @property
    def head_params(self) -> int:
        """The output head's own weights: 0 when tied to the embedding or absent."""
        if not self.lm_head:
            return self.hidden * self.hidden + self.hidden if self.encoder else 0
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def other_params(self) -> int:
        """Final norm; for an encoder the norm after the embeddings and the two token types."""
        return self.norm_params + (2 * self.hidden if self.encoder else 0)

    @property
    def params(self) -> int:
        """All parameters of the model."""
        return self.n_layers * self.layer_params + self.embedding_params + self.head_params + self.other_params

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def from_numbers(model: Mapping[str, Any]) -> Architecture:
    """An architecture from the settings' ``model`` numbers. Raises SettingsError naming a wrong or missing key.

    ``model_type`` and ``architectures``, as transformers names them, decide what the numbers leave open.
    """
    known = [f.name for f in fields(Architecture)] + ["model_type", "architectures"]
    if unknown := sorted(set(model) - set(known), key=repr):
        raise SettingsError(
            f"settings.model: unknown key {unknown[0]!r}; known keys: hf_config, factory, {', '.join(known)}"
        )
    if missing := [name for name in ("n_layers", "hidden", "heads", "vocab") if model.get(name) is None]:
        raise SettingsError(
            f"settings.model: {', '.join(missing)} missing; give the numbers, or hf_config: path of a config.json"
        )
    if model.get("kv_heads") == 0:
        raise SettingsError("settings.model.kv_heads: must be a whole number from 1; leave it out for as many as heads")
    given = {name: value for name, value in model.items() if value is not None}
    kind, names = given.pop("model_type", ""), given.pop("architectures", None)
    kind = kind.lower() if isinstance(kind, str) else ""
    if named := _CLASS.fullmatch(kind[:100]):  # a class's name where the type should stand
        kind, names = named[1], names or kind
    if kind:
        given = {
            "gated_ffn": kind in _GATED,
            "tied_embeddings": kind in _TIED_BY_DEFAULT,
            "encoder": kind in _ENCODERS,
            **given,
        }
    if kind or names:
        given.setdefault("lm_head", has_lm_head(kind, names))
    return Architecture(**given)


def has_lm_head(kind: str, names: Any) -> bool:
    """Whether a transformers model has logits over its vocabulary.

    Args:
        kind: its ``model_type``.
        names: its ``architectures``; where they say nothing, an encoder has none.
    """
    listed = names if isinstance(names, list | tuple) else [names]
    classes = [name for name in listed if isinstance(name, str)]
    if any(re.search(_LM_HEAD, name, re.IGNORECASE) for name in classes):
        return True
    other = any(re.search(rf"{_OTHER_HEAD}|Model$", name, re.IGNORECASE) for name in classes)
    return kind not in _ENCODERS and not other


def read_hf_config(path: str | Path) -> dict[str, Any]:
    """The content of a transformers ``config.json``; SettingsError where it can't be read or is none."""
    config = read_json(Path(path), "settings.model.hf_config", "give a transformers config.json")
    if not isinstance(config, dict):
        raise SettingsError(
            f"settings.model.hf_config: {path} does not hold an object; give a transformers config.json"
        )
    return config


UNCOVERED = Architecture(n_layers=1, hidden=1, heads=1, vocab=1)
"""Stands for a model that only a trace can describe."""


def from_hf_dict(config: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """An architecture from the content of a transformers ``config.json``."""
    config = {**config, **(config["text_config"] if isinstance(config.get("text_config"), dict) else {})}
    kind = str(config.get("model_type", "")).lower()
    if any(
        config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")
    ):
        raise SettingsError(
            f"settings.model.hf_config: {where} is a mixture of experts ({kind}), which no closed form covers yet"
        )
    number: dict[str, Any] = {
        name: next((config[key] for key in keys if config.get(key) is not None), None) for name, keys in _NAMES.items()
    }
    if missing := [_NAMES[name][0] for name in ("n_layers", "hidden", "heads", "vocab") if number[name] is None]:
        raise SettingsError(
            f"settings.model.hf_config: {where} (model_type {kind or 'absent'}) states no {', '.join(missing)}"
        )
    encoder = kind in _ENCODERS
    gated = kind in _GATED
    if (kv_heads := config.get("num_key_value_heads")) == 0:
        raise SettingsError(f"settings.model.hf_config: {where} states num_key_value_heads 0; it must be at least 1")
    act = str(config.get("hidden_act") or config.get("activation_function") or config.get("activation") or "gelu")
    learned = not gated and kind not in ("gpt_neox", "gptj", "falcon", "bloom", "phi")
    return Architecture(
        n_layers=number["n_layers"],
        hidden=number["hidden"],
        heads=number["heads"],
        vocab=number["vocab"],
        ffn=number["ffn"] or 4 * number["hidden"],
        kv_heads=kv_heads or number["heads"],
        gated_ffn=gated,
        tied_embeddings=bool(config.get("tie_word_embeddings", kind in _TIED_BY_DEFAULT)),
        head_dim=config.get("head_dim") or 0,
        bias=bool(config.get("attention_bias")) if gated else True,
        activation="silu" if gated else "gelu_new" if act in ("gelu_new", "gelu_pytorch_tanh_python") else "gelu",
        qkv_bias=kind in _QKV_BIAS or None,
        positions=number["positions"] or 0 if learned else 0,
        lm_head=has_lm_head(kind, config.get("architectures")),
        encoder=encoder,
    )
