"""What evaluation needs beside a training step, by what is wrong with it."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import graph_bytes, peaks
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="eval-autograd",
    title="Evaluation beside training",
    entry="activation-memory-spike",
    cause="eval-peak",
    claim="Evaluation needs more memory than training.",
    expect=(
        "The highest bytes over four batches: below training's under no_grad, above where graphs are kept or "
        "shapes are larger."
    ),
)
BATCHES = 4
WAYS = ("no_grad", "autograd on, losses added up", "no_grad, outputs kept", "no_grad, batch eight times as large")


def measure(bench: Any) -> Measured:
    """The highest bytes up to each batch, of training and of four ways to evaluate."""
    lines = [Line(way, tuple(range(1, BATCHES + 1)), batches(bench, way)) for way in ("training", *WAYS)]
    return Measured("batches", tuple(lines))


def batches(bench: Any, way: str) -> tuple[int, ...]:
    """Four batches of 4 x 64 tokens."""
    import torch
    import torch.nn.functional as F  # noqa: N812 (as everywhere)

    from ..toys import Decoder

    model = Decoder().to(bench.device)
    training, total, outputs = way == "training", 0.0, []
    size = 32 if "eight times" in way else 4
    with bench.tape() as tape, torch.set_grad_enabled(training or "autograd" in way):
        for _ in range(BATCHES):
            ids = torch.randint(0, 512, (size, 64), device=bench.device)
            logits = model(ids)
            loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
            if training:
                loss.backward()
                model.zero_grad(set_to_none=True)
            total = total + (loss if "added up" in way else loss.item())
            if "outputs kept" in way:
                outputs.append(logits)
            del logits, loss
            tape.mark()
    return tuple(max(tape.highest[: n + 1]) for n in range(BATCHES))


def judge(measured: Measured) -> Judged:
    """More than training: over its peak, at the last batch."""
    training, *ways = measured.lines
    most = training.bytes[-1]
    says = (
        f"Training peaks at {shown(most)}; "
        + ", ".join(f"{line.label}: {shown(line.bytes[-1])}" for line in ways)
        + "."
    )
    rows = tuple(Row(line.label, line.bytes[-1], f"highest over {BATCHES} batches") for line in measured.lines)
    return Judged(truth(line.bytes[-1] > most for line in ways), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's training peak, and what one evaluation batch with autograd on keeps."""
    training = peaks(s, "peak of a training step{}", [("", {})])
    return (*training, Carried("kept by each evaluation batch, autograd on", graph_bytes(s), "while its loss is kept"))
