"""What is held of gradients between micro-steps, beside one copy in the parameters' own dtype."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import category_bytes
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="accumulation-buffer",
    title="Gradients held between micro-steps",
    entry="gradient-accumulation-memory-spike",
    cause="grad-accumulation-buffer",
    claim="Gradients held between micro-steps take more memory than expected.",
    expect="Bytes held after each micro-step: a step up at the first, then flat, as high as dtype and buffers make it.",
)
STEPS = 4
WAYS = ("all parameters trained", "adapters trained", "bf16 weights, fp32 accumulation buffers")


def measure(bench: Any) -> Measured:
    """Bytes held after each micro-step, and one gradient for each parameter in its own dtype."""
    found = {way: window(bench, way) for way in WAYS}
    lines = [Line(way, tuple(range(1, STEPS + 1)), live) for way, (live, _) in found.items()]
    return Measured("micro-steps", tuple(lines), {way: own for way, (_, own) in found.items()})


def window(bench: Any, way: str) -> tuple[tuple[int, ...], int]:
    """One window; with buffers, each gradient is added to an fp32 tensor, as trainers with 16-bit weights do."""
    import torch

    from ..toys import Blocks, parameter_bytes

    model = Blocks().to(bench.device)
    own = parameter_bytes(model)
    if way == "adapters trained":
        model.requires_grad_(False)
        for block in model.blocks:
            block.append(torch.nn.Linear(64, 4, device=bench.device)).append(
                torch.nn.Linear(4, 64, device=bench.device)
            )
    elif "bf16" in way:
        model = model.bfloat16()
        own = parameter_bytes(model)
    buffers: dict[Any, Any] = {}
    with bench.tape() as tape:
        for _ in range(STEPS):
            x = torch.randn(32, 64, device=bench.device, dtype=model.head.weight.dtype)
            model(x).square().mean().backward()
            del x
            if "buffers" in way:
                for p in model.parameters():
                    buffers[p] = buffers[p].add_(p.grad) if p in buffers else p.grad.float()
            tape.mark()
    return tuple(tape.live), own


def judge(measured: Measured) -> Judged:
    """More than expected: over 1.1 times one gradient for each parameter in its own dtype. It must be flat, too."""
    held = {line.label: line.bytes[-1] for line in measured.lines}
    flat = all(line.bytes[-1] <= 1.01 * line.bytes[0] for line in measured.lines)
    times = {way: n / measured.figures[way] for way, n in held.items()}
    says = "Held between micro-steps, " + "; ".join(
        f"{way}: {shown(n)}, {times[way]:.2f} times the parameters" for way, n in held.items()
    )
    says += ". All flat from the first micro-step on." if flat else ". Not flat: it grows over the micro-steps."
    rows = tuple(Row(way, n, f"held, {times[way]:.2f} times the parameters") for way, n in held.items())
    return Judged(truth(n > 1.1 for n in times.values()), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's gradients on this rank, with fp32 gradients, and left whole."""
    now = category_bytes(s, "gradients")
    found = [Carried("gradients held between micro-steps", now, "on this rank")]
    found.append(Carried("the same in fp32", category_bytes(s.with_(gradient_dtype="fp32"), "gradients"), ""))
    if s.parallelism.strategy == "fsdp":
        whole = s.with_(parallelism={"no_sync": True}, grad_accum=max(s.grad_accum, 2))
        found.append(Carried("left whole by no_sync", category_bytes(whole, "gradients"), "FSDP"))
    return tuple(found)
