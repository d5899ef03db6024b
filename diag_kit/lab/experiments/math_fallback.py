"""Which uses of ``scaled_dot_product_attention`` run a fused kernel on this device, and which fall back to matrices."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import peaks
from ..fitting import exponent, shown, truth
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="math-fallback",
    title="When fused attention is not fused",
    entry="activation-memory-spike",
    cause="attention-quadratic",
    claim="Fused attention always removes the quadratic term.",
    expect="The peak by length: a fused call climbs by two at each doubling, one that fell back by four.",
)
LENGTHS = (192, 384, 768)
WAYS = ("is_causal=True", "dropout 0.1", "a mask that learns", "need_weights=True", "the math kernel, asked for")


def measure(bench: Any) -> Measured:
    """The peak of forward and backward by length; inputs and mask were there before."""
    lines = tuple(Line(way, LENGTHS, tuple(peak(bench, way, n) for n in LENGTHS)) for way in WAYS)
    return Measured("tokens", lines)


def peak(bench: Any, way: str, length: int) -> int:
    """One call, batch 1, 4 heads of 32."""
    import torch
    import torch.nn.functional as F  # noqa: N812 (as everywhere)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (torch.randn(1, 4, length, 32, device=bench.device, requires_grad=True) for _ in range(3))
    bias = torch.zeros(length, length, device=bench.device, requires_grad=True)
    whole = torch.nn.MultiheadAttention(128, 4, batch_first=True, device=bench.device)
    x = torch.randn(1, length, 128, device=bench.device)
    with bench.tape() as tape:
        if way == "is_causal=True":
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif way == "dropout 0.1":
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        elif way == "a mask that learns":
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        elif way == "need_weights=True":
            out, _ = whole(x, x, x, need_weights=True)
        else:
            with sdpa_kernel(SDPBackend.MATH):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.sum().backward()
    return tape.peak


def judge(measured: Measured) -> Judged:
    """Removed: the peak follows length to a power of 1.2 or less."""
    power = {line.label: exponent(line.x, line.bytes) for line in measured.lines}
    size = {line.label: shown(line.bytes[-1]) for line in measured.lines}
    linear = [f"{way} ({size[way]} at {LENGTHS[-1]} tokens)" for way, p in power.items() if p <= 1.2]
    others = [f"{way} ({size[way]}, {p:.2f})" for way, p in power.items() if p > 1.2]
    says = f"Linear in length here: {', '.join(linear) or 'none'}. To a higher power: {', '.join(others) or 'none'}."
    rows = tuple(
        Row(line.label, line.bytes[-1], f"peak at {LENGTHS[-1]:,} tokens, power {power[line.label]:.2f}")
        for line in measured.lines
    )
    return Judged(truth(p <= 1.2 for p in power.values()), says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's peak with the fused kernel, and written out, as a fallback is."""
    return peaks(
        s, "peak of a step, attention {}", [("fused", {"attention": "sdpa"}), ("fallen back", {"attention": "eager"})]
    )
