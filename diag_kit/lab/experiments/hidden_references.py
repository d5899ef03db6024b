"""What autograd does not know of: attributes of a custom Function, and a branch that never ran backward."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import term_bytes
from ..fitting import FLAT_BYTES, per_step, shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="hidden-references",
    title="Values hidden from autograd",
    entry="gradient-accumulation-memory-spike",
    cause="graph-retention",
    claim=(
        "Values hidden from autograd (`ctx.x = x`, an auxiliary loss that never ran backward) are freed with the graph."
    ),
    expect="Live bytes after each micro-step, backward run in each: what is hidden piles up, what was saved does not.",
)
STEPS = 6
HIDDEN = ("ctx.x = x, loss kept", "auxiliary loss kept, no backward")
WAYS = (*HIDDEN, "ctx.save_for_backward(x), loss kept", "ctx.x = x, loss detached")


def measure(bench: Any) -> Measured:
    """Live bytes after each micro-step; x has 1 MiB."""
    return Measured("micro-steps", tuple(Line(way, tuple(range(1, STEPS + 1)), window(bench, way)) for way in WAYS))


def window(bench: Any, way: str) -> tuple[int, ...]:
    """One window with a backward in each micro-step."""
    import torch

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            if "ctx.x" in way:
                ctx.x = x
            else:
                ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x = ctx.x if "ctx.x" in way else ctx.saved_tensors[0]
            return 2 * x * grad

    layer, kept = torch.nn.Linear(1024, 1024, device=bench.device), []
    with bench.tape() as tape:
        for _ in range(STEPS):
            hidden = layer(torch.randn(256, 1024, device=bench.device))
            loss, auxiliary = Square.apply(hidden).mean(), hidden.square().mean()
            loss.backward()
            kept.append(auxiliary if "auxiliary" in way else loss.detach() if "detached" in way else loss)
            del hidden, loss, auxiliary
            tape.mark()
    return tuple(tape.live)


def judge(measured: Measured) -> Judged:
    """Freed where nothing but scalars grows; asked of the two hidden ways."""
    grows = {line.label: per_step(line.bytes) for line in measured.lines}
    says = "Kept with every micro-step, " + "; ".join(f"{way}: {shown(n)}" for way, n in grows.items()) + "."
    rows = tuple(Row(way, round(n), "a micro-step") for way, n in grows.items())
    return Judged(truth(grows[way] <= FLAT_BYTES for way in HIDDEN), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The smallest thing that is hidden so: one layer's input of one micro-batch."""
    each = s.micro_batch * s.seq_len * s.model.hidden * (4 if s.precision == "fp32" else 2)
    inner = term_bytes(s, "down-projection input") // s.model.n_layers
    return (
        Carried("one hidden state kept for each micro-step", each, "batch x length x hidden"),
        Carried("one inner state of a feed-forward kept", inner, "the down-projection's input of one layer"),
    )
