"""How many matrices of scores attention keeps for backward, without dropout and with it."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import category_bytes
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="attention-dropout",
    title="Dropout in attention",
    entry="activation-memory-spike",
    cause="attention-quadratic",
    claim="Dropout in attention costs no memory.",
    expect="Bytes kept for backward by length, without dropout and with it: one matrix of scores against about three.",
)
LENGTHS = (128, 256, 512)


def measure(bench: Any) -> Measured:
    """Bytes that one layer's attention, written out, keeps for backward."""
    ways = (("no dropout", 0.0), ("dropout 0.1", 0.1))
    lines = tuple(Line(way, LENGTHS, tuple(kept(bench, n, p) for n in LENGTHS)) for way, p in ways)
    return Measured("tokens", lines, {"scores": 4 * 4 * LENGTHS[-1] ** 2})


def kept(bench: Any, length: int, dropout: float) -> int:
    """Batch 1, 4 heads of 32; the result itself is not counted."""
    import torch

    from ..toys import eager_attention

    q, k, v = (torch.randn(1, 4, length, 32, device=bench.device, requires_grad=True) for _ in range(3))
    with bench.tape() as tape:
        out = eager_attention(q, k, v, dropout)
        tape.mark()
    return tape.live[0] - out.numel() * out.element_size()


def judge(measured: Measured) -> Judged:
    """No memory: less than a tenth more at the longest."""
    plain, dropped = (line.bytes[-1] for line in measured.lines)
    scores = measured.figures["scores"]
    says = (
        f"At {LENGTHS[-1]} tokens one matrix of scores is {shown(scores)}; kept for backward are "
        f"{plain / scores:.2f} of them "
        f"without dropout and {dropped / scores:.2f} with it."
    )
    rows = tuple(Row(line.label, line.bytes[-1], f"kept at {LENGTHS[-1]} tokens") for line in measured.lines)
    return Judged(truth([dropped < 1.1 * plain]), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's scores, written out, without dropout and with it."""
    cases = [("without dropout", 0.0), ("with dropout", s.dropout or 0.1)]
    return tuple(
        Carried(
            f"scores {words}, eager",
            category_bytes(s.with_(attention="eager", dropout=p), "attention_scores"),
            "at most",
        )
        for words, p in cases
    )
