"""How attention's memory grows with length: written out, and by the fused kernel."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks
from ..fitting import exponent, shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="attention-length",
    title="Attention against length",
    entry="activation-memory-spike",
    cause="attention-quadratic",
    claim="Attention memory is quadratic in sequence length.",
    expect="Both axes double: a quadratic line climbs by four at each doubling, a linear one by two.",
)
LENGTHS = (256, 512, 1024, 2048)


def measure(bench: Any) -> Measured:
    """Bytes kept for backward, and the highest of forward and backward, of one layer's attention by length."""
    lines = []
    for kind in ("eager", "fused"):
        found = [attention(bench, kind, length) for length in LENGTHS]
        lines += [Line(f"{kind}, kept for backward", LENGTHS, tuple(kept for kept, _ in found))]
        lines += [Line(f"{kind}, peak", LENGTHS, tuple(peak for _, peak in found))]
    return Measured("tokens", tuple(lines))


def attention(bench: Any, kind: str, length: int) -> tuple[int, int]:
    """Batch 1, 4 heads of 32; query, key and value are not counted, the result is at the peak only."""
    import torch
    import torch.nn.functional as F  # noqa: N812 (as everywhere)

    from ..toys import eager_attention

    q, k, v = (torch.randn(1, 4, length, 32, device=bench.device, requires_grad=True) for _ in range(3))
    with bench.tape() as tape:
        out = eager_attention(q, k, v) if kind == "eager" else F.scaled_dot_product_attention(q, k, v, is_causal=True)
        tape.mark()
        out.backward(torch.ones_like(out))
    return tape.live[0] - out.numel() * out.element_size(), tape.peak


def judge(measured: Measured) -> Judged:
    """Quadratic from a fitted power of 1.8 on, linear up to 1.2."""
    power = {line.label: exponent(line.x, line.bytes) for line in measured.lines}
    eager, fused = measured.line("eager, peak"), measured.line("fused, peak")
    says = (
        f"Written out, the peak at {LENGTHS[-1]:,} tokens is {shown(eager.bytes[-1])} and grows with length to the "
        f"power {power[eager.label]:.2f}; fused it is {shown(fused.bytes[-1])}, to the power {power[fused.label]:.2f}."
    )
    rows = tuple(
        Row(line.label, line.bytes[-1], f"at {LENGTHS[-1]:,} tokens, power {power[line.label]:.2f}")
        for line in measured.lines
    )
    return Judged(truth(power[line.label] >= 1.8 for line in measured.lines), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's predicted peak with each kind of attention, at its length and at twice that."""
    return tuple(
        one
        for words, n in ((f"{s.seq_len:,} tokens", s.seq_len), (f"{2 * s.seq_len:,} tokens", 2 * s.seq_len))
        for one in peaks(
            s,
            f"peak of a step with {{}} attention, {words}",
            [(kind, {"attention": kind, "seq_len": n}) for kind in ("eager", "sdpa")],
        )
    )
