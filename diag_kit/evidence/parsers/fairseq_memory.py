"""fairseq's memory: what was free at the peak, and the size of each worker's card.

* ``rank   0: capabilities =  7.0  ; total memory = 31.749 GB ; name = Tesla V100-SXM2-32GB``, at start, one line a worker.
* ``epoch 001:    10 / 2031 loss=13.2, ..., gb_free=12.2, wall=46``, as JSON ``"num_updates": "20", "gb_free": "10.2"``: the
  card's memory less the peak that torch had allocated since the line before. ``oom=0`` in such a line is a count, and no
  out-of-memory.

GB is 2**30. Free alone is no use of memory: points come only where the card's size stands above. An empty result means
that fairseq printed no memory, or not how large the card is. Source: fairseq/utils.py, fairseq/trainer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...units import parse_size
from ..facts import DeviceMemory, MemoryPoint
from ..text import Window

SERIES = ("gb_free",)
LITERALS = ("gb_free", "; total memory = ")

_CARD = re.compile(r"rank\s{1,8}(\d{1,6}): capabilities = .{1,20}; total memory = ([\d.]{1,12} GB)")
_FREE = re.compile(r"\bgb_free(?:=|\": \")([\d.]{1,12})")
_STEP = re.compile(r"\bnum_updates(?:=|\": \")(\d{1,12})|\bepoch \d{1,6}: {1,9}(\d{1,12}) / \d")


def parse(window: Window) -> Iterator[MemoryPoint | DeviceMemory]:
    """The cards, and the peak allocated by step."""
    total: int | None = None
    for index, line in enumerate(window.lines):
        text = line.text
        if "total memory" in text and (found := _CARD.search(text)):
            total = parse_size(found[2])
            yield DeviceMemory(source=window.source(index, around=0), rank=int(found[1]), total_bytes=total)
        elif total and "gb_free" in text and (found := _FREE.search(text)) and (step := _STEP.search(text)):
            free = parse_size(f"{found[1]} GB")
            if free is not None and free <= total:
                yield MemoryPoint(
                    source=window.source(index, around=0),
                    rank=line.rank,
                    metric="peak_allocated",
                    value_bytes=total - free,
                    step=int(step[1] or step[2]),
                    series="fairseq",
                )
