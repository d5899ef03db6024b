"""Bytes for each parameter that stay whatever the batch: weights, gradients, optimizer state."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import category_bytes
from ..fitting import truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="model-states",
    title="Weights, gradients and optimizer state",
    entry="gradient-accumulation-memory-spike",
    cause="model-states-too-large",
    claim="The model with its gradients and optimizer state does not fit.",
    expect="Bytes for each parameter by what is trained and how, against a budget of 10 bytes for each.",
)
BUDGET = 10
WAYS = ("AdamW, all trained", "SGD, all trained", "AdamW, head trained")


def measure(bench: Any) -> Measured:
    """Live bytes after the second step, gradients still there, by the model's width."""
    widths = (32, 64, 96)
    found = {way: [states(bench, way, width) for width in widths] for way in WAYS}
    lines = [Line(way, tuple(n for _, n in each), tuple(live for live, _ in each)) for way, each in found.items()]
    return Measured("parameters", tuple(lines))


def states(bench: Any, way: str, width: int) -> tuple[int, int]:
    """What stays of a model of so many parameters after two steps."""
    import torch

    from ..toys import Blocks

    with bench.tape() as tape:
        model = Blocks(width).to(bench.device)
        if "head" in way:
            model.blocks.requires_grad_(False)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer: Any = torch.optim.AdamW(trained) if "AdamW" in way else torch.optim.SGD(trained, lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, width, device=bench.device)).square().mean().backward()
            optimizer.step()
        tape.mark()
    return tape.live[0], sum(p.numel() for p in model.parameters())


def judge(measured: Measured) -> Judged:
    """Does not fit: more than the budget for each parameter of the largest model."""
    each = {line.label: line.bytes[-1] / line.x[-1] for line in measured.lines}
    says = ", ".join(f"{way}: {n:.1f} bytes for each parameter" for way, n in each.items())
    rows = tuple(Row(line.label, line.bytes[-1], f"{line.x[-1]:,.0f} parameters") for line in measured.lines)
    return Judged(truth(n > BUDGET for n in each.values()), f"{says}; the budget is {BUDGET}.", rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's own, on this rank."""
    names = (("weights", "parameters"), ("gradients", "gradients"), ("optimizer state", "optimizer_state"))
    return tuple(Carried(words, category_bytes(s, name), "on this rank") for words, name in names)
