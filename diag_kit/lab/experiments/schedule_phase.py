"""What a schedule's new phase does to the peak: longer sequences, unfrozen layers, a lower learning rate."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="schedule-phase",
    title="A new phase of the schedule",
    entry="activation-memory-spike",
    cause="schedule-phase-change",
    claim="Memory rises when the schedule enters a new phase.",
    expect=(
        "The peak of each step: flat before the fifth step and after it, with a rise where the phase changes "
        "shapes or layers."
    ),
)
CHANGE = 4
WAYS = ("sequences twice as long", "layers unfrozen", "learning rate lowered")


def measure(bench: Any) -> Measured:
    """The peak of each of eight steps; the phase changes before the fifth."""
    lines = tuple(Line(way, tuple(range(1, 2 * CHANGE + 1)), steps(bench, way)) for way in WAYS)
    return Measured("steps", lines)


def steps(bench: Any, way: str) -> tuple[int, ...]:
    """Eight steps."""
    import torch

    from ..toys import Decoder, language_loss

    model = Decoder().to(bench.device)
    if way == "layers unfrozen":
        model.embedding.requires_grad_(False)
        model.layers.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    length = 64
    with bench.tape() as tape:
        for step in range(2 * CHANGE):
            if step == CHANGE and way == "sequences twice as long":
                length = 128
            elif step == CHANGE and way == "layers unfrozen":
                model.requires_grad_(True)
            elif step == CHANGE:
                optimizer.param_groups[0]["lr"] = 0.01
            language_loss(model, torch.randint(0, 512, (4, length), device=bench.device)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tape.mark()
    return tuple(tape.highest)


def judge(measured: Measured) -> Judged:
    """Rises: the steps of the new phase peak over 5 % above those of the old one."""
    levels = {line.label: (max(line.bytes[:CHANGE]), max(line.bytes[CHANGE:])) for line in measured.lines}
    says = (
        "Peaks, " + "; ".join(f"{way}: from {shown(old)} to {shown(new)}" for way, (old, new) in levels.items()) + "."
    )
    rows = tuple(Row(way, new - old, "rise at the change") for way, (old, new) in levels.items())
    return Judged(truth(new > 1.05 * old for old, new in levels.values()), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's peak at half its length, as it is, and at twice its length."""
    lengths = dict.fromkeys((max(s.seq_len // 2, 1), s.seq_len, 2 * s.seq_len))
    return peaks(s, "peak in a phase of {} tokens", [(f"{n:,}", {"seq_len": n}) for n in lengths])
