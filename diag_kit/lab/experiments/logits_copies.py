"""How many copies of the logits the loss and its backward hold, and what share of the peak that is."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import category_bytes, peaks, term_bytes
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="logits-copies",
    title="Copies of the logits",
    entry="activation-memory-spike",
    cause="logits-loss-peak",
    claim="Logits and cross-entropy hold the peak.",
    expect=(
        "The highest bytes by vocabulary, beside what is alive before the head: the difference is copies of the logits."
    ),
)
VOCABULARIES = (4000, 8000, 16_000)
BATCH, LENGTH = 4, 64
WAYS = ("fp32", "bf16, upcast before the loss")


def measure(bench: Any) -> Measured:
    """Alive before the head and the highest afterwards, by vocabulary, of a small decoder."""
    lines = []
    for way in WAYS:
        found = [copies(bench, way, n) for n in VOCABULARIES]
        lines += [Line(f"{way}: before the head", VOCABULARIES, tuple(before for before, _ in found))]
        lines += [Line(f"{way}: peak", VOCABULARIES, tuple(peak for _, peak in found))]
    return Measured("vocabulary", tuple(lines))


def copies(bench: Any, way: str, vocab: int) -> tuple[int, int]:
    """One forward and backward; the model is not counted, its gradients are."""
    import torch
    import torch.nn.functional as F  # noqa: N812 (as everywhere)

    from ..toys import Decoder

    model = Decoder(vocab).to(bench.device, torch.float32 if way == "fp32" else torch.bfloat16)
    ids = torch.randint(0, vocab, (BATCH, LENGTH), device=bench.device)
    with bench.tape() as tape:
        before_head = model.head.register_forward_pre_hook(lambda module, inputs: tape.mark())
        logits = model(ids)
        F.cross_entropy(logits.float().flatten(0, 1), ids.flatten()).backward()
        before_head.remove()
    return tape.live[0], tape.peak


def judge(measured: Measured) -> Judged:
    """Hold the peak: more than half of the highest bytes came with the head and the loss, at the largest vocabulary."""
    shares, parts, rows = [], [], []
    for way in WAYS:
        before, peak = (measured.line(f"{way}: {what}").bytes[-1] for what in ("before the head", "peak"))
        one = BATCH * LENGTH * VOCABULARIES[-1] * 4
        shares.append((peak - before) / peak)
        parts.append(f"{way}: {shares[-1]:.0%} of the peak, {(peak - before) / one:.1f} times the logits in fp32")
        rows.append(Row(f"{way}: peak", peak, f"{shown(before)} before the head; the logits in fp32 are {shown(one)}"))
    return Judged(truth(n > 0.5 for n in shares), f"With the head and the loss come, {'; '.join(parts)}.", tuple(rows))


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's logits at their highest, one copy in fp32, and its peak with a fused loss."""
    return (
        Carried("logits and their copies, at most", category_bytes(s.with_(fused_loss=False), "logits"), ""),
        Carried(
            "one copy in fp32", term_bytes(s.with_(fused_loss=False), "log-probabilities"), "tokens x vocabulary x 4"
        ),
        *peaks(s, "peak, {}", [("as it is", {}), ("with a fused loss", {"fused_loss": True})]),
    )
