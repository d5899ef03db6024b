"""What one unusually long sample does to the peak of its step."""

from __future__ import annotations

from statistics import median
from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks
from ..fitting import shown
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="long-batch",
    title="One long batch",
    entry="activation-memory-spike",
    cause="long-sequence-outlier",
    claim="One batch has unusually long sequences.",
    expect="The peak of each step: flat, one spike where padding stretches the batch, flat again.",
)
LENGTHS = (48, 64, 56, 64, 512, 60, 64, 52)


def measure(bench: Any) -> Measured:
    """The peak of each step, and what is alive after it; four samples a batch, padded to its longest."""
    import torch

    from ..toys import Decoder, language_loss

    model = Decoder(attention="eager").to(bench.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with bench.tape() as tape:
        for longest in LENGTHS:
            batch = torch.zeros(4, longest, dtype=torch.long, device=bench.device)
            language_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del batch
            tape.mark()
    x = tuple(range(1, len(LENGTHS) + 1))
    return Measured("steps", (Line("peak", x, tuple(tape.highest)), Line("alive after it", x, tuple(tape.live))))


def judge(measured: Measured) -> Judged:
    """True: the long batch's step peaks at twice the median or more, and nothing of it stays."""
    peak, alive = (line.bytes for line in measured.lines)
    at = LENGTHS.index(max(LENGTHS))
    usual = median(peak)
    spike = peak[at] >= 2 * usual and max(b for n, b in enumerate(peak) if n != at) < 2 * usual
    stays = alive[at] - alive[at - 1]
    says = (
        f"The usual step peaks at {shown(usual)}; that with one sample of {max(LENGTHS)} tokens at {shown(peak[at])}, "
        f"{peak[at] / usual:.1f} times as much. {shown(stays)} of it stay."
    )
    rows = (Row("usual step", round(usual), "median peak"), Row("the long batch", peak[at], f"step {at + 1}"))
    return Judged("true" if spike and stays < 0.05 * usual else "conditional" if spike else "false", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's peak at its length, and where one sample is four times as long."""
    long = 4 * s.seq_len
    return peaks(s, "peak with a batch of {} tokens", [(f"{n:,}", {"seq_len": n}) for n in (s.seq_len, long)])
