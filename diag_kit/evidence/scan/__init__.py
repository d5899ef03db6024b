"""Raw bytes to the neighbourhoods of what may matter: one pass, any size, constant memory, no parsing.

A block at a time, an engine says which literals are present; only those are looked up. What is kept of a literal is
capped (the first hits, the last ones, and the count), so that a log which repeats one error a million times stays
cheap. A scan is plain data: it can be made of a part of a file, in another process, and joined with its neighbours'.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .engines import Prepare

BLOCK = 128 << 10
BEFORE, AFTER, NARROW, ASIDE = 16 << 10, 8 << 10, 600, (300, 500)
"""Bytes kept before and after a hit: a traceback stands before its message; what each rank prints once is a line or
two; a line of a series needs its neighbours only."""
KEPT, KEPT_OF_MANY, MANY, UNCOUNTED = 32, 6, 500, 2_000
"""First and as many last hits of an event that are kept; of one that comes more than MANY times; hits that are counted
one by one: beyond, a block that holds any counts as one more."""
ROLL_CALL = 2_048
"""Lines kept of what each rank prints once."""
SAMPLES, STRIDE, PROBE = 400, 4 << 10, 8 << 10
"""Lines kept of a series, evenly over the file; the stretch for one line to begin with, where the size is not known;
how far to look, in a block, for a literal that comes all the time."""


@dataclass(frozen=True, slots=True)
class Literals:
    """What to look for.

    Attributes:
        events: rare; the neighbourhood of each hit is kept, up to a cap.
        roll_call: printed once by each rank; the line of each hit is kept, by the thousand.
        series: printed once for each step; lines of each are sampled evenly.
        steps: signs of progress; lines of all together are sampled evenly.
    """

    events: tuple[bytes, ...]
    roll_call: tuple[bytes, ...] = ()
    series: tuple[bytes, ...] = ()
    steps: tuple[bytes, ...] = ()

    @property
    def all(self) -> tuple[bytes, ...]:
        return (*self.events, *self.roll_call, *self.series, *self.steps)


class Span(NamedTuple):
    """Bytes of a file from ``start`` on, and the newlines before them (within the part that was scanned)."""

    start: int
    newlines: int
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(slots=True)
class Found:
    """Neighbourhoods of one literal's hits: the first, the last, and the count of all."""

    keep: int
    first: list[Span] = field(default_factory=list)
    last: deque[Span] = field(default_factory=deque)
    count: int = 0

    def wanted(self, offsets: list[int]) -> list[int]:
        """Those of a block's hits whose neighbourhood may still be among the kept ones."""
        room = max(0, self.keep - len(self.first))
        rest = offsets[room:]
        return offsets[:room] + rest[-self.keep :]

    def add(self, spans: Iterable[Span], hits: int) -> None:
        self.count += hits
        for span in spans:
            if len(self.first) < self.keep:
                self.first.append(span)
            else:
                self.last.append(span)
        while len(self.last) > self.keep:
            self.last.popleft()

    def spans(self) -> list[Span]:
        few = KEPT_OF_MANY if self.keep == KEPT and self.count > MANY else self.keep
        return [*self.first[:few], *list(self.last)[-few:]]


@dataclass(slots=True)
class Scan:
    """What a pass over a file, or over a part of it, found.

    Attributes:
        start, end: offsets of the bytes read.
        newlines: in those bytes.
        found: by literal.
        samples: neighbourhoods of a series' lines, by literal.
        edges: the first and the last bytes of the part.
    """

    start: int
    end: int
    newlines: int = 0
    found: dict[bytes, Found] = field(default_factory=dict)
    samples: dict[bytes, list[Span]] = field(default_factory=dict)
    edges: tuple[Span, ...] = ()

    def then(self, later: Scan) -> Scan:
        """This part and the one that follows it, as one. A gap between them keeps its bytes and loses its lines."""

        def moved(span: Span) -> Span:
            return span._replace(newlines=span.newlines + self.newlines)

        joined = Scan(self.start, later.end, self.newlines + later.newlines, self.found)
        for literal, theirs in later.found.items():
            ours = joined.found.setdefault(literal, Found(theirs.keep))
            spans = [moved(span) for span in (*theirs.first, *theirs.last)]
            ours.add(spans, theirs.count)
        joined.samples = self.samples
        for literal, sampled in later.samples.items():
            joined.samples.setdefault(literal, []).extend(map(moved, sampled))
        joined.edges = (*self.edges[:1], *(moved(span) for span in later.edges[-1:]))
        return joined

    @property
    def dropped(self) -> int:
        """Hits whose neighbourhood was not kept."""
        return sum(found.count - len(found.spans()) for found in self.found.values())


def scan(
    read: Callable[[int], bytes],
    literals: Literals,
    prepare: Prepare,
    *,
    at: int = 0,
    before: bytes = b"",
    until: int | None = None,
    size: int = 0,
    samples: int = SAMPLES,
    around: tuple[int, int] | None = None,
    edge: int = 64 << 10,
    on_block: Callable[[int], None] | None = None,
) -> Scan:
    """One pass over a stream.

    Args:
        read: gives up to that many bytes, none at the end.
        literals: what to look for.
        prepare: gives an engine's answer for some literals (``engines.preparer``).
        at: offset of the first byte.
        before: bytes that stand before it, for context.
        until: offset at which the part ends; its last neighbourhood reads on. None: to the end of the stream.
        size: of the whole file, by which series are thinned; 0 where it is not known.
        samples: lines to keep of each series; 0 looks for none.
        around: bytes to keep before and after an event; None: BEFORE and AFTER.
        edge: bytes to keep of the head and of the end.
        on_block: called with the offset reached; what it raises ends the pass.
    """
    around = around or (BEFORE, AFTER)
    if not samples:
        literals = replace(literals, series=(), steps=())
    state = _Pass(literals, prepare, at, size, samples, around)
    buffer, body = before, len(before)
    head = tail = Span(at, 0, b"")
    ended = False
    while not ended:
        data = read(BLOCK)
        buffer = buffer + data if buffer else data
        base = at - body
        limit = len(buffer) if not data else len(buffer) - AFTER
        if until is not None:
            limit = min(limit, until - base)
        ended = not data or (until is not None and base + limit >= until)
        if limit > body or ended:
            limit = max(limit, body)
            if len(head.data) < edge and head.end == at:
                head = Span(head.start, 0, head.data + buffer[body : min(limit, body + edge - len(head.data))])
            if ended:
                start = max(0, limit - edge)
                tail = Span(base + start, state.lines_at(buffer, body, start), buffer[start:limit])
            state.block(buffer, base, body, limit)
            keep = max(0, limit - max(BEFORE, edge))
            buffer, body, at = buffer[keep:], limit - keep, base + limit
            if on_block:
                on_block(at)
    return Scan(state.start, at, state.newlines, state.found, state.samples, (head, tail))


class _Pass:
    """The state of one pass: what was found so far, and how many lines went by."""

    def __init__(
        self, literals: Literals, prepare: Prepare, start: int, size: int, samples: int, around: tuple[int, int]
    ) -> None:
        self.literals, self.prepare, self.start, self.around = literals.all, prepare, start, around
        self.present, self.asked = prepare(self.literals), list(range(len(self.literals)))
        self.dense: set[int] = set()
        self.blocks, self.next_look, self.seen = 0, 2, [0] * len(self.literals)
        self.events, self.singles = len(literals.events), len(literals.events) + len(literals.roll_call)
        self.longest = max(map(len, self.literals), default=1)
        self.newlines = 0
        self.marks: list[tuple[int, int]] = []
        self.found: dict[bytes, Found] = {}
        self.samples: dict[bytes, list[Span]] = {}
        self.shared = self.singles + len(literals.series)  # literals of steps have one budget, under this number
        stretch = size // samples if size and samples else STRIDE
        self.stretch = dict.fromkeys(range(self.singles, self.shared + 1), stretch)
        self.most = 2 * samples + 1
        self.next_sample: dict[int, int] = {}

    def lines_at(self, buffer: bytes, body: int, position: int) -> int:
        """Newlines of the part before a position of the buffer, counted from the nearest one that is known."""
        if not self.marks:
            self.marks = [(body, self.newlines)]
        which = bisect.bisect_right(self.marks, (position, 1 << 62))
        at, lines = self.marks[max(0, which - 1)]
        if position < at:
            return lines - buffer.count(b"\n", position, at)
        if position > at:
            lines += buffer.count(b"\n", at, position)
            self.marks.insert(which, (position, lines))
        return lines

    def _there(self, block: memoryview) -> set[int]:
        """Literals to look up in a block: those that the engine sees, and those that come all the time anyway.

        Of the latter the engine is not asked: each hit costs it more than looking for the first one.
        """
        there = {self.asked[which] for which in self.present(block)} | self.dense
        self.blocks += 1
        for which in there:
            self.seen[which] += 1
        if self.blocks == self.next_look:
            self.next_look *= 4
            dense = {which for which in there if self.seen[which] >= 0.75 * self.blocks and self._endless(which)}
            if dense - self.dense:
                self.dense |= dense
                self.asked = [which for which in range(len(self.literals)) if which not in self.dense]
                self.present = self.prepare(tuple(self.literals[which] for which in self.asked))
        return there

    def _endless(self, which: int) -> bool:
        """Whether it is enough to look for some of a literal's hits."""
        known = self.found.get(self.literals[which])
        return which >= self.singles or (known is not None and known.count >= UNCOUNTED)

    def block(self, buffer: bytes, base: int, body: int, limit: int) -> None:
        """Look at ``buffer[body:limit]``; what stands before and after is context."""
        there = self._there(memoryview(buffer)[body : min(len(buffer), limit + self.longest - 1)])
        wide: dict[int, list[int]] = {}
        narrow: dict[int, list[int]] = {}
        hits: dict[int, int] = {}
        sampled: dict[int, list[int]] = {}
        for which in sorted(there):
            literal = self.literals[which]
            end = limit + len(literal) - 1
            if which >= self.singles:
                sampled[which] = list(self._sampled(which, literal, buffer, base, body, end))
                continue
            keep = KEPT if which < self.events else ROLL_CALL
            found = self.found.setdefault(literal, Found(keep))
            if found.count >= UNCOUNTED:
                offsets = [last] if (last := buffer.rfind(literal, body, end)) >= 0 else []
            else:
                offsets = list(_all(buffer, literal, body, end))
            if offsets:
                hits[which] = len(offsets)
                (wide if which < self.events else narrow)[which] = found.wanted(offsets)
        around = {offset: (NARROW, 2 * NARROW) for offsets in narrow.values() for offset in offsets}
        around |= {offset: self.around for offsets in wide.values() for offset in offsets}
        spans = self._spans(buffer, base, body, around)
        for which, offsets in (*wide.items(), *narrow.items()):
            self.found[self.literals[which]].add((spans[offset] for offset in offsets), hits[which])
        around = {offset: ASIDE for offsets in sampled.values() for offset in offsets}
        spans = self._spans(buffer, base, body, around)
        for which, offsets in sampled.items():
            self._keep(which, [spans[offset] for offset in offsets])
        self.newlines = self.lines_at(buffer, body, limit)
        self.marks = []

    def _sampled(self, which: int, literal: bytes, buffer: bytes, base: int, body: int, end: int) -> Iterator[int]:
        """Offsets of a series' lines, at most one in each stretch of the file."""
        budget = min(which, self.shared)
        reach = PROBE if which in self.dense else len(buffer)
        ahead = max(body, self.next_sample.get(budget, 0) - base)
        while (position := buffer.find(literal, ahead, min(end, ahead + reach))) >= 0:
            yield position
            ahead = position + max(len(literal), self.stretch[budget])
            self.next_sample[budget] = base + ahead

    def _keep(self, which: int, spans: list[Span]) -> None:
        """Add to a series; one that grew beyond twice its share, as its file's size was not known, is thinned."""
        kept = self.samples.setdefault(self.literals[which], [])
        kept += dict.fromkeys(spans)
        if len(kept) > self.most:
            del kept[1::2]
            self.stretch[min(which, self.shared)] *= 2

    def _spans(self, buffer: bytes, base: int, body: int, around: dict[int, tuple[int, int]]) -> dict[int, Span]:
        """The neighbourhood of each offset, so many bytes to its left and right; those that touch are one span, which
        all of their offsets share.
        """
        spans: dict[int, Span] = {}
        group: list[int] = []
        start = end = 0

        def close() -> None:
            if group:
                span = Span(base + start, self.lines_at(buffer, body, start), buffer[start:end])
                spans.update(dict.fromkeys(group, span))

        for offset in sorted(around):
            left, right = around[offset]
            low, high = max(0, offset - left), min(len(buffer), offset + right)
            if group and low <= end:
                group.append(offset)
                end = max(end, high)
                continue
            close()
            group, start, end = [offset], low, high
        close()
        return spans


def _all(buffer: bytes, literal: bytes, start: int, end: int) -> Iterator[int]:
    position = buffer.find(literal, start, end)
    while position >= 0:
        yield position
        position = buffer.find(literal, position + len(literal), end)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans in order, those that overlap or touch put together, none longer than a block or so."""
    out: list[Span] = []
    for span in sorted(set(spans), key=lambda one: (one.start, -len(one.data))):
        last = out[-1] if out else None
        if last is None or span.start > last.end:
            out.append(span)
        elif span.end > last.end:
            tail = span.data[last.end - span.start :]
            if len(last.data) + len(tail) <= 2 * BLOCK:
                out[-1] = last._replace(data=last.data + tail)
            else:
                newlines = span.newlines + span.data.count(b"\n", 0, last.end - span.start)
                out.append(Span(last.end, newlines, tail))
    return out
