"""What ``backward(retain_graph=True)`` keeps, with the loss kept and with the loss let go."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import graph_bytes
from ..fitting import FLAT_BYTES, per_step, shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="retain-graph-flag",
    title="backward(retain_graph=True)",
    entry="gradient-accumulation-memory-spike",
    cause="graph-retention",
    claim="backward(retain_graph=True) keeps the graph of every micro-step.",
    expect="A straight line where the losses are kept; one graph above the ordinary loop where they are let go.",
)
STEPS = 6
WAYS = ("backward()", "retain_graph=True, loss let go", "retain_graph=True, loss kept")


def measure(bench: Any) -> Measured:
    """Live bytes at the end of each micro-step, its loss still there."""
    return Measured("micro-steps", tuple(Line(way, tuple(range(1, STEPS + 1)), window(bench, way)) for way in WAYS))


def window(bench: Any, way: str) -> tuple[int, ...]:
    """One accumulation window."""
    import torch

    from ..toys import Blocks

    model, losses = Blocks().to(bench.device), []
    with bench.tape() as tape:
        for _ in range(STEPS):
            loss = model(torch.randn(512, 64, device=bench.device)).square().mean()
            loss.backward(retain_graph="retain" in way)
            if "kept" in way:
                losses.append(loss)
            tape.mark()
    return tuple(tape.live)


def judge(measured: Measured) -> Judged:
    """Every graph is kept where what is alive grows with each micro-step."""
    grows = {line.label: per_step(line.bytes) for line in measured.lines}
    plain, gone, _ = (line.bytes[-1] for line in measured.lines)
    says = (
        f"With the losses kept each micro-step adds {shown(grows[WAYS[2]])}; with the loss let go it adds "
        f"{shown(grows[WAYS[1]])}, and one graph of {shown(gone - plain)} waits until the name is used again."
    )
    rows = tuple(Row(line.label, line.bytes[-1], f"alive after {STEPS} micro-steps") for line in measured.lines)
    return Judged(truth(grows[way] > FLAT_BYTES for way in WAYS[1:]), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """One graph of the run, and those of a window."""
    each, steps = graph_bytes(s), max(s.grad_accum, 2)
    return (
        Carried("one graph, until the loss is let go", each, "all that a micro-batch saved for backward"),
        Carried(f"graphs of a window of {steps}, losses kept", steps * each, ""),
    )
