"""Which batch still fits a budget: told from two small runs, then tried."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="activation-budget",
    title="Headroom",
    entry="activation-memory-spike",
    cause="activations-too-large",
    claim="The step simply needs more activation memory than the card has.",
    expect="The peak is a straight line over the batch; where it crosses the budget is told from its first two points.",
)


def measure(bench: Any) -> Measured:
    """Peaks at batch 2 and 3, a budget between 7 and 8 as they tell it, and the peaks there."""
    two, three = peak(bench, 2), peak(bench, 3)
    budget = two + round(5.5 * (three - two))
    batches = (2, 3, 7, 8)
    line = Line("peak of a step", batches, (two, three, peak(bench, 7), peak(bench, 8)))
    return Measured("batch", (line, Line("budget", batches, (budget,) * 4)))


def peak(bench: Any, batch: int) -> int:
    """One step of forward and backward, the model counted."""
    import torch

    from ..toys import Decoder, language_loss

    with bench.tape() as tape:
        model = Decoder().to(bench.device)
        language_loss(model, torch.randint(0, 512, (batch, 128), device=bench.device)).backward()
    return tape.peak


def judge(measured: Measured) -> Judged:
    """Needs more: the peak at that batch is over the budget."""
    peak, (budget, *_) = (line.bytes for line in measured.lines)
    seven, eight = peak[2:]
    says = (
        f"Two small runs say that {shown(budget)} hold a batch of 7 and not of 8; measured are {shown(seven)} and "
        f"{shown(eight)}. Whether a step fits is arithmetic: the same step fits with one sequence less."
    )
    rows = tuple(
        Row(f"batch {x:.0f}", n, "over" if n > budget else "fits")
        for x, n in zip(measured.lines[0].x, peak, strict=True)
    )
    return Judged(truth(n > budget for n in (seven, eight)), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's peak at its batch, half and double."""
    sizes = dict.fromkeys((max(s.micro_batch // 2, 1), s.micro_batch, 2 * s.micro_batch))
    found = peaks(s, "peak with micro-batch {}", [(str(n), {"micro_batch": n}) for n in sizes])
    return found + ((Carried("capacity", s.capacity_bytes, "as the settings state it"),) if s.capacity_bytes else ())
