"""Low-rank adapters and a 4-bit base: the computations of peft and bitsandbytes, operation by operation.

Written out because they must run without those libraries and without a GPU. A test holds the adapters against peft.

- ``Adapted`` is ``peft.tuners.lora.layer.Linear.forward`` and, over a 4-bit base, ``peft.tuners.lora.bnb.Linear4bit``,
  which clones the base's result and casts nothing under autocast.
- ``FourBit`` is ``bitsandbytes.nn.Linear4bit`` with ``autograd._functions.MatMul4Bit``: the weight is unpacked to its
  16-bit dtype in forward and again in backward; no input is saved.
- What stays in higher precision follows ``settings.precision``: fp32 and amp-* are the recipe with peft's
  ``prepare_model_for_kbit_training`` (norms, embeddings, head and so the residual stream in fp32, 16-bit products);
  bf16 and fp16 the one without it. Scales are not quantised again (``bnb_4bit_use_double_quant`` false, its default):
  4.5 bits a weight, which is what published resident sizes add up to; quantised twice they are 4.127.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from ...errors import SettingsError
from ..settings import Lora, Settings
from .optimizers import DTYPES

BLOCK = 64
"""Weights that share one scale."""


def adapt(model: torch.nn.Module, settings: Settings, aliases: Mapping[str, str], where: str) -> list[str]:
    """Freezes the model, packs its linear layers where asked, and puts adapters on the targets, in place.

    Args:
        model: with all parameters trainable.
        settings: with ``lora``, perhaps ``base_quantization``.
        aliases: target -> path below a layer, where the model calls it otherwise.
        where: the model's source, for messages.

    Returns:
        What was assumed, in sentences.
    """
    lora, notes = settings.lora or Lora(), []
    model.requires_grad_(False)
    linear = dict(_linear(model))
    if not (chosen := [name for name in linear if _targeted(name, lora, aliases, _head(model))]):
        names = sorted({name.rpartition(".")[2] for name in linear})
        raise SettingsError(
            f"settings.lora.targets: {where} has no linear layer {lora.targets[0]:.60}; it has {', '.join(names)[:200]}"
        )
    amp = settings.precision.startswith("amp-")
    if settings.base_quantization:
        half = DTYPES.get(settings.precision.removeprefix("amp-"), torch.bfloat16)
        half = torch.bfloat16 if half is torch.float32 else half
        kept = {_head(model), list(dict(model.named_children()))[-1]}
        for name in linear:
            if name not in kept:
                linear[name] = _put(model, name, FourBit(linear[name], half))
        notes.append(_base_note(settings, half))
    for name in chosen:
        _put(model, name, Adapted(linear[name], lora, autocast=amp))
    return notes


def _base_note(settings: Settings, half: torch.dtype) -> str:
    rest = "fp32, as peft's prepare_model_for_kbit_training leaves it"
    if settings.precision in ("bf16", "fp16"):
        rest = f"{settings.precision}, without peft's prepare_model_for_kbit_training (precision fp32 is with it)"
    return (
        f"4-bit base: linear layers packed with one fp32 scale for {BLOCK} weights (no double quantisation), "
        f"products in {str(half).removeprefix('torch.')}; everything else in {rest}."
    )


def _linear(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Linear layers, transformers' Conv1D included, by path."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D":
            yield name, module


def _head(model: torch.nn.Module) -> str:
    """Path of the head over the vocabulary; empty where there is none."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return next((name for name, module in model.named_modules() if module is head), "")


def _targeted(name: str, lora: Lora, aliases: Mapping[str, str], head: str) -> bool:
    if lora.targets == ("all-linear",):
        return name != head
    for target in lora.targets:
        if target in aliases and re.search(rf"\.\d+\.{re.escape(aliases[target])}$", name):
            return True
        if target not in aliases and (name == target or name.endswith(f".{target}")):
            return True
    return False


def _put(model: torch.nn.Module, name: str, module: torch.nn.Module) -> torch.nn.Module:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
    return module


def _sizes(linear: torch.nn.Module) -> tuple[int, int]:
    """(inputs, outputs) of a linear layer; Conv1D keeps its weight the other way round."""
    rows, columns = getattr(linear, "shape", None) or linear.weight.shape
    return (rows, columns) if type(linear).__name__ == "Conv1D" else (columns, rows)


class Adapted(torch.nn.Module):
    """A frozen linear layer with a low-rank adapter beside it; shapes in and out are the layer's."""

    def __init__(self, base: torch.nn.Module, lora: Lora, autocast: bool) -> None:
        super().__init__()
        inputs, outputs = _sizes(base)
        device, dtype = next(base.parameters()).device, DTYPES[lora.dtype]
        self.base_layer, self.autocast = base, autocast
        self.lora_A = torch.nn.Linear(inputs, lora.rank, bias=False, device=device, dtype=dtype)
        self.lora_B = torch.nn.Linear(lora.rank, outputs, bias=False, device=device, dtype=dtype)
        torch.nn.init.zeros_(self.lora_B.weight)
        self.scaling = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inputs) -> (..., outputs) in the dtype that the base gives."""
        result: torch.Tensor = self.base_layer(x)
        if isinstance(self.base_layer, FourBit):
            result = result.clone()
            expected = result.dtype
            if not self.autocast:
                x = x.to(self.lora_A.weight.dtype)
            output = self.lora_B(self.lora_A(x)) * self.scaling
            if not self.autocast:
                output = output.to(expected)
            return result + output
        expected = result.dtype
        x = x.to(self.lora_A.weight.dtype)
        result = result + self.lora_B(self.lora_A(x)) * self.scaling
        return result.to(expected)


class FourBit(torch.nn.Module):
    """A linear layer whose weight is packed two to a byte; its values are not kept (all are zero)."""

    def __init__(self, linear: torch.nn.Module, half: torch.dtype) -> None:
        super().__init__()
        self.inputs, self.outputs = _sizes(linear)
        n, device = self.inputs * self.outputs, linear.weight.device
        self.half, self.shape = half, (self.outputs, self.inputs)
        self.weight = _frozen(torch.zeros(-(-n // 2), 1, dtype=torch.uint8, device=device))
        self.absmax = _frozen(torch.zeros(-(-n // BLOCK), device=device))
        self.code = _frozen(torch.zeros(16, device=device))
        bias = getattr(linear, "bias", None)
        self.bias = None if bias is None else _frozen(bias.data.to(half))

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight (outputs, inputs) as the kernel writes it, in the dtype that it was packed from."""
        return torch.zeros(self.shape, dtype=self.half, device=self.weight.device).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inputs) -> (..., outputs) in the input's dtype; the product runs in 16 bits."""
        given = x.dtype
        x = x.to(self.half)
        product: Callable[..., torch.Tensor] = _Product.apply
        return product(x, self).to(given)


def _frozen(data: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad=False)


class _Product(torch.autograd.Function):
    """x · Wᵀ + b with W unpacked for the purpose, twice."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: FourBit) -> torch.Tensor:
        ctx.layer = layer
        return functional.linear(x, layer.unpacked(x.dtype), layer.bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.matmul(grad, ctx.layer.unpacked(grad.dtype)), None
