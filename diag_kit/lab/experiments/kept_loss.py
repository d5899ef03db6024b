"""What adding up or listing losses keeps, on the device and on the host."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import graph_bytes
from ..fitting import FLAT_BYTES, per_step, shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="kept-loss",
    title="Losses added up or listed",
    entry="gradient-accumulation-memory-spike",
    cause="graph-retention",
    claim="Adding up or listing the losses (`total += loss`, `losses.append(loss)`) leaks activations.",
    expect="Live bytes on the device stay flat after each backward(); nodes of the graph stay on the host.",
)
STEPS = 6
WAYS = ("total += loss", "losses.append(loss)", "total += loss.item()")
HOST_STEPS = 500


def measure(bench: Any) -> Measured:
    """Live device bytes after each micro-step, and the host bytes that a step leaves behind."""
    lines = tuple(Line(way, tuple(range(1, STEPS + 1)), window(bench, way)) for way in WAYS)
    hosts = {way: host_bytes(way) for way in WAYS}
    return Measured("micro-steps", lines, {way: n for way, n in hosts.items() if n is not None})


def window(bench: Any, way: str) -> tuple[int, ...]:
    """One window with a backward in each micro-step."""
    import torch

    from ..toys import Blocks

    model = Blocks().to(bench.device)
    with bench.tape() as tape:
        total, losses = 0.0, []
        for _ in range(STEPS):
            loss = model(torch.randn(512, 64, device=bench.device)).square().mean()
            loss.backward()
            if way == "losses.append(loss)":
                losses.append(loss)
            else:
                total = total + (loss if way == "total += loss" else loss.item())
            del loss
            tape.mark()
    return tuple(tape.live)


def host_bytes(way: str) -> float | None:
    """What each step of a tiny model leaves on the host's heap."""
    import torch

    from ..tape import heap_bytes

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    total, losses, before, x = 0.0, [], None, torch.randn(4, 8)
    for step in range(100 + HOST_STEPS):
        if step == 100:
            before = heap_bytes()
        loss = model(x).mean()
        loss.backward()
        if way == "losses.append(loss)":
            losses.append(loss)
        else:
            total = total + (loss if way == "total += loss" else loss.item())
    after = heap_bytes()
    return None if before is None or after is None else (after - before) / HOST_STEPS


def judge(measured: Measured) -> Judged:
    """Activations leak where what is alive on the device grows by more than scalars."""
    grows = {line.label: per_step(line.bytes) for line in measured.lines}
    rows = [Row(f"{way}, device", round(n), "a micro-step") for way, n in grows.items()]
    rows += [Row(f"{way}, host", round(n), "a step, on the heap") for way, n in measured.figures.items()]
    host = [f"{way} {shown(n)}" for way, n in measured.figures.items()]
    says = f"The device keeps {shown(max(grows.values()))} with every micro-step at most. "
    says += (
        f"On the host a step leaves: {', '.join(host)}." if host else "The host's memory can't be read on this system."
    )
    return Judged(truth(n > FLAT_BYTES for way, n in grows.items() if "item" not in way), says, tuple(rows))


def carry(s: Settings) -> tuple[Carried, ...]:
    """What would leak if it did, and what a scalar takes."""
    return (
        Carried("kept with each loss after backward()", 512, "a scalar, rounded up by CUDA's allocator; any model"),
        Carried("kept with each loss before backward()", graph_bytes(s), "its whole graph"),
    )
