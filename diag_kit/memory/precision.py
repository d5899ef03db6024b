"""Bytes per element of each kind of tensor, as a precision recipe and a parallel strategy set them."""

from __future__ import annotations

from dataclasses import dataclass

from .settings import Settings

SIZE = {"fp32": 4, "bf16": 2, "fp16": 2}
SIXTEEN_BIT_ENGINES = ("zero1", "zero2", "zero3", "megatron")
"""Strategies whose engine holds 16-bit weights and its own fp32 master copy, whatever the recipe is called."""


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes per element.

    Attributes:
        param: resident weights. gathered: weights as gathered for use (FSDP). copy: autocast's 16-bit copy of a weight.
        compute: operands of matrix products. stream: the residual stream between blocks.
        grad: gradients. reduced: what FSDP reduces them in, and keeps them in whole when it does not.
        state: each optimizer moment. master: fp32 copy of the weights kept by the optimizer.
        adapter: LoRA weights, their gradients and moments; 0 without LoRA.
    """

    param: float
    gathered: int
    copy: int
    compute: int
    stream: int
    grad: int
    reduced: int
    state: int
    master: int
    adapter: int


def widths(s: Settings) -> Widths:
    """The widths that hold for these settings."""
    amp = s.precision.startswith("amp-")
    low = amp or s.precision != "fp32"
    engine = low and s.parallelism.strategy in SIXTEEN_BIT_ENGINES
    fsdp = s.parallelism.strategy == "fsdp"
    param = 4 if not low or (amp and not engine) else 2
    grad = 4 if engine and s.parallelism.strategy == "megatron" else param
    state = 4 if engine else param
    adapter = SIZE[s.lora.dtype] if s.lora else 0
    return Widths(
        param=param,
        gathered=2 if low else 4,
        copy=2 if amp and not engine and not fsdp else 0,
        compute=2 if low else 4,
        stream=4 if amp and not engine and not fsdp else 2 if low else 4,
        grad=SIZE[s.gradient_dtype] if s.gradient_dtype else adapter or grad,
        reduced=4 if amp or not low else 2,
        state=SIZE[s.optimizer_state_dtype] if s.optimizer_state_dtype else adapter or state,
        master=4 if engine and not s.lora else 0,
        adapter=adapter,
    )
