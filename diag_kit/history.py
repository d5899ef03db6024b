"""What a user did with past evidence: marks on checklists, what-if settings, diagnoses. SQLite, in the data folder.

Kept by the content of the evidence, never inside it. Each change is one transaction, committed before the call
returns, so that a killed kernel loses nothing; marks are rows of their own, so that two kernels on the same evidence
don't overwrite each other's. The rollback journal with a busy timeout is used rather than WAL, which doesn't work on
the network file systems that clusters mount as home folders (https://www.sqlite.org/wal.html, "disadvantages").
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

from .errors import StateError

FOLDER_VARIABLE = "DIAG_KIT_DATA"
FILE_NAME = "history.sqlite3"
BUSY_S = 5.0

MIGRATIONS = (
    """
    CREATE TABLE mark (
        content_key TEXT, item TEXT, by TEXT, state TEXT NOT NULL, note TEXT NOT NULL, "when" TEXT NOT NULL,
        PRIMARY KEY (content_key, item, by));
    CREATE TABLE what_if (content_key TEXT PRIMARY KEY, document TEXT NOT NULL, "when" TEXT NOT NULL);
    CREATE TABLE diagnosis (
        content_key TEXT PRIMARY KEY, evidence TEXT NOT NULL, family TEXT NOT NULL, summary TEXT NOT NULL,
        document TEXT NOT NULL, "when" TEXT NOT NULL);
    """,
)
"""The schema, one script for each version; ``PRAGMA user_version`` says how many a file has seen. Only ever append."""


@dataclass(frozen=True, slots=True)
class Past:
    """A diagnosis made before. ``evidence`` holds the paths as the user gave them."""

    content_key: str
    evidence: tuple[str, ...]
    family: str
    summary: str
    when: str


def data_folder() -> Path:
    """Where state is kept: ``$DIAG_KIT_DATA``, else the system's folder for user data."""
    return Path(os.environ.get(FOLDER_VARIABLE) or platformdirs.user_data_dir("diag-kit")).expanduser().absolute()


class History:
    """The store. Every method may raise `StateError`, in one line; a caller can show it and go on without saving."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.path = (Path(folder) if folder else data_folder()) / FILE_NAME
        self._lock = threading.Lock()
        with self._explained():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            with self._explained():
                self._migrate()
        except StateError:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def save_mark(self, content_key: str, mark: Mapping[str, str]) -> None:
        """Keep one person's mark on one item: keys ``item state by note when``."""
        self._write(
            'INSERT OR REPLACE INTO mark (content_key, item, by, state, note, "when") VALUES (?, ?, ?, ?, ?, ?)',
            content_key, mark["item"], mark["by"], mark["state"], mark["note"], mark["when"],
        )  # fmt: skip

    def drop_mark(self, content_key: str, item: str, by: str) -> None:
        """Forget one person's mark on one item."""
        self._write("DELETE FROM mark WHERE content_key = ? AND item = ? AND by = ?", content_key, item, by)

    def marks(self, content_key: str) -> list[dict[str, str]]:
        """All marks on this evidence, oldest first, as `save_mark` got them."""
        columns = ("item", "state", "by", "note", "when")
        query = 'SELECT item, state, by, note, "when" FROM mark WHERE content_key = ? ORDER BY "when"'
        return [dict(zip(columns, row, strict=True)) for row in self._read(query, content_key)]

    def save_what_if(self, content_key: str, document: Mapping[str, Any]) -> None:
        """Keep the last explored settings for this evidence."""
        self._write("INSERT OR REPLACE INTO what_if VALUES (?, ?, ?)", content_key, _dump(document), _now())

    def what_if(self, content_key: str) -> dict[str, Any] | None:
        """The settings that were last explored, None where nothing was."""
        return self._document("SELECT document FROM what_if WHERE content_key = ?", content_key)

    def save_diagnosis(self, content_key: str, document: Mapping[str, Any], evidence: tuple[str, ...] = ()) -> None:
        """Keep a diagnosis document; a newer one of the same evidence replaces it."""
        self._write(
            "INSERT OR REPLACE INTO diagnosis VALUES (?, ?, ?, ?, ?, ?)",
            content_key, _dump(list(evidence)), document["family"], document["summary"], _dump(document), _now(),
        )  # fmt: skip

    def diagnosis(self, content_key: str) -> dict[str, Any] | None:
        """The document of a past diagnosis."""
        return self._document("SELECT document FROM diagnosis WHERE content_key = ?", content_key)

    def past(self, limit: int = 20) -> list[Past]:
        """Past diagnoses, newest first."""
        rows = self._read(
            'SELECT content_key, evidence, family, summary, "when" FROM diagnosis ORDER BY "when" DESC LIMIT ?', limit
        )
        with self._explained():
            return [Past(key, tuple(json.loads(evidence)), *rest) for key, evidence, *rest in rows]

    def _write(self, statement: str, *values: Any) -> None:
        with self._lock, self._explained():
            self._db.execute(statement, values)

    def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, self._explained():
            return self._db.execute(query, values).fetchall()

    def _document(self, query: str, content_key: str) -> dict[str, Any] | None:
        rows = self._read(query, content_key)
        with self._explained():
            return json.loads(rows[0][0]) if rows else None

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _migrate(self) -> None:
        if self._version() < len(MIGRATIONS):
            self._db.execute("BEGIN IMMEDIATE")  # another kernel may be creating the same file: look again inside
            for number in range(self._version(), len(MIGRATIONS)):
                for statement in MIGRATIONS[number].split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {number + 1}")
            self._db.execute("COMMIT")
        if self._version() > len(MIGRATIONS):
            raise sqlite3.DatabaseError("it was written by a newer diag-kit")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what the file system or SQLite says into one line that helps."""
        try:
            yield
        except (OSError, sqlite3.Error, ValueError, TypeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise StateError(
                f"can't keep or read your work in {self.path}: {reason}; "
                f"set {FOLDER_VARIABLE} to a folder that you can write to"
            ) from error


def _dump(document: Any) -> str:
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
