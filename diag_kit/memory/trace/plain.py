"""What has to be patched so that models run on fake tensors as they run on real ones."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def plain_transformers() -> Iterator[None]:
    """Models behave on fake tensors as in a real run, while building and while stepping; all is restored at the end.

    transformers' ``is_tracing`` is true of a fake tensor, and masks are then made that a real run leaves out. torch's
    ``Module.to`` swaps fake parameters for new ones, which fails once anything refers to them weakly. The library's advice
    to people who train is kept off the terminal.
    """
    utils, log = sys.modules.get("transformers.utils.import_utils"), logging.getLogger("transformers")
    is_fake, level = getattr(utils, "is_fake_tensor", None), log.level
    apply = torch.nn.Module._apply
    try:
        log.setLevel(logging.ERROR)
        if is_fake is not None:
            utils.is_fake_tensor = _never  # type: ignore[union-attr]
        torch.nn.Module._apply = _applying(apply)  # type: ignore[assignment, method-assign]
        yield
    finally:
        if is_fake is not None:
            utils.is_fake_tensor = is_fake  # type: ignore[union-attr]
        torch.nn.Module._apply = apply  # type: ignore[method-assign]
        log.setLevel(level)


def _never(_: Any) -> bool:
    return False


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
