"""Where the peak stands: by what lowers it, in three kinds of step."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="peak-place",
    title="Where the spike stands",
    entry="activation-memory-spike",
    cause="attention-quadratic",
    claim="The spike is in attention.",
    expect="The peak with attention written out and fused: only where fusing lowers it the spike stood in attention.",
)
STEPS = {
    # kind of step: vocabulary, batch, length, width
    "long sequences": (512, 1, 512, 64),
    "large vocabulary": (16_000, 4, 64, 64),
    "large model, small batch": (512, 1, 16, 192),
}


def measure(bench: Any) -> Measured:
    """The peak of two steps of AdamW, by kind of step; 0 is eager attention, 1 fused."""
    kinds = ("eager", "sdpa")
    lines = [Line(way, (0, 1), tuple(peak(bench, kind, *sizes) for kind in kinds)) for way, sizes in STEPS.items()]
    return Measured("attention: 0 eager, 1 fused", tuple(lines))


def peak(bench: Any, attention: str, vocab: int, batch: int, length: int, width: int) -> int:
    """The peak of two steps, model and optimizer counted."""
    import torch

    from ..toys import Decoder, language_loss

    with bench.tape() as tape:
        model = Decoder(vocab, width, attention=attention).to(bench.device)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            language_loss(model, torch.randint(0, vocab, (batch, length), device=bench.device)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return tape.peak


def judge(measured: Measured) -> Judged:
    """In attention: fusing it lowers the peak by more than a tenth."""
    lower = {line.label: 1 - line.bytes[1] / line.bytes[0] for line in measured.lines}
    says = "Fusing attention lowers the peak by " + ", ".join(f"{n:.0%} ({way})" for way, n in lower.items()) + "."
    rows = tuple(Row(line.label, line.bytes[0], f"peak, {shown(line.bytes[1])} fused") for line in measured.lines)
    return Judged(truth(n > 0.1 for n in lower.values()), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's peak with each remedy of another place."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("as it is", {}),
        ("attention fused", {"attention": "sdpa"}),
        ("loss fused", {"fused_loss": True}),
    ]
    return peaks(s, "peak, {}", [*cases, ("AdamW without temporaries", {"optimizer": "adamw-fused"})])
