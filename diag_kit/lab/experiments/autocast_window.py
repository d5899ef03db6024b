"""What one autocast context around a whole window keeps: its cache of weights in 16 bits."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import term_bytes
from ..fitting import shown
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="autocast-window",
    title="Autocast around the window",
    entry="gradient-accumulation-memory-spike",
    cause="",
    claim="One autocast context around the whole window costs no more than one for each micro-step.",
    expect="Live bytes after each micro-step: higher by half the fp32 weights with one context around all.",
)
STEPS = 4


def measure(bench: Any) -> Measured:
    """Live bytes after each micro-step."""
    from ..toys import Blocks, parameter_bytes

    ways = (("a context for each micro-step", False), ("one context around all", True))
    lines = [Line(way, tuple(range(1, STEPS + 1)), window(bench, around)) for way, around in ways]
    return Measured("micro-steps", tuple(lines), {"parameters": parameter_bytes(Blocks(width=256))})


def window(bench: Any, around: bool) -> tuple[int, ...]:
    """One window in bf16."""
    from contextlib import nullcontext

    import torch

    from ..toys import Blocks

    model = Blocks(width=256).to(bench.device)

    def autocast(wanted: bool) -> Any:
        return torch.autocast(bench.device, torch.bfloat16) if wanted else nullcontext()

    with bench.tape() as tape, autocast(around):
        for _ in range(STEPS):
            with autocast(not around):
                loss = model(torch.randn(16, 256, device=bench.device)).square().mean()
            loss.backward()
            del loss
            tape.mark()
    return tuple(tape.live)


def judge(measured: Measured) -> Judged:
    """Costs more where over 5 % of the parameters' bytes stay between micro-steps."""
    each, around = (line.bytes[-1] for line in measured.lines)
    weights = measured.figures["parameters"]
    says = (
        f"Between micro-steps {shown(around)} are alive with one context around all and {shown(each)} "
        f"with one for each: "
        f"{shown(around - each)} more, {(around - each) / weights:.2f} times the fp32 parameters."
    )
    rows = tuple(Row(line.label, line.bytes[-1], "alive between micro-steps") for line in measured.lines)
    return Judged("false" if around - each > 0.05 * weights else "true", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """Half of the run's weights in fp32."""
    weights = term_bytes(s.with_(precision="amp-bf16", lora=None, base_quantization=None), "parameters")
    return (
        Carried("cache of 16-bit weights, kept over the window", weights // 2, "half of the fp32 parameters on a rank"),
    )
