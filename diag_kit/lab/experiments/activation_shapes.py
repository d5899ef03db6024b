"""Whether what is saved for backward is a polynomial of batch and length, exactly."""

from __future__ import annotations

from typing import Any

from ...memory.settings import Settings
from ..carrying import category_bytes
from ..fitting import shown, solve
from ..records import Carried, Experiment, Judged, Line, Measured, Row

ABOUT = Experiment(
    id="activation-shapes",
    title="Activations against the input's shape",
    entry="activation-memory-spike",
    cause="variable-shape-peak",
    claim="Activation memory varies with the input's shape.",
    expect="Six shapes determine the polynomial; it then says the bytes of shapes that it has not seen.",
)
SEEN = ((2, 32), (2, 64), (2, 96), (3, 32), (3, 64), (3, 96))
UNSEEN = ((4, 128), (5, 48), (7, 160), (2, 192))


def measure(bench: Any) -> Measured:
    """Bytes saved for backward of a small decoder with written-out attention, by batch and length."""
    found = {shape: kept(bench, *shape) for shape in (*SEEN, *UNSEEN)}
    lengths = (32, 64, 96, 128, 160)
    line = Line("batch 2", lengths, tuple(found.get((2, n)) or kept(bench, 2, n) for n in lengths))
    return Measured("tokens", (line,), {f"{b} x {n}": size for (b, n), size in found.items()})


def kept(bench: Any, batch: int, length: int) -> int:
    """Live bytes between forward and backward, the batch itself included."""
    import torch

    from ..toys import Decoder, language_loss

    model = Decoder(attention="eager").to(bench.device)
    with bench.tape() as tape:
        loss = language_loss(model, torch.randint(0, 512, (batch, length), device=bench.device))
        tape.mark()
        loss.backward()
    return tape.live[0]


def terms(batch: int, length: int) -> list[int]:
    """1, S, S², B, BS, BS²."""
    return [1, length, length**2, batch, batch * length, batch * length**2]


def judge(measured: Measured) -> Judged:
    """True where the bytes differ by shape, and follow: unseen shapes within a hundredth (CUDA rounds to 512)."""
    size = {shape: int(measured.figures[f"{shape[0]} x {shape[1]}"]) for shape in (*SEEN, *UNSEEN)}
    factors = solve([terms(*shape) for shape in SEEN], [size[shape] for shape in SEEN])
    told = {u: float(sum(f * t for f, t in zip(factors, terms(*u), strict=True))) for u in UNSEEN}
    worst = max(abs(told[u] - size[u]) for u in UNSEEN)
    varies = max(size.values()) > 1.05 * min(size.values())
    follows = all(abs(told[u] - size[u]) <= 0.01 * size[u] for u in UNSEEN)
    says = (
        f"From {shown(min(size.values()))} to {shown(max(size.values()))}. The polynomial through "
        f"{len(SEEN)} shapes misses "
        f"{len(UNSEEN)} unseen ones by {worst:,.0f} bytes at most; its terms B·S and B·S² are "
        f"{float(factors[4]):,.0f} and "
        f"{float(factors[5]):,.0f} bytes."
    )
    rows = tuple(Row(f"{b} x {n} tokens", size[b, n], f"told {told[b, n]:,.0f}") for b, n in UNSEEN)
    return Judged(("true" if follows else "conditional") if varies else "false", says, rows)


def carry(s: Settings) -> tuple[Carried, ...]:
    """The run's activations at its shape, at twice the length and at twice the batch."""
    cases = (
        ("its shape", s),
        ("twice the length", s.with_(seq_len=2 * s.seq_len)),
        ("twice the batch", s.with_(micro_batch=2 * s.micro_batch)),
    )
    return tuple(
        Carried(
            f"activations and scores at {words}",
            sum(category_bytes(at, c) for c in ("activations", "attention_scores")),
            "",
        )
        for words, at in cases
    )
