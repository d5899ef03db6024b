"""What an optimizer step takes for a moment, by how it is implemented."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks, term_bytes
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="foreach-temporaries",
    title="Temporaries of the optimizer step",
    entry="activation-memory-spike",
    cause="optimizer-state-first-step",
    claim="An optimizer step needs no memory beside its state.",
    expect=(
        "The highest bytes of a step above what was alive before it, by implementation of AdamW and size of the model."
    ),
)
WIDTHS = (32, 64, 128)
WAYS = ("foreach", "fused", "loop")


def measure(bench: Any) -> Measured:
    """Bytes above those alive before the second step of AdamW, by bytes of the parameters."""
    from ..toys import Blocks, parameter_bytes

    sizes = tuple(parameter_bytes(Blocks(width)) for width in WIDTHS)
    return Measured(
        "bytes of parameters", tuple(Line(way, sizes, tuple(extra(bench, way, n) for n in WIDTHS)) for way in WAYS)
    )


def extra(bench: Any, way: str, width: int) -> int:
    """The second step, when the state exists."""
    import torch

    from ..toys import Blocks

    model = Blocks(width).to(bench.device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=way == "foreach", fused=way == "fused")
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, width, device=bench.device)).square().mean().backward()
        with bench.tape() as tape:
            optimizer.step()
            tape.mark()
    return tape.peak


def judge(measured: Measured) -> Judged:
    """None: under a hundredth of the parameters."""
    share = {line.label: line.bytes[-1] / line.x[-1] for line in measured.lines}
    says = ", ".join(f"{way}: {n:.2f} times the parameters" for way, n in share.items())
    rows = tuple(
        Row(line.label, line.bytes[-1], f"beside {shown(line.x[-1])} of parameters") for line in measured.lines
    )
    return Judged(truth(n < 0.01 for n in share.values()), f"For a moment a step takes, {says}.", rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's temporaries by implementation, and its peak."""
    ways = [(way, {"optimizer": f"adamw-{way}"}) for way in WAYS]
    found = tuple(
        Carried(f"temporaries, {way}", term_bytes(s.with_(**c), "optimizer temporaries"), "at the step")
        for way, c in ways
    )
    return found + peaks(s, "peak of a step, {}", ways)
