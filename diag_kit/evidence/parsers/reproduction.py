r"""What a reproduction prints: the script that ``diag-kit reproduce`` writes runs a failed run's step a second time.

Version 1 of the script writes each record twice, as a line on the screen and, with ``--out``, as a line of JSON::

    diag-kit-repro start id=0f3a version=1 failure="da44" host="n7" device="NVIDIA A100" total_bytes=42 (0.00 MiB) small=false
    diag-kit-repro micro-step id=0f3a step=1 micro_step=2 shape=[1, 1024] phase="backward" allocated_bytes=2888456 (2.75 MiB)
    {"record": "diag-kit-repro verdict", "id": "0f3a", "verdict": "reproduced", "steps": 0}

The grammar of a line: ``diag-kit-repro RECORD id=HEX``, then fields, each a name, ``=`` and a value in JSON; a size in
bytes is repeated in MiB in brackets, for people. Records: ``start`` (machine, settings, what was assumed, scaled or
changed), ``built``, ``micro-step`` and ``optimizer`` (memory by phase), ``oom`` or ``error``, ``peaks`` by phase, and
last a ``verdict``: ``reproduced``, ``not reproduced`` or ``failed otherwise``. Where the last is missing, the script was
ended from outside. ``id`` joins the records of one execution.

All that stands between the first and the last record of an execution is of that second run: the out-of-memory that it
prints is not the failed run's (``evidence.second_runs`` keeps them apart). An empty result means that no reproduction
wrote here.

>>> from ..text import Window, lines_of
>>> window = Window("again.log", lines_of(b'diag-kit-repro peaks id=0f3a forward_bytes=2097152 (2.00 MiB) loss_bytes=null\n'))
>>> [(one.record, one.run, dict(one.said)) for one in parse(window)]
[('peaks', '0f3a', {'forward_bytes': 2097152, 'loss_bytes': None})]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ..facts import Repetition
from ..text import Window

SERIES = ("diag-kit-repro micro-step",)
STEPS = ("diag-kit-repro optimizer",)
ROLL_CALL = tuple(f"diag-kit-repro {record}" for record in ("start", "built", "oom", "error", "peaks", "verdict"))
LITERALS = (*SERIES, *STEPS, *ROLL_CALL)

_LINE = re.compile(r"(?<![\w\"-])diag-kit-repro ([a-z-]{1,20}) id=([0-9a-f]{1,32})(?=\s|$)")
_FIELD = re.compile(r" (?:\([\d.,]{1,20} MiB\) ?)?([a-z_]{1,40})=")
_RECORD = re.compile(r"diag-kit-repro ([a-z-]{1,20})")
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_MOST_FIELDS = 64


def parse(window: Window) -> Iterator[Repetition]:
    """A ``Repetition`` for each record; a line that was cut gives the fields before the cut."""
    for index, line in enumerate(window.lines):
        if "diag-kit-repro " not in line.text:
            continue
        read = _of_json(line.text) if line.text.lstrip().startswith("{") else _of_line(line.text)
        if read is not None and f"diag-kit-repro {read[0]}" in LITERALS:
            record, run, said = read
            yield Repetition(source=window.source(index, around=0), rank=line.rank, record=record, run=run, said=said)


def _of_line(text: str) -> tuple[str, str, dict[str, Any]] | None:
    found = _LINE.search(text)
    if not found:
        return None
    said: dict[str, Any] = {}
    at = found.end()
    for _ in range(_MOST_FIELDS):
        field = _FIELD.match(text, at)
        if not field:
            break
        try:
            said[field[1]], at = _DECODER.raw_decode(text, field.end())
        except (ValueError, RecursionError):
            break
    return found[1], found[2], said


def _of_json(text: str) -> tuple[str, str, dict[str, Any]] | None:
    try:
        document = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return None
    named = _RECORD.fullmatch(str(document.get("record"))) if isinstance(document, dict) else None
    if named is None or not re.fullmatch(r"[0-9a-f]{1,32}", str(document.get("id"))):
        return None
    said = {str(name): value for name, value in document.items() if name not in ("record", "id")}
    return named[1], str(document["id"]), said
