"""Reading the JSON documents that settings come from, and saying in one line what can't be read."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from ..units import MIB

MOST_DOCUMENT_BYTES = 4 * MIB
MOST_COUNT = 10**9
"""No layer, token, rank or width is more; keeps every product within what a float holds."""
MOST_BYTES = 10**18


def read_json(path: Path, where: str, hint: str) -> Any:
    """The content of a JSON file; SettingsError, beginning with ``where``, for all that is none.

    A named pipe would block and a device never end, so neither is opened.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SettingsError(f"{where}: {path} is no regular file; {hint}")
        if status.st_size > MOST_DOCUMENT_BYTES:
            raise SettingsError(f"{where}: {path} is larger than {MOST_DOCUMENT_BYTES // MIB} MiB; {hint}")
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as e:
        raise SettingsError(f"{where}: can't read {path}: {e.strerror}") from None
    except RecursionError:
        raise SettingsError(f"{where}: {path} is nested too deep; {hint}") from None
    except ValueError as e:
        raise SettingsError(f"{where}: {path} is not JSON ({e}); {hint}") from None


def check_whole(name: str, value: Any, least: int, most: int = MOST_COUNT) -> None:
    """SettingsError unless the value is a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SettingsError(f"settings.{name}: must be a whole number from {least} to {most}, got {shown(value)}")


def check_length(seq_len: int, longest: int | None) -> None:
    """SettingsError where a sequence has more tokens than the model has learned positions (None: no limit)."""
    if longest and seq_len > longest:
        raise SettingsError(
            f"settings.seq_len: {seq_len} tokens, and the model has {longest} learned positions; lower it"
        )


def shown(value: Any) -> str:
    """A wrong value for an error's line: cut where it is long, and never more digits than Python would print."""
    if isinstance(value, int) and abs(value) > MOST_BYTES:
        return "one of more than 18 digits"
    plain = isinstance(value, str | int | float | None)
    return f"{value!r:.80}" if plain else f"a value of type {type(value).__name__}"
