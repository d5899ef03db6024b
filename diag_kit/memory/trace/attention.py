"""Scaled dot-product attention as torch does it on a GPU: which kernel takes a call, why, and what it allocates.

The choice follows torch 2.13 (``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``): kernels are tried in an order,
and the first that refuses nothing runs. Order: flash, memory-efficient, math; on compute capability 9.x and 10.x (H100,
H200, B200) cuDNN comes first, where the build has cuDNN 9.15.1 or later, as the CUDA 13 wheels have. Grouped heads are
taken as they are by flash and cuDNN, by the efficient kernel not at all.

What a call saves is what its own operator saves, since that operator is called. What a kernel allocates within itself
is allocated here, at the same time (sources stand with each). Not known, so left out: split-key buffers of the flash
forward, which a launch too small to fill the GPU takes, and cuDNN's forward workspace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
CHECKED_UP_TO = (12, 1)
"""Newest compute capability that torch 2.13's fused kernels accept."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of attention and the kernel that takes it on the GPU.

    Attributes:
        kernel: ``cudnn``, ``flash``, ``efficient`` or ``math``.
        why: first choice, or what each kernel before it refused, in words.
        shape: batch, query heads, queries, keys, head dimension.
        dtype: of the operands: ``fp32``, ``bf16``, ``fp16``.
        module: path of the module that called, "" where nobody told.
        recomputed: called within a backward pass, by checkpointing.
    """

    kernel: str
    why: str
    shape: tuple[int, ...]
    dtype: str
    module: str = ""
    recomputed: bool = False


@dataclass(frozen=True, slots=True)
class Operands:
    """What a call of ``scaled_dot_product_attention`` was given, on a GPU of this compute capability."""

    query: Any
    key: Any
    value: Any
    mask: Any
    dropout: float
    causal: bool
    gqa: bool
    capability: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch, query heads, queries, keys, head dimension (leading dimensions as given)."""
        q = self.query.shape
        return (*q[:-1], self.key.shape[-2], q[-1])

    @property
    def dtype(self) -> str:
        """Short name of the operands' dtype."""
        return SHORT.get(self.query.dtype, str(self.query.dtype).removeprefix("torch."))


def order(asked: str, capability: tuple[int, int]) -> tuple[str, ...]:
    """Kernels in the order in which torch tries them; ``asked`` is ``settings.attention``."""
    if asked == "efficient":
        return ("efficient", "math")
    rest = ("flash", "efficient", "math")
    return ("cudnn", *rest) if asked != "flash" and capability[0] in (9, 10) else rest


def choose(o: Operands, kernels: tuple[str, ...]) -> tuple[str, str]:
    """The kernel that takes the call and why.

    Raises:
        RuntimeError: every kernel refuses, as torch's own "No available kernel".
    """
    refused = []
    for kernel in kernels:
        reasons = refusals(kernel, o)
        if not reasons:
            break
        refused.append(f"{kernel}: {'; '.join(reasons)}")
    else:
        raise RuntimeError(f"No available kernel for attention. {' | '.join(refused)}")
    if not refused:
        return kernel, f"first choice on compute capability {_version(o)}"
    why = " | ".join(refused)
    if kernel == "math":
        size = "×".join(map(str, o.shape[:-1]))
        why = f"no fused kernel takes this call, so scores of {size} are materialised in fp32. {why}"
    return kernel, why


_ENABLED = {
    "flash": torch._C._get_flash_sdp_enabled,
    "efficient": torch._C._get_mem_efficient_sdp_enabled,
    "cudnn": torch._C._get_cudnn_sdp_enabled,
    "math": torch._C._get_math_sdp_enabled,
}


def refusals(kernel: str, o: Operands) -> list[str]:
    """What keeps a kernel from taking the call, in words; empty where it can (``can_use_*_attention``)."""
    if not _ENABLED[kernel]():
        return ["switched off by sdpa_kernel() or torch.backends.cuda"]
    if kernel == "math":
        return []
    q, k, v = o.query, o.key, o.value
    if not q.dim() == k.dim() == v.dim() == 4:
        return [f"takes 4 dimensions (batch, heads, length, head), not {q.dim()}"]
    if o.capability > CHECKED_UP_TO or o.capability < ((5, 0) if kernel == "efficient" else (8, 0)):
        return [f"not built for compute capability {_version(o)}"]
    reasons = _dtype(kernel, o)
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        reasons.append(f"batch sizes differ: {q.shape[0]}, {k.shape[0]}, {v.shape[0]}")
    heads, kv_heads, v_heads = q.shape[1], k.shape[1], v.shape[1]
    if o.gqa and kernel != "efficient":
        if heads % kv_heads or heads % v_heads or (kernel == "flash" and kv_heads != v_heads):
            reasons.append(f"{heads} query heads are no multiple of {kv_heads} and {v_heads}")
    elif not heads == kv_heads == v_heads:
        reasons.append(f"takes no grouped heads: {heads} of the query, {kv_heads} of the key")
    if 0 in (q.shape[2], k.shape[2]):
        reasons.append("a length is zero")
    if any(t.stride(-1) != 1 and t.shape[-1] > 1 for t in (q, k, v)):
        reasons.append("the head dimension is not contiguous")
    return reasons + {"flash": _flash, "efficient": _efficient, "cudnn": _cudnn}[kernel](o)


def _version(o: Operands) -> str:
    return ".".join(map(str, o.capability))


def _dtype(kernel: str, o: Operands) -> list[str]:
    takes = [torch.float16]
    if o.capability >= (8, 0):
        takes.append(torch.bfloat16)
    if kernel == "efficient":
        takes.append(torch.float32)
    kinds = {t.dtype for t in (o.query, o.key, o.value)}
    if len(kinds) > 1:
        return [f"dtypes differ: {', '.join(sorted(SHORT.get(kind, str(kind)) for kind in kinds))}"]
    return [] if o.query.dtype in takes else [f"takes {' and '.join(SHORT[t] for t in takes)}, not {o.dtype}"]


def _flash(o: Operands) -> list[str]:
    reasons = []
    if o.mask is not None:
        reasons.append(f"takes no attention mask (here {'×'.join(map(str, o.mask.shape))})")
    head = o.query.shape[-1]
    if len({t.shape[-1] for t in (o.query, o.key, o.value)}) > 1 or head > 256:
        reasons.append(f"takes one head dimension up to 256, not {head}, {o.key.shape[-1]}, {o.value.shape[-1]}")
    if o.causal and o.query.shape[2] != o.key.shape[2]:
        reasons.append(f"is_causal needs as many queries as keys, not {o.query.shape[2]} and {o.key.shape[2]}")
    small = (8, 6) <= o.capability <= (8, 9) or o.capability >= (12, 0)
    if small and _trains(o) and head > 192 and (head <= 224 or o.dropout):
        reasons.append(f"no backward for head dimension {head} on compute capability {_version(o)}")
    return reasons


def _efficient(o: Operands) -> list[str]:
    cores = o.capability >= (8, 0) or (o.capability >= (7, 0) and o.query.dtype in HALF)
    align = max(4 if o.capability >= (8, 0) else 1, (8 if o.query.dtype in HALF else 4) if cores else 1)
    heads = [t.shape[-1] for t in (o.query, o.key, o.value)]
    if heads[0] != heads[1] or heads[0] % align or heads[2] % align:
        return [f"takes head dimensions in multiples of {align}, not {', '.join(map(str, heads))}"]
    return []


def _cudnn(o: Operands) -> list[str]:
    reasons = []
    heads = (o.query.shape[-1], o.value.shape[-1])
    if max(heads) > 128 or heads[0] % 8 or heads[1] % 8:
        reasons.append(f"takes head dimensions up to 128 in multiples of 8, not {heads[0]}, {heads[1]}")
    if o.dropout * 16 % 1:
        reasons.append(f"takes dropout in sixteenths, not {o.dropout}")
    if o.key.shape[2] == 1 or (o.dropout and o.query.shape[2] == 1):
        reasons.append("a length is one")
    mask = o.mask
    if mask is not None:
        full = (*o.query.shape[:2], o.query.shape[2], o.key.shape[2])
        fits = mask.dim() in (2, 4) and all(m in (1, n) for m, n in zip(mask.shape[::-1], full[::-1], strict=False))
        if mask.requires_grad or not fits:
            reasons.append("the mask needs a gradient or has another shape")
    return reasons


def _trains(o: Operands) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in (o.query, o.key, o.value))


def attend(kernel: str, o: Operands, scale: float | None) -> Any:
    """Call the operator that CUDA calls; the result's head dimension is the value's.

    Source: ``scaled_dot_product_attention`` in ``aten/src/ATen/native/transformers/attention.cpp``.
    """
    q, k, v, mask, p = o.query, o.key, o.value, o.mask, o.dropout
    if kernel == "flash":
        head = q.shape[-1]
        q, k, v = (pad(t, (0, -head % 8)) if head % 8 else t for t in (q, k, v))
        scale = 1 / math.sqrt(head) if scale is None else scale
        out = aten._scaled_dot_product_flash_attention(q, k, v, p, o.causal, scale=scale)[0]
        return out if out.shape[-1] == head else out[..., :head]
    if mask is not None and mask.dtype is torch.bool:
        lowest = -65504.0 if kernel == "cudnn" else -math.inf
        mask = torch.where(mask, 0.0, torch.scalar_tensor(lowest, dtype=q.dtype, device=q.device))
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(q, k, v, mask, _trains(o), p, o.causal, scale=scale)[0]
    if kernel == "efficient":
        mask = None if mask is None else _aligned(mask, q.shape, k.shape[2])
        return aten._scaled_dot_product_efficient_attention(q, k, v, mask, _trains(o), p, o.causal, scale=scale)[0]
    return aten._scaled_dot_product_attention_math(q, k, v, mask, p, o.causal, scale=scale, enable_gqa=o.gqa)[0]


def _aligned(mask: Any, query: Any, keys: int) -> Any:
    """The bias as the efficient kernel takes it: rows start at multiples of 8 elements, or a padded copy is made."""
    if mask.stride(-1) != 1 or any(step % 8 for step in mask.stride()[:-1]):
        last = mask.shape[-1]
        mask = pad(mask, (0, 8 - last % 8))[..., :last]
    return mask.expand(*query[:3], keys)


# --- what the kernels allocate within themselves


def flash_backward_buffers(query: Any, key: Any) -> list[Any]:
    """Sums of the output's gradient, dq in fp32, and dk and dv of every query head where heads are grouped.

    Source: ``mha_bwd`` in flash-attention's ``flash_api.cpp``: lengths rounded up to 128, the head dimension to 32.
    """
    batch, heads, length, head = query.shape
    rows, columns = -(-length // 128) * 128, -(-head // 32) * 32
    f32 = {"dtype": torch.float32, "device": query.device}
    buffers = [torch.empty(batch, heads, rows, **f32), torch.empty(batch, rows, heads, columns, **f32)]
    if key.shape[1] != heads:
        buffers += [key.new_empty(batch, key.shape[2], heads, head) for _ in range(2)]
    return buffers


def cudnn_backward_buffers(query: Any, key: Any) -> list[Any]:
    """As cudnn-frontend's graph for the backward declares: sums, dq in fp32, dk and dv of all heads where grouped."""
    batch, heads, length, head = query.shape
    f32 = {"dtype": torch.float32, "device": query.device}
    buffers = [torch.empty(batch, heads, length, **f32), torch.empty(batch, heads, length, head, **f32)]
    if key.shape[1] != heads:
        buffers += [key.new_empty(batch, heads, key.shape[2], head) for _ in range(2)]
    return buffers


def efficient_forward_buffers(query: Any, value: Any) -> list[Any]:
    """The result in fp32, where it doesn't stay in registers: 16-bit operands and heads wider than 128.

    Source: ``kNeedsOutputAccumulatorBuffer`` in ``mem_eff_attention/kernel_forward.h``.
    """
    if query.dtype not in HALF or max(query.shape[-1], value.shape[-1]) <= 128:
        return []
    return [query.new_empty(*query.shape[:3], value.shape[-1], dtype=torch.float32)]


def efficient_backward_buffers(grad: Any, query: Any, key: Any, value: Any, out: Any, capability: Any) -> list[Any]:
    """Row sums ``delta``, and the workspace in which dq (and, for wide heads, dk and dv) is summed up in fp32.

    Source: ``workspace_size`` in ``mem_eff_attention/kernel_backward.h``, block sizes of ``kernels/cutlassB.h``,
    ``_efficient_attention_backward`` in ``attention_backward.cu``.
    """
    batch, heads, queries, head = query.shape
    keys, half, widest = key.shape[2], query.dtype in HALF, max(query.shape[-1], value.shape[-1])
    if half:
        delta = query.new_empty(batch, heads, queries, dtype=torch.float32)
    else:  # one expression in C++: its intermediates live to its end
        product = grad.transpose(1, 2) * out.transpose(1, 2)
        sums = product.sum(-1)
        delta = sums.transpose(-2, -1).contiguous()
        del product, sums
    rows, columns = _blocks(half, widest, capability)
    floats = -(-queries // rows) * -(-head // columns) * (rows * columns + 4) if capability >= (7, 0) or half else 0
    if half and widest > rows:
        splits = max(1, min(-(-keys // columns), 200 // (batch * heads)))
        if batch * heads >= 256 and keys <= 2 * columns:
            splits = 1
        floats += splits * columns * sum(-(-width // rows) * rows for width in (head, value.shape[-1]))
    size = batch * heads * -(-floats // 4) * 4 * 4
    return [delta, torch.empty(size, dtype=torch.uint8, device=query.device)] if size else [delta]


def _blocks(half: bool, widest: int, capability: tuple[int, int]) -> tuple[int, int]:
    """Queries and keys of a block in the first kernel whose width and shared memory do."""
    if widest <= 64:
        return 64, 64
    small = (8, 6) <= capability <= (8, 9) or capability >= (12, 0)
    if not half:
        return (128, 64) if capability >= (8, 0) and not small else (64, 64)
    if small:
        return (128, 64) if widest <= 96 and capability < (9, 0) else (64, 64)
    if capability >= (8, 0):
        return (128, 128) if widest <= 128 else (128, 64)
    return (128, 64) if capability < (7, 5) else (64, 64)
