"""The figures inside PyTorch's out-of-memory sentence, wherever it is quoted."""

from __future__ import annotations

import re
from typing import Any

from ..units import SIZE, parse_size

# Wrapping may eat a space or add one, so a space of a pattern stands for any blank or none.
_FIELDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern.replace("SIZE", f"({SIZE})").replace(" ", r"\s*")))
    for name, pattern in (
        ("tried_to_allocate_bytes", r"Tried to allocate SIZE"),
        ("total_bytes", r"total capac(?:i)?ty of SIZE"),
        ("total_bytes", r"SIZE total capacity"),
        ("free_bytes", r"of which SIZE is free"),
        ("free_bytes", r"SIZE free\b"),
        ("allocated_bytes", r"Of the allocated memory SIZE is allocated by PyTorch"),
        ("allocated_bytes", r"SIZE already allocated"),
        ("reserved_bytes", r"SIZE reserved in total"),
        ("reserved_unallocated_bytes", r"SIZE is reserved by PyTorch but unallocated"),
        ("reserved_unallocated_bytes", r"SIZE cached\b"),
        ("private_pools_bytes", r"SIZE allocated in private pools"),
        ("process_in_use_bytes", r"this process has SIZE memory in use"),
        ("allowed_bytes", r"SIZE allowed\b"),
    )
)
_OTHER = re.compile(rf"Process\s+(\d{{1,15}})\s+has\s+({SIZE})\s+memory\s+in\s+use")
_FREE_OF = re.compile(rf"({SIZE})\s+free\s+of\s+([\d.]+)")
_DEVICE = re.compile(r"\b(?:GPU|NPU|XPU|MLU|MUSA)\s+(\d{1,15})\b")
_SENTINEL_BYTES = 1 << 53
"""A size at or above this is a placeholder for "unknown" (``17179869184.00 GiB`` is 2**64 - 1), not memory."""


def sizes(message: str) -> tuple[dict[str, Any], int | None, list[int]]:
    """Figures as stated, the device's number, and the ids of the other processes that the message lists."""
    figures: dict[str, Any] = {}
    for name, pattern in _FIELDS:
        if name not in figures and (found := pattern.search(message)):
            value = parse_size(found[1])
            if value is not None and (value < _SENTINEL_BYTES or name == "tried_to_allocate_bytes"):
                figures[name] = value
    if (partly := _FREE_OF.search(message)) and "total_bytes" not in figures:
        unit = partly[1].split()[-1]
        figures["free_bytes"] = parse_size(partly[1])
        figures["total_bytes"] = parse_size(f"{partly[2]} {unit}")
    if re.search(r"Tried to allocate\s+more than 1EB", message):
        figures["requested_at_least_bytes"] = 1 << 60
    own = figures.get("process_in_use_bytes")
    others = [(int(pid), parse_size(size) or 0) for pid, size in _OTHER.findall(message)]
    if others:
        figures["other_process_in_use_bytes"] = [size for _, size in others]
    elif own is not None:
        figures["other_process_in_use_bytes"] = []
    device = _DEVICE.search(message)
    return figures, int(device[1]) if device else None, [pid for pid, _ in others]
