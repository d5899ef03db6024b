"""Where the workbook's files are: shipped notebooks and samples, the user's work folder, the folder it started in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from ..errors import DiagKitError
from ..history import FOLDER_VARIABLE, data_folder

PACKAGE = Path(__file__).resolve().parent
STATIC = PACKAGE / "static"
CHECKOUT = PACKAGE.parents[1]

RUN = "DIAG_KIT_RUN"
"""Environment variable: the run that the workbook opens on."""
START = "DIAG_KIT_START_DIR"
"""Environment variable: the folder the command was given in; relative paths and reports mean this one."""
STARTED = "DIAG_KIT_STARTED"
"""Environment variable: when the command was given, ISO 8601 in UTC; what was opened later is opened again."""


def _shipped(name: str, in_checkout: str) -> Path:
    """A folder of the checkout, or its copy in an installed package."""
    for place in (CHECKOUT / in_checkout, PACKAGE / name):
        if place.is_dir():
            return place
    raise DiagKitError(f"{CHECKOUT / in_checkout}: missing; install diag-kit again, or work from a checkout")


def notebooks() -> Path:
    """The folder of shipped notebooks."""
    return _shipped("notebooks", "notebooks")


class Sample(NamedTuple):
    """A bundled run."""

    title: str
    teaser: str
    path: Path


def samples() -> list[Sample]:
    """Bundled samples, the one to open by default first; none where they are not installed."""
    try:
        root = _shipped("samples", "data/samples")
        index = json.loads((root / "INDEX.json").read_text(encoding="utf-8"))["samples"]
    except (DiagKitError, OSError):
        return []
    index.sort(key=lambda one: not one["default"])
    return [Sample(one["title"], one["teaser"], root / one["folder"]) for one in index]


def work_folder() -> Path:
    """The user's folder for working copies of notebooks; made where it is missing."""
    root = data_folder() / "workbook"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiagKitError(
            f"{root}: can't be made ({error.strerror}); set {FOLDER_VARIABLE} to a folder that you can write to"
        ) from error
    return root


def report_folder() -> Path:
    """The folder that reports go to unless another is named."""
    return start_folder() / "diag-kit-report"


def start_folder() -> Path:
    """The folder that relative paths mean."""
    return Path(os.environ.get(START) or Path.cwd())
