"""The optimizer that settings name: torch's and transformers' own where they run, and two that need a GPU, emulated.

What matters here is what lives in memory: states with their dtypes, and temporaries of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...errors import SettingsError
from ..settings import Settings

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Parameters = Iterable[torch.nn.Parameter]
BLOCK, SMALL = 256, 4096
"""bitsandbytes' AdamW8bit: elements that share one scale, and the size below which states stay in fp32."""


def optimizer(settings: Settings) -> Callable[[Parameters], torch.optim.Optimizer | None]:
    """A function from parameters to the optimizer of these settings over those that are trained; None for ``none``."""
    kind, cuda = settings.optimizer, settings.device == "cuda"
    kind = ("adamw-foreach" if cuda else "adamw-loop") if kind == "adamw" else kind
    state = DTYPES.get(settings.optimizer_state_dtype or "")
    mixed = state is not None or settings.gradient_dtype is not None

    def made(parameters: Parameters) -> torch.optim.Optimizer | None:
        trained = [p for p in parameters if p.requires_grad]
        if kind == "none":
            return None
        if not trained:
            raise SettingsError("settings.optimizer: no parameter of the model is trained; let one, or give none")
        if kind == "sgd":
            return torch.optim.SGD(trained, lr=1e-3, foreach=cuda)
        if kind == "adafactor":
            return _adafactor(trained)
        if kind == "adamw-8bit":
            return InPlaceAdamW(trained, None, packed=True)
        if kind == "adamw-fused" and mixed:
            return InPlaceAdamW(trained, state)
        if mixed:
            return MixedAdamW(trained, state, foreach=kind == "adamw-foreach")
        how = {"fused": True} if kind == "adamw-fused" else {"foreach": kind == "adamw-foreach"}
        return torch.optim.AdamW(trained, **how)

    return made


def _adafactor(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """transformers' Adafactor as its Trainer makes it: a given rate, no scale by the parameters' own size."""
    try:
        from transformers.optimization import Adafactor
    except ImportError:
        raise SettingsError(
            "settings.optimizer: adafactor is transformers'; install it with: pip install 'diag-kit[torch]'"
        ) from None
    made: torch.optim.Optimizer = Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)
    return made


class MixedAdamW(torch.optim.AdamW):
    """torch's AdamW with moments of another dtype than the parameters'; gradients are cast to it for the step."""

    def __init__(self, parameters: list[torch.nn.Parameter], state: torch.dtype | None, foreach: bool) -> None:
        super().__init__(parameters, foreach=foreach)
        self._dtype = state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step; the gradients as they were are back afterwards."""
        held = [(p, p.grad) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p, grad in held:
            dtype = self._dtype or p.dtype
            if p not in self.state:
                zeros = [torch.zeros_like(p, dtype=dtype) for _ in range(2)]
                self.state[p] = {"step": torch.tensor(0.0), "exp_avg": zeros[0], "exp_avg_sq": zeros[1]}
            if grad.dtype != dtype:
                p.grad = None
                p.grad_dtype = dtype
                p.grad = grad.to(dtype)
        super().step(closure)
        for p, grad in held:
            p.grad = None
            p.grad_dtype = grad.dtype
            p.grad = grad


class InPlaceAdamW(torch.optim.Optimizer):
    """An AdamW whose kernel updates everything in place: fused over mixed dtypes, or bitsandbytes' with 8-bit moments.

    Emulated: the step leaves the moments as they are. ``packed``: two bytes a parameter and one fp32 scale a block
    (bitsandbytes.optim.optimizer.Optimizer2State.init_state), tables of 256 values shared by all.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], state: torch.dtype | None, packed: bool = False) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self._dtype, self._packed = state, packed
        self._tables: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step without temporaries."""
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if p not in self.state:
                self.state[p] = self._first(p)
            p.mul_(1.0)

    def _first(self, p: torch.nn.Parameter) -> dict[str, Any]:
        if not self._packed or p.numel() < SMALL:
            dtype = torch.float32 if self._packed else self._dtype or p.dtype
            return {name: torch.zeros_like(p, dtype=dtype) for name in ("state1", "state2")}
        if not self._tables:
            self._tables = [torch.zeros(256, device=p.device) for _ in range(2)]
        state: dict[str, Any] = {name: torch.zeros_like(p, dtype=torch.uint8) for name in ("state1", "state2")}
        scales = {name: torch.zeros(-(-p.numel() // BLOCK), device=p.device) for name in ("absmax1", "absmax2")}
        return state | scales | {"qmap1": self._tables[0], "qmap2": self._tables[1]}
