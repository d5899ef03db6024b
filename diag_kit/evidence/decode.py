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
_OF_BATCH = (
    ("logits", "length | vocabulary"),
    ("logits", "length less one | vocabulary"),
    ("attention-scores", "heads | length | length"),
    ("attention-mask", "length | length"),
    ("activations", "length | hidden"),
    ("activations", "length | feed-forward"),
    ("activations", "length | gate and up"),
    ("activations", "length | queries, keys and values"),
)
_OF_MODEL = (
    ("kv-cache", "batch | length | keys"),
    ("kv-cache", "batch | length | keys and values | layers"),
    ("weights", "vocabulary | hidden"),
    ("weights", "feed-forward | hidden"),
    ("weights", "gate and up | hidden"),
    ("weights", "queries | hidden"),
    ("parameters", "parameters of one layer"),
    ("parameters", "parameters"),
    ("parameters", "parameters of one rank"),
    ("bucket", "elements of DeepSpeed's default bucket"),
)
# Preference and contrastive training runs two sequences for each sample.
_TENSORS = [(k, f"{rows} | {d}") for rows in ("batch", "sequences each | batch") for k, d in _OF_BATCH] + [*_OF_MODEL]
_WIDTHS = {"attention-mask": (1, 2, 4, 8)}
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
    """What a request's size says: the candidates that print as it does (those of the failing operation alone where they
    fit), how many sizes were tried, the chance that one is equal by coincidence, and the kind of tensor that it was;
    None where chance or a second kind explains it as well.
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
    return weigh(request_bytes, candidates(settings), text, operation)


def says_nothing(request_bytes: int, text: str = "") -> bool:
    """Whether a request is what PyTorch asks for on behalf of any small tensor."""
    low, high = printed_range(request_bytes, text)
    return request_bytes <= 0 or any(low <= small <= high for small in _SEGMENTS_OF_SMALL)


def weigh(request_bytes: int, tried: list[Candidate], text: str = "", operation: str | None = None) -> Decoded | None:
    """Which of the candidates a request can be, as `decode` answers."""
    low, high = printed_range(request_bytes, text)
    segment = _SEGMENT if high > low else 1
    if says_nothing(request_bytes, text):
        return None
    fitting = [one for one in tried if one.size_bytes <= high and -(-one.size_bytes // segment) * segment >= low]
    named = _OF_OPERATION.get(operation or "", ())
    if own := [one for one in fitting if one.tensor in named]:
        tried, fitting = [one for one in tried if one.tensor in named], own
    if not fitting:
        return None
    near = {one.size_bytes for one in tried if request_bytes / 2 <= one.size_bytes <= 2 * request_bytes}
    by_chance = len(near) * (high - low + segment) / (request_bytes * math.log(4))
    if any(_round(one.size_bytes) for one in fitting):
        by_chance = max(by_chance, sum(map(_round, near)) / _ROUND_VALUES)
    chance = -math.expm1(-by_chance)
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
    if operation in ("logits", "loss") and (row := known["vocabulary"]):
        single, half = (request_bytes // (row * width) for width in (4, 2))
        return f"about {single:,} tokens at 4 bytes, or {half:,} at 2"
    if operation == "attention-scores" and (rows := known["batch"] * known["heads"]):
        single, half = (math.isqrt(request_bytes // (rows * width)) for width in (4, 2))
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
    length, world, total = (_count(settings.get(name)) for name in ("seq_len", "world_size", "n_params"))
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


def candidates(settings: Mapping[str, Any]) -> list[Candidate]:
    """Every tensor whose dimensions the settings state, at each width that its kind is kept in."""
    known = _dimensions(settings)
    found = []
    for tensor, dimensions in _TENSORS:
        names = dimensions.split(" | ")
        if elements := math.prod(known[name] for name in names):
            shape = " × ".join(f"{name} {known[name]:,}" for name in names)
            widths = _WIDTHS.get(tensor, (2, 4))
            found += [Candidate(tensor, f"{shape} × {w} byte{'s' * (w > 1)}", elements * w) for w in widths]
    return found
