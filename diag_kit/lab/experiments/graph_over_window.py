"""Whether an ordinary accumulation window keeps its graphs, beside one whose backward waits."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks
from ..fitting import shown, slope
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="graph-over-window",
    title="The graph over the window",
    entry="gradient-accumulation-memory-spike",
    cause="graph-retention",
    claim="The computation graph is kept for the full accumulation window.",
    expect=(
        "The peak by number of micro-steps: flat from two on with a backward in each, a straight line with "
        "one at the end."
    ),
)
WINDOWS = (1, 2, 4, 8)


def measure(bench: Any) -> Measured:
    """The peak of one window, by its number of micro-steps."""
    ways = (("backward in each micro-step", False), ("one backward at the end", True))
    lines = [Line(way, WINDOWS, tuple(window(bench, n, late) for n in WINDOWS)) for way, late in ways]
    return Measured("micro-steps", tuple(lines))


def window(bench: Any, steps: int, late: bool) -> int:
    """Peak of one accumulation window."""
    import torch

    from ..toys import Decoder, language_loss

    model = Decoder().to(bench.device)
    with bench.tape() as tape:
        total = torch.zeros((), device=bench.device)
        for _ in range(steps):
            ids = torch.randint(0, 512, (4, 64), device=bench.device)
            loss = language_loss(model, ids) / steps
            if late:
                total = total + loss
            else:
                loss.backward()
                total = total + loss.detach()
            del loss
        if late:
            total.backward()
    return tape.peak


def judge(measured: Measured) -> Judged:
    """Kept where the ordinary loop's peak still climbs after the second micro-step; the late one is the contrast."""
    each, late = measured.lines
    kept = each.bytes[-1] > 1.01 * each.bytes[1]
    climb = slope(late.x[1:], late.bytes[1:])
    says = (
        f"With a backward in each the peak is {shown(each.bytes[1])} at 2 micro-steps and {shown(each.bytes[-1])} at "
        f"{WINDOWS[-1]}; with one at the end {shown(late.bytes[-1])}, {shown(climb)} for each micro-step."
    )
    rows = tuple(Row(line.label, line.bytes[-1], f"peak of {WINDOWS[-1]} micro-steps") for line in measured.lines)
    return Judged("true" if kept else "false", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's peak with backward in each micro-step and with one at the end of its window."""
    steps = max(s.grad_accum, 2)
    cases = [("backward in each", "each-micro-batch"), ("one backward at the end", "deferred")]
    label = f"peak over {steps} micro-steps, {{}}"
    return peaks(s, label, [(words, {"backward": way, "grad_accum": steps}) for words, way in cases])
