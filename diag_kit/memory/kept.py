"""Programs kept in the user's cache folder by the content that they depend on: settings, libraries, this code.

Files are arrays and JSON; nothing in them is ever executed. One that can't be read is traced anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import numpy as np

from .program import Program, Segment, Step

FOLDER_VARIABLE = "DIAG_KIT_CACHE"
"""Environment variable: another folder for programs."""
MOST_FILES = 300
_LIBRARIES = ("torch", "transformers", "peft", "numpy")
_ARRAYS = ("coefficients", "pads", "mixed", "category", "origins")
_PLAIN = ("shallow", "period", "accumulates", "names", "examples", "rounding", "any_length")


def folder() -> Path:
    """Where programs are kept."""
    import platformdirs

    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("diag-kit")) / "programs"


def key(identity: str, family: object) -> str:
    """Name of a program's file."""
    return hashlib.sha256(f"{identity}\0{family}\0{_made_with()}".encode()).hexdigest()[:40]


@lru_cache(1)
def _made_with() -> str:
    """Versions of the libraries and the text of the code that a program depends on."""
    here = Path(__file__).parent
    own = ("compiling.py", "program.py", "exact.py", "sharing.py")
    files = sorted([*here.glob("trace/*.py"), *(here / name for name in own)])
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return " ".join([digest, *(f"{name} {version(name)}" for name in _LIBRARIES)])


def version(library: str) -> str:
    """Version of an installed library, without importing it; empty where it is absent."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def save(name: str, program: Program, about: dict[str, object]) -> None:
    """Keep a program. A folder that can't be written keeps nothing."""
    moves = np.array([move for step in program.steps for move in step.moves], dtype=np.int32).reshape(-1, 3)
    steps = [(step.micro_step, len(step.moves), step.blocks) for step in program.steps]
    plain = {field: getattr(program, field) for field in _PLAIN}
    document = {**plain, "segments": [asdict(s) for s in program.segments], "steps": steps, "about": about}
    arrays = {field: getattr(program, field) for field in _ARRAYS}
    text = np.frombuffer(json.dumps(document).encode(), dtype=np.uint8)
    target = folder() / f"{name}.npz"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as file:
            np.savez_compressed(file, document=text, moves=moves, counts=np.stack(program.counts), **arrays)
        part.replace(target)
        for old in sorted(target.parent.glob("*.npz"), key=lambda path: path.stat().st_mtime)[:-MOST_FILES]:
            old.unlink(missing_ok=True)
    except OSError:
        return


def load(name: str) -> tuple[Program, dict[str, object]] | None:
    """A kept program and what was said about it; None where there is none that can be read."""
    try:
        with np.load(folder() / f"{name}.npz", allow_pickle=False) as kept:
            document = json.loads(kept["document"].tobytes())
            moves = [tuple(move) for move in kept["moves"].tolist()]
            counts = [np.ascontiguousarray(part) for part in kept["counts"]]
            arrays = {field: kept[field] for field in _ARRAYS}
        steps, at = [], 0
        for micro_step, length, blocks in document["steps"]:
            steps.append(Step(micro_step, moves[at : at + length], [tuple(block) for block in blocks]))
            at += length
        segments = [Segment(**s) for s in document["segments"]]
        plain = {field: document[field] for field in _PLAIN}
        return Program(**plain, **arrays, counts=counts, segments=segments, steps=steps), document["about"]
    except Exception:  # noqa: BLE001 (a damaged file raises whatever numpy, zip and zlib may)
        return None
