"""Whether optimizer state depends on accumulation, and when it appears."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import category_bytes
from ..fitting import shown
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="optimizer-state",
    title="Optimizer state against accumulation",
    entry="gradient-accumulation-memory-spike",
    cause="",
    claim="Optimizer state grows with the effective batch size.",
    expect="Bytes that the first and the second step() add: the same whatever the number of micro-steps.",
)
WINDOWS = (1, 4, 16)


def measure(bench: Any) -> Measured:
    """Bytes that stay after the first and after the second ``step()``, by accumulation steps."""
    added = [states(bench, steps) for steps in WINDOWS]
    lines = (
        Line("added by the first step()", WINDOWS, tuple(first for first, _, _ in added)),
        Line("added by the second step()", WINDOWS, tuple(second for _, second, _ in added)),
    )
    return Measured("accumulation steps", lines, {"parameters": added[0][2]})


def states(bench: Any, steps: int) -> tuple[int, int, int]:
    """Two optimizer steps of AdamW; the gradients are freed after each."""
    import torch

    from ..toys import Blocks, parameter_bytes

    model = Blocks().to(bench.device)
    optimizer = torch.optim.AdamW(model.parameters())
    with bench.tape() as tape:
        for _ in range(2):
            tape.mark()
            for _ in range(steps):
                model(torch.randn(16, 64, device=bench.device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        tape.mark()
    before, first, second = tape.live
    return first - before, second - first, parameter_bytes(model)


def judge(measured: Measured) -> Judged:
    """Grows where more accumulation leaves more state: over 1 % from the fewest to the most micro-steps."""
    first, second = (line.bytes for line in measured.lines)
    grows = first[-1] + second[-1] > 1.01 * (first[0] + second[0])
    ratio = first[0] / measured.figures["parameters"]
    says = (
        f"The first step() adds {shown(first[0])} with {WINDOWS[0]} micro-step and {shown(first[-1])} with "
        f"{WINDOWS[-1]}: {ratio:.2f} times the parameters. The second adds {shown(max(second))}."
    )
    rows = tuple(
        Row(f"accumulation {n}", size, "added by the first step()") for n, size in zip(WINDOWS, first, strict=True)
    )
    return Judged("true" if grows else "false", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's optimizer state, and with four times the accumulation."""
    now = category_bytes(s, "optimizer_state")
    more = category_bytes(s.with_(grad_accum=4 * s.grad_accum), "optimizer_state")
    return (
        Carried(f"optimizer state with accumulation {s.grad_accum}", now, "appears at the first step()"),
        Carried(f"with accumulation {4 * s.grad_accum}", more, "the same"),
    )
