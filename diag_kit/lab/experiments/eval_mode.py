"""Whether ``model.eval()`` turns autograd off."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import graph_bytes
from ..fitting import shown
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="eval-mode",
    title="model.eval()",
    entry="activation-memory-spike",
    cause="eval-peak",
    claim="Marking tensors volatile, or calling model.eval(), turns autograd off.",
    expect="Bytes alive after a forward pass, by batch: eval() keeps what train() keeps, no_grad() the output alone.",
)
WAYS = ("model.train()", "model.eval()", "torch.no_grad()")


def measure(bench: Any) -> Measured:
    """Live bytes after one forward pass whose result is kept."""
    sizes = (2, 4, 8)
    return Measured("batch", tuple(Line(way, sizes, tuple(kept(bench, way, n) for n in sizes)) for way in WAYS))


def kept(bench: Any, way: str, batch: int) -> int:
    """One forward pass of 64 tokens a sequence."""
    import torch

    from ..toys import Decoder, language_loss

    model = Decoder().to(bench.device).train(way == "model.train()")
    ids = torch.randint(0, 512, (batch, 64), device=bench.device)
    with bench.tape() as tape, torch.set_grad_enabled(way != "torch.no_grad()"):
        loss = language_loss(model, ids)
        tape.mark()
        del loss
    return tape.live[0]


def judge(measured: Measured) -> Judged:
    """Off: eval() keeps under a tenth of what train() keeps."""
    train, evaluation, without = (line.bytes[-1] for line in measured.lines)
    says = (
        f"After a forward pass train() keeps {shown(train)}, eval() {shown(evaluation)} and no_grad() {shown(without)}."
    )
    rows = tuple(Row(line.label, line.bytes[-1], "alive after a forward pass") for line in measured.lines)
    return Judged("true" if evaluation < 0.1 * train else "false", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's graph of one batch."""
    return (Carried("graph of one batch, eval() or not", graph_bytes(s), "without no_grad or inference_mode"),)
