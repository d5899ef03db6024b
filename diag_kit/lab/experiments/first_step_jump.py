"""When an optimizer's state appears."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import category_bytes
from ..fitting import growth, shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="first-step-jump",
    title="The jump at the first optimizer step",
    entry="gradient-accumulation-memory-spike",
    cause="optimizer-state-first-step",
    claim="Memory jumps at the first optimizer step.",
    expect="Live bytes after each step(), gradients freed: one jump at the first, then flat.",
)
STEPS = 5


def measure(bench: Any) -> Measured:
    """Live bytes before training and after each step."""
    from ..toys import Blocks, parameter_bytes

    ways = ("AdamW", "SGD with momentum")
    lines = [Line(way, tuple(range(STEPS)), steps(bench, way)) for way in ways]
    return Measured("optimizer steps", tuple(lines), {"parameters": parameter_bytes(Blocks())})


def steps(bench: Any, way: str) -> tuple[int, ...]:
    """Four steps; gradients are freed after each."""
    import torch

    from ..toys import Blocks

    with bench.tape() as tape:
        model = Blocks().to(bench.device)
        optimizer: Any = torch.optim.AdamW(model.parameters())
        if way != "AdamW":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        tape.mark()
        for _ in range(STEPS - 1):
            model(torch.randn(16, 64, device=bench.device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tape.mark()
    return tuple(tape.live)


def judge(measured: Measured) -> Judged:
    """A jump: the first step adds nine tenths of the parameters or more, the later ones under a hundredth of them."""
    weights = measured.figures["parameters"]
    added = {line.label: growth(line.bytes) for line in measured.lines}
    says = "; ".join(
        f"{way}: the first step() adds {shown(n[0])}, {n[0] / weights:.2f} times the parameters, the later ones "
        f"{shown(max(n[1:]))}" for way, n in added.items()
    )  # fmt: skip
    rows = tuple(Row(way, round(n[0]), "added by the first step()") for way, n in added.items())
    jumps = (n[0] >= 0.9 * weights and max(n[1:]) < 0.01 * weights for n in added.values())
    return Judged(truth(jumps), f"{says}.", rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's jump."""
    return (Carried("added by the first step()", category_bytes(s, "optimizer_state"), f"{s.optimizer}, on this rank"),)
