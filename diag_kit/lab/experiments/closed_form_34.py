"""The textbook's 34·s·b·h + 5·a·s²·b bytes for each layer, beside what two layers keep."""

from __future__ import annotations

from typing import Any

from ...memory.formulas import estimate
from ...memory.settings import Settings
from ..carrying import category_bytes
from ..fitting import truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="closed-form-34",
    title="34 · s · b · h",
    entry="activation-memory-spike",
    cause="activations-too-large",
    claim="Activation memory is 34 x sequence x batch x hidden for each layer.",
    expect="Measured bytes for each layer in bf16, of today's layers and of the paper's, beside the formula's lines.",
)
LENGTHS = (64, 128, 192)
KINDS = {
    # attention, dropout, gated
    "SwiGLU, fused attention": ("sdpa", 0.0, True),
    "SwiGLU, eager attention": ("eager", 0.0, True),
    "GELU, eager attention, dropout": ("eager", 0.1, False),
}
BATCH, WIDTH, HEADS = 2, 64, 4


def measure(bench: Any) -> Measured:
    """Bytes that one more layer keeps for backward, by length."""
    lines = [Line(way, LENGTHS, tuple(layer(bench, *kind, n) for n in LENGTHS)) for way, kind in KINDS.items()]
    lines += [Line("34 s b h", LENGTHS, tuple(34 * n * BATCH * WIDTH for n in LENGTHS))]
    lines += [
        Line("34 s b h + 5 a s² b", LENGTHS, tuple(34 * n * BATCH * WIDTH + 5 * HEADS * n * n * BATCH for n in LENGTHS))
    ]
    return Measured("tokens", tuple(lines))


def layer(bench: Any, attention: str, dropout: float, gated: bool, length: int) -> int:
    """What two layers keep less what one does."""
    two, one = (kept(bench, depth, attention, dropout, gated, length) for depth in (2, 1))
    return two - one


def kept(bench: Any, depth: int, attention: str, dropout: float, gated: bool, length: int) -> int:
    """Live bytes between forward and backward, in bf16."""
    import torch

    from ..toys import Decoder

    model = Decoder(64, WIDTH, depth, HEADS, attention, dropout, gated=gated).to(bench.device, torch.bfloat16)
    ids = torch.randint(0, 64, (BATCH, length), device=bench.device)
    with bench.tape() as tape:
        out = model(ids)
        tape.mark()
        del out
    return tape.live[0]


def judge(measured: Measured) -> Judged:
    """True of a layer whose bytes are within a tenth of either form at every length; asked of gated layers alone."""
    *kinds, short, full = measured.lines
    off = {line.label: min(error(short, line), error(full, line), key=abs) for line in kinds}
    says = f"At its best the formula is off by {', '.join(f'{n:+.0%} ({way})' for way, n in off.items())}."
    rows = tuple(Row(line.label, line.bytes[-1], f"a layer at {LENGTHS[-1]} tokens") for line in measured.lines)
    return Judged(
        truth(abs(n) <= 0.1 for way, n in off.items() if "SwiGLU" in way),
        says,
        rows,
    )


def error(told: Line, real: Line) -> float:
    """The largest relative error over the lengths."""
    return max((a / b - 1 for a, b in zip(told.bytes, real.bytes, strict=True)), key=abs)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The formula at the run's sizes, and the activations that the closed forms of this package count."""
    m = s.model
    told = m.n_layers * (34 * s.seq_len * s.micro_batch * m.hidden + 5 * m.heads * s.seq_len**2 * s.micro_batch)
    own = sum(category_bytes(s, name) for name in ("activations", "attention_scores"))
    return (
        Carried("34 s b h + 5 a s² b, all layers", told, "fp16, GELU, dropout, no grouped queries, no checkpointing"),
        Carried("activations and scores, term by term", own, f"peak in {estimate(s).peak_phase}"),
    )
