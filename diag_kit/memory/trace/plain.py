"""What has to be patched so that models run on fake tensors as they run on real ones."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..settings import Settings
from .optimizers import DTYPES


def autocast(settings: Settings) -> AbstractContextManager[Any]:
    """Autocast to the 16 bits of an ``amp-*`` precision; for others a context that does nothing."""
    if not settings.precision.startswith("amp-"):
        return nullcontext()
    context: AbstractContextManager[Any] = torch.autocast("cpu", dtype=DTYPES[settings.precision.removeprefix("amp-")])
    return context


@contextmanager
def plain_transformers() -> Iterator[None]:
    """Models behave on fake tensors as in a real run, while building and while stepping; all is restored at the end.

    transformers' ``is_tracing`` is true of a fake tensor, and masks are then made that a real run leaves out. torch's
    ``Module.to`` swaps fake parameters for new ones, which fails once anything refers to them weakly. The library's
    advice to people who train, and torch's account of a failing operator, are kept off the terminal. torch's grouped
    product takes only bf16 when it is fake;
    transformers' own form of it, with the same operands and results, stands for it in other dtypes. torch's truncated
    normal draws until all values are in range, which fake ones never tell.
    """
    quiet_from = {"transformers": logging.ERROR, FakeTensor.__module__: logging.CRITICAL}
    logs = {logging.getLogger(name): level for name, level in quiet_from.items()}
    levels = {log: log.level for log in logs}
    patches: list[tuple[Any, str, Any]] = [
        (torch.nn.Module, "_apply", _applying(torch.nn.Module._apply)),
        (torch.nn.init, "_no_grad_trunc_normal_", _drawing(torch.nn.init._no_grad_trunc_normal_)),
    ]
    if utils := sys.modules.get("transformers.utils.import_utils"):
        patches.append((utils, "is_fake_tensor", lambda _: False))
    if (moe := sys.modules.get("transformers.integrations.moe")) and hasattr(moe, "_can_use_grouped_mm"):
        patches.append((moe, "_can_use_grouped_mm", _grouped(moe._can_use_grouped_mm)))
    held = [(owner, name, getattr(owner, name, None)) for owner, name, _ in patches]
    try:
        for log, quiet in logs.items():
            log.setLevel(quiet)
        for owner, name, value in patches:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in held:
            setattr(owner, name, value)
        for log, level in levels.items():
            log.setLevel(level)


def _drawing(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def draw(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if isinstance(tensor, FakeTensor) else plain(tensor, *args, **kwargs)

    return draw


def _grouped(plain: Callable[..., bool]) -> Callable[..., bool]:
    def usable(given: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> bool:
        whole = not isinstance(weight, FakeTensor) or weight.dtype is torch.bfloat16
        return whole and plain(given, weight, offs)

    return usable


def _applying(plain: Callable[..., Any]) -> Callable[..., Any]:
    """``Module._apply`` that sets the data of fake parameters in place, as torch does with real ones."""

    def _apply(self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
        own = [p for p in self._parameters.values() if p is not None]
        if not any(isinstance(p, FakeTensor) for p in own):
            return plain(self, fn, recurse)
        if recurse:
            for module in self.children():
                module._apply(fn)
        with torch.no_grad():
            for p in own:
                p.data = fn(p.data)
                if p.grad is not None:
                    p.grad = fn(p.grad)
            for name, buffer in self._buffers.items():
                self._buffers[name] = fn(buffer) if buffer is not None else None
        return self

    return _apply
