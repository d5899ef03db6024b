"""nvidia-smi and gpustat: what each GPU holds, and which process holds how much of it.

* the table: ``|   0  NVIDIA A100-SXM4-40GB  Off | 00000000:07:00.0 Off | 0 |``, below it ``| N/A 34C P0 62W / 400W |
  38905MiB / 40536MiB | 0% Default |``, and rows of processes, ``|    0   N/A  N/A   2579940      C   .../python3.9
  13724MiB |``; drivers before 450 have no columns GI and CI. Windows prints ``N/A`` for the memory of a process.
* ``nvidia-smi --query-gpu=index,memory.used,memory.total --format=csv``: a header with units, ``0, 38905 MiB, 40536
  MiB``; ``--query-compute-apps=pid,used_memory``: ``2579940, 13724 MiB``. With ``nounits`` the numbers are MiB.
* gpustat: ``[0] Tesla V100-SXM2-32GB | 34'C, 0 % | 16000 / 32510 MB | ada(15990M)``.

The index is nvidia-smi's own, by bus; a run with CUDA_VISIBLE_DEVICES counts anew. Inside a container other processes
are not listed, so an empty list is no empty card. MB means MiB. An empty result means that no such table is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...units import MIB
from ..facts import DeviceMemory
from ..text import Window

LITERALS = ("MiB /", "MiB |", "memory.used", "used_gpu_memory", "used_memory", " MB |")

_CARD = re.compile(r"^\|\s{1,6}(\d{1,3})\s.{1,60}\|\s*[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:")
_USED = re.compile(r"\|\s*(\d{1,7})MiB\s*/\s*(\d{1,7})MiB\s*\|")
_PROCESS = re.compile(
    r"^\|\s{1,8}(\d{1,3})\s{1,8}(?:(?:N/A|\d{1,3})\s{1,8}(?:N/A|\d{1,3})\s{1,8})?(\d{1,10})\s{1,8}(?:C|G|C\+G|M\+C)\s{1,8}"
    r"(\S.{0,100}?)\s{1,80}(\d{1,7})MiB\s{0,4}\|"
)
_GPUSTAT = re.compile(r"^\[(\d{1,3})\] .{1,80}\|.{1,60}\|\s*(\d{1,7}) / (\d{1,7}) MB \|(.{0,400})")
_HOLDER = re.compile(r"\b[\w.:/-]{1,60}?(?:/(\d{1,10}))?\((\d{1,7})M\)")
_COLUMN = re.compile(
    r"^(index|memory\.(?:used|total|free)|pid|process_name|name|used_(?:gpu_)?memory|gpu_\w{1,12}|[a-z]\w{0,30}(?:\.[\w.]{1,40})?)(?: \[MiB\])?$"
)
_AMOUNT = re.compile(r"^(\d{1,7})(?: MiB)?$")


def parse(window: Window) -> Iterator[DeviceMemory]:
    """What each device and each listed process held, one fact each."""
    device: int | None = None
    columns: list[str] = []
    for index, line in enumerate(window.lines):
        text = line.text
        if columns:
            fact = _row(window, index, columns)
            if fact:
                yield fact
                continue
            columns = []
        if text.startswith("|"):
            if found := _CARD.match(text):
                device = int(found[1])
            elif "MiB" not in text:
                continue
            elif found := _USED.search(text):
                yield _fact(window, index, device, used=found[1], total=found[2])
            elif found := _PROCESS.match(text):
                one = _fact(window, index, int(found[1]), used=found[4])
                yield replace(one, pid=int(found[2]), process=found[3])
        elif text.startswith("[") and " MB |" in text and (found := _GPUSTAT.match(text)):
            yield _fact(window, index, int(found[1]), used=found[2], total=found[3])
            for holder in _HOLDER.finditer(found[4]):
                if holder[1]:
                    one = _fact(window, index, int(found[1]), used=holder[2])
                    yield replace(one, pid=int(holder[1]), process=holder[0].partition("/")[0])
        elif "," in text and ("memory.used" in text or "used_gpu_memory" in text or "used_memory" in text):
            names = [name.strip() for name in text.split(",")]
            columns = [name.split(" ")[0] for name in names] if all(_COLUMN.match(name) for name in names) else []


def _fact(
    window: Window, index: int, device: int | None, *, used: str | None, total: str | None = None
) -> DeviceMemory:
    return DeviceMemory(
        source=window.source(index, around=0),
        device=device,
        used_bytes=int(used) * MIB if used else None,
        total_bytes=int(total) * MIB if total else None,
    )


def _row(window: Window, index: int, columns: list[str]) -> DeviceMemory | None:
    """A row under a header of the query form; None where the table has ended."""
    cells = [cell.strip() for cell in window.lines[index].text.split(",")]
    if len(cells) != len(columns):
        return None
    row: dict[str, Any] = dict(zip(columns, cells, strict=True))
    sizes = {}
    for name, key in (
        ("used", "memory.used"),
        ("total", "memory.total"),
        ("of", "used_memory"),
        ("of", "used_gpu_memory"),
    ):
        if key in row:
            found = _AMOUNT.match(row[key])
            if not found:
                return None
            sizes[name] = found[1]
    device = row.get("index") or row.get("gpu_index") or ""
    fact = _fact(
        window, index, int(device) if device.isdecimal() else None, used=sizes.get("used") or sizes.get("of"),
        total=sizes.get("total"),
    )  # fmt: skip
    pid = row.get("pid", "")
    return (
        replace(fact, pid=int(pid), process=row.get("process_name", row.get("name", ""))) if pid.isdecimal() else fact
    )
