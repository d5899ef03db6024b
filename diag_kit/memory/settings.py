"""Settings of a run that its memory depends on: read from JSON, checked, and mapped from what a run's evidence says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from .architecture import DEPTHS, UNCOVERED, Architecture, from_hf_dict, from_numbers, read_hf_config
from .documents import MOST_BYTES, MOST_COUNT, check_whole, read_json, shown
from .spelling import LOOKUP, bare, contract_word, number, word

CHOICES: dict[str, tuple[str, ...]] = {
    "backward": ("each-micro-batch", "deferred"),
    "precision": ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"),
    "optimizer": ("adamw", "adamw-foreach", "adamw-loop", "adamw-fused", "adamw-8bit", "adafactor", "sgd", "none"),
    "attention": ("eager", "sdpa", "flash", "efficient"),
    "checkpointing": ("none", "full", "selective"),
    "device": ("cuda", "cpu"),
    "method": ("auto", "formula", "trace"),
    "strategy": ("none", "ddp", "fsdp", "zero1", "zero2", "zero3", "megatron"),
    "offload": ("none", "optimizer", "all"),
    "gradient_dtype": ("fp32", "bf16", "fp16"),
    "optimizer_state_dtype": ("fp32", "bf16", "fp16"),
    "base_quantization": ("nf4",),
    "dtype": ("fp32", "bf16", "fp16"),
}
"""What a word may be, by setting."""

_WORD_SETTINGS = (
    "backward",
    "precision",
    "gradient_dtype",
    "optimizer_state_dtype",
    "optimizer",
    "attention",
    "checkpointing",
    "base_quantization",
    "device",
    "method",
)
_OPTIONAL = ("gradient_dtype", "optimizer_state_dtype", "base_quantization", "gpu", "capacity_bytes")


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters: ``rank``, the linear layers they are put on, and the adapters' dtype."""

    rank: int = 8
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    dtype: str = "fp32"

    def __post_init__(self) -> None:
        check_whole("lora.rank", self.rank, 1)
        _check_choice("lora.dtype", "dtype", self.dtype)
        targets: Any = self.targets
        if not isinstance(targets, list | tuple) or not all(isinstance(name, str) for name in targets):
            raise SettingsError(f"settings.lora.targets: must be a list of layer names, got {shown(targets)}")
        if not targets:
            raise SettingsError("settings.lora.targets: names no layer; name at least one, or leave lora out")
        object.__setattr__(self, "targets", tuple(targets))


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How the work is spread: data parallel over ``world_size`` ranks, tensor and pipeline parallel under Megatron.

    ``world_size`` counts all processes; with tensor or pipeline parallelism the data-parallel size is what is left.
    """

    strategy: str = "none"
    world_size: int = 1
    no_sync: bool = False
    tensor: int = 1
    pipeline: int = 1
    offload: str = "none"

    def __post_init__(self) -> None:
        _check_choice("parallelism.strategy", "strategy", self.strategy)
        _check_choice("parallelism.offload", "offload", self.offload)
        for name in ("world_size", "tensor", "pipeline"):
            check_whole(f"parallelism.{name}", getattr(self, name), 1)
        _check_bool("parallelism.no_sync", self.no_sync)
        if self.no_sync and self.strategy in ("zero2", "zero3"):
            raise SettingsError(
                "settings.parallelism.no_sync: DeepSpeed refuses no_sync with ZeRO stage 2 and 3; set it to false"
            )
        if self.world_size % (self.tensor * self.pipeline):
            raise SettingsError(
                f"settings.parallelism.world_size: {self.world_size} is no multiple of tensor × pipeline "
                f"= {self.tensor * self.pipeline}"
            )

    @property
    def data(self) -> int:
        """Ranks that share the data-parallel work."""
        return self.world_size // (self.tensor * self.pipeline)


@dataclass(frozen=True, slots=True)
class ExactModel:
    """The run's own model, which a trace builds: a transformers configuration or a factory of the user's.

    Attributes:
        config_text: the configuration as JSON with sorted keys (text, so that settings can be hashed).
        factory: ``package.module:function`` or ``path/to/file.py:function``.
        where: file or name that it was given by, for messages.
        uncovered: why no closed form covers it; empty where one does.
    """

    config_text: str = ""
    factory: str = ""
    where: str = field(default="", compare=False)
    uncovered: str = ""

    @property
    def config(self) -> dict[str, Any] | None:
        """A copy of the transformers configuration; None for a factory."""
        return json.loads(self.config_text) if self.config_text else None


@dataclass(frozen=True, slots=True)
class Settings:
    """A run, as far as its memory depends on it. Every value is checked; SettingsError says what and where.

    Attributes:
        micro_batch: sequences per device and micro-step. seq_len: tokens per sequence, padding included.
        backward: ``deferred`` keeps each micro-batch's graph until one backward at the end of the window.
        precision: ``bf16``/``fp16`` hold weights in 16 bits; ``amp-*`` hold fp32 weights under autocast.
        gpu: decides what ``sdpa`` picks and the context's size; None means an A100.
        dropout: probability in attention, and on the residual branches of models that have it.
        keep_logits: the training loop still refers to the model's outputs while backward runs.
        capacity_bytes: what the device reports as its total.
        exact: the model itself, where it is known by more than its numbers.
    """

    model: Architecture
    micro_batch: int = 1
    seq_len: int = 1024
    grad_accum: int = 1
    backward: str = "each-micro-batch"
    precision: str = "fp32"
    gradient_dtype: str | None = None
    optimizer_state_dtype: str | None = None
    optimizer: str = "adamw"
    attention: str = "sdpa"
    gpu: str | None = None
    checkpointing: str = "none"
    fused_loss: bool = False
    dropout: float = 0.0
    lora: Lora | None = None
    base_quantization: str | None = None
    parallelism: Parallelism = field(default_factory=Parallelism)
    device: str = "cuda"
    capacity_bytes: int | None = None
    method: str = "auto"
    keep_logits: bool = True
    exact: ExactModel | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, Architecture):
            raise SettingsError("settings.model: must be an object with the model's numbers or hf_config")
        for name in ("micro_batch", "seq_len", "grad_accum"):
            check_whole(name, getattr(self, name), 1)
        for name in _WORD_SETTINGS:
            value = getattr(self, name)
            if not (value is None and name in _OPTIONAL):
                _check_choice(name, name, value)
        for name in ("fused_loss", "keep_logits"):
            _check_bool(name, getattr(self, name))
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise SettingsError(f"settings.dropout: must be a number from 0 to below 1, got {shown(self.dropout)}")
        if self.capacity_bytes is not None:
            check_whole("capacity_bytes", self.capacity_bytes, 1, MOST_BYTES)
        if self.gpu is not None and not isinstance(self.gpu, str):
            raise SettingsError(f"settings.gpu: must be a name such as A100, got {shown(self.gpu)}")
        if self.base_quantization and not self.lora:
            raise SettingsError(
                "settings.base_quantization: a quantised base can't be trained itself; give lora as well"
            )
        strange = sorted(set(self.lora.targets) - set(self.model.layer_matrices)) if self.lora else []
        if strange and self.exact is None:
            raise SettingsError(
                f"settings.lora.targets: the model has no {strange[0]!r}; it has {', '.join(self.model.layer_matrices)}"
            )
        if strange and self.exact and not self.exact.uncovered:  # a layer's name in the model's own code
            known = ", ".join(self.model.layer_matrices)
            why = f"settings.lora.targets: no closed form knows {strange[0]!r:.60}; it knows {known}"
            object.__setattr__(self, "exact", replace(self.exact, uncovered=why))

    def with_(self, **changes: Any) -> Settings:
        """A copy with some settings changed; ``parallelism``, ``lora`` and ``model`` may be given as JSON objects."""
        if isinstance(changes.get("model"), Architecture):
            changes["exact"] = None
        return replace(self, **_parsed(changes, current=self))

    def to_json(self) -> dict[str, Any]:
        """The settings document; reads back equal."""
        document = asdict(self)
        del document["exact"]
        if document["lora"]:
            document["lora"]["targets"] = list(document["lora"]["targets"])
        if self.exact:
            config, factory = self.exact.config, self.exact.factory
            document["model"] = {"factory": factory} if factory else {"hf_config": config}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any], folder: str | Path | None = None) -> Settings:
        """Settings from a JSON object. ``folder``: where a relative ``hf_config`` starts from."""
        if not isinstance(document, Mapping):
            raise SettingsError(f"settings: must be an object of names and values, got {type(document).__name__}")
        if "model" not in document:
            raise SettingsError(f"settings: model missing; known keys: {', '.join(known_keys())}")
        return cls(**_parsed(document, folder=Path(folder) if folder else None))

    @classmethod
    def load(cls, path: str | Path) -> Settings:
        """Settings from a JSON file."""
        path = Path(path)
        return cls.from_json(read_json(path, "settings", "give a JSON object of names and values"), path.parent)


def known_keys() -> list[str]:
    """The names that a settings document may have."""
    return [f.name for f in fields(Settings) if f.name != "exact"]


def _parsed(document: Mapping[str, Any], folder: Path | None = None, current: Settings | None = None) -> dict[str, Any]:
    if unknown := [name for name in document if name not in known_keys() and not (current and name == "exact")]:
        raise SettingsError(f"settings: unknown key {unknown[0]!r}; known keys: {', '.join(known_keys())}")
    values = {name: contract_word(name, value) for name, value in document.items()}
    if isinstance(model := values.get("model"), Mapping):
        values["model"], values["exact"] = _model(model, folder)
    for name, kind in (("lora", Lora), ("parallelism", Parallelism)):
        given = values.get(name)
        if given is None and name == "parallelism":
            values.pop(name, None)
        elif isinstance(given, Mapping):
            allowed = [f.name for f in fields(kind)]
            if unknown := [key for key in given if key not in allowed]:
                raise SettingsError(f"settings.{name}: unknown key {unknown[0]!r}; known keys: {', '.join(allowed)}")
            given = {key: contract_word(key, value) for key, value in given.items()}
            held = getattr(current, name, None)
            values[name] = replace(held, **given) if held else kind(**given)
        elif given is not None and not isinstance(given, kind):
            raise SettingsError(f"settings.{name}: must be an object, got {shown(given)}")
    return values


def _model(model: Mapping[str, Any], folder: Path | None) -> tuple[Architecture, ExactModel | None]:
    """The model's numbers, and the model itself where a configuration or a factory gives it."""
    named = next((key for key in ("hf_config", "factory") if key in model), None)
    if named is None:
        return from_numbers(model), None
    if others := [key for key in model if key != named]:
        raise SettingsError(f"settings.model: {others[0]} can't stand beside {named}; give one or the other")
    given = model[named]
    if named == "factory":
        return UNCOVERED, _factory(given, folder)
    if isinstance(given, Mapping):
        config, where = dict(given), "the object given"
    elif isinstance(given, str | Path):
        path = Path(given).expanduser()
        path = folder / path if folder and not path.is_absolute() else path
        config, where = read_hf_config(path), str(path)
    else:
        raise SettingsError(f"settings.model.hf_config: must be a path or an object, got {shown(given)}")
    for name in DEPTHS:
        if isinstance(depth := config.get(name), int) and depth < 1:
            raise SettingsError(f"settings.model.hf_config: {where} states {name} {depth}; it must be at least 1")
    try:
        text = json.dumps(config, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as e:
        raise SettingsError(f"settings.model.hf_config: {where} is no JSON object ({e})") from None
    try:
        return from_hf_dict(config, where), ExactModel(text, where=where)
    except SettingsError as e:
        return UNCOVERED, ExactModel(text, where=where, uncovered=str(e))


def _factory(given: Any, folder: Path | None) -> ExactModel:
    module, colon, function = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if not (module and colon and function.isidentifier()):
        raise SettingsError(
            f"settings.model.factory: must be package.module:function or path/to/file.py:function, got {shown(given)}"
        )
    if module.endswith(".py"):
        path = Path(module).expanduser()
        given = f"{folder / path if folder and not path.is_absolute() else path}:{function}"
    return ExactModel(factory=given, where=given, uncovered=f"settings.model.factory: no closed form covers {given}")


def _check_choice(name: str, kind: str, value: Any) -> None:
    if not isinstance(value, str) or value not in CHOICES[kind]:
        raise SettingsError(f"settings.{name}: {shown(value)} is not one of {', '.join(CHOICES[kind])}")


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise SettingsError(f"settings.{name}: must be true or false, got {shown(value)}")


_STATED = ("micro_batch", "seq_len", "grad_accum", "precision", "optimizer", "attention", "checkpointing")
_MODEL_KEYS = {f.name for f in fields(Architecture)} | {"model_type", "architectures"}


def from_run(settings: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
    """Settings from what a run's evidence states, and the names that it does not state.

    Args:
        settings: canonical name -> value, ``(value, source)`` or a fact with ``.value``.

    Returns:
        ``(settings, names left at their default)``, or ``(None, names needed)`` where the model's shape isn't known. A
        value that has no counterpart here counts as not stated; no mapping makes this raise.
    """
    stated = {name: bare(value) for name, value in settings.items()}
    model = stated.get("model")
    if not isinstance(model, Mapping):
        return None, ["model"]
    if missing := [f"model.{name}" for name in ("n_layers", "hidden", "heads", "vocab") if not model.get(name)]:
        return None, missing
    try:
        architecture = from_numbers({name: number(value) for name, value in model.items() if name in _MODEL_KEYS})
        known = _stated_numbers(stated) | _stated_words(stated)
        return Settings(model=architecture, **known), [name for name in _STATED if name not in known]
    except SettingsError:
        return None, ["model"]


def _stated_numbers(stated: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name in ("micro_batch", "seq_len", "grad_accum", "capacity_bytes"):
        value = number(stated.get(name))
        most = MOST_BYTES if name == "capacity_bytes" else MOST_COUNT
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most:
            known[name] = value
    dropout = stated.get("dropout")
    if isinstance(dropout, int | float) and not isinstance(dropout, bool) and 0 <= dropout < 1:
        known["dropout"] = float(dropout)
    return known


def _stated_words(stated: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name in ("precision", "optimizer", "attention", "checkpointing", "gradient_dtype", "backward"):
        found = contract_word(name, stated.get(name))
        if isinstance(found, str) and found in CHOICES[name]:
            known[name] = found
    if isinstance(gpu := stated.get("gpu"), str):
        known["gpu"] = gpu
    strategy, world = LOOKUP["strategy"].get(word(stated.get("strategy"))), number(stated.get("world_size"))
    counted = isinstance(world, int) and not isinstance(world, bool) and 0 < world <= MOST_COUNT
    if strategy and strategy != "none" and counted:
        split = [number(stated.get(name)) for name in ("tensor_parallel", "pipeline_parallel")]
        tensor, pipeline = (n if isinstance(n, int) and 0 < n <= MOST_COUNT else 1 for n in split)
        known["parallelism"] = Parallelism(strategy=strategy, world_size=world, tensor=tensor, pipeline=pipeline)
    return known
