"""Whether scaling the loss for fp16 costs memory."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import category_bytes
from ..fitting import shown
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="grad-scaler",
    title="A gradient scaler",
    entry="gradient-accumulation-memory-spike",
    cause="",
    claim="FP16 scaling issues during accumulation cost memory.",
    expect="The highest bytes of each micro-step and of unscaling, with a scaler and without: the same.",
)
STEPS = 3


def measure(bench: Any) -> Measured:
    """The highest bytes of each of three micro-steps, then of unscale, step and update."""
    ways = (("with a scaler", True), ("without", False))
    lines = [Line(way, tuple(range(1, STEPS + 2)), window(bench, scaled)) for way, scaled in ways]
    return Measured("micro-steps, then the optimizer", tuple(lines))


def window(bench: Any, scaled: bool) -> tuple[int, ...]:
    """One window under autocast, in fp16 on CUDA and in bf16 on the CPU."""
    import torch

    from ..toys import Blocks

    model = Blocks().to(bench.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(bench.device, enabled=scaled)
    dtype = torch.float16 if bench.device == "cuda" else torch.bfloat16
    with bench.tape() as tape:
        for _ in range(STEPS):
            with torch.autocast(bench.device, dtype):
                loss = model(torch.randn(256, 64, device=bench.device)).square().mean()
            scaler.scale(loss).backward()
            tape.mark()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        tape.mark()
    return tuple(tape.highest)


def judge(measured: Measured) -> Judged:
    """Costs where the scaler raises the window's peak by more than 1 %."""
    scaled, plain = (max(line.bytes) for line in measured.lines)
    extra = max(a - b for a, b in zip(*(line.bytes for line in measured.lines), strict=True))
    says = (
        f"The peak is {shown(scaled)} with a scaler and {shown(plain)} without; at no point it adds more "
        f"than {shown(extra)}."
    )
    rows = tuple(Row(line.label, max(line.bytes), "peak of the window") for line in measured.lines)
    return Judged("true" if scaled > 1.01 * plain else "false", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The scaler's own tensors, beside the gradients that it works on in place."""
    return (
        Carried("scale, growth tracker and found-inf", 3 * 512, "three scalars, rounded up by CUDA's allocator"),
        Carried("gradients, unscaled in place", category_bytes(s, "gradients"), "no copy of them is made"),
    )
