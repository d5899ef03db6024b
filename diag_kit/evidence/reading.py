"""One file to facts and coverage: by its kind, whole or by the neighbourhoods that a scan kept.

``scan_part`` and ``parse_scan`` are the two steps of a large log: the first can run on parts of a file, in any process
or on any machine; what it returns is joined with ``Scan.then`` and given to the second. ``read`` does both for a file
that needs no sharing out.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import EvidenceError, StopReading
from . import settings_file, tables
from .facts import Fact, FileCoverage
from .files import SETTINGS, File
from .parsers import all_parsers, reproduction
from .scan import AFTER, BEFORE, SAMPLES, Literals, Scan, Span, merged, scan
from .scan.engines import preparer
from .streams import Text, codec_of, open_text
from .text import Window, decode, labels_of, lines_of, rank_of_path

SMALL = 64 << 10
"""A log up to this size is parsed whole."""
_HEAD, _LABELS = 64 << 10, 2 << 10
_MOST_WHOLE = 1 << 20
_BREAK = re.compile(rb"[\r\n]")
_REPETITION = b'{"record": "diag-kit-repro '
_RECORD = "diag-kit-repro "
_PICKLES = (".pickle", ".pkl", ".pt", ".pth", ".bin", ".safetensors")


@dataclass(slots=True)
class Part:
    """What one file gave; ``digest`` is a hash of its size, head and tail."""

    facts: list[Fact] = field(default_factory=list)
    coverage: FileCoverage = field(default_factory=lambda: FileCoverage("", 0, 0, "unread"))
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class How:
    """How to read.

    Attributes:
        small: size up to which a log is parsed whole.
        edge: bytes of a larger one's head and end that are parsed whole.
        samples: lines of each series that are parsed.
        around: bytes before and after an event that are parsed.
        engine: the scan's; None for the fastest.
    """

    small: int = SMALL
    edge: int = 64 << 10
    samples: int = SAMPLES
    around: tuple[int, int] = (BEFORE, AFTER)
    engine: str | None = None


@cache
def literals() -> Literals:
    """What all parsers look for. Where one literal contains another, the shorter finds it."""
    modules = all_parsers()
    series = _cover(text for parser in modules for text in getattr(parser, "SERIES", ()))
    steps = _cover(text for parser in modules for text in getattr(parser, "STEPS", ()))
    roll = _cover(text for parser in modules for text in getattr(parser, "ROLL_CALL", ()))
    events = _cover(text for parser in modules if not hasattr(parser, "SERIES") for text in parser.LITERALS)
    return Literals(tuple(one for one in events if one not in roll), roll, series, steps)


def _cover(texts: Iterable[str]) -> tuple[bytes, ...]:
    kept: list[bytes] = []
    for literal in sorted({text.encode() for text in texts}, key=lambda one: (len(one), one)):
        if not any(shorter in literal for shorter in kept):
            kept.append(literal)
    return tuple(kept)


def read(file: File, how: How = How(), on_bytes: Callable[[int], None] | None = None) -> Part:
    """All of one file. What can't be read costs a note, never an error.

    Args:
        file: what to read, as ``files.find`` gave it.
        how: up to which size whole, and by which engine.
        on_bytes: called with the bytes of the file consumed so far; where it raises StopReading, what was read up to
            there is kept and the coverage says so.
    """
    try:
        with open_text(file.path) as stream:
            return _read(file, stream, how, on_bytes)
    except StopReading:
        return Part(coverage=FileCoverage(file.shown, file.size, 0, "unread", (STOPPED,)))
    except OSError as error:
        why = f"can't be read ({error.strerror or error})"
    except EvidenceError as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001 (any fault over one file must not lose the others)
        why = f"its reader stumbled ({type(error).__name__}: {str(error)[:80]}); nothing was taken from it"
    return Part(coverage=FileCoverage(file.shown, file.size, 0, "unread", (why,)))


STOPPED = "reading was stopped before its end"


def text_of(shown: str, data: bytes, most: int) -> str:
    """Text of bytes that were piped in, unpacked and decoded.

    Raises:
        EvidenceError: they are no text, or more of it than ``most`` bytes.
    """
    with Text(io.BytesIO(data), len(data), codec_of(data[:4096])) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise EvidenceError(f"{shown}: more than {most >> 20} MiB of text; write it to a file, and name that")
    if _binary(data[:_HEAD]):
        raise EvidenceError(f"{shown}: binary, not text; pipe a log into it, packed or not")
    return decode(data)


def read_text(shown: str, text: str) -> Part:
    """Pasted or piped text, read as a log."""
    data = text.encode("utf-8", "replace")
    digest = _digest(shown, len(data), data[:_HEAD], data[-_HEAD:])
    if len(data) > _MOST_WHOLE:
        part = parse_scan(shown, scan(io.BytesIO(data).read, literals(), preparer(), size=len(data)))
        part.digest = digest
        return part
    facts, ranks, notes = _parse([Window(shown, lines_of(data))])
    coverage = FileCoverage(shown, len(data), len(data), "log" if data else "empty", tuple(notes), ranks)
    return Part(facts, coverage, digest)


def kind_of(file: File, head: bytes) -> tuple[str, str]:
    """(log, table, settings, empty or binary; why it is not read, where it is not)."""
    if not head:
        return "empty", "is empty"
    if file.name.endswith(_PICKLES):
        return "binary", "an allocator snapshot or checkpoint; not opened here"
    if _REPETITION in head:
        return "log", ""  # whatever its name: lines that tell a second run
    rows = tables.kind_of(Path(file.name).name, head)
    if _binary(head) and rows != "tfevents":
        return "binary", "binary, not text; not read"
    return "table" if rows else "settings" if file.name.endswith(SETTINGS) else "log", ""


def _read(file: File, stream: Text, how: How, on_bytes: Callable[[int], None] | None) -> Part:
    head = stream.read(_HEAD)
    kind, why = kind_of(file, head)
    digest = _digest(file.shown, file.size, head, b"" if kind == "empty" else _end_of(file))
    if why:
        kind = "unread" if stream.note else kind
        return Part([], FileCoverage(file.shown, file.size, 0, kind, (stream.note or why,)), digest)
    rest = _Ahead(head, stream, on_bytes)
    if kind == "table":
        how_read = tables.kind_of(Path(file.name).name, head) or "csv"
        facts, notes = tables.read(how_read, file.shown, io.BufferedReader(rest))
        return _covered(file, stream, "table", facts, notes, digest)
    if kind == "settings":
        data = rest.read(settings_file.MAX_BYTES + 1)
        if len(data) > settings_file.MAX_BYTES:
            why = f"larger than {settings_file.MAX_BYTES >> 20} MiB; not read as settings"
            return Part([], FileCoverage(file.shown, file.size, 0, kind, (why,)), digest)
        text = data.decode("utf-8", "replace")
        facts, notes = settings_file.parse(file.shown, text)
        if "log_history" in text and file.name.endswith(".json"):
            with contextlib.suppress(ValueError, AttributeError):  # no object: it was no trainer's state
                facts += tables.parse_trainer_state(file.shown, json.loads(text))[0]
        return _covered(file, stream, kind, facts, notes, digest)
    data = rest.read(how.small + 1) if len(head) <= how.small else head
    if len(data) <= how.small:
        facts, ranks, notes = _parse([Window(file.shown, lines_of(data, rank=rank_of_path(file.shown)))])
        part = _covered(file, stream, "log", facts, notes, digest)
        return replace_coverage(part, ranks=ranks)
    scanned, stopped = _scan(_Ahead(data, stream, None), stream, how, on_bytes)
    part = parse_scan(file.shown, scanned, how)
    notes = [*part.coverage.notes, *([STOPPED] if stopped else [])]
    done = _covered(file, stream, "log", part.facts, notes, digest)
    return replace_coverage(done, ranks=part.coverage.ranks, whole=False)


def replace_coverage(part: Part, **changes: object) -> Part:
    """The part with some of its coverage told otherwise."""
    return replace(part, coverage=replace(part.coverage, **changes))  # type: ignore[arg-type]


def _covered(file: File, stream: Text, kind: str, facts: list[Fact], notes: Iterable[str], digest: bytes) -> Part:
    said = [*notes, *([stream.note] if stream.note else [])]
    size = max(file.size, stream.raw_read)  # it may have grown since it was listed
    return Part(facts, FileCoverage(file.shown, size, stream.raw_read, kind, tuple(said)), digest)


class _Ahead(io.RawIOBase):
    """A stream with the bytes that were read ahead put back before it."""

    def __init__(self, head: bytes, stream: Text, on_bytes: Callable[[int], None] | None) -> None:
        super().__init__()
        self._head, self._stream, self._on_bytes = head, stream, on_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            head, self._head = self._head, b""
            return head + self._stream.read()
        head, self._head = self._head[:size], self._head[size:]
        data = head or self._stream.read(size)
        if self._on_bytes:
            self._on_bytes(self._stream.raw_read)
        return data if len(data) == size or not head else data + self._stream.read(size - len(data))

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)


def _scan(rest: _Ahead, stream: Text, how: How, on_bytes: Callable[[int], None] | None) -> tuple[Scan, bool]:
    """A scan of a stream to its end, or to where the caller stopped it."""
    wanted = literals()
    stopped = False

    def read(size: int) -> bytes:
        nonlocal stopped
        if on_bytes and not stopped:
            try:
                on_bytes(stream.raw_read)
            except StopReading:
                stopped = True
        return b"" if stopped else rest.read(size)

    edge = max(how.edge, _LABELS)
    kept: dict[str, Any] = {"samples": how.samples, "around": how.around, "edge": edge}
    return scan(read, wanted, preparer(how.engine), size=stream.about, **kept), stopped


def scan_part(path: Path, start: int, end: int | None, size: int, how: How) -> Scan:
    """The scan of ``start`` to ``end`` of a plain file; None reads to its end, however far it has grown.

    Raises:
        OSError: the file can't be read, or is gone.
    """
    wanted = literals()
    with path.open("rb", buffering=0) as stream:
        ahead = min(start, BEFORE)
        stream.seek(start - ahead)
        before = stream.read(ahead)
        part: dict[str, Any] = {"at": start, "before": before, "until": end, "size": size}
        kept: dict[str, Any] = {"samples": how.samples, "around": how.around, "edge": max(how.edge, _LABELS)}
        return scan(stream.read, wanted, preparer(how.engine), **part, **kept)


def unread(path: Path, start: int, end: int) -> Scan:
    """A stretch that was not scanned, with its newlines counted, so that the lines behind it keep their numbers."""
    newlines = 0
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as stream:
        stream.seek(start)
        for at in range(start, end, 1 << 20):
            newlines += stream.read(min(1 << 20, end - at)).count(b"\n")
    return Scan(start, end, newlines)


def divisible(file: File) -> bool:
    """Whether a file is a plain log, of which parts can be scanned apart.

    Raises:
        OSError: it can't be read.
    """
    with file.path.open("rb", buffering=0) as stream:
        head = stream.read(_HEAD)
    return not codec_of(head) and kind_of(file, head)[0] == "log"


def parse_scan(shown: str, found: Scan, how: How = How()) -> Part:
    """Facts of the neighbourhoods that a scan kept."""
    rank = rank_of_path(shown)
    rolled = set(literals().roll_call)
    wide = [span for literal, one in found.found.items() if literal not in rolled for span in one.spans()]
    narrow = [span for literal, one in found.found.items() if literal in rolled for span in one.spans()]
    sampled = [span for spans in found.samples.values() for span in spans]
    labels = labels_of(decode(found.edges[0].data)) if found.edges else ""
    windows = list(_windows(shown, merged([*wide, *(found.edges if how.edge else ())]), found.end, rank, labels))
    facts, ranks, notes = _parse(windows)
    seen = {(fact.source.line, type(fact)) for fact in facts}
    for spans, attribute in ((narrow, "ROLL_CALL"), (sampled, "SERIES")):
        only = [parser for parser in all_parsers() if hasattr(parser, attribute)]
        more, their_ranks, their_notes = _parse(_windows(shown, merged(spans), found.end, rank, labels), only)
        facts += [fact for fact in more if (fact.source.line, type(fact)) not in seen]
        ranks |= their_ranks
        notes += their_notes
    if found.dropped:
        notes.append(f"{found.dropped:,} repeated lines of known kinds were counted, not parsed")
    facts.sort(key=lambda fact: fact.source.line or 0)
    length = found.end - found.start
    return Part(facts, FileCoverage(shown, length, length, "log", tuple(dict.fromkeys(notes)), ranks, whole=False))


def _windows(shown: str, spans: Iterable[Span], end: int, rank: int | None, labels: str) -> Iterator[Window]:
    """Spans cut at line ends, with the lines numbered."""
    for span in spans:
        data, number = span.data, span.newlines + 1
        if span.start and (first := _BREAK.search(data)):
            data, number = data[first.end() :], number + (first.group() == b"\n")
        if span.end < end:
            data = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1] or data
        if data:
            yield Window(shown, lines_of(data, first_number=number, rank=rank, labels=labels))


def _parse(
    windows: Iterable[Window], parsers: Iterable[ModuleType] | None = None
) -> tuple[list[Fact], frozenset[int], list[str]]:
    """(facts, ranks of the lines, notes) of windows; a format that a reader stumbles over costs a note, no more."""
    facts: list[Fact] = []
    ranks: set[int] = set()
    notes: list[str] = []
    chosen = list(parsers or all_parsers())
    for window, readers in _shared(windows, chosen):
        ranks |= {line.rank for line in window.lines if line.rank is not None}
        said = "\n".join(line.text for line in window.lines)
        for parser in readers:
            if not hasattr(parser, "READS_ALL") and not any(literal in said for literal in parser.LITERALS):
                continue
            try:
                facts.extend(parser.parse(window))  # what came before a stumble is kept
            except Exception as error:  # noqa: BLE001 (a fault of one reader must not lose what the others read)
                name = parser.__name__.rpartition(".")[2]
                notes.append(f"the reader of {name} stumbled ({type(error).__name__}); what it had read is kept")
    facts.sort(key=lambda fact: fact.source.line or 0)
    return facts, frozenset(ranks), notes


def _shared(windows: Iterable[Window], chosen: list[ModuleType]) -> Iterator[tuple[Window, list[ModuleType]]]:
    """Windows with who reads them: a second run's records are no part of a message that stands around them."""
    for window in windows:
        if any(_RECORD in line.text for line in window.lines):
            yield from ((piece, chosen) for piece in window.split(_RECORD))
            yield window, [parser for parser in chosen if parser is reproduction]
        else:
            yield window, chosen


def digest(file: File) -> bytes:
    """Hash of a file's name, size, head and tail; of its name and size alone where it is gone."""
    with contextlib.suppress(OSError), file.path.open("rb", buffering=0) as stream:
        return _digest(file.shown, file.size, stream.read(_HEAD), _end_of(file))
    return _digest(file.shown, file.size, b"", b"")


def _digest(shown: str, size: int, head: bytes, tail: bytes) -> bytes:
    name = Path(shown).name.encode("utf-8", "surrogateescape")
    return hashlib.sha256(b"\0".join((name, str(size).encode(), head, tail))).digest()


def _end_of(file: File) -> bytes:
    """The last bytes of the file as it lies there."""
    with file.path.open("rb", buffering=0) as stream:
        stream.seek(max(0, file.size - _HEAD))
        return stream.read(_HEAD)


def _binary(head: bytes) -> bool:
    """Whether bytes are no text in any encoding that logs use. A few NULs (a crashed writer, a broken number) are
    text.
    """
    if not head or codec_of(head) == "UTF-16":
        return False
    sample = head.lstrip(b"\0")[:8192]  # a log that was cut off in front while it was written to begins with NULs
    if not sample:
        return False
    odd = sum(sample.count(bytes([code])) for code in (*range(7), *range(14, 27), 28, 29, 30, 31))
    broken = sample.decode("utf-8", "replace").count("\ufffd")
    return odd > len(sample) * 0.05 or broken > len(sample) * 0.15

