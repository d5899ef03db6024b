"""A failed run's folder, files or pasted text to a Run: all facts, and what was not read.

Files are found (``files``), shared out (``sharing``) and read (``reading``): a small log whole, a large one by the
neighbourhoods of what the parsers look for (``scan``). Nothing is written, nothing is unpickled, links in folders are
not followed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ..errors import EvidenceError
from . import reading, second_runs, sharing
from .facts import Event, Fact, FileCoverage, Launch, MemoryPoint, Progress, Repetition, Setting, Snapshot, Traceback
from .files import SETTINGS, File, find

_WHOLE = 2 << 20
"""Evidence up to this size in all is parsed whole."""
_FEW_FILES = 32
_FAR: dict[str, Any] = {"edge": 0, "samples": 8, "around": (4 << 10, 2 << 10)}
_SAMPLED = 64
"""More files are read from afar: small neighbourhoods of each, series of about so many of them; then those closely in
which memory failed, as many of them as are few."""

OnProgress = Callable[[str, int, int], None]
_MEMORY = ("gpu-oom", "host-oom", "shared-memory")
_F = TypeVar("_F", bound=Fact)


@dataclass(frozen=True, slots=True)
class Run:
    """All that was read of a run. ``content_key`` is a hash of the evidence's bytes (head, tail and size of large
    files).
    """

    facts: tuple[Fact, ...]
    files: tuple[FileCoverage, ...]
    content_key: str
    notes: tuple[str, ...] = field(default=())
    _by_kind: dict[type, list[Any]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for fact in self.facts:
            self._by_kind.setdefault(type(fact), []).append(fact)

    def of(self, kind: type[_F]) -> list[_F]:
        """Facts of one kind, in the order read."""
        return list(self._by_kind.get(kind, ()))

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
    def repetitions(self) -> list[Repetition]:
        return self.of(Repetition)

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
            if setting.source.path.lower().endswith(SETTINGS):
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

    def coverage(self) -> dict[str, Any]:
        """Files, bytes, bytes read, and notes: the contract's ``coverage``."""
        notes = [f"{file.path}: {note}" for file in self.files for note in file.notes]
        return {
            "files": len(self.files),
            "bytes": sum(file.size_bytes for file in self.files),
            "bytes_read": sum(file.read_bytes for file in self.files),
            "notes": [*self.notes, *notes],
        }


def load_run(
    paths: Sequence[str | Path] | None = None,
    *,
    text: str | None = None,
    on_progress: OnProgress | None = None,
    engine: str | None = None,
    workers: int | None = None,
) -> Run:
    """Read what a run left.

    Args:
        paths: logs, settings, tables, folders of them, or patterns such as ``logs/*.log``.
        text: pasted text, read as one log named ``pasted text``; together with ``paths`` it is one more file.
        on_progress: called with (path, bytes done, bytes of all files). Where it raises ``StopReading``, reading ends,
            what was read is in the Run, and the coverage says what was not.
        engine: name of the scan's engine (``scan.engines``); None takes the fastest that is installed.
        workers: processes to read with; None chooses by the work and the machine.

    Raises:
        EvidenceError: a path is missing or unreadable, or nothing in it is evidence. One line each.
    """
    files, more = find(paths or [])
    total = sum(file.size for file in files)
    close = reading.How(small=_WHOLE // 2 if total <= _WHOLE else reading.SMALL, engine=engine)
    far = replace(close, **_FAR) if len(files) > _FEW_FILES else close
    report = None if on_progress is None else (lambda shown, done: on_progress(shown, min(done, total), total))
    every = max(1, len(files) // _SAMPLED)
    hows = [far if far == close or which % every == 0 else replace(far, samples=0) for which in range(len(files))]
    parts = sharing.read_all(files, hows, report, workers)
    if far != close:
        _look_closer(files, parts, close, workers)
    if text is not None:
        parts.append(reading.read_text("pasted text", text))
    coverage = [part.coverage for part in parts]
    _refuse_nothing(coverage, paths)
    facts = second_runs.set_apart([fact for part in parts for fact in part.facts])
    # What was marked on a run's checklist stays when a reproduction's output is laid beside its logs.
    second = second_runs.told_by(parts)
    own = [part.digest for part in parts if part.coverage.path not in second] or [part.digest for part in parts]
    digest = hashlib.sha256(b"".join(own)).hexdigest()[:32]
    said = [f"{path}: a reproduction's output; a second run, read apart from this one" for path in sorted(second)]
    said += [f"{more:,} more files were not read; point at the logs alone"] if more > 0 else []
    return Run(tuple(facts), tuple(coverage), digest, tuple(said))


def _look_closer(files: Sequence[File], parts: list[reading.Part], how: reading.How, workers: int | None) -> None:
    """Read those files again in which memory failed, now with their edges and their series."""
    failed = [
        which
        for which, part in enumerate(parts)
        if not part.coverage.whole and any(isinstance(f, Event) and f.family in _MEMORY for f in part.facts)
    ]
    failed = failed[:_FEW_FILES]
    again = sharing.read_all([files[which] for which in failed], [how] * len(failed), None, workers)
    for which, part in zip(failed, again, strict=True):
        parts[which] = part


def _refuse_nothing(files: Sequence[FileCoverage], paths: Sequence[str | Path] | None) -> None:
    """One clear line where there is nothing to judge."""
    if not files:
        where = ", ".join(str(path) for path in paths or []) or "nothing"
        raise EvidenceError(
            f"{where}: holds no files; point at a log, or at the folder that the run wrote its logs into"
        )
    if all(file.size_bytes == 0 and file.kind == "empty" for file in files):
        raise EvidenceError(
            f"{files[0].path}: is empty; point at a log that has text (was its output redirected elsewhere?)"
        )
    if all(file.kind in ("binary", "unread", "empty") for file in files):
        why = next((note for file in files for note in file.notes), "not text")
        raise EvidenceError(f"{files[0].path}: {why}; point at a text log, a settings file or a table of memory")
