"""From settings to a real model and its training step: nothing here loads weights or asks the network."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import SettingsError
from ..documents import check_length
from ..settings import Settings
from . import configs
from .adapters import adapt
from .optimizers import DTYPES, optimizer
from .plain import autocast, plain_transformers
from .techniques import checkpoint, fuse_loss

_TASK_NOTES = {
    "image-classification": ("The length comes from the image size (224 where none is stated), not from seq_len.",),
    "image-text": ("The batch is text alone: the vision tower's weights are counted, its activations are not.",),
    "seq2seq-lm": ("Encoder and decoder both get seq_len tokens.",),
}


MOST_LAYERS = 2_000
"""Building more, even without memory, would take minutes."""


@dataclass
class Job:
    """A training step that can be run, on fake tensors or on real ones.

    Attributes:
        model: on the default device, in train mode.
        batch: (micro_batch, seq_len) -> the tensors that a data loader would hand over, on the device.
        loss: (model, batch) -> (loss, outputs or None): forward and loss, under the run's autocast.
        optimizer: parameters -> their optimizer, or None.
        vocab: width of the logits, None where there is no vocabulary.
        layers: depth as built, None where it can't be varied. full_layers: depth of the real model.
        period: layers after which the stack repeats.
        notes: what was assumed, in sentences.
        longest: the most tokens a sequence may have (learned positions), None without a limit.
        before_micro_step: told which micro-step begins, from 1, and whether it is the last.
    """

    model: torch.nn.Module
    batch: Callable[[int, int], Any]
    loss: Callable[[torch.nn.Module, Any], Any]
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer | None]
    vocab: int | None = None
    layers: int | None = None
    full_layers: int | None = None
    period: int = 1
    notes: list[str] = field(default_factory=list)
    longest: int | None = None
    before_micro_step: Callable[[int, bool], None] = lambda *_: None


def build(settings: Settings, layers: int | None = None) -> Job:
    """The model and step that the settings stand for; SettingsError, in one line, where they can't be built.

    Args:
        settings: of the run.
        layers: depth to build; None builds the whole. Ignored where the stack can't be cut (``Job.layers`` is None).
    """
    if settings.exact is not None and settings.exact.factory:
        from .factory import from_factory

        return from_factory(settings)
    configs.transformers()
    with plain_transformers():
        return _build(settings, layers)


def _build(settings: Settings, layers: int | None) -> Job:
    plan = configs.blueprint(settings)
    notes = [*plan.notes, *_TASK_NOTES.get(plan.task, ())]
    plan.config.use_cache = plan.config.get_text_config().use_cache = False  # as transformers' Trainer does
    if plan.task == "seq2seq-lm" and getattr(plan.config, "decoder_start_token_id", None) is None:
        plan.config.decoder_start_token_id = plan.config.pad_token_id or 0
    if plan.task == "sequence-classification" and plan.config.get_text_config().pad_token_id is None:
        plan.config.get_text_config().pad_token_id = 0
    full = configs.depth(plan.config)
    if full and full > MOST_LAYERS:
        raise SettingsError(f"settings.model: {full} layers are too many to build; settings.method formula takes them")
    with _told(settings, plan):
        whole = configs.on_meta(plan)
    period = configs.period(whole, full) if full else None
    if period is None:
        layers = full = None
        notes.append("The depth can't be varied: the stack of layers does not repeat, or there is more than one.")
    else:
        layers = layers or full
    _count(settings, whole, notes)
    config = plan.config if layers in (None, full) else configs.at_depth(plan.config, layers, period or 1)
    model = _model(settings, plan, config, notes)
    where = settings.exact.where if settings.exact else "the model"
    if settings.fused_loss:
        notes += _fused(model, settings, plan.task)
    if settings.lora:
        notes += adapt(model, settings, plan.aliases, where)
    checkpoint(model, settings)
    finish(model, settings, notes)
    return Job(
        model=model,
        batch=_batches(plan.task, config, model),
        loss=_loss(settings),
        optimizer=optimizer(settings),
        vocab=config.get_text_config().vocab_size if plan.task in configs.WITH_VOCABULARY else None,
        layers=layers,
        full_layers=full,
        period=period or 1,
        notes=notes,
        longest=_longest(model),
    )


def finish(model: torch.nn.Module, settings: Settings, notes: list[str]) -> None:
    """Train mode and the gradients' dtype; what the precision recipe means, in the notes."""
    model.train()
    if settings.gradient_dtype:
        if not hasattr(torch.Tensor, "grad_dtype"):
            raise SettingsError(f"settings.gradient_dtype: needs torch 2.9, this is {torch.__version__}; leave it out")
        for p in model.parameters():
            if p.requires_grad:
                p.grad_dtype = DTYPES[settings.gradient_dtype]
    if settings.precision == "amp-fp16":
        notes.append("The gradient scaler is left out: it works in place and holds two numbers.")


def _fused(model: torch.nn.Module, settings: Settings, task: str) -> list[str]:
    if task not in configs.WITH_VOCABULARY:
        return ["fused_loss changes nothing: the model has no logits over a vocabulary."]
    if task != "causal-lm":
        raise SettingsError(
            f"settings.fused_loss: is for causal language models, and {type(model).__name__} is none; set it to false"
        )
    return fuse_loss(model, settings)


def _count(settings: Settings, whole: torch.nn.Module, notes: list[str]) -> None:
    """Says where the model that was built is not the one that the numbers describe."""
    built, stated = sum(p.numel() for p in whole.parameters()), settings.model.params
    uncovered = settings.exact is not None and settings.exact.uncovered
    if built != stated and not uncovered:
        notes.append(f"The model has {built:,} parameters; the closed forms count {stated:,}.")


def _model(settings: Settings, plan: configs.Blueprint, config: Any, notes: list[str]) -> torch.nn.Module:
    dtype = torch.float32 if settings.precision.startswith("amp-") else DTYPES[settings.precision]
    stated, held = (str(d).removeprefix("torch.") for d in (getattr(plan.config, "dtype", None) or dtype, dtype))
    if stated != held:
        notes.append(f"Weights are {held}, as settings.precision says; the configuration says {stated}.")
    attention = "eager" if settings.attention == "eager" or not _has_sdpa(plan.cls) else "sdpa"
    if attention == "eager" != settings.attention:
        notes.append(f"Attention is eager: {plan.cls.__name__} has no other in transformers.")
    with _told(settings, plan):
        return plan.fit(plan.cls._from_config(config, dtype=dtype, attn_implementation=attention))


@contextlib.contextmanager
def _told(settings: Settings, plan: configs.Blueprint) -> Iterator[None]:
    """Whatever a model's own code raises while it is built becomes a SettingsError in one line."""
    try:
        yield
    except Exception as e:  # noqa: BLE001 (whatever a model's own code raises)
        where = settings.exact.where if settings.exact else "the numbers given"
        raise SettingsError(
            f"settings.model: {where}: {plan.cls.__name__} can't be built: {configs.one_line(e)}; mend it"
        ) from None


def _has_sdpa(cls: Any) -> bool:
    return bool(getattr(cls, "_supports_sdpa", False))


def _loss(settings: Settings) -> Callable[[torch.nn.Module, Any], Any]:
    def loss(model: torch.nn.Module, batch: Any) -> Any:
        with autocast(settings):
            outputs = model(**batch)
        return outputs.loss, outputs if settings.keep_logits else None

    return loss


def _longest(model: torch.nn.Module) -> int | None:
    """Rows of the table of learned positions, less those kept for padding."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        learned = isinstance(module, torch.nn.Embedding) and "vision" not in name
        if learned and (last == "wpe" or re.search(r"(?<!relative_)position", last)):
            kept = getattr(module, "offset", 0) or (module.padding_idx + 1 if module.padding_idx is not None else 0)
            return int(module.num_embeddings - kept)
    return None


def _batches(task: str, config: Any, model: torch.nn.Module) -> Callable[[int, int], dict[str, torch.Tensor]]:
    """What the library's data collators hand over: ids, a mask of ones (no padding), labels; int64."""
    longest = _longest(model)

    def batch(micro_batch: int, seq_len: int) -> dict[str, torch.Tensor]:
        if task == "image-classification":
            size = getattr(config, "image_size", 224)
            height, width = size if isinstance(size, list | tuple) else (size, size)
            pixels = torch.rand(micro_batch, config.num_channels, height, width)
            return {"pixel_values": pixels, "labels": torch.randint(0, config.num_labels, (micro_batch,))}
        check_length(seq_len, longest)
        shape = (micro_batch, seq_len)
        ids = torch.randint(0, config.get_text_config().vocab_size, shape)
        given = {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.int64)}
        if task == "pretraining" and "next_sentence_label" in inspect.signature(model.forward).parameters:
            given["next_sentence_label"] = torch.zeros(micro_batch, dtype=torch.int64)
        if task in configs.WITH_VOCABULARY:
            return given | {"labels": ids.clone()}
        if task == "question-answering":
            return given | {
                key: torch.zeros(micro_batch, dtype=torch.int64) for key in ("start_positions", "end_positions")
            }
        labels = shape if task == "token-classification" else (micro_batch,)
        return given | {"labels": torch.randint(0, config.num_labels, labels)}

    return batch
