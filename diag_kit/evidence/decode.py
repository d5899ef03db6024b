"""The size of one request, decoded into the tensor that it was: which sizes that the run's settings imply fit it.

A size is printed to two decimals, and the allocator of PyTorch asks the driver for whole segments (requests up to 1 MiB
take 2 MiB, those below 10 MiB take 20 MiB, larger ones are rounded up to 2 MiB; ``CUDACachingAllocator.cpp``, whose
message prints the segment). So a tensor fits where some number between its own size and its segment prints as the
request did; nothing else counts as equal.

A match alone proves nothing: among many sizes one will be near, and sizes made of powers of two meet all the time. The
chance of a coincidence is therefore estimated from the sizes tried, and a tensor is claimed only where that chance is
small and no other kind of tensor fits as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..units import GIB, KIB, MIB, SIZE, format_bytes, parse_size

_SEGMENT = 2 * MIB
_SEGMENTS_OF_SMALL = (2 * MIB, 20 * MIB)
"""Sizes that PyTorch asks for on behalf of any small tensor: they tell nothing of its shape."""
_CHANCE, _CHANCE_IN_FRAME = 0.05, 0.2
"""Largest chance of a coincidence at which a tensor is claimed: from its size alone, or where a frame names it too."""
_ROUND_VALUES = 16  # numbers m x 2**k with odd m < 16 between half and twice of any size
_SIZES = re.compile(SIZE)
_TENSORS: tuple[tuple[str, tuple[int, ...], tuple[str, ...]], ...] = (
    # kind, widths in bytes, dimensions; preference and contrastive training run two sequences for each sample
    *(
        (kind, widths, (*rows, *dimensions))
        for rows in (("batch",), ("sequences each", "batch"))
        for kind, widths, dimensions in (
            ("logits", (2, 4), ("length", "vocabulary")),
            ("logits", (2, 4), ("length less one", "vocabulary")),
            ("attention-scores", (2, 4), ("heads", "length", "length")),
            ("attention-mask", (1, 2, 4, 8), ("length", "length")),
            ("activations", (2, 4), ("length", "hidden")),
            ("activations", (2, 4), ("length", "feed-forward")),
            ("activations", (2, 4), ("length", "gate and up")),
            ("activations", (2, 4), ("length", "queries, keys and values")),
        )
    ),
    ("kv-cache", (2, 4), ("batch", "length", "keys")),
    ("kv-cache", (2, 4), ("batch", "length", "keys and values", "layers")),
    ("weights", (2, 4), ("vocabulary", "hidden")),
    ("weights", (2, 4), ("feed-forward", "hidden")),
    ("weights", (2, 4), ("gate and up", "hidden")),
    ("weights", (2, 4), ("queries", "hidden")),
    ("parameters", (2, 4), ("parameters of one layer",)),
    ("parameters", (2, 4), ("parameters",)),
    ("parameters", (2, 4), ("parameters of one rank",)),
    ("bucket", (2, 4), ("elements of DeepSpeed's default bucket",)),
)
_OF_OPERATION = {
    "attention-scores": ("attention-scores",),
    "attention-mask": ("attention-mask",),
    "logits": ("logits",),
    "loss": ("logits",),
    "kv-cache": ("kv-cache",),
    "load-weights": ("weights",),
    "optimizer-state": ("weights", "parameters"),
    "optimizer-temporaries": ("weights", "parameters"),
    "gather-parameters": ("weights", "parameters"),
}
"""What the operation that a frame shows makes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tensor that the settings imply: its kind, its shape in words, its bytes."""

    tensor: str
    shape: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a request's size says.

    Attributes:
        matches: candidates equal to the request as printed, those of the failing operation alone where they fit.
        tried: sizes compared.
        chance: that one of them is equal by coincidence.
        claimed: the kind of tensor that it was; None where chance or a second kind explains it as well.
    """

    matches: tuple[Candidate, ...]
    tried: int
    chance: float
    claimed: str | None

    @property
    def words(self) -> str:
        """The matches as a person reads them, with how much they prove."""
        shapes = " or ".join(f"{one.shape} = {format_bytes(one.size_bytes)}" for one in self.matches[:2])
        more = f", {len(self.matches) - 2} more fit" if len(self.matches) > 2 else ""
        odds = f"about 1 in {min(1000, round(1 / self.chance))}" if self.chance < 0.5 else "as likely as not"
        return f"{shapes}{more} (to the printed digits; of {self.tried} sizes tried, by chance {odds})"


def printed_range(request_bytes: int, text: str) -> tuple[int, int]:
    """Least and greatest number of bytes that prints as the request does in ``text``; whole bytes are exact.

    Where the text does not show it, two decimals of its unit are taken, as PyTorch prints.

    >>> [round(end / GIB, 3) for end in printed_range(62448827924, "Tried to allocate 58.16 GiB.")]
    [58.155, 58.165]
    >>> printed_range(4096, "buffer of size 4096 bytes")
    (4096, 4096)
    """
    half = next((unit for unit in (GIB, MIB, KIB) if request_bytes >= unit), 0) / 200
    for found in _SIZES.finditer(text[:20_000]):
        if parse_size(found[0]) == request_bytes:
            number = found[0].rstrip("KMGTPEiBbytes ")
            unit = (parse_size("1" + found[0][len(number) :]) or 1) if len(number) < len(found[0]) else 1
            half = unit * 10.0 ** -len(number.partition(".")[2]) / 2 if unit > 1 else 0
            break
    return math.ceil(request_bytes - half), math.floor(request_bytes + half)


def decode(
    request_bytes: int, settings: Mapping[str, Any], *, text: str = "", operation: str | None = None
) -> Decoded | None:
    """The tensors of these settings that the request can be; None where none fits or the size tells nothing.

    Args:
        request_bytes: as stated.
        settings: canonical names: ``micro_batch``, ``seq_len``, ``world_size``, ``strategy``, ``n_params``, ``model``.
        text: the message, for the precision of its digits.
        operation: what the failing frame computes.
    """
    low, high = printed_range(request_bytes, text)
    segment = _SEGMENT if high > low else 1
    if request_bytes <= 0 or any(low <= small <= high for small in _SEGMENTS_OF_SMALL):
        return None
    tried = _candidates(settings)
    fitting = [one for one in tried if one.size_bytes <= high and -(-one.size_bytes // segment) * segment >= low]
    named = _OF_OPERATION.get(operation or "", ())
    if own := [one for one in fitting if one.tensor in named]:
        tried, fitting = [one for one in tried if one.tensor in named], own
    if not fitting:
        return None
    near = {one.size_bytes for one in tried if request_bytes / 2 <= one.size_bytes <= 2 * request_bytes}
    by_chance = len(near) * (high - low + segment) / (request_bytes * math.log(4))
    if _round(fitting[0].size_bytes):
        by_chance = max(by_chance, sum(map(_round, near)) / _ROUND_VALUES)
    chance = 1 - math.exp(-by_chance)
    kinds = {one.tensor for one in fitting}
    sure = len(kinds) == 1 and chance <= (_CHANCE_IN_FRAME if own else _CHANCE)
    fitting.sort(key=lambda one: (abs(one.size_bytes - request_bytes), one.shape))
    return Decoded(tuple(fitting), len({one.size_bytes for one in tried}), chance, kinds.pop() if sure else None)


def implied(request_bytes: int, settings: Mapping[str, Any], operation: str | None) -> str | None:
    """The dimension that the settings leave open, where the frame names the tensor: tokens of logits, length of scores.

    >>> implied(10168335073, {"model": {"vocab": 128256}}, "logits")
    'about 19,820 tokens at 4 bytes, or 39,640 at 2'
    """
    known = _dimensions(settings)
    row = {"logits": known["vocabulary"], "loss": known["vocabulary"]}.get(operation or "", 0)
    square = known["batch"] * known["heads"] if operation == "attention-scores" else 0
    if row:
        single, half = (request_bytes // (row * width) for width in (4, 2))
        return f"about {single:,} tokens at 4 bytes, or {half:,} at 2"
    if square:
        single, half = (math.isqrt(request_bytes // (square * width)) for width in (4, 2))
        return f"a length of about {single:,} at 4 bytes, or {half:,} at 2"
    return None


def _round(size: int) -> bool:
    """Whether a size is a small odd number times a power of two, where sizes of most models meet."""
    return size // (size & -size) < _ROUND_VALUES


def _count(value: Any) -> int:
    """A dimension as stated, 0 where it is none: settings come from files that anybody may have written."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**13 else 0


def _dimensions(settings: Mapping[str, Any]) -> dict[str, int]:
    """What the settings state, by name; 0 for what they don't."""
    model = settings.get("model")
    model = model if isinstance(model, Mapping) else {}
    hidden, heads, ffn = (_count(model.get(name)) for name in ("hidden", "heads", "ffn"))
    total = _count(settings.get("n_params"))
    length, world = _count(settings.get("seq_len")), _count(settings.get("world_size"))
    head = _count(model.get("head_dim")) or (hidden // heads if heads else 0)
    queries, keys = heads * head, (_count(model.get("kv_heads")) or heads) * head
    layer = 2 * hidden * (queries + keys) + (3 if model.get("gated_ffn") else 2) * hidden * ffn + 2 * hidden
    return {
        "batch": _count(settings.get("micro_batch")),
        "sequences each": 2,
        "length": length,
        "length less one": max(0, length - 1),
        "heads": heads,
        "vocabulary": _count(model.get("vocab") or settings.get("vocab")),
        "hidden": hidden,
        "feed-forward": ffn,
        "gate and up": 2 * ffn if model.get("gated_ffn") else 0,
        "queries": queries,
        "queries, keys and values": queries + 2 * keys,
        "keys": keys,
        "keys and values": 2 * keys,
        "layers": _count(model.get("n_layers")),
        "parameters": total,
        "parameters of one rank": -(-total // world) if world > 1 else 0,
        "parameters of one layer": layer if hidden and heads and ffn else 0,
        "elements of DeepSpeed's default bucket": 500_000_000 if "zero" in str(settings.get("strategy")).lower() else 0,
    }


def _candidates(settings: Mapping[str, Any]) -> list[Candidate]:
    """Every tensor whose dimensions the settings state, at each width that its kind is kept in."""
    known = _dimensions(settings)
    found = []
    for tensor, widths, names in _TENSORS:
        if elements := math.prod(known[name] for name in names):
            shape = " × ".join(f"{name} {known[name]:,}" for name in names)
            found += [Candidate(tensor, f"{shape} × {w} byte{'s' * (w > 1)}", elements * w) for w in widths]
    return found
