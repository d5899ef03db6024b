"""How runs spell the values of settings, and the contract's word for each."""

from __future__ import annotations

from typing import Any

_WORDS: dict[str, dict[str, str]] = {
    "precision": {
        "fp32": "fp32 float32 float 32 32-true no none tf32",
        "bf16": "bf16 bfloat16 bf16-true",
        "fp16": "fp16 float16 half 16-true",
        "amp-bf16": "amp-bf16 bf16-mixed bf16-amp",
        "amp-fp16": "amp-fp16 16-mixed amp mixed 16 fp16-mixed",
    },
    "optimizer": {
        "adamw": "adamw adam adamw_torch",
        "adamw-foreach": "adamw-foreach",
        "adamw-loop": "adamw-loop adamw_hf",
        "adamw-fused": "adamw-fused adamw_torch_fused fused_adam fusedadam adamw_apex_fused deepspeedcpuadam",
        "adamw-8bit": "adamw-8bit adamw_8bit adam8bit adamw8bit adamw_bnb_8bit paged_adamw_8bit pagedadamw8bit",
        "adafactor": "adafactor",
        "sgd": "sgd",
        "none": "none",
    },
    "attention": {
        "eager": "eager math vanilla",
        "sdpa": "sdpa torch",
        "flash": "flash flash_attention flash_attention_2 flash_attention_3 flash_attn fa2 fa3 "
        "flash-attn flash_attention_2_kernel",
        "efficient": "efficient xformers mem_efficient memory_efficient",
    },
    "checkpointing": {
        "none": "none false no off",
        "full": "full true yes on uniform block unsloth",
        "selective": "selective",
    },
    "strategy": {
        "none": "none single",
        "ddp": "ddp distributed_data_parallel",
        "fsdp": "fsdp fsdp1 fsdp2 full_shard",
        "megatron": "megatron megatron-lm",
        "zero1": "zero1 zero-1 zero_1 zero_stage_1 deepspeed_zero1",
        "zero2": "zero2 zero-2 zero_2 zero_stage_2 deepspeed_zero2",
        "zero3": "zero3 zero-3 zero_3 zero_stage_3 deepspeed_zero3",
    },
    "gradient_dtype": {"fp32": "fp32 float32 float", "bf16": "bf16 bfloat16", "fp16": "fp16 float16 half"},
    "backward": {"each-micro-batch": "each-micro-batch", "deferred": "deferred"},
}
"""What runs call the values of a setting: contract word -> other spellings (option values, dtype names)."""


LOOKUP = {
    name: {w: word for word, spellings in words.items() for w in spellings.split()} for name, words in _WORDS.items()
}
LOOKUP["optimizer_state_dtype"] = LOOKUP["dtype"] = LOOKUP["gradient_dtype"]


def contract_word(name: str, value: Any) -> Any:
    """The contract's word for a setting's value however it is spelled; a value that is unknown stays as it is."""
    if not isinstance(value, str) and not (isinstance(value, bool) and name == "checkpointing"):
        return value
    spelled = word(value)
    if name == "precision" and spelled.endswith("true") and spelled[:4] in ("bf16", "fp16") and spelled[4:5] == ":":
        return f"amp-{spelled[:4]}"  # a trainer's switch (`bf16: true`) means autocast over fp32 weights
    return LOOKUP.get(name, {}).get(spelled, value)


def bare(value: Any) -> Any:
    """The value of a fact or of a ``(value, source)`` pair; anything else as it is."""
    if hasattr(value, "value"):
        return value.value
    return value[0] if isinstance(value, tuple) and len(value) == 2 else value


def number(value: Any) -> Any:
    """A whole number written as text or as a float becomes one; anything else stays as it is."""
    if isinstance(value, str) and len(value) <= 40 and (digits := value.strip().replace(",", "")).isdecimal():
        return int(digits)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def word(value: Any) -> str:
    """A value as it may be spelled: lower case, without the module of a dtype, one word; empty for what is no word."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 64:
        return ""  # more than a precision's bits
    if not isinstance(value, str | int | float):
        return ""
    return str(value).strip().lower().removeprefix("torch.").removeprefix("optim.").replace(" ", "_")
