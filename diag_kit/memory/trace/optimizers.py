"""The optimizer that settings name, with the temporaries it has on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..settings import Settings

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Parameters = Iterable[torch.nn.Parameter]


def optimizer(settings: Settings) -> Callable[[Parameters], torch.optim.Optimizer | None]:
    """A function from parameters to the optimizer of these settings; None for ``none``."""
    kind, cuda = settings.optimizer, settings.device == "cuda"
    options: dict[str, Any] = {
        "adamw": {"foreach": cuda},
        "adamw-foreach": {"foreach": True},
        "adamw-loop": {"foreach": False},
        "adamw-fused": {"fused": True},
    }.get(kind, {})

    def made(parameters: Parameters) -> torch.optim.Optimizer | None:
        if kind == "none":
            return None
        if kind == "sgd":
            return torch.optim.SGD(parameters, lr=1e-3, foreach=cuda)
        return torch.optim.AdamW(parameters, **options)

    return made
