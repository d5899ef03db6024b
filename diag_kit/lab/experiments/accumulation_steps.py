"""The peak of a whole optimizer step against the number of micro-steps in it."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks
from ..fitting import shown
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="accumulation-steps",
    title="More micro-steps",
    entry="gradient-accumulation-memory-spike",
    cause="",
    claim="More accumulation steps need more memory.",
    expect="One rise from one micro-step to two, because gradients now exist during forward; then a flat line.",
)
WINDOWS = (1, 2, 4, 8)


def measure(bench: Any) -> Measured:
    """The peak of the second optimizer step, when the optimizer's state exists."""
    from ..toys import Decoder, parameter_bytes

    line = Line("peak of a step", WINDOWS, tuple(peak(bench, n) for n in WINDOWS))
    return Measured("micro-steps", (line,), {"gradients": parameter_bytes(Decoder())})


def peak(bench: Any, steps: int) -> int:
    """Two optimizer steps of AdamW, a backward in each micro-step."""
    import torch

    from ..toys import Decoder, language_loss

    model = Decoder().to(bench.device)
    optimizer = torch.optim.AdamW(model.parameters())
    with bench.tape() as tape:
        for _ in range(2):
            tape.mark()
            for _ in range(steps):
                language_loss(model, torch.randint(0, 512, (4, 64), device=bench.device)).div(steps).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        tape.mark()
    return tape.highest[-1]


def judge(measured: Measured) -> Judged:
    """More steps need more where the most need over 1 % more than two."""
    one, two, *_, most = measured.lines[0].bytes
    gradients = measured.figures["gradients"]
    says = (
        f"The peak is {shown(one)} with one micro-step, {shown(two)} with two and {shown(most)} with "
        f"{WINDOWS[-1]}; the one "
        f"rise is {shown(two - one)}, and one copy of the gradients is {shown(gradients)}."
    )
    rows = tuple(Row(f"accumulation {n}", b, "peak") for n, b in zip(WINDOWS, measured.lines[0].bytes, strict=True))
    return Judged("true" if most > 1.01 * two else "false", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's peak with 1, 2 and 8 micro-steps, a backward in each."""
    change = {"backward": "each-micro-batch"}
    return peaks(s, "peak with accumulation {}", [(str(n), {**change, "grad_accum": n}) for n in (1, 2, 8)])
