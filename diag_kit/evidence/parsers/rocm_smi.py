"""rocm-smi: memory of AMD's GPUs and of the processes on them.

``rocm-smi --showmeminfo vram`` prints ``GPU[0] : VRAM Total Memory (B): 68702699520`` and ``GPU[0] : VRAM Total Used
Memory (B): 10960896``; ``--showpids`` a table ``PID  PROCESS NAME  GPU(s)  VRAM USED  SDMA USED  CU OCCUPANCY`` in bytes,
where GPU(s) counts the cards of a process and does not name them. The short table of ``rocm-smi`` alone shows per cent
only and is not read.

An empty result means that no such listing is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..facts import DeviceMemory
from ..text import Window

LITERALS = ("VRAM Total ", "VRAM USED")

_TOTAL = re.compile(r"GPU\[(\d{1,3})\]\s{0,8}: VRAM Total (Used )?Memory \(B\): (\d{1,15})")
_PROCESS = re.compile(
    r"^\s*(\d{1,10})\s{1,20}(\S{1,60})\s{1,20}(\d{1,3})\s{1,20}(\d{1,15})\s{1,20}\d{1,15}\s{1,20}\S{1,20}\s*$"
)


def parse(window: Window) -> Iterator[DeviceMemory]:
    """What each device and each listed process held, one fact each."""
    totals: dict[int, int] = {}
    rows = False
    for index, line in enumerate(window.lines):
        text = line.text
        if "VRAM USED" in text:
            rows = True
        elif rows:
            if found := _PROCESS.match(text):
                yield DeviceMemory(
                    source=window.source(index, around=0),
                    pid=int(found[1]),
                    process=found[2],
                    used_bytes=int(found[4]),
                )
            else:
                rows = False
        if "VRAM Total" in text and (found := _TOTAL.search(text)):
            device, size = int(found[1]), int(found[3])
            if not found[2]:
                totals[device] = size
                continue
            yield DeviceMemory(
                source=window.source(index, around=0), device=device, used_bytes=size, total_bytes=totals.get(device)
            )
