"""A trace on fake ``cpu`` tensors that allocates as CUDA does: a CPU-only build of torch can't make fake ``cuda`` ones.

What differs is overlaid in torch's dispatcher, above autograd, and taken away again at the context's end. So it holds
for calls from Python and C++ alike, graphs and saved tensors are CUDA's, and what a kernel allocates within itself is
made by operators that whoever watches the step sees. Overlaid (sources stand with each function):

- attention (attention.py) and autocast (autocast.py);
- ``dropout``: fused, with a mask of one byte per element, where the CPU's has the input's dtype;
- ``softmax`` and ``log_softmax`` of fp16 into fp32: no copy of the input (bf16 is copied on CUDA too);
- backward of softmax: CUDA's kernel takes the product of gradient and result, in a tensor of that size;
- ``_safe_softmax`` of the math path: its mask and second result, which one operator hides;
- ``rms_norm``: one kernel that saves input and 1/rms; ``layer_norm``: statistics in fp32 for 16-bit inputs;
- optimizers and ``clip_grad_norm_``: foreach is the default on CUDA, the loop on a CPU.

Checked and equal in what they allocate and save: linear and matmul with their backward (a bias is fused into the
product), embedding forward, cross-entropy and NLL, gelu, silu, tanh, cat, masked_fill, where, repeat_interleave,
cumsum, group_norm, foreach optimizers once chosen, fused AdamW, checkpointing.

Different and left out, since small, short or unknown: sorted indices and partial sums (about 4.4 bytes per token and
hidden value) of the embedding's backward beyond 3,072 tokens, freed before the optimizer runs; those of ``index_put``,
of sorts and of the norms' backward; workspaces of cuDNN convolutions; cuDNN's LSTM and GRU, which keep a reserve. On a
GPU, Adam's step counts and the seeds of the efficient attention kernel lie on the host.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..device import capability
from ..settings import Settings
from . import attention, autocast
from .attention import AttentionCall, Operands

aten = torch.ops.aten


@dataclass
class Emulation:
    """What the context offers: calls of attention as they came, and a way to tell which module runs."""

    settings: Settings
    kernels: list[AttentionCall] = field(default_factory=list)
    where: Callable[[], str] = lambda: ""

    def note(self, kernel: str, why: str, o: Operands) -> None:
        """Keep one call of attention."""
        within_backward = torch._C._current_graph_task_id() != -1
        self.kernels.append(AttentionCall(kernel, why, o.shape, o.dtype, self.where(), within_backward))


@contextlib.contextmanager
def as_cuda(settings: Settings) -> Iterator[Emulation]:
    """Run what is inside as on ``settings.gpu``; with ``settings.device == "cpu"`` only attention calls are noted.

    Under ``"cuda"`` tensors must be fake: overlaid operators have the right sizes and no values. Process-wide.
    """
    emulation = Emulation(settings)
    overlays = _cuda(emulation) if settings.device == "cuda" else _noted(emulation)
    library = torch.library.Library("aten", "IMPL")
    with contextlib.ExitStack() as stack:
        stack.callback(library._destroy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a kernel is replaced, which is the point
            for name, overlay in overlays.items():
                _overlay(library, name, overlay)
            if settings.device == "cuda":
                autocast.install(library)
        if settings.device == "cuda":
            stack.enter_context(autocast.cuda_means_cpu())
            stack.enter_context(_foreach_by_default())
        yield emulation


def _overlay(library: torch.library.Library, name: str, overlay: Callable[..., Any]) -> None:
    """Let ``overlay(original, ...)`` stand for an operator; ``original`` calls what stood there."""
    kernel = torch.library.get_kernel(f"aten::{name}", "AutogradCPU")

    def run(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return overlay(lambda *a, **k: kernel.call_boxed(keys, *a, **k), *args, **kwargs)

    library.impl(name, run, "AutogradCPU", with_keyset=True)


def _cuda(emulation: Emulation) -> dict[str, Callable[..., Any]]:
    return {
        "scaled_dot_product_attention": _attention(emulation),
        "_scaled_dot_product_flash_attention_backward": _flash_backward,
        "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
        "_scaled_dot_product_efficient_attention": _efficient,
        "_scaled_dot_product_efficient_attention_backward": _efficient_backward(emulation),
        "dropout": _dropout,
        "softmax.int": _softmax(aten._softmax),
        "log_softmax.int": _softmax(aten._log_softmax),
        "_softmax_backward_data": _softmax_backward,
        "_safe_softmax": _safe_softmax,
        "rms_norm": _rms_norm,
        "layer_norm": _layer_norm,
    }


# --- attention


def _attention(emulation: Emulation) -> Callable[..., Any]:
    gpu = capability(emulation.settings.gpu)
    asked = emulation.settings.attention
    kernels = attention.order(asked, gpu)

    def attend(
        _: Any, q: Any, k: Any, v: Any, mask: Any = None, p: float = 0.0, causal: bool = False, *,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if asked == "efficient" and enable_gqa:  # the kernel takes none, so whoever pins it repeats the heads before
            k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
        # The flash-attention package is given lengths in place of a padding mask.
        o = Operands(q, k, v, None if asked == "flash" else mask, p, causal, enable_gqa, gpu)
        kernel, why = attention.choose(o, kernels)
        emulation.note(kernel, why, o)
        return attention.attend(kernel, o, scale)

    return attend


def _noted(emulation: Emulation) -> dict[str, Callable[..., Any]]:
    """torch's own attention on the CPU, whose choice shows in whether its fused kernel is called."""
    fused: list[bool] = []

    def attend(original: Any, q: Any, k: Any, v: Any, mask: Any = None, p: float = 0.0, *rest: Any, **kw: Any) -> Any:
        fused.clear()
        result = original(q, k, v, mask, p, *rest, **kw)
        kernel = "flash" if fused else "math"
        why = "the CPU's own kernel" if fused else f"the CPU's kernel refuses: {'dropout' if p else 'shape or dtype'}"
        emulation.note(kernel, why, Operands(q, k, v, mask, p, bool(rest and rest[0]), False, (0, 0)))
        return result

    def flash(original: Any, *args: Any, **kwargs: Any) -> Any:
        fused.append(True)
        return original(*args, **kwargs)

    return {"scaled_dot_product_attention": attend, "_scaled_dot_product_flash_attention_for_cpu": flash}


def _dense(*tensors: Any) -> list[Any]:
    """Copies of (batch, heads, length, head) tensors that don't lie in memory as (batch, length, heads, head)."""
    return [t.transpose(1, 2).contiguous() for t in tensors]


def _flash_backward(original: Any, grad: Any, q: Any, k: Any, v: Any, out: Any, *rest: Any, **kw: Any) -> Any:
    with torch.no_grad():
        copies = _dense(grad, out)
        grads = original(grad, q, k, v, out, *rest, **kw)
        buffers = attention.flash_backward_buffers(q, k)
        del buffers, copies
    return grads


def _cudnn_backward(original: Any, grad: Any, q: Any, k: Any, *rest: Any, **kw: Any) -> Any:
    with torch.no_grad():
        grads = original(grad, q, k, *rest, **kw)
        attention.cudnn_backward_buffers(q, k)
    return grads


def _efficient(original: Any, q: Any, k: Any, v: Any, *rest: Any, **kw: Any) -> Any:
    result = original(q, k, v, *rest, **kw)
    with torch.no_grad():
        attention.efficient_forward_buffers(q, v)
    return result


def _efficient_backward(emulation: Emulation) -> Callable[..., Any]:
    gpu = capability(emulation.settings.gpu)

    def backward(original: Any, grad: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, *rest: Any, **kw: Any) -> Any:
        with torch.no_grad():
            (copy,) = _dense(grad)
            grads = original(grad, q, k, v, bias, out, *rest, **kw)
            attention.efficient_backward_buffers(copy.transpose(1, 2), q, k, v, out, gpu)
            del copy
        return grads

    return backward


# --- dropout and softmax


def _dropout(original: Any, x: Any, p: float, train: bool) -> Any:
    """``dropout`` in Dropout.cpp: the fused kernel on CUDA."""
    return aten.native_dropout(x, p, True)[0] if train and 0 < p < 1 and x.numel() else original(x, p, train)


def _softmax(fused: Any) -> Callable[..., Any]:
    """``softmax`` in SoftMax.cpp: ``half_to_float`` on CUDA, for fp16 alone."""

    def softmax(original: Any, x: Any, dim: int, dtype: Any = None) -> Any:
        if x.dtype is torch.float16 and dtype is torch.float32:
            return fused(x, dim, True)
        return original(x, dim, dtype)

    return softmax


def _softmax_backward(original: Any, grad: Any, output: Any, *rest: Any) -> Any:
    """``softmax_backward_cuda_out`` in SoftMax.cu: ``Tensor tmp = grad * output``, beside the result."""
    result = original(grad, output, *rest)
    with torch.no_grad():
        torch.mul(grad, output)
    return result


def _safe_softmax(original: Any, x: Any, *rest: Any, **kw: Any) -> Any:
    """``_safe_softmax`` in attention.cpp: the softmax, which scores are -inf, and the result without their rows."""
    result = original(x, *rest, **kw)
    with torch.no_grad():
        buffers = [torch.empty_like(result), torch.empty_like(result, dtype=torch.bool)]
        del buffers
    return result


# --- norms


class _Norm(torch.autograd.Function):
    """A fused norm over the last dimensions: saves its input, the weight, and so many statistics in fp32 per row."""

    @staticmethod
    def forward(ctx: Any, x: Any, shape: Any, weight: Any, bias: Any, statistics: int) -> Any:
        x = x.contiguous()
        y = torch.empty_like(x)
        rows = x.shape[: x.dim() - len(shape)]
        stats = [x.new_empty((*rows, *[1] * len(shape)), dtype=torch.float32) for _ in range(statistics)]
        ctx.save_for_backward(x, weight, bias, *stats)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight, bias, *_ = ctx.saved_tensors
        needs = ctx.needs_input_grad
        grad = grad.contiguous()
        gradients = [None if t is None or not n else torch.empty_like(t)
                     for t, n in ((x, needs[0]), (weight, needs[2]), (bias, needs[3]))]  # fmt: skip
        return gradients[0], None, gradients[1], gradients[2], None


def _rms_norm(original: Any, x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """``rms_norm_symint`` in layer_norm.cpp: fused unless the weight has another dtype."""
    if weight is not None and weight.dtype is not x.dtype:
        return original(x, shape, weight, eps)
    return _Norm.apply(x, shape, weight, None, 1)


def _layer_norm(original: Any, x: Any, shape: Any, weight: Any = None, bias: Any = None, *rest: Any) -> Any:
    """``layer_norm_cuda``: mean and 1/deviation in the accumulation type, which the CPU has in the input's dtype."""
    if x.dtype not in attention.HALF:
        return original(x, shape, weight, bias, *rest)
    return _Norm.apply(x, shape, weight, bias, 2)


# --- optimizers


@contextlib.contextmanager
def _foreach_by_default() -> Iterator[None]:
    """``_default_to_fused_or_foreach`` asks for the device and plain tensors: fake ones on the CPU count as both."""
    optim: Any = importlib.import_module("torch.optim.optimizer")  # torch.optim hides its module
    utils = importlib.import_module("torch.utils._foreach_utils")
    devices = optim._get_foreach_kernels_supported_devices
    kinds = (optim._foreach_supported_types, utils._foreach_supported_types)
    optim._get_foreach_kernels_supported_devices = lambda: [*devices(), "cpu"]
    for kind in kinds:
        kind.append(FakeTensor)
    try:
        yield
    finally:
        optim._get_foreach_kernels_supported_devices = devices
        for kind in kinds:
            kind.remove(FakeTensor)
