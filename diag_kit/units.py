"""Bytes to text and back: the only place that knows 1024.

Inside the package sizes are integers in bytes, named ``_bytes``. PyTorch, CUDA tools and most frameworks print binary
units, whether they write "GiB" or "GB"; a source that means powers of ten is converted by ``decimal=True``.
"""

from __future__ import annotations

import math
import re

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4

_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
# Bounded: an unbounded run of digits, tried at each of its digits, would make a hostile line cost its length squared.
NUMBER = r"(?<![\d.,])(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,25})(?![\d,])(?:\.\d{0,16})?(?:[eE][+-]?\d{1,3})?"
SIZE = rf"{NUMBER}\s*(?:[KMGTPE]i?B|bytes?|B)"
"""Regular expression of a size as frameworks print it: ``6.48 GiB``, ``0 bytes``, ``25.002197MB``."""

_SIZE = re.compile(rf"\s*({NUMBER})\s*([KMGTPEkmgtpe]?)i?(?:[Bb](?:ytes?)?)?\s*$")


def parse_size(text: str, *, decimal: bool = False) -> int | None:
    """Bytes of a printed size, ``round(value * unit)``; None where the text is not a size.

    Args:
        text: such as ``6.48 GiB``, ``500MB``, ``80G`` or ``1024``.
        decimal: the source means powers of 1000 (``GB`` = 1e9).

    >>> parse_size("6.48 GiB"), parse_size("0 bytes"), parse_size("25.002197MB"), parse_size("many")
    (6957847020, 0, 26216704, None)
    """
    found = _SIZE.match(text)
    if not found:
        return None
    base = 1000 if decimal else 1024
    size = float(found[1].replace(",", "")) * float(base ** _POWER[found[2].lower()])
    return round(size) if math.isfinite(size) else None


def format_bytes(n: float | None, decimals: int = 0) -> str:
    """A size for a screen, in binary units with three significant figures or two decimals, or with more if asked.

    >>> format_bytes(6957847020), format_bytes(65536), format_bytes(-3 * 1024**3), format_bytes(None)
    ('6.48 GiB', '64 KiB', '−3.00 GiB', 'unknown')
    """
    if n is None:
        return "unknown"
    sign, size = ("−" if n < 0 else ""), abs(n)
    for unit, scale in (("TiB", TIB * 10), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= scale:
            value = size / (TIB if unit == "TiB" else scale)
            return f"{sign}{value:.{max(decimals, 2 if unit in ('GiB', 'TiB') else 0)}f} {unit}"
    return f"{sign}{size:.0f} B"


def decimals_for(*sums: tuple[float, ...]) -> int:
    """The decimals with which sums look right once they are rounded: in each, the last is the sum of the others.

    Of sums over several units, whose rounding nobody adds up in the head, none is asked for.

    >>> [format_bytes(n, decimals_for((10.4 * MIB, 61.4 * MIB, 71.8 * MIB))) for n in (10.4 * MIB, 71.8 * MIB)]
    ['10.4 MiB', '71.8 MiB']
    """

    def looks_right(sizes: tuple[float, ...], decimals: int) -> bool:
        shown = [format_bytes(n, decimals).split() for n in sizes]
        *parts, whole = (round(float(number.replace("−", "-")) * 1000) for number, _ in shown)
        return len({unit for _, unit in shown}) > 1 or sum(parts) == whole

    return next((d for d in range(4) if all(looks_right(one, d) for one in sums)), 3)


def gib(n: float) -> float:
    """Bytes as GiB, for the axis of a plot."""
    return n / GIB
