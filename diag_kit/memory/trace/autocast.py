"""CUDA's autocast rules on tensors that a CPU-only build calls ``cpu``.

torch casts by a table of operators per device: to the lower precision, to fp32, or to the widest of the operands. The
CPU's table is another one: it leaves softmax, norms, sums, powers and exponentials alone. Here the CPU's entries are
overlaid with CUDA's (``AT_FORALL_*`` in ``aten/src/ATen/autocast_mode.h``, torch 2.13, and the page "CUDA Ops that can
autocast"). What both cast to the lower precision stays torch's own code, so the cache of cast weights is torch's: a
leaf in fp32 that needs a gradient is cast once until the outermost context ends.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_KEY = "AutocastCPU"
_SKIP = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FP32 = _names(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm
    nuclear_norm.dim cosine_similarity dist pdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d
    upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"""
)
"""Operands are cast to fp32 first."""
FP32_RESULT = _names(
    """softmax.int log_softmax.int prod prod.dim_int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList"""
)
"""The operator is asked for a result in fp32, and casts within itself."""
WIDEST = _names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
"""Operands are cast to the widest among them, at least the lower precision."""
LOWER = _names(
    """addmv addr chain_matmul einsum linalg_multi_dot mv _convolution convolution cudnn_convolution
    cudnn_convolution_transpose _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell gru_cell
    lstm_cell rnn_relu_cell rnn_tanh_cell"""
)
"""Cast to the lower precision on CUDA alone."""
NORM = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
"""Norms without a result dtype -> their overload with one, which is fp32."""

Rule = Callable[..., Any]


def autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """The context in which a run in mixed precision computes its loss; without dtype, one that does nothing.

    Within ``as_cuda`` it follows CUDA's rules, else the CPU's.
    """
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def install(library: torch.library.Library) -> None:
    """Overlay the CPU's table with CUDA's, until the library is destroyed."""
    for name, rule in _table():
        library.impl(name, rule, _KEY)


@functools.cache
def _table() -> list[tuple[str, Any]]:
    """Operators that CUDA casts otherwise than the CPU, with their rule; those that it doesn't cast fall through."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    table: list[tuple[str, Any]] = []
    for full in torch._C._dispatch_get_all_op_names():
        cuda, cpu = has(full, "AutocastCUDA"), has(full, _KEY)
        rule = _rule(full.removeprefix("aten::")) if cuda else torch.library.fallthrough_kernel if cpu else None
        if rule is not None and full.startswith("aten::"):
            table.append((full.removeprefix("aten::"), rule))
    return table


def _rule(name: str) -> Rule | None:
    packet, _, overload = name.partition(".")
    call = getattr(getattr(torch.ops.aten, packet), overload or "default")
    if name in NORM:
        with_dtype = getattr(torch.ops.aten.norm, NORM[name])
        return _excluded(lambda *args: (with_dtype(*args, dtype=torch.float32) if _is_cast(args[0]) else call(*args)))
    if name in FP32_RESULT:
        return _excluded(_fp32_result(call))
    if name in FP32:
        return _excluded(lambda *args, **kw: call(*_cast(args, torch.float32), **_cast(kw, torch.float32)))
    if name in WIDEST:
        return _excluded(lambda *args, **kw: call(*_cast(args, to := _widest((args, kw))), **_cast(kw, to)))
    if name in LOWER:
        return _excluded(lambda *args, **kw: call(*tree_map(_lowered, args), **tree_map(_lowered, kw)))
    return None


def _excluded(rule: Rule) -> Rule:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_SKIP):
            return rule(*args, **kwargs)

    return run


def _fp32_result(call: Any) -> Rule:
    names = [argument.name for argument in call._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        if _is_cast(args[0]) and given.get("dtype") is None:
            given["dtype"] = torch.float32
        return call(**given)

    return run


_weights: dict[int, tuple[Any, Any]] = {}
"""The cache of cast weights, for operators that torch's own on the CPU does not know."""


def _lowered(value: Any) -> Any:
    if not _is_cast(value):
        return value
    leaf = value.dtype is torch.float32 and value.requires_grad and value.is_leaf and not value._is_view()
    if not (leaf and torch.is_autocast_cache_enabled()):
        return value.to(_lower())
    if id(value) not in _weights:
        _weights[id(value)] = (value, value.to(_lower()))
    return _weights[id(value)][1]


def _lower() -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _is_cast(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _widest(values: Any) -> torch.dtype:
    return torch.float32 if any(_is_cast(t) and t.dtype is torch.float32 for t in tree_leaves(values)) else _lower()


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda value: value.to(dtype) if _is_cast(value) else value, values)


@contextlib.contextmanager
def cuda_means_cpu() -> Iterator[None]:
    """``torch.autocast("cuda")`` and questions about it, in the model's own code, mean the emulated context."""
    context = torch.amp.autocast_mode.autocast
    init, enabled, dtype = context.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype
    clear = torch.clear_autocast_cache

    def cleared() -> None:
        _weights.clear()
        clear()

    def renamed(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda" and not args and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float16 if dtype("cuda") is None else dtype("cuda")
        init(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    context.__init__ = renamed
    torch.is_autocast_enabled = lambda device_type="cuda": enabled("cpu" if device_type == "cuda" else device_type)
    torch.get_autocast_dtype = lambda device_type: dtype("cpu" if device_type == "cuda" else device_type)
    torch.clear_autocast_cache = cleared
    try:
        yield
    finally:
        context.__init__ = init
        torch.is_autocast_enabled, torch.get_autocast_dtype, torch.clear_autocast_cache = enabled, dtype, clear
        _weights.clear()
