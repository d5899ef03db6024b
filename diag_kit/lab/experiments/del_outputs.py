"""Whether the last step's outputs are gone when the next forward pass runs."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import term_bytes
from ..fitting import shown
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="del-outputs",
    title="Names that outlive a step",
    entry="gradient-accumulation-memory-spike",
    cause="tensor-accumulation",
    claim="What a micro-step made is gone when the next one begins.",
    expect="Live bytes where the next micro-step begins: higher by the outputs where their names are still there.",
)
STEPS = 5


def measure(bench: Any) -> Measured:
    """Live bytes at the end of each micro-step, names deleted and not."""
    ways = (("del logits, loss", True), ("names left", False))
    lines = [Line(way, tuple(range(1, STEPS + 1)), window(bench, delete)) for way, delete in ways]
    return Measured("micro-steps", tuple(lines), {"logits": 512 * 2000 * 4})


def window(bench: Any, delete: bool) -> tuple[int, ...]:
    """One window, a backward in each micro-step."""
    import torch

    from ..toys import Blocks

    model = Blocks(classes=2000).to(bench.device)
    with bench.tape() as tape:
        for _ in range(STEPS):
            logits = model(torch.randn(512, 64, device=bench.device))
            loss = logits.logsumexp(-1).mean()
            loss.backward()
            if delete:
                del logits, loss
            tape.mark()
    return tuple(tape.live)


def judge(measured: Measured) -> Judged:
    """Gone: leaving the names keeps less than a tenth of the logits alive."""
    deleted, left = (line.bytes[-1] for line in measured.lines)
    logits = measured.figures["logits"]
    says = (
        f"The next micro-step begins with {shown(left)} alive where the names are left, and with "
        f"{shown(deleted)} where "
        f"they are deleted; the logits are {shown(logits)}. A later peak shows it only where it stands "
        f"in the forward pass."
    )
    rows = tuple(Row(line.label, line.bytes[-1], "alive where the next micro-step begins") for line in measured.lines)
    return Judged("true" if left - deleted < 0.1 * logits else "false", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's logits, which the next forward pass finds still there."""
    return (Carried("logits of the micro-step before", term_bytes(s, "logits"), "until their name is used again"),)
