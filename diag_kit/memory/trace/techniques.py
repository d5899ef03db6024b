"""What a run changes in the model's code to need less: checkpointing, and a loss that never holds the whole logits."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ...errors import SettingsError
from ..settings import Settings

_aten = torch.ops.aten
_PRODUCTS = {_aten.mm.default, _aten.addmm.default}
_KEPT = {
    getattr(_aten, name).default
    for name in (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
    if hasattr(_aten, name)
}


def checkpoint(model: torch.nn.Module, settings: Settings) -> None:
    """Recomputes each layer in backward (without re-entrance), keeping all, or the dearest results, of none of it.

    ``selective`` is torchtitan's policy by operation (``torchtitan.distributed.activation_checkpoint``): results of
    fused attention are kept, and of matrix products every second one.
    """
    if settings.checkpointing == "none":
        return
    how: dict[str, Any] = {"use_reentrant": False}
    if settings.checkpointing == "selective":
        how["context_fn"] = lambda: create_selective_checkpoint_contexts(_policy())
    enable = getattr(model, "activation_checkpointing_enable", None)
    try:
        if enable is not None:
            enable(activation_checkpointing_kwargs=how)
        else:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    except ValueError:
        raise SettingsError(
            f"settings.checkpointing: {type(model).__name__} has no gradient checkpointing in transformers; use none"
        ) from None
    if settings.lora:
        model.enable_input_require_grads()


def _policy() -> Callable[..., CheckpointPolicy]:
    """A policy for one layer: it counts the products, in forward and again in backward."""
    seen = {True: 0, False: 0}

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op in _PRODUCTS:
            seen[ctx.is_recompute] += 1
        kept = op in _KEPT or (op in _PRODUCTS and seen[ctx.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def fuse_loss(model: torch.nn.Module, settings: Settings) -> list[str]:
    """Replaces the model's forward by one that computes head and cross-entropy together, in chunks."""

    def forward(input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        hidden = model.base_model(input_ids=input_ids, attention_mask=attention_mask)[0]
        shifted = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
        head = model.get_output_embeddings()
        product: Callable[..., torch.Tensor] = FusedLinearCrossEntropy.apply
        loss = product(hidden.view(-1, hidden.shape[-1]), head.weight, shifted, settings.device == "cuda")
        return SimpleNamespace(loss=loss, logits=None)

    model.forward = forward
    return ["Head and cross-entropy are one operation over chunks, as in Liger-Kernel; the logits are never whole."]


class FusedLinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of ``hidden · weightᵀ`` (tokens, h) x (V, h) against labels (tokens,); -100 is left out.

    As ``liger_kernel.ops.fused_linear_cross_entropy``: chunks of about tokens · h / V tokens, a power of two; gradients
    are made in the forward pass, in place of the logits, and only scaled in backward.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, cuda: bool) -> torch.Tensor:
        tokens, (vocab, width) = hidden.shape[0], weight.shape
        chunk = min(1 << (-(-tokens // -(-vocab // width)) - 1).bit_length(), tokens)
        gradient = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        counted = (labels != -100).sum()
        low = hidden.dtype == weight.dtype and not _autocast()
        room = torch.empty((chunk, vocab), dtype=hidden.dtype, device=hidden.device) if low else None
        for start in range(0, tokens, chunk):
            part, target = hidden[start : start + chunk], labels[start : start + chunk]
            logits = torch.mm(part, weight.t(), out=room[: len(part)]) if room is not None else part @ weight.t()
            losses[start : start + chunk] = _gradient_in_place(logits, target, counted)
            if room is not None:
                torch.mm(logits, weight, out=gradient[start : start + chunk])
            else:
                gradient[start : start + chunk] = logits @ weight
            if of_weight is not None:
                _accumulate(of_weight, logits, part, cuda)
            del logits, part, target
        del room
        ctx.save_for_backward(gradient, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[Any, ...]:
        gradient, of_weight = ctx.saved_tensors
        gradient.mul_(upstream)
        if of_weight is not None:
            of_weight.mul_(upstream)
        return gradient, of_weight, None, None


def _autocast() -> bool:
    return bool(torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))


def _gradient_in_place(logits: torch.Tensor, target: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Turns a chunk's logits (tokens, V) into their gradient, as the kernel does; returns the losses (tokens,)."""
    kept = (target != -100).unsqueeze(1)
    index = target.clamp(min=0).unsqueeze(1)
    logits.sub_(logits.amax(1, keepdim=True))
    right = logits.gather(1, index)
    total = logits.exp_().sum(1, keepdim=True)
    loss = (total.float().log() - right.float()) * kept / counted
    logits.div_(total).scatter_add_(1, index, torch.full_like(right, -1)).mul_(kept / counted)
    return loss.squeeze(1)


def _accumulate(of_weight: torch.Tensor, logits: torch.Tensor, part: torch.Tensor, cuda: bool) -> None:
    """Adds ``logitsᵀ · part`` (V, h). A GPU adds 16-bit products in place; otherwise the sum is made beside it."""
    if cuda and logits.dtype != torch.float32:
        part = part.to(logits.dtype)
        if of_weight.dtype == logits.dtype:
            torch.addmm(of_weight, logits.t(), part, out=of_weight)
        else:
            of_weight.mul_(1.0)  # addmm with a result in fp32, which only a GPU has: in place, no memory
        return
    of_weight += torch.mm(logits.t(), part).float()
