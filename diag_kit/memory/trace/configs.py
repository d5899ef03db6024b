"""Which transformers class a run trains and with which configuration; at which depths the stack can be built."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ...errors import SettingsError
from ..architecture import Architecture
from ..settings import Settings

INSTALL = "install it with: pip install 'diag-kit[torch]'"
_TASKS = {
    "causal-lm": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",),
    "seq2seq-lm": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",),
    "masked-lm": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES",),
    "sequence-classification": ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",),
    "token-classification": ("MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",),
    "question-answering": ("MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",),
    "image-classification": ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",),
    "image-text": ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"),
    "pretraining": ("MODEL_FOR_PRETRAINING_MAPPING_NAMES",),
}
"""What is trained -> the tables in transformers' modeling_auto that list the classes for it."""
WITH_VOCABULARY = ("causal-lm", "seq2seq-lm", "masked-lm", "image-text", "pretraining")
_ALIASES = {
    "GPT2LMHeadModel": dict.fromkeys(("q_proj", "k_proj", "v_proj"), "attn.c_attn")
    | {"o_proj": "attn.c_proj", "up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj"},
    "GPTNeoX": dict.fromkeys(("q_proj", "k_proj", "v_proj"), "attention.query_key_value")
    | {"o_proj": "attention.dense", "up_proj": "mlp.dense_h_to_4h", "down_proj": "mlp.dense_4h_to_h"},
    "OPT": {"o_proj": "self_attn.out_proj", "up_proj": "fc1", "down_proj": "fc2"},
    "Starcoder2": {"up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj"},
    "Bert": {"q_proj": "attention.self.query", "k_proj": "attention.self.key", "v_proj": "attention.self.value",
             "o_proj": "attention.output.dense", "up_proj": "intermediate.dense", "down_proj": "output.dense"},
}  # fmt: skip


@dataclass(frozen=True)
class Blueprint:
    """A transformers configuration, the class that trains it, and for what (a key of ``_TASKS``)."""

    config: Any
    cls: Any
    task: str
    notes: tuple[str, ...] = ()
    numbers: Architecture | None = None

    @property
    def aliases(self) -> dict[str, str]:
        """Llama's names of linear layers, which settings use for models known by numbers -> paths below a layer."""
        return _ALIASES.get(self.cls.__name__.partition("For")[0], {}) if self.numbers else {}

    def fit(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with what its configuration can't say; the same object."""
        if self.numbers is not None and not self.numbers.encoder:
            fit_numbers(model, self.numbers)
        return model


def transformers() -> Any:
    """The library, kept off the network; SettingsError where it isn't installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers as library
    except ImportError:
        raise SettingsError(f"settings.model: tracing a transformers model needs transformers; {INSTALL}") from None
    return library


def blueprint(settings: Settings) -> Blueprint:
    """The configuration and class that the settings stand for, at full depth."""
    exact = settings.exact
    if exact is not None:
        return _from_dict(exact.config or {}, exact.where, settings.dropout)
    return _from_numbers(settings.model, settings.dropout, settings.seq_len)


def _from_dict(document: Mapping[str, Any], where: str, dropout: float) -> Blueprint:
    library, place, notes = transformers(), f"settings.model.hf_config: {where}", []
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = document.get("model_type")
    listed = document.get("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    native = isinstance(kind, str) and kind in CONFIG_MAPPING and (not names or hasattr(library, names[0]))
    if document.get("auto_map") and not native:
        raise SettingsError(
            f"{place} asks for code from the hub (auto_map), which is never fetched or run; "
            "give model.factory, a function of yours that builds the model"
        )
    if document.get("auto_map"):
        notes.append("The configuration's auto_map is not followed: transformers has this model itself.")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise SettingsError(
            f"{place}: model_type {kind!r:.60} is unknown to transformers {library.__version__}; "
            "upgrade transformers, or give model.factory, a function of yours that builds the model"
        )
    given = {k: v for k, v in document.items() if k not in ("auto_map", "quantization_config", "model_type")}
    if document.get("quantization_config"):
        notes.append("The configuration's quantization_config is not used; settings.base_quantization decides.")
    try:
        config = CONFIG_MAPPING[kind].from_dict(given)
    except Exception as e:  # noqa: BLE001 (whatever a configuration's own checks raise)
        raise SettingsError(f"{place}: transformers refuses it: {one_line(e)}; mend the configuration") from None
    notes += _dropout(config, dropout, keep=True)
    return Blueprint(config, *_class(config, names, place), tuple(notes))


def one_line(error: BaseException) -> str:
    """An exception's text on one line of bounded length."""
    return re.sub(r"\s+", " ", str(error)).strip()[:300] or type(error).__name__


def _dropout(config: Any, dropout: float, keep: bool) -> list[str]:
    """Sets the configuration's dropouts, or says which stay as they are."""
    fields = {
        name: value
        for name, value in vars(config).items()
        if re.search("dropout|pdrop", name) and isinstance(value, int | float) and not isinstance(value, bool)
    }
    if keep and not dropout:
        held = ", ".join(f"{name} {value}" for name, value in fields.items() if value)
        return [f"Dropout as the configuration says: {held}."] if held else []
    for name in fields:
        setattr(config, name, dropout)
    return [f"Every dropout of the configuration is set to {dropout} (settings.dropout)."] if fields and dropout else []


def _class(config: Any, names: list[str], place: str) -> tuple[Any, str]:
    """The class to train and its task: the one that ``architectures`` names, or the usual one for the model type."""
    library = transformers()
    from transformers.models.auto import modeling_auto as auto

    tables = {
        task: {k: v for name in found for k, v in getattr(auto, name, {}).items()} for task, found in _TASKS.items()
    }

    def holds(task: str, name: str) -> bool:
        return any(name == value or (isinstance(value, tuple) and name in value) for value in tables[task].values())

    if names and (not names[0].endswith("Model") or any(holds(task, names[0]) for task in tables)):
        task = next((task for task in tables if holds(task, names[0])), None)
        if not hasattr(library, names[0]) or task is None:
            raise SettingsError(
                f"{place}: architectures names {names[0]:.80}, which is no trainable class of transformers "
                f"{library.__version__} that is covered here; give model.factory, a function of yours"
            )
        return getattr(library, names[0]), task
    kind = config.model_type
    encoder = kind in tables["masked-lm"] and not getattr(config, "is_decoder", False)
    wanted = (
        ["seq2seq-lm"] if getattr(config, "is_encoder_decoder", False)
        else ["sequence-classification"] if encoder
        else ["causal-lm", "image-classification", "image-text", "sequence-classification"]
    )  # fmt: skip
    for task in wanted:
        if name := tables[task].get(kind):
            return getattr(library, name if isinstance(name, str) else name[0]), task
    raise SettingsError(
        f"{place}: transformers has no class that trains a {kind}; name one under architectures, or give model.factory"
    )


def _from_numbers(m: Architecture, dropout: float, seq_len: int) -> Blueprint:
    """The nearest class of transformers for a model that is known by its numbers alone."""
    library = transformers()
    plain_heads = m.kv_heads == m.heads and m.head_dim * m.heads == m.hidden
    positions = m.positions or max(seq_len, 2048)
    common = {"vocab_size": m.vocab, "hidden_size": m.hidden, "num_hidden_layers": m.n_layers,
              "num_attention_heads": m.heads, "tie_word_embeddings": m.tied_embeddings,
              "max_position_embeddings": positions}  # fmt: skip
    wide = {"intermediate_size": m.ffn, "hidden_act": m.activation}
    grouped = {"num_key_value_heads": m.kv_heads, "head_dim": m.head_dim}
    task = "causal-lm" if m.lm_head else "sequence-classification"
    if m.encoder:
        name, values = "Bert", common | wide
        task = "masked-lm" if m.lm_head else task
    elif m.norm == "rms":
        biases = {"attention_bias": m.bias, "mlp_bias": m.bias}
        name, values = "Llama" if m.gated_ffn else "Arcee", common | wide | grouped | biases
    elif m.gated_ffn:
        name, values = "StableLm", common | wide | {"num_key_value_heads": m.kv_heads, "partial_rotary_factor": 1.0}
    elif m.positions and m.fused_qkv and plain_heads:
        name = "GPT2"
        values = {"vocab_size": m.vocab, "n_embd": m.hidden, "n_layer": m.n_layers, "n_head": m.heads, "n_inner": m.ffn,
                  "n_positions": positions, "activation_function": m.activation,
                  "tie_word_embeddings": m.tied_embeddings}  # fmt: skip
    elif m.positions and plain_heads:
        name = "OPT"
        values = common | {"ffn_dim": m.ffn, "activation_function": m.activation, "word_embed_proj_dim": m.hidden,
                           "max_position_embeddings": positions - 2}  # fmt: skip
    elif m.fused_qkv and plain_heads:
        name, values = "GPTNeoX", common | wide | {"rotary_pct": 1.0, "use_parallel_residual": False}
    else:
        name, values = "Starcoder2", common | wide | {"num_key_value_heads": m.kv_heads, "sliding_window": None}
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0 if task == "sequence-classification" else None}
    config = getattr(library, f"{name}Config")(**values, **ids)
    _dropout(config, dropout, keep=False)
    head = {"masked-lm": "ForMaskedLM", "sequence-classification": "ForSequenceClassification"}.get(task)
    head = head or ("LMHeadModel" if name == "GPT2" else "ForCausalLM")
    note = f"Built from numbers as transformers' {name}{head}."
    return Blueprint(config, getattr(library, name + head), task, (note,), numbers=m)


def depth(config: Any) -> int | None:
    """Layers of the stack where the configuration has one stack whose length is one number."""
    layers = getattr(config, "num_hidden_layers", None)
    whole = getattr(config, "is_encoder_decoder", False) or config.sub_configs
    return layers if isinstance(layers, int) and not whole else None


def at_depth(config: Any, layers: int, period: int) -> Any:
    """A copy of the configuration with another number of layers; lists with an entry for each layer follow."""
    from copy import deepcopy

    full, config = config.num_hidden_layers, deepcopy(config)
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == full and name != "architectures":
            setattr(config, name, [value[i if i < full else i % period] for i in range(layers)])
    config.num_hidden_layers = layers
    return config


def on_meta(plan: Blueprint) -> torch.nn.Module:
    """The whole model without any memory, to count and compare its parts."""
    from transformers import initialization

    with unset_fake_temporarily(), torch.device("meta"), initialization.no_init_weights():
        model = plan.cls(plan.config)
        model.tie_weights()
        plan.fit(model)
        return model


def fit_numbers(model: torch.nn.Module, m: Architecture) -> None:
    """What the class's configuration can't say: which linear layers of the blocks have a bias; positions from row 0."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if ".layers." in name and isinstance(module, torch.nn.Linear):
            biased = m.qkv_bias if last in ("q_proj", "k_proj", "v_proj", "query_key_value") else m.bias
            if biased != (module.bias is not None):
                w = module.weight
                zeros = torch.zeros(module.out_features, dtype=w.dtype, device=w.device) if biased else None
                module.bias = torch.nn.Parameter(zeros) if zeros is not None else None
        if last == "embed_positions" and hasattr(module, "offset"):
            module.offset = 0


def period(model: torch.nn.Module, layers: int) -> int | None:
    """After how many layers the stack repeats: 1 for most, None where it never does (or there is no such stack).

    Two layers are alike when their modules have the same classes, parameters and scalar attributes; an attribute that
    counts the layers is left out.
    """
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == layers]
    if len(stacks) != 1:
        return None
    looks = [_look(layer) for layer in stacks[0]]
    counting = (
        {key for key in looks[0] if all(look.get(key) == i for i, look in enumerate(looks))} if layers > 1 else set()
    )
    bare = [{k: v for k, v in look.items() if k not in counting} for look in looks]
    for p in range(1, max(layers // 2, 1) + 1):
        if all(bare[i] == bare[i + p] for i in range(layers - p)):
            return p
    return None


def _look(layer: torch.nn.Module) -> dict[tuple[str, str], Any]:
    look: dict[tuple[str, str], Any] = {}
    for path, module in layer.named_modules():
        look[path, ""] = type(module)
        for name, value in vars(module).items():
            if isinstance(value, int | float | str | tuple | None):
                look[path, name] = value
        for name, p in module.named_parameters(recurse=False):
            look[path, name] = (tuple(p.shape), p.dtype)
    return look
