"""Scalars of TensorBoard's event files (``events.out.tfevents.*``), read by hand: no TensorFlow, no tensorboard.

A file is records: length (8 bytes, little-endian), its masked CRC-32C, the bytes, their masked CRC (TFRecord). A record
is a protobuf ``Event``: ``wall_time`` (1, double), ``step`` (2), ``summary`` (5) with values (1): ``tag`` (1),
``simple_value`` (2, float), or ``tensor`` (8) with ``dtype`` (1), ``tensor_content`` (4) or the values of ``float_val``
(5), ``double_val`` (6), ``int_val`` (7), ``int64_val`` (10). Written by torch's SummaryWriter, tensorboardX, Lightning
and TensorFlow. Field numbers: event.proto, summary.proto and tensor.proto of TensorFlow.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from .columns import Row

MAX_RECORD, MAX_FILE = 1 << 20, 1 << 40
_TELLING = re.compile(rb"(?i)mem|alloc|reserved|vram|cuda|active_bytes|seq_?len|length|tokens")
_SCALARS = {5: "<f", 6: "<d", 7: None, 10: None}
_OF_DTYPE = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC = _crc_table()


def masked_crc(data: bytes) -> int:
    """CRC-32C (Castagnoli) as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def rows_of(stream: BinaryIO, notes: list[str]) -> Iterator[Row]:
    """(record, counted from 1; text; {"step", "wall_time", tag: value}) of each record with a scalar of memory.

    A record whose checksum fails is left out; a length whose checksum fails, or a cut end, ends the reading. Both are
    said in ``notes``.
    """
    number = bad = 0
    while header := stream.read(12):
        number += 1
        size, crc = struct.unpack("<QI", header) if len(header) == 12 else (0, 0)
        if len(header) < 12 or masked_crc(header[:8]) != crc or size > MAX_FILE:
            notes.append(f"record {number:,} is {'cut off' if len(header) < 12 else 'broken'}; read up to there")
            break
        data = stream.read(size) if size <= MAX_RECORD else b""
        for at in range(0, 0 if data else size, 1 << 20):  # too large for scalars: read past
            if not stream.read(min(1 << 20, size - at)):
                break
        tail = stream.read(4)
        if len(tail) < 4:
            notes.append(f"record {number:,} is cut off; read up to there")
            break
        if not _TELLING.search(data):
            continue
        if struct.unpack("<I", tail)[0] != masked_crc(data):
            bad += 1
            continue
        try:
            row = _event(data)
        except (ValueError, IndexError, struct.error):
            bad += 1
            continue
        values = {name: value for name, value in row.items() if name not in ("step", "wall_time")}
        if values:
            said = ", ".join(f"{name} = {value:g}" for name, value in values.items())
            yield number, f"step {row['step']}: {said}"[:300], row
    if bad:
        notes.append(f"{bad:,} records fail their checksum or are no events, and were left out")


def _event(data: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {"step": 0}
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            row["wall_time"] = struct.unpack("<d", value)[0]
        elif field == 2 and isinstance(value, int):
            row["step"] = value if value < 1 << 63 else 0
        elif field == 5 and isinstance(value, bytes):
            for inner, one in _fields(value):
                if inner == 1 and isinstance(one, bytes):
                    _value(one, row)
    return row


def _value(data: bytes, row: dict[str, Any]) -> None:
    tag, scalar = "", None
    for field, value in _fields(data):
        if isinstance(value, int):
            continue
        if field == 1:
            tag = value.decode("utf-8", "replace")[:200]
        elif field == 2:
            scalar = struct.unpack("<f", value)[0]
        elif field == 8:
            scalar = _tensor(value)
    if tag and scalar is not None and tag not in ("step", "wall_time"):
        row[tag] = scalar


def _tensor(data: bytes) -> float | int | None:
    """The value of a tensor that holds one; None for another kind or more of them."""
    parts = dict(_fields(data))
    dtype, content = parts.get(1), parts.get(4)
    form = _OF_DTYPE.get(dtype) if isinstance(dtype, int) else None
    if form and isinstance(content, bytes) and len(content) == struct.calcsize(form):
        return struct.unpack(form, content)[0]  # type: ignore[no-any-return]  # a number, by its form
    for field, packed in _SCALARS.items():
        value = parts.get(field)
        if isinstance(value, int):
            return value
        if value is not None and packed and len(value) == struct.calcsize(packed):
            return struct.unpack(packed, value)[0]  # type: ignore[no-any-return]
        if value is not None and not packed and 0 < len(value) <= 10:
            return _varint(value, 0)[0]
    return None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: an int for a varint, bytes for the rest."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("not a protobuf message")
        if at + size > len(data):
            raise ValueError("a field longer than its message")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")
