"""Which ways to add up a loss keep the graph of each micro-step, and which don't."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import graph_bytes
from ..fitting import FLAT_BYTES, per_step, shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="retained-graph",
    title="Losses that are not detached",
    entry="gradient-accumulation-memory-spike",
    cause="graph-retention",
    claim="The loss is not reduced or detached across accumulation steps, so graphs are retained.",
    expect="Live bytes after each micro-step: flat where backward runs in each, a straight line where it waits.",
)
STEPS = 6


def measure(bench: Any) -> Measured:
    """Live bytes after each micro-step, for five ways to treat the loss."""
    lines = []
    for way in ("total += loss", "losses.append(loss)", "total += loss.detach()", "backward deferred"):
        live = window(bench, way)
        lines.append(Line(way, tuple(range(1, STEPS + 1)), tuple(live)))
    return Measured("micro-steps", tuple(lines))


def window(bench: Any, way: str) -> list[int]:
    """One accumulation window; only ``backward deferred`` leaves the backward passes to its end."""
    import torch

    from ..toys import Blocks

    model = Blocks().to(bench.device)
    with bench.tape() as tape:
        total, losses = torch.zeros((), device=bench.device), []
        for _ in range(STEPS):
            x = torch.randn(512, 64, device=bench.device)
            loss = model(x).square().mean() / STEPS
            if way == "backward deferred":
                total = total + loss
            else:
                loss.backward()
            if way == "total += loss":
                total = total + loss
            elif way == "losses.append(loss)":
                losses.append(loss)
            elif way == "total += loss.detach()":
                total = total + loss.detach()
            del loss, x
            tape.mark()
        if way == "backward deferred":
            total.backward()
    return tape.live


def judge(measured: Measured) -> Judged:
    """A way keeps the graph where what is alive grows by more than bookkeeping with each micro-step."""
    grows = {line.label: per_step(line.bytes) for line in measured.lines}
    kept = {label: n for label, n in grows.items() if n > FLAT_BYTES}
    freed = [label for label in grows if label not in kept]
    says = [f"{label} {shown(n)}" for label, n in kept.items()] + [f"{', '.join(freed)}: scalars alone"] * bool(freed)
    rows = tuple(Row(label, round(n), "a micro-step") for label, n in grows.items())
    held = [label in kept for label in grows if "detach" not in label]
    return Judged(truth(held), f"Kept with every micro-step: {'; '.join(says)}.", rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The slope of the deferred window, and what the run's window would hold at its end."""
    each, steps = graph_bytes(s), max(s.grad_accum, 2)
    return (
        Carried("kept for each micro-step whose backward waits", each, "activations and the loss's own tensors"),
        Carried(f"at the end of a window of {steps}", each * steps, "beside weights, gradients and optimizer state"),
    )
