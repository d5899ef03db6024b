"""Tracebacks as Python, Jupyter, rich, TorchScript and launchers draw them.

* Python: ``File "/p/train.py", line 12, in step`` and a code line; caret lines (3.11) and ``<--- HERE`` are skipped.
* Jupyter: ``<ipython-input-5-a2>`` or ``~/x.py in f(...)`` with ``---> 29 code``; ``File ~/x.py:29, in f(...)``;
  ``Cell In[22], line 29``; Colab wraps the name into a Markdown link.
* VS Code: ``Exception has occurred: RuntimeError``, the message, then the frames with the innermost first.
* rich: ``/p/train.py:773 in <module>`` inside a box, the line marked ``❱ 773``.

The exception is the first unindented ``Name: message`` after the frames. A block without one (truncated log) still
yields its frames. Chained blocks are separate facts in file order. An empty result means no frames were printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ..facts import Frame, Traceback
from ..text import Window

LITERALS = ("Traceback", 'File "', "File ~", "ipython-input", "Cell In[", "❱", " in <", "line: ")

_PYTHON = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d{1,15})(?:, in (?P<func>.+))?')
_JUPYTER = (
    re.compile(r"^\s*File (?P<path>[~/\w][^\s:]*(?:\.py|>)):(?P<line>\d{1,15}),? in (?P<func>[^(]+)"),
    re.compile(r"^\s*Cell In\s*\[\d{1,15}\], line (?P<line>\d{1,15})"),
    re.compile(r"^\s*\[?(?P<path><ipython-input-[^>]+>|[~/][^\s\]]+\.py)(?:\]\([^)]*\))? in (?P<func>[^(]+)"),
)
_RICH = re.compile(r"^\s*(?P<path>(?:[A-Za-z]:)?[\w./\\~<>-]+\.py):(?P<line>\d{1,15}) in\b\s*(?P<func>\S+)?\s*$")
_MARKED = re.compile(r"^\s*(?:-{2,}>|❱)\s*(\d{1,15})\s*(?:│\s*)*(.*)$")
_EXCEPTION = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|OutOfResources|Failed|Fault))(?::\s?(?P<text>.*))?$"
)
_SKIP = re.compile(r"^\s*(?:[\^~]+(?: <--- HERE)?\s*$|\[Previous line repeated)")
_NUMBERED = re.compile(r"^\s*\d{1,15}\s*(?:│|[^\d].*)?$")
_REVERSED = re.compile(r"^Exception has occurred: (?:[\w.]*\.)?(\w+)")
_PATIENCE = 14
"""Lines without a frame after which a block is taken to have ended (code listings of boxes are shorter)."""


def parse(window: Window) -> Iterator[Traceback]:
    """Traceback facts, rank by rank: lines that several ranks wrote in turn are taken apart first."""
    streams: dict[int | None, list[int]] = {}
    for index, line in enumerate(window.lines):
        streams.setdefault(line.rank, []).append(index)
    for indices in streams.values():
        yield from _of_stream(window, indices)


def _of_stream(window: Window, indices: list[int]) -> Iterator[Traceback]:
    block: list[Frame] = []
    start = end = quiet = 0
    expecting = announced = ""
    for index in indices:
        line, end = window.lines[index], index
        text = line.text
        frame, style = _frame(text)
        if frame:
            start = start if block else index
            block.append(replace(frame, log_line=line.number))
            quiet, expecting = 0, style
            continue
        if not block:
            if found := _REVERSED.match(text):
                announced = found[1]
            continue
        if expecting == "python" and text.startswith((" ", "\t")) and not _SKIP.match(text):
            block[-1] = _with_code(block[-1], text.strip().removeprefix("line: "))
            expecting = ""
        elif (marked := _MARKED.match(text)) and expecting in ("jupyter", "rich"):
            block[-1] = _with_code(block[-1], marked[2].strip(" │"), int(marked[1]))
            expecting = ""
        elif expecting == "rich" and not block[-1].function and re.fullmatch(r"\s*\w+\s*", text):
            block[-1] = replace(block[-1], function=text.strip())
        elif found := _EXCEPTION.match(text.strip() if not text.startswith(("  ", "\t")) else ""):
            yield _fact(window, start, index, block, found["name"], found["text"] or "")
            block, quiet = [], 0
        elif not (_SKIP.match(text) or _NUMBERED.match(text)):
            quiet += 1
            if quiet > _PATIENCE or text.startswith("Traceback"):
                yield _fact(window, start, index, _outermost_first(block, announced), announced)
                block, quiet, announced = [], 0, ""
    if block:
        yield _fact(window, start, end, _outermost_first(block, announced), announced)


def _outermost_first(block: list[Frame], announced: str) -> list[Frame]:
    """Frames in Python's order; a debugger that announces the exception first lists the innermost frame first."""
    return block[::-1] if announced else block


def _frame(text: str) -> tuple[Frame | None, str]:
    if 'File "' in text and (found := _PYTHON.match(text)):
        return Frame(found["path"], int(found["line"]), (found["func"] or "").strip()), "python"
    if " in" in text or "Cell In" in text:
        for pattern in _JUPYTER:
            if found := pattern.match(text):
                said = found.groupdict()
                number = said.get("line")
                path = said.get("path") or "<cell>"
                return Frame(path, int(number) if number else None, (said.get("func") or "").strip()), "jupyter"
        if found := _RICH.match(text):
            return Frame(found["path"], int(found["line"]), found["func"] or ""), "rich"
    return None, ""


def _with_code(frame: Frame, code: str, line: int | None = None) -> Frame:
    return replace(frame, line=frame.line or line, code=code[:400])


def _fact(
    window: Window, start: int, end: int, block: list[Frame], exception: str = "", message: str = ""
) -> Traceback:
    line = window.lines[start]
    return Traceback(
        source=window.source(start),
        rank=line.rank,
        frames=tuple(block),
        exception=exception,
        message=message[:1000],
        end_line=window.lines[end].number,
    )
