"""What recomputing activations saves: in a deep model, and where the peak stands in the loss."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="checkpointing",
    title="Gradient checkpointing",
    entry="activation-memory-spike",
    cause="activations-too-large",
    claim="Gradient checkpointing lowers the peak.",
    expect=(
        "The peak by depth with a small vocabulary, with checkpointing and without; and beside it a large vocabulary."
    ),
)
DEPTHS = (2, 4, 8)
KINDS = (("small vocabulary", 256, DEPTHS), ("large vocabulary, shallow", 16_000, (1,)))


def measure(bench: Any) -> Measured:
    """The peak of forward and backward, the model apart."""
    lines = []
    for kind, vocab, depths in KINDS:
        for way, on in (("kept", False), ("recomputed", True)):
            lines.append(Line(f"{kind}, {way}", depths, tuple(peak(bench, vocab, n, on) for n in depths)))
    return Measured("layers", tuple(lines))


def peak(bench: Any, vocab: int, depth: int, checkpointing: bool) -> int:
    """One forward and backward of 4 x 64 tokens."""
    import torch

    from ..toys import Decoder, language_loss

    model = Decoder(vocab, depth=depth, checkpointing=checkpointing).to(bench.device)
    with bench.tape() as tape:
        language_loss(model, torch.randint(0, vocab, (4, 64), device=bench.device)).backward()
    return tape.peak


def judge(measured: Measured) -> Judged:
    """Lowers: by more than a tenth, at the deepest of each kind."""
    pairs = {
        kind: [measured.line(f"{kind}, {way}").bytes[-1] for way in ("kept", "recomputed")] for kind, _, _ in KINDS
    }
    says = "; ".join(
        f"{kind}: {shown(a)} kept, {shown(b)} recomputed, {1 - b / a:.0%} less" for kind, (a, b) in pairs.items()
    )
    rows = tuple(Row(f"{kind}, recomputed", b, f"{shown(a)} kept") for kind, (a, b) in pairs.items())
    return Judged(truth(b < 0.9 * a for a, b in pairs.values()), f"Peaks, {says}.", rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's peak without and with checkpointing."""
    return peaks(s, "peak, checkpointing {}", [(way, {"checkpointing": way}) for way in ("none", "full")])
