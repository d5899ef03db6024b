"""Memory of the host as its own tools print it: free, top, df of /dev/shm, psutil.

* ``free``: a header ``total used free shared buff/cache available`` and ``Mem: 131893 41000 2000 ...``. ``-h`` prints
  suffixes (``125Gi``, older ``125G``: both binary). Without a suffix the unit is not printed: the command line above
  tells it (``free -g``), else the size does: a host has between 2 and 2000 GiB, so below 2000 it counts GiB, below
  2,000,000 MiB, above that KiB, free's default. Before procps 3.3.10 there is no column "available".
* ``top``: ``MiB Mem : 128651.0 total, 1234.5 free, 41000.2 used``.
* ``df -h /dev/shm``: ``shm  64M  64M  0 100% /dev/shm``; 64M is what Docker gives where nobody asks for more.
* psutil: ``svmem(total=137438953472, available=..., percent=31.2, used=...)``.

What the host has is not what a container or job may use. An empty result means that no such table is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...units import GIB, KIB, MIB, parse_size
from ..facts import HostMemory
from ..text import Window

LITERALS = ("Mem:", "Swap:", "iB Mem ", "/shm", "svmem(")

_FREE = re.compile(r"^\s*(Mem|Swap):((?:\s{1,20}[\d.,]{1,15}(?:[KMGT]i?|B)?){3,6})\s*$")
_COMMAND = re.compile(r"\bfree -(?:\w{0,4})([bkmg])")
_TOP = re.compile(
    r"\b([KMGT]iB) Mem : {1,6}([\d.]{1,15})\+? total, {1,6}([\d.]{1,15}) free, {1,6}([\d.]{1,15})\+? used"
)
_SHM = re.compile(
    r"^\S{1,40}\s{1,20}([\d.]{1,12}[KMGT]?)\s{1,20}([\d.]{1,12}[KMGT]?)\s{1,20}([\d.]{1,12}[KMGT]?)\s{1,20}\d{1,3}%\s{1,9}/dev/shm\s*$"
)
_PSUTIL = re.compile(r"svmem\(total=(\d{1,16}), available=(\d{1,16}), percent=[\d.]{1,6}, used=(\d{1,16})")
_UNITS = {"b": 1, "k": KIB, "m": MIB, "g": GIB}


def parse(window: Window) -> Iterator[HostMemory]:
    """Memory of the host, its swap and /dev/shm."""
    unit = 0
    columns: list[str] = []
    for index, line in enumerate(window.lines):
        text = line.text
        if "free -" in text and (command := _COMMAND.search(text)):
            unit = _UNITS[command[1]]
        elif "total" in text and "used" in text and "free" in text and "mem" not in text.lower():
            columns = text.split()
        elif (found := _FREE.match(text)) and columns[:2] == ["total", "used"]:
            unit = unit or _unit(found[2].split()[0])
            sizes = dict(zip(columns, (_size(cell, unit) for cell in found[2].split()), strict=False))
            yield HostMemory(
                source=window.source(index),
                of="host" if found[1] == "Mem" else "swap",
                total_bytes=sizes.get("total"),
                used_bytes=sizes.get("used"),
                available_bytes=sizes.get("available"),
            )
            if found[1] == "Swap":
                unit, columns = 0, []
        elif "iB Mem " in text and (found := _TOP.search(text)):
            total, _, used = (parse_size(f"{number} {found[1]}") for number in found.groups()[1:])
            yield HostMemory(source=window.source(index), total_bytes=total, used_bytes=used)
        elif "/shm" in text and (found := _SHM.match(text)):
            total, used, left = (_shm_size(cell) for cell in found.groups())
            yield HostMemory(
                source=window.source(index), of="shm", total_bytes=total, used_bytes=used, available_bytes=left
            )
        elif "svmem(" in text and (found := _PSUTIL.search(text)):
            total, available, used = map(int, found.groups())
            yield HostMemory(source=window.source(index), total_bytes=total, used_bytes=used, available_bytes=available)


def _unit(total: str) -> int:
    """The unit of a table that prints none, by what a host can have; 1 where the cell carries its own."""
    number = total.replace(",", "")
    if not number.isdecimal():
        return 1
    size = int(number)
    return GIB if size < 2000 else MIB if size < 2_000_000 else KIB if size < 10**10 else 1


def _size(cell: str, unit: int) -> int | None:
    number = cell.replace(",", "")
    return int(number) * unit if number.isdecimal() else parse_size(number)


def _shm_size(cell: str) -> int | None:
    """df counts KiB where a cell has no suffix."""
    return int(cell) * KIB if cell.isdecimal() else parse_size(cell)
