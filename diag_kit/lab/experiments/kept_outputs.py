"""What keeping a model's output for metrics keeps on the device."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import term_bytes
from ..fitting import FLAT_BYTES, per_step, shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="kept-outputs",
    title="Outputs kept for metrics",
    entry="gradient-accumulation-memory-spike",
    cause="tensor-accumulation",
    claim="Keeping the model's output for metrics is harmless.",
    expect="Live bytes after each micro-step: the logits pile up, attached or detached; a reduced number does not.",
)
STEPS = 6


def measure(bench: Any) -> Measured:
    """Live bytes after each micro-step, backward run in each, for three things that a metric might keep."""
    ways = (
        "outputs.append(logits)",
        "outputs.append(logits.detach())",
        "hits.append((logits.argmax(-1) == labels).float().mean().item())",
    )
    lines = [Line(way, tuple(range(1, STEPS + 1)), tuple(window(bench, way))) for way in ways]
    return Measured("micro-steps", tuple(lines), {"logits": 1024 * 500 * 4})


def window(bench: Any, way: str) -> list[int]:
    """One window that keeps something of each output."""
    import torch

    from ..toys import Blocks

    model = Blocks().to(bench.device)
    with bench.tape() as tape:
        outputs, hits = [], []
        for _ in range(STEPS):
            logits = model(torch.randn(1024, 64, device=bench.device))
            labels = torch.zeros(1024, dtype=torch.long, device=bench.device)
            loss = logits.square().mean()
            loss.backward()
            if way == "outputs.append(logits)":
                outputs.append(logits)
            elif way == "outputs.append(logits.detach())":
                outputs.append(logits.detach())
            else:
                hits.append((logits.argmax(-1) == labels).float().mean().item())
            del logits, loss, labels
            tape.mark()
    return tape.live


def judge(measured: Measured) -> Judged:
    """Harmless is what lets nothing but scalars grow; only what keeps the output itself is asked."""
    grows = {line.label: per_step(line.bytes) for line in measured.lines}
    rows = tuple(Row(label, round(n), "a micro-step") for label, n in grows.items())
    attached, detached, reduced = grows.values()
    says = (
        f"A kept output holds {shown(attached)} with every micro-step and {shown(detached)} when it is "
        f"detached: the logits are {shown(measured.figures['logits'])}. Reduced to a number: {shown(reduced)}."
    )
    return Judged(truth(n <= FLAT_BYTES for n in (attached, detached)), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """Bytes of the logits of one micro-batch."""
    return (
        Carried("logits kept for each micro-step", term_bytes(s, "logits"), "in the dtype of the model's output"),
        Carried(
            "the same in fp32", term_bytes(s, "log-probabilities"), "where the output was upcast before it is kept"
        ),
    )
