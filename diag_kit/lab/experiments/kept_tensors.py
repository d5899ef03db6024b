"""Tensors that a program holds from step to step, without a graph, by what holds them."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import term_bytes
from ..fitting import FLAT_BYTES, per_step, shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="kept-tensors",
    title="Tensors held from step to step",
    entry="gradient-accumulation-memory-spike",
    cause="tensor-accumulation",
    claim="Tensors accumulate on the device.",
    expect="Live bytes after each step: the same rise with every holder, the size of what is held.",
)
STEPS = 6
WAYS = ("a list", "a dict by step", "an attribute of the model", "a forward hook")


def measure(bench: Any) -> Measured:
    """Live bytes after each step; what is held is detached and has 256 KiB."""
    lines = tuple(Line(way, tuple(range(1, STEPS + 1)), steps(bench, way)) for way in WAYS)
    return Measured("steps", lines, {"tensor": 1024 * 64 * 4})


def steps(bench: Any, way: str) -> tuple[int, ...]:
    """Six steps, a backward in each."""
    import torch

    from ..toys import Blocks

    model = Blocks(classes=64).to(bench.device)
    held: list[Any] = []
    by_step: dict[int, Any] = {}
    model.features = ()
    if way == "a forward hook":
        model.head.register_forward_hook(lambda module, inputs, output: held.append(output.detach()))
    with bench.tape() as tape:
        for step in range(STEPS):
            out = model(torch.randn(1024, 64, device=bench.device))
            out.square().mean().backward()
            if way == "a list":
                held.append(out.detach())
            elif way == "a dict by step":
                by_step[step] = out.detach()
            elif way == "an attribute of the model":
                model.features = (*model.features, out.detach())
            del out
            tape.mark()
    return tuple(tape.live)


def judge(measured: Measured) -> Judged:
    """Accumulate: what is alive grows with every step."""
    grows = {line.label: per_step(line.bytes) for line in measured.lines}
    says = (
        f"With every step {', '.join(f'{way} adds {shown(n)}' for way, n in grows.items())}; "
        f"the tensor is {shown(measured.figures['tensor'])}, detached."
    )
    rows = tuple(Row(way, round(n), "a step") for way, n in grows.items())
    return Judged(truth(n > FLAT_BYTES for n in grows.values()), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """Two usual tensors to keep: a hidden state and the logits."""
    hidden = s.micro_batch * s.seq_len * s.model.hidden * (4 if s.precision == "fp32" else 2)
    return (
        Carried("one hidden state kept for each step", hidden, "batch x length x hidden"),
        Carried("the logits kept for each step", term_bytes(s, "logits"), "batch x length x vocabulary"),
    )
