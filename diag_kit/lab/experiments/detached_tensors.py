"""What is left of a tensor's memory, and of its graph, once it is detached."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import graph_bytes, term_bytes
from ..fitting import shown
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="detached-tensors",
    title="detach()",
    entry="gradient-accumulation-memory-spike",
    cause="tensor-accumulation",
    claim="Detaching a tensor frees its memory.",
    expect="Bytes that an output keeps alive: with its graph, detached, and reduced to a number.",
)
WAYS = ("attached", "detached", "reduced to a number")


def measure(bench: Any) -> Measured:
    """Bytes alive when nothing but the output is kept, by batch size; no backward is run."""
    sizes = (256, 512, 1024)
    lines = [Line(way, sizes, tuple(kept(bench, way, n) for n in sizes)) for way in WAYS]
    return Measured("rows of the batch", tuple(lines), {"output": sizes[-1] * 500 * 4})


def kept(bench: Any, way: str, batch: int) -> int:
    """Bytes that one output keeps."""
    import torch

    from ..toys import Blocks

    model = Blocks().to(bench.device)
    with bench.tape() as tape:
        out = model(torch.randn(batch, 64, device=bench.device))
        if way == "detached":
            out = out.detach()
        elif way == "reduced to a number":
            out = out.mean().item()
        tape.mark()
    return tape.live[0]


def judge(measured: Measured) -> Judged:
    """Frees: under a hundredth of the output's own bytes stays."""
    attached, detached, number = (line.bytes[-1] for line in measured.lines)
    own = measured.figures["output"]
    says = (
        f"An output of {shown(own)} keeps {shown(attached)} with its graph, {shown(detached)} detached "
        f"and {shown(number)} "
        "reduced to a number: detaching frees the graph, not the tensor."
        if detached >= 0.01 * own
        else f"Detached, an output of {shown(own)} keeps {shown(detached)}."
    )
    rows = tuple(Row(line.label, line.bytes[-1], "kept alive by one output") for line in measured.lines)
    return Judged("true" if detached < 0.01 * own else "false", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's logits with their graph, and detached."""
    return (
        Carried("logits kept with their graph", graph_bytes(s), "before backward()"),
        Carried("logits kept detached", term_bytes(s, "logits"), ""),
    )
