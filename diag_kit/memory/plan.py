"""Remedies: changes of settings that lower the peak, what each saves here, what it costs, the line that does it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import SettingsError
from .device import attention_kernel
from .formulas import device_limit, peak_bytes, quadratics
from .settings import Settings

LORA = {"rank": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change and its effect.

    Attributes:
        change: settings to change; values may be the words ``half``, ``one`` and ``double``.
        peak_bytes, saves_bytes: predicted allocated peak after the change, and how much lower that is.
        fits: whether the device holds it then; None without a capacity.
        cost: in words; ``cost_rank``: 0 same numbers and speed, 1 slower, 2 changes numerics, 3 changes the training.
        code: framework -> line.
    """

    id: str
    action: str
    change: Mapping[str, Any]
    peak_bytes: int
    saves_bytes: int
    fits: bool | None
    cost: str
    cost_rank: int
    code: Mapping[str, str] = field(default_factory=dict)


_CATALOG: tuple[tuple[str, str, dict[str, Any], str, int, dict[str, str]], ...] = (
    (
        "backward-each",
        "Call backward in every micro-step instead of once at the end",
        {"backward": "each-micro-batch"},
        "none: the summed gradients are the same",
        0,
        {
            "pytorch": "(loss / accumulation_steps).backward()  # inside the loop over micro-batches",
            "trainer": "gradient_accumulation_steps=N  # the Trainer calls backward in each micro-step",
            "deepspeed": "model_engine.backward(loss)  # in each micro-step",
            "megatron": "backward runs in each micro-step by design",
        },
    ),
    (
        "sync-gradients",
        "Let FSDP reduce gradients in every micro-step (no no_sync)",
        {"parallelism": {"no_sync": False}},
        "one reduce-scatter per micro-step",
        1,
        {
            "pytorch": "model.set_requires_gradient_sync(True)",
            "trainer": 'accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}',
        },
    ),
    (
        "drop-outputs",
        "Let go of the model's outputs before backward",
        {"keep_logits": False},
        "none",
        0,
        {
            "pytorch": "loss = model(**batch).loss; loss.backward()  # keep no reference to the outputs",
            "trainer": "the Trainer drops them already",
            "deepspeed": "loss = engine(**batch).loss",
            "megatron": "not needed: the loss function returns no logits",
        },
    ),
    (
        "flash",
        "Use a fused attention kernel",
        {"attention": "flash"},
        "none: usually faster; results differ by rounding",
        0,
        {
            "pytorch": "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
            "trainer": 'AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa")',
            "deepspeed": 'AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa")',
            "megatron": "--use-flash-attn",
        },
    ),
    (
        "fused-loss",
        "Compute the loss chunk by chunk, never holding all logits",
        {"fused_loss": True},
        "about the same time; needs a fused or chunked loss",
        0,
        {
            "pytorch": "loss = LigerFusedLinearCrossEntropyLoss()(head.weight, hidden, labels)",
            "trainer": "use_liger_kernel=True",
            "deepspeed": "apply_liger_kernel_to_llama()",
            "megatron": "--cross-entropy-loss-fusion",
        },
    ),
    (
        "fused-optimizer",
        "Use the fused optimizer, which makes no temporary list",
        {"optimizer": "adamw-fused"},
        "none: usually faster",
        0,
        {
            "pytorch": "torch.optim.AdamW(model.parameters(), fused=True)",
            "trainer": 'optim="adamw_torch_fused"',
            "deepspeed": '"optimizer": {"type": "AdamW"}  # FusedAdam by default',
            "megatron": "fused by default",
        },
    ),
    (
        "micro-batch-half",
        "Halve the micro-batch and double the accumulation",
        {"micro_batch": "half", "grad_accum": "double"},
        "same effective batch; smaller products run less efficiently",
        1,
        {
            "pytorch": "DataLoader(dataset, batch_size=B // 2)  # and twice the accumulation steps",
            "trainer": "per_device_train_batch_size=B // 2, gradient_accumulation_steps=2 * K",
            "deepspeed": '"train_micro_batch_size_per_gpu": B // 2, "gradient_accumulation_steps": 2 * K',
            "megatron": "--micro-batch-size B/2",
        },
    ),
    (
        "micro-batch-one",
        "One sequence per micro-step",
        {"micro_batch": "one"},
        "raise the accumulation by the same factor to keep the effective batch; slower",
        1,
        {
            "pytorch": "DataLoader(dataset, batch_size=1)",
            "trainer": "per_device_train_batch_size=1",
            "deepspeed": '"train_micro_batch_size_per_gpu": 1',
            "megatron": "--micro-batch-size 1",
        },
    ),
    (
        "checkpointing",
        "Recompute each layer in backward instead of keeping its activations",
        {"checkpointing": "full"},
        "about a third more compute",
        1,
        {
            "pytorch": "hidden = torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=False)",
            "trainer": "gradient_checkpointing=True",
            "deepspeed": "deepspeed.checkpointing.checkpoint(layer, hidden)",
            "megatron": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        },
    ),
    (
        "8bit-optimizer",
        "Keep the optimizer's moments in 8 bits",
        {"optimizer": "adamw-8bit"},
        "small loss of precision in the moments",
        2,
        {"pytorch": "bitsandbytes.optim.AdamW8bit(model.parameters())", "trainer": 'optim="adamw_bnb_8bit"'},
    ),
    (
        "16-bit",
        "Train under bfloat16 autocast",
        {"precision": "amp-bf16"},
        "activations in 16 bits; GPUs from Ampere on",
        2,
        {
            "pytorch": 'with torch.autocast("cuda", torch.bfloat16): loss = model(**batch).loss',
            "trainer": "bf16=True",
            "deepspeed": '"bf16": {"enabled": true}',
            "megatron": "--bf16",
        },
    ),
    (
        "shard",
        "Shard weights, gradients and optimizer state over the ranks",
        {"parallelism": {"strategy": "fsdp", "no_sync": False}},
        "weights are gathered layer by layer: more communication",
        1,
        {
            "pytorch": "fully_shard(layer); fully_shard(model)",
            "trainer": 'fsdp="full_shard auto_wrap"',
            "deepspeed": '"zero_optimization": {"stage": 3}',
            "megatron": "--use-distributed-optimizer",
        },
    ),
    (
        "half-length",
        "Halve the longest sequence",
        {"seq_len": "half"},
        "changes the data: cap, split or bucket long samples",
        3,
        {
            "pytorch": "tokenizer(text, truncation=True, max_length=S // 2)",
            "trainer": "max_length=S // 2  # SFTConfig",
            "deepspeed": "tokenizer(text, truncation=True, max_length=S // 2)",
            "megatron": "--seq-length S/2",
        },
    ),
    (
        "lora",
        "Train low-rank adapters over frozen weights",
        {"lora": LORA},
        "trains a different, smaller set of parameters",
        3,
        {
            "pytorch": "model = peft.get_peft_model(model, peft.LoraConfig(r=16))",
            "trainer": "peft_config=LoraConfig(r=16)  # SFTTrainer",
        },
    ),
)


def remedies(s: Settings) -> tuple[Remedy, ...]:
    """Changes that lower the peak here: those that make it fit first, then by cost, then by what they save."""
    now, limit = peak_bytes(s), device_limit(s)
    found = []
    for id_, action, change, cost, rank, code in _CATALOG:
        if not _applies(s, change):
            continue
        peak = peak_bytes(changed(s, change))
        if peak < now:
            fits = None if s.capacity_bytes is None else peak <= limit
            found.append(Remedy(id_, action, change, peak, now - peak, fits, cost, rank, code))
    if together := _together(s, found):
        found.append(together)
    return tuple(sorted(found, key=lambda r: (not r.fits, r.cost_rank, -r.saves_bytes)))


def _together(s: Settings, found: list[Remedy]) -> Remedy | None:
    """All changes at once that leave batch, data and numerics alone; None where that is one change or none."""
    kept = [r for r in found if r.cost_rank <= 1 and not r.id.startswith("micro-batch")]
    change = {name: value for r in kept for name, value in r.change.items()}
    if len(kept) < 2:
        return None
    peak, limit = peak_bytes(changed(s, change)), device_limit(s)
    fits = None if s.capacity_bytes is None else peak <= limit
    action = "All changes that leave the training as it is: " + ", ".join(r.id for r in kept)
    return Remedy("together", action, change, peak, peak_bytes(s) - peak, fits, "as of each", 1)


def saves(s: Settings, change: Mapping[str, Any]) -> int:
    """Bytes by which ``change`` lowers the allocated peak; negative where it raises it."""
    return peak_bytes(s) - peak_bytes(changed(s, change))


def changed(s: Settings, change: Mapping[str, Any]) -> Settings:
    """Settings after a change; ``half``, ``one`` and ``double`` stand for what they say of a whole number."""
    values = dict(change)
    for name, value in change.items():
        held = getattr(s, name, None)
        if isinstance(value, str) and isinstance(held, int):
            values[name] = {"half": max(held // 2, 1), "one": 1, "double": 2 * held}.get(value, value)
    return s.with_(**values)


def largest(s: Settings, name: str) -> int | None:
    """The largest ``seq_len`` or ``micro_batch`` that the device holds; None without a capacity or where none does.

    Solved from the closed form: the least of the roots of each moment's quadratic.
    """
    if name not in ("seq_len", "micro_batch"):
        raise SettingsError(f"largest: {name!r} is not one of seq_len, micro_batch")
    limit = device_limit(s)
    if math.isinf(limit):
        return None
    best = min((_root(a - limit, b, c) for a, b, c in quadratics(s, name)), default=math.inf)
    return int(best) if 1 <= best < math.inf else None


def _root(a: float, b: float, c: float) -> float:
    """The largest x with a + b·x + c·x² ≤ 0, for b and c not negative; -1 where there is none."""
    if a > 0:
        return -1
    if c > 0:
        return math.floor((math.sqrt(b * b - 4 * a * c) - b) / (2 * c))
    return math.floor(-a / b) if b > 0 else math.inf


def _applies(s: Settings, change: Mapping[str, Any]) -> bool:
    """Whether a change is one at all here, and one that this run can make."""
    if "attention" in change:
        return attention_kernel(s) in ("eager", "math")
    if "optimizer" in change:
        return s.optimizer.startswith("adamw") and s.optimizer != change["optimizer"] and not s.lora
    if "precision" in change:
        return s.precision == "fp32"
    if "parallelism" in change:
        p = s.parallelism
        return p.data > 1 and p.strategy in ("none", "ddp") if "strategy" in change["parallelism"] else p.no_sync
    if "lora" in change:
        return s.lora is None
    if "fused_loss" in change or "keep_logits" in change:
        return s.model.lm_head and not s.fused_loss
    return True
