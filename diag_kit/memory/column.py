"""Reading a column of sequence lengths: CSV (or tab-separated), JSON lines, or a plain list, told by its content.

Only counts by length are kept, so ten million samples cost what their different lengths do.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ..errors import SettingsError
from .documents import MOST_COUNT, shown

MOST_DIFFERENT, MOST_LINE = 1_000_000, 16 << 20
_CHUNK = 1 << 20
_NAMES = ("length", "lengths", "len", "num_tokens", "n_tokens", "tokens", "seq_len", "input_length", "input_ids")
"""Columns that are taken where none is named."""


class Stream(Protocol):
    """What bytes are read from: a file, or what unpacks one."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes, none at the end."""


def read_column(stream: Stream, where: str, column: str | None = None) -> tuple[dict[int, int], str]:
    """How many samples of a file have each length, and what is counted: tokens or characters.

    ``column`` is a CSV column's name or number from 1, or a field of JSON lines; a number in it is a length, a list or
    string has one. SettingsError, with the file ``where`` and the line, for what is no length.
    """
    head = stream.read(_CHUNK)
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    lines = head.decode("utf-8", "replace").lstrip("\ufeff").splitlines() or [""]
    counts: Counter[int] = Counter()
    unit = "tokens"
    if first in (b"{", b"["):
        unit = _read_json(_lines(stream, head, where), where, column, counts)
    elif column is not None or not re.fullmatch(r"\s*\d*\s*", lines[0]):
        _read_csv(_lines(stream, head, where), lines[0], where, column, counts)
    else:
        _read_plain(stream, head, where, counts)
    if not counts:
        raise SettingsError(f"lengths: {where} holds no length; give CSV, JSON lines, or one number a line")
    return dict(counts), unit


def _lines(stream: Stream, head: bytes, where: str) -> Iterator[str]:
    rest, number = head.removeprefix(b"\xef\xbb\xbf"), 0
    while True:
        *whole, rest = rest.split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
        number += len(whole)
        if len(rest) > MOST_LINE:
            raise SettingsError(f"lengths: {where}:{number + 1}: a line of more than {MOST_LINE >> 20} MiB")
        data = stream.read(_CHUNK)
        if not data:
            break
        rest += data
    if rest:
        yield rest.decode("utf-8", "replace")


def _add(counts: Counter[int], where: str, line: int, value: Any, what: str = "") -> None:
    if isinstance(value, str) and (found := re.fullmatch(r"\s*(\d{1,10})(?:\.0{1,6})?\s*", value)):
        value = int(found[1])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_COUNT:
        told = f"{what}{shown(value)} is no whole number from 0 to {MOST_COUNT:,}"
        raise SettingsError(f"lengths: {where}:{line}: {told}")
    counts[value] += 1
    _bounded(counts, where)


def _bounded(counts: Counter[int], where: str) -> None:
    if len(counts) > MOST_DIFFERENT:
        raise SettingsError(f"lengths: {where}: more than {MOST_DIFFERENT:,} different values; is this a length?")


def _read_plain(stream: Stream, head: bytes, where: str, counts: Counter[int]) -> None:
    rest, number, data = head.removeprefix(b"\xef\xbb\xbf"), 0, b"more"
    while data:
        data = stream.read(_CHUNK)
        whole, mark, rest = rest.rpartition(b"\n") if data else (rest, b"", b"")
        words = whole.split()
        digits = not whole.translate(None, b"0123456789\r\n")
        if digits and len(words) == whole.count(b"\n") + 1 and max(map(len, words)) < 10:
            counts.update(map(int, words))
            _bounded(counts, where)
        else:
            for offset, line in enumerate(whole.split(b"\n"), 1):
                if line.strip():
                    _add(counts, where, number + offset, line.decode("utf-8", "replace").strip())
        number += whole.count(b"\n") + 1 if whole or mark else 0
        rest += data
        if len(rest) > MOST_LINE:
            raise SettingsError(f"lengths: {where}:{number + 1}: a line of more than {MOST_LINE >> 20} MiB")


def _read_csv(lines: Iterable[str], header: str, where: str, column: str | None, counts: Counter[int]) -> None:
    limit = csv.field_size_limit(MOST_LINE)
    rows = csv.reader(lines, delimiter=max(",\t;", key=header.count))
    try:
        names = [name.strip() for name in next(rows, [])]
        lower = [name.lower() for name in names]
        known = [lower.index(name) for name in _NAMES if name in lower]
        if column is None:
            index = known[0] if known else 0
            if not known and len(names) > 1:
                raise SettingsError(f"lengths: {where}: which column? --column with one of {_listed(names)}")
        elif column in names:
            index = names.index(column)
        elif column.isdecimal() and 1 <= int(column[:6]) <= len(names):
            index = int(column) - 1
        else:
            raise SettingsError(f"lengths: {where}: no column {column!r:.60}; it has {_listed(names)}")
        if re.fullmatch(r"\d+", names[index] if index < len(names) else ""):
            _add(counts, where, 1, names[index])
        what = f"column {names[index] or index + 1!r:.40}: "
        for row in rows:
            if row and not (len(row) == 1 and not row[0].strip()):
                if index >= len(row):
                    raise SettingsError(f"lengths: {where}:{rows.line_num}: has {len(row)} columns, not {index + 1}")
                _add(counts, where, rows.line_num, row[index], what)
    except csv.Error as error:
        raise SettingsError(f"lengths: {where}:{rows.line_num}: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _read_json(lines: Iterable[str], where: str, column: str | None, counts: Counter[int]) -> str:
    unit, last, number = "tokens", None, 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            last = value = json.loads(line)
        except RecursionError:
            raise SettingsError(f"lengths: {where}:{number}: nested too deep") from None
        except ValueError as error:
            raise SettingsError(f"lengths: {where}:{number}: not JSON ({error}); give one document a line") from None
        if isinstance(value, dict):
            names = [column] if column else [name for name in _NAMES if name in value]
            if not names or names[0] not in value:
                told = f"no field {column!r:.60}" if column else "which field? --column with one"
                raise SettingsError(f"lengths: {where}:{number}: {told}; it has {_listed(value)}")
            value = value[names[0]]
        if isinstance(value, str):
            unit, value = "characters", len(value)
        _add(counts, where, number, len(value) if isinstance(value, list) else value)
    if number == 1 and isinstance(last, list) and len(last) > 1:  # the only line: a list of lengths, not one sample
        counts.clear()
        for value in last:
            _add(counts, where, 1, value)
    return unit


def _listed(names: Iterable[Any]) -> str:
    listed = [f"{name!s:.40}" for name in names]
    return ", ".join(listed[:12]) + (", ..." if len(listed) > 12 else "")
