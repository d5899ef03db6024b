"""Paths that a person names to the files that are meant: folders walked, patterns matched, nothing opened.

Links inside a folder are not followed (a stranger's folder could point anywhere), pipes and devices are not opened;
each is listed with the reason, so that nothing is left out in silence.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import EvidenceError
from .streams import SUFFIXES

MAX_FILES = 20_000

TABLES = (".csv", ".tsv", ".jsonl")
SETTINGS = (".json", ".yaml", ".yml")
_SKIPPED_DIRS = {".git", "__pycache__", ".ipynb_checkpoints", "node_modules", ".venv"}
_TEXTS = (".md", ".rst", ".py", ".ipynb", ".sh", ".html", ".toml")
"""Files that quote messages rather than print them; read only where they are named themselves."""


class File(NamedTuple):
    """A file that is meant: ``shown`` as the person knows it; ``why_not`` says why it is left out, if it is."""

    path: Path
    shown: str
    size: int
    why_not: str = ""

    @property
    def name(self) -> str:
        """The name in small letters, without the suffix of a compression."""
        name = self.shown.lower()
        return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def find(paths: Iterable[str | Path]) -> tuple[list[File], int]:
    """Every file meant, logs before tables and settings, and how many more there were than MAX_FILES.

    Args:
        paths: files, folders, or patterns such as ``logs/*.log``.

    Raises:
        EvidenceError: a path is missing or is neither a file nor a folder. One line.
    """
    found: dict[Path, File] = {}
    more = 0
    for given in paths:
        try:
            for one in _expanded(given):
                if one.is_dir():
                    inside = sorted(_walk(one), key=lambda file: (file.name.endswith((*TABLES, *SETTINGS)), file.shown))
                    more += max(0, len(inside) - MAX_FILES)
                    for file in inside[:MAX_FILES]:
                        found.setdefault(file.path, file)
                elif one.is_file():
                    found.setdefault(one, File(one, str(one if "*" in str(given) else given), one.stat().st_size))
                else:
                    raise EvidenceError(f"{given}: is neither a file nor a folder; point at a log or a folder of logs")
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, EvidenceError):
                raise
            why = getattr(error, "strerror", None) or error
            raise EvidenceError(f"{given}: can't be read ({why}); check the path and its permissions") from None
    files = list(found.values())
    return files[:MAX_FILES], more + max(0, len(files) - MAX_FILES)


def _expanded(given: str | Path) -> list[Path]:
    """The path itself, or what a pattern matches."""
    path = Path(given).expanduser()
    if str(given) and (path.exists() or path.is_symlink()):
        if not path.exists():
            raise EvidenceError(f"{given}: a link that leads nowhere; check where it points")
        return [path]
    if glob.has_magic(str(path)) and (matched := sorted(glob.glob(str(path), recursive=True))):  # noqa: PTH207 (any root)
        fixed = Path(re.split(r"[*?\[]", str(path), maxsplit=1)[0] + "x").parent
        usable = [one for one in map(Path, matched) if (one.is_file() or one.is_dir()) and not _linked(one, fixed)]
        if usable:
            return [one for one in usable if one.is_file() or "**" not in str(given)]
    raise EvidenceError(f"{given or 'an empty path'}: no such file or folder; check the path")


def _linked(path: Path, root: Path) -> bool:
    """Whether a link stands on the way from ``root`` to a path that a pattern matched."""
    while path not in (root, path.parent):
        if path.is_symlink():
            return True
        path = path.parent
    return False


def _walk(root: Path) -> Iterator[File]:
    closed: list[OSError] = []
    for folder, dirs, names in os.walk(root, onerror=closed.append):
        dirs[:] = sorted(name for name in dirs if name not in _SKIPPED_DIRS)
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith("."):
                continue
            shown = path.relative_to(root).as_posix()
            try:
                status = path.lstat()
            except OSError as error:
                yield File(path, shown, 0, f"can't be read ({error.strerror or error})")
                continue
            if stat.S_ISLNK(status.st_mode):
                yield File(path, shown, 0, "a link, not followed; name it itself to have it read")
            elif not stat.S_ISREG(status.st_mode):
                yield File(path, shown, 0, "a pipe, socket or device; not opened")
            elif shown.lower().endswith(_TEXTS):
                yield File(path, shown, status.st_size, "a program or a document, not what a run printed")
            else:
                yield File(path, shown, status.st_size)
    for failed in closed:
        inside = Path(os.fsdecode(failed.filename))
        shown = inside.relative_to(root).as_posix() if inside != root else str(root)
        yield File(inside, f"{shown}/", 0, f"a folder that can't be read ({failed.strerror})")
