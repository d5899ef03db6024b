"""Raw bytes to offsets of what may matter: no parsing, any size, constant memory.

A file is read once in chunks; each literal that a parser declares is looked for with ``bytes.find``. Hits are capped
per literal (the first, the last, and how many), so that a log which repeats one error a million times stays cheap.
Lines of a series (one per training step) are thinned instead, evenly over the file.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

CHUNK = 1 << 20
FIRST, LAST, SERIES = 200, 400, 4000


@dataclass(slots=True)
class Hits:
    """Offsets of one literal in one file: the first ones, the last ones, and the count of all."""

    first: list[int] = field(default_factory=list)
    last: deque[int] = field(default_factory=lambda: deque(maxlen=LAST))
    count: int = 0

    def add(self, offset: int) -> None:
        self.count += 1
        (self.first if len(self.first) < FIRST else self.last).append(offset)

    def offsets(self) -> list[int]:
        return [*self.first, *self.last]

    @property
    def dropped(self) -> int:
        return self.count - len(self.first) - len(self.last)


@dataclass(slots=True)
class Thinned(Hits):
    """As Hits, for a series: every n-th offset, n doubling whenever the list is full; the last is always kept."""

    every: int = 1
    newest: int = -1

    def add(self, offset: int) -> None:
        if self.count % self.every == 0:
            self.first.append(offset)
            if len(self.first) > SERIES:
                self.first, self.every = self.first[::2], self.every * 2
        self.count += 1
        self.newest = offset

    def offsets(self) -> list[int]:
        return [*self.first, self.newest] if self.newest > -1 and self.newest not in self.first[-1:] else self.first

    @property
    def dropped(self) -> int:
        return self.count - len(self.offsets())


@dataclass(frozen=True, slots=True)
class Scan:
    """What a pass over one file found. ``newlines`` lets any offset be turned into a line number."""

    hits: dict[bytes, Hits]
    size: int
    newlines: tuple[list[int], list[int]]

    def newlines_before(self, offset: int) -> tuple[int, int]:
        """(offset of a chunk border at or before ``offset``, newlines before that border)."""
        borders, counts = self.newlines
        at = bisect.bisect_right(borders, offset) - 1
        return borders[at], counts[at]


def scan(
    stream: BinaryIO,
    events: Sequence[bytes],
    series: Sequence[bytes] = (),
    on_progress: Callable[[int], None] | None = None,
) -> Scan:
    """Offsets of every literal in a stream, read once front to back.

    Args:
        stream: positioned at its start; only ``read`` is called.
        events: literals whose neighbourhood will be parsed.
        series: literals of lines that stand alone and may be millions.
        on_progress: called with the bytes read so far.
    """
    hits: dict[bytes, Hits] = {literal: Hits() for literal in events} | {literal: Thinned() for literal in series}
    overlap = max((len(literal) for literal in hits), default=1) - 1
    tail, at, newlines = b"", 0, 0
    borders, counts = [0], [0]
    while chunk := stream.read(CHUNK):
        block = tail + chunk
        base = at - len(tail)
        for literal, found in hits.items():
            # A hit that lies whole in the carried tail was counted with the chunk before.
            position = block.find(literal, max(0, len(tail) - len(literal) + 1))
            while position >= 0:
                found.add(base + position)
                position = block.find(literal, position + len(literal))
        at += len(chunk)
        newlines += chunk.count(b"\n")
        borders.append(at)
        counts.append(newlines)
        tail = block[-overlap:] if overlap else b""
        if on_progress:
            on_progress(at)
    return Scan(hits, at, (borders, counts))
