"""A failed run's folder, files or pasted text to a Run: all facts, and what was not read.

Files are told apart by name and first bytes, logs are scanned for what the parsers look for, and only the
neighbourhoods of hits are parsed. A small log is one neighbourhood. Nothing is written, nothing is unpickled, links are
not followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, TypeVar

from ..errors import EvidenceError
from . import settings_file, tables
from .facts import Event, Fact, FileCoverage, Launch, MemoryPoint, Progress, Setting, Snapshot, Traceback
from .parsers import all_parsers
from .scan import Scan, scan
from .text import Window, lines_of, rank_of_path

SMALL = 1 << 20
BEFORE, AFTER, EDGE = 16 << 10, 8 << 10, 64 << 10
MAX_FILES = 20_000

OnProgress = Callable[[str, int, int], None]
_F = TypeVar("_F", bound=Fact)
_TABLES = (".csv", ".tsv")
_SETTINGS = (".json", ".yaml", ".yml")
_SKIPPED_DIRS = {".git", "__pycache__", ".ipynb_checkpoints", "node_modules", ".venv"}
_TEXTS = (".md", ".rst", ".py", ".ipynb", ".sh", ".html", ".toml")
"""Files that quote messages rather than print them; read only where they are named themselves."""
_PICKLES = (".pickle", ".pkl", ".pt", ".pth", ".bin", ".safetensors")


@dataclass(frozen=True, slots=True)
class Run:
    """All that was read of a run. ``content_key`` is a hash of the evidence's bytes (head, tail and size of large
    files).
    """

    facts: tuple[Fact, ...]
    files: tuple[FileCoverage, ...]
    content_key: str
    notes: tuple[str, ...] = field(default=())

    def of(self, kind: type[_F]) -> list[_F]:
        """Facts of one kind, in the order read."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def events(self) -> list[Event]:
        return self.of(Event)

    @property
    def tracebacks(self) -> list[Traceback]:
        return self.of(Traceback)

    @property
    def points(self) -> list[MemoryPoint]:
        return self.of(MemoryPoint)

    @property
    def progress(self) -> list[Progress]:
        return self.of(Progress)

    @property
    def launches(self) -> list[Launch]:
        return self.of(Launch)

    @property
    def snapshots(self) -> list[Snapshot]:
        return self.of(Snapshot)

    @property
    def ranks(self) -> frozenset[int]:
        """Every rank that a line or a fact comes from."""
        return frozenset(f.rank for f in self.facts if f.rank is not None).union(*(file.ranks for file in self.files))

    @property
    def settings(self) -> dict[str, Setting]:
        """The setting in force by name: what the run itself said, the later word before the earlier, then its files.

        Where files disagree and the run said nothing, the file nearest to the run's folder speaks; of equally near ones
        none does, and the setting is left out: a stranger's config must not decide.
        """
        said: dict[str, Setting] = {}
        filed: dict[str, list[Setting]] = {}
        for setting in self.of(Setting):
            if setting.source.path.lower().endswith(_SETTINGS):
                filed.setdefault(setting.name, []).append(setting)
            else:
                said[setting.name] = setting
        for name, found in filed.items():
            nearest = min(setting.source.path.count("/") for setting in found)
            near = [setting for setting in found if setting.source.path.count("/") == nearest]
            if name not in said and all(setting.value == near[0].value for setting in near):
                said[name] = near[-1]
        if "precision" not in said and "weights_dtype" in said:
            said["precision"] = replace(said["weights_dtype"], name="precision")
        return said

    def coverage(self) -> dict[str, object]:
        """Files, bytes, bytes read, and notes: the contract's ``coverage``."""
        notes = [f"{file.path}: {note}" for file in self.files for note in file.notes]
        return {
            "files": len(self.files),
            "bytes": sum(file.size_bytes for file in self.files),
            "bytes_read": sum(file.read_bytes for file in self.files),
            "notes": [*self.notes, *notes],
        }


def load_run(
    paths: Sequence[str | Path] | None = None, *, text: str | None = None, on_progress: OnProgress | None = None
) -> Run:
    """Read what a run left.

    Args:
        paths: logs, settings, tables, or folders of them.
        text: pasted text, read as one log named ``pasted text``; together with ``paths`` it is one more file.
        on_progress: called with (path, bytes read, bytes of all files) while large files are read.

    Raises:
        EvidenceError: a path is missing or unreadable, or nothing in it is evidence. One line each.
    """
    named = _files(paths or [])
    skipped = len(named) - MAX_FILES
    named = named[:MAX_FILES]
    shown_alone = {str(path) for path in paths or []}
    facts: list[Fact] = []
    coverage: list[FileCoverage] = []
    digest = hashlib.sha256()
    total = sum(size for _, _, size in named)
    for path, shown, size in named:
        if shown not in shown_alone and shown.lower().endswith(_TEXTS):
            coverage.append(
                FileCoverage(shown, size, 0, "unread", ("a program or a document, not what a run printed",))
            )
            continue
        try:
            with path.open("rb") as stream:
                found, covered = _read(
                    shown, stream, size, digest, on_progress and _reporter(on_progress, shown, total)
                )
        except OSError as error:
            if len(named) == 1:
                raise EvidenceError(
                    f"{shown}: can't be read ({error.strerror or error}); check its permissions"
                ) from None
            found, covered = [], FileCoverage(shown, size, 0, "unread", (f"can't be read ({error.strerror or error})",))
        facts += found
        coverage.append(covered)
    if text is not None:
        data = text.encode("utf-8", "replace")
        found, covered = _read("pasted text", io.BytesIO(data), len(data), digest, None)
        facts += found
        coverage.append(covered)
    _refuse_nothing(coverage, paths)
    notes = (f"{skipped:,} more files were not read; point at the logs alone",) if skipped > 0 else ()
    return Run(tuple(facts), tuple(coverage), digest.hexdigest()[:32], notes)


def _refuse_nothing(files: Sequence[FileCoverage], paths: Sequence[str | Path] | None) -> None:
    """One clear line where there is nothing to judge."""
    if not files:
        where = ", ".join(str(path) for path in paths or []) or "nothing"
        raise EvidenceError(
            f"{where}: holds no files; point at a log, or at the folder that the run wrote its logs into"
        )
    if all(file.size_bytes == 0 for file in files):
        raise EvidenceError(
            f"{files[0].path}: is empty; point at a log that has text (was its output redirected elsewhere?)"
        )
    if all(file.kind in ("binary", "unread", "empty") for file in files):
        why = next((note for file in files for note in file.notes), "not text")
        raise EvidenceError(f"{files[0].path}: {why}; point at a text log, a settings file or a table of memory")


def _files(paths: Iterable[str | Path]) -> list[tuple[Path, str, int]]:
    """(path, name to show, size) of every file meant, logs first; folders are walked, links in them not followed."""
    found: dict[Path, tuple[Path, str, int]] = {}
    for given in paths:
        try:
            root = Path(given).expanduser()
            if str(given) and root.is_dir():
                inside = [one for one in _walk(root) if one[0] not in found]
                inside.sort(key=lambda one: (one[0].suffix.lower() in (*_TABLES, *_SETTINGS, ".jsonl"), one[1]))
                found |= {one[0]: one for one in inside}
            elif str(given) and root.is_file():
                found.setdefault(root, (root, str(given), root.stat().st_size))
            elif str(given) and root.exists():
                raise EvidenceError(f"{given}: is neither a file nor a folder; point at a log or a folder of logs")
            else:
                raise EvidenceError(f"{given or 'an empty path'}: no such file or folder; check the path")
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, EvidenceError):
                raise
            why = getattr(error, "strerror", None) or error
            raise EvidenceError(f"{given}: can't be read ({why}); check the path and its permissions") from None
    return list(found.values())


def _walk(root: Path) -> Iterator[tuple[Path, str, int]]:
    for folder, dirs, names in os.walk(root):
        dirs[:] = sorted(name for name in dirs if name not in _SKIPPED_DIRS)
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            yield path, path.relative_to(root).as_posix(), path.stat().st_size


def _reporter(on_progress: OnProgress, shown: str, total: int) -> Callable[[int], None]:
    return lambda done: on_progress(shown, done, total)


def _read(
    shown: str, stream: BinaryIO, size: int, digest: hashlib._Hash, report: Callable[[int], None] | None
) -> tuple[list[Fact], FileCoverage]:
    """Facts and coverage of one file; one that a reader stumbles over costs a note, not the diagnosis."""
    try:
        return _read_kind(shown, stream, size, digest, report)
    except (EvidenceError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 (any fault over one file must not lose the others)
        note = f"its reader stumbled ({type(error).__name__}: {str(error)[:80]}); nothing was taken from it"
        return [], FileCoverage(shown, size, 0, "unread", (note,))


def _read_kind(
    shown: str, stream: BinaryIO, size: int, digest: hashlib._Hash, report: Callable[[int], None] | None
) -> tuple[list[Fact], FileCoverage]:
    """Facts and coverage of one file, by its kind."""
    head = stream.read(1 << 16)
    _hash(digest, shown, head, stream, size)
    stream.seek(0)
    name = shown.lower()
    if not size and not head:
        return [], FileCoverage(shown, 0, 0, "empty", ("is empty",))
    if name.endswith(_PICKLES) or _binary(head):
        what = (
            "an allocator snapshot or checkpoint; not opened here"
            if name.endswith(_PICKLES)
            else "binary, not text; not read"
        )
        return [], FileCoverage(shown, size, 0, "binary", (what,))
    if name.endswith(_TABLES) or name.endswith(".jsonl"):
        lines = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
        facts, notes = (tables.parse_jsonl if name.endswith(".jsonl") else tables.parse_csv)(shown, lines)
        lines.detach()
        return facts, FileCoverage(shown, size, size, "table", tuple(notes))
    if name.endswith(_SETTINGS):
        if size > settings_file.MAX_BYTES:
            return [], FileCoverage(
                shown, size, 0, "settings", (f"larger than {settings_file.MAX_BYTES >> 20} MiB; not read as settings",)
            )
        text = stream.read().decode("utf-8", "replace")
        facts, notes = settings_file.parse(shown, text)
        if "log_history" in text and name.endswith(".json"):
            with contextlib.suppress(ValueError, AttributeError):  # no object: it was no trainer's state
                facts += tables.parse_trainer_state(shown, json.loads(text))[0]
        return facts, FileCoverage(shown, size, size, "settings", tuple(notes))
    return _read_log(shown, stream, size, report)


def _hash(digest: hashlib._Hash, shown: str, head: bytes, stream: BinaryIO, size: int) -> None:
    digest.update(f"{Path(shown).name}\0{size}\0".encode("utf-8", "surrogateescape"))
    digest.update(head)
    if size > len(head):
        stream.seek(max(len(head), size - (1 << 16)))
        digest.update(stream.read(1 << 16))


def _binary(head: bytes) -> bool:
    """Whether bytes are no text in any encoding that logs use. A few NULs (a crashed writer, a broken number) are
    text.
    """
    if not head or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return False
    sample = head[:8192]
    wide = len(sample) > 3 and sample[1::2].count(0) > len(sample) * 0.4
    sample = sample.lstrip(b"\0") or sample
    odd = sum(sample.count(bytes([code])) for code in (*range(7), *range(14, 27), 28, 29, 30, 31))
    broken = sample.decode("utf-8", "replace").count("\ufffd")
    return (odd > len(sample) * 0.05 or broken > len(sample) * 0.15) and not wide


def _read_log(
    shown: str, stream: BinaryIO, size: int, report: Callable[[int], None] | None
) -> tuple[list[Fact], FileCoverage]:
    rank = rank_of_path(shown)
    parsers = all_parsers()
    if size <= SMALL:
        windows = [Window(shown, lines_of(stream.read(SMALL + 1), rank=rank))]
        notes: list[str] = []
        series_windows: list[Window] = []
    else:
        events = _cover(
            text.encode() for parser in parsers for text in parser.LITERALS if not hasattr(parser, "SERIES")
        )
        series = _cover(text.encode() for parser in parsers for text in getattr(parser, "SERIES", ()))
        found = scan(stream, events, series, report)
        windows = list(_windows(shown, stream, found, events, rank))
        series_windows = list(_windows(shown, stream, found, series, rank, lines_only=True))
        dropped = sum(hits.dropped for literal, hits in found.hits.items() if literal in events)
        notes = [f"{dropped:,} repeated lines of known kinds were counted, not parsed"] if dropped else []
    facts: list[Fact] = []
    for window in windows:
        for parser in parsers:
            parsed = _parsed(parser, window, notes)
            facts += (fact for fact in parsed if not isinstance(fact, MemoryPoint)) if series_windows else parsed
    for window in series_windows:
        for parser in parsers:
            if hasattr(parser, "SERIES"):
                facts += (fact for fact in _parsed(parser, window, notes) if isinstance(fact, MemoryPoint))
    facts.sort(key=lambda fact: fact.source.line or 0)
    ranks = frozenset(line.rank for window in windows for line in window.lines if line.rank is not None)
    return facts, FileCoverage(shown, size, size, "log", tuple(notes), ranks)


def _parsed(parser: ModuleType, window: Window, notes: list[str]) -> list[Fact]:
    """Facts of one parser; a format that it stumbles over costs a note, not the diagnosis."""
    facts: list[Fact] = []
    try:
        facts.extend(parser.parse(window))  # what came before a stumble is kept
    except Exception as error:  # noqa: BLE001 (any fault of one reader must not lose what the others read)
        name = parser.__name__.rpartition(".")[2]
        notes.append(f"the reader of {name} stumbled ({type(error).__name__}); what it had read is kept")
    return facts


def _cover(literals: Iterable[bytes]) -> list[bytes]:
    """The literals without those that contain another: where a longer one stands, the shorter is found."""
    kept: list[bytes] = []
    for literal in sorted(set(literals), key=len):
        if not any(shorter in literal for shorter in kept):
            kept.append(literal)
    return kept


def _windows(
    shown: str, stream: BinaryIO, found: Scan, literals: Iterable[bytes], rank: int | None, *, lines_only: bool = False
) -> Iterator[Window]:
    """Neighbourhoods of the hits, merged where they touch, cut at line ends."""
    offsets = sorted({offset for literal in literals for offset in found.hits[literal].offsets()})
    before, after = (600, 600) if lines_only else (BEFORE, AFTER)
    spans: list[list[int]] = [] if lines_only else [[0, min(EDGE, found.size)], [max(0, found.size - EDGE), found.size]]
    spans += [[max(0, offset - before), min(found.size, offset + after)] for offset in offsets]
    spans.sort()
    merged: list[list[int]] = []
    for span in spans:
        if merged and span[0] <= merged[-1][1] and merged[-1][1] - merged[-1][0] < 4 * SMALL:
            merged[-1][1] = max(merged[-1][1], span[1])
        else:
            merged.append([max(span[0], merged[-1][1]) if merged else span[0], span[1]])
    for start, end in merged:
        if end <= start:
            continue
        stream.seek(start)
        data = stream.read(end - start)
        if start:
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        if end < found.size:
            data = data[: data.rfind(b"\n") + 1] or data
        border, newlines = found.newlines_before(start)
        stream.seek(border)
        number = newlines + stream.read(start - border).count(b"\n") + 1
        yield Window(shown, lines_of(data, first_number=number, rank=rank))
