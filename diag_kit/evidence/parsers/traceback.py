"""Tracebacks as Python, Jupyter, rich, TorchScript and launchers draw them.

* Python: ``File "/p/train.py", line 12, in step`` and a code line; caret lines (3.11) and ``<--- HERE`` are skipped.
* Jupyter: ``<ipython-input-5-a2>`` or ``~/x.py in f(...)`` with ``---> 29 code``; ``File ~/x.py:29, in f(...)``;
  ``Cell In[22], line 29``; Colab wraps the name into a Markdown link.
* rich: ``/p/train.py:773 in <module>`` inside a box, the line marked ``❱ 773``.

The exception is the first unindented ``Name: message`` after the frames. A block without one (truncated log) still yields
its frames. Chained blocks are separate facts in file order. An empty result means no frames were printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ..facts import Frame, Traceback
from ..text import Line, Window

LITERALS = ("Traceback", 'File "', "File ~", "ipython-input", "Cell In[", "❱", " in <", "line: ")

_PYTHON = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<func>.+))?')
_JUPYTER = (
    re.compile(r"^\s*File (?P<path>[~/\w][^\s:]*(?:\.py|>)):(?P<line>\d+),? in (?P<func>[^(]+)"),
    re.compile(r"^\s*Cell In\s*\[\d+\], line (?P<line>\d+)"),
    re.compile(r"^\s*\[?(?P<path><ipython-input-[^>]+>|[~/][^\s\]]+\.py)(?:\]\([^)]*\))? in (?P<func>[^(]+)"),
)
_RICH = re.compile(r"^\s*(?P<path>(?:[A-Za-z]:)?[\w./\\~<>-]+\.py):(?P<line>\d+) in\b\s*(?P<func>\S+)?\s*$")
_MARKED = re.compile(r"^\s*(?:-{2,}>|❱)\s*(\d+)\s*(?:│\s*)*(.*)$")
_EXCEPTION = re.compile(r"^(?P<name>(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|OutOfResources|Failed|Fault))(?::\s?(?P<text>.*))?$")
_SKIP = re.compile(r"^\s*(?:[\^~]+(?: <--- HERE)?\s*$|\[Previous line repeated)")
_NUMBERED = re.compile(r"^\s*\d+\s*(?:│|[^\d].*)?$")
_PATIENCE = 14
"""Lines without a frame after which a block is taken to have ended (code listings of boxes are shorter)."""


def parse(window: Window) -> Iterator[Traceback]:
    """Traceback facts in file order."""
    block: list[tuple[Line, Frame]] = []
    start, quiet = 0, 0
    expecting: str | None = None
    for index, line in enumerate(window.lines):
        text = line.text
        frame, style = _frame(text)
        if frame:
            if not block:
                start = index
            elif block[-1][0].rank != line.rank and line.rank is not None:
                yield _fact(window, start, index - 1, block)
                block, start = [], index
            block.append((line, replace(frame, log_line=line.number)))
            quiet, expecting = 0, style
            continue
        if not block:
            continue
        if expecting == "python" and text.startswith((" ", "\t")) and not _SKIP.match(text):
            block[-1] = (line, _with_code(block[-1][1], text.strip().removeprefix("line: ")))
            expecting = None
            continue
        if (marked := _MARKED.match(text)) and expecting in ("jupyter", "rich"):
            block[-1] = (line, _with_code(block[-1][1], marked[2].strip(" │"), int(marked[1])))
            expecting = None
            continue
        if expecting == "rich" and not block[-1][1].function and re.fullmatch(r"\s*\w+\s*", text):
            block[-1] = (line, replace(block[-1][1], function=text.strip()))
            continue
        if found := _EXCEPTION.match(text.strip() if not text.startswith(("  ", "\t")) else ""):
            yield _fact(window, start, index, block, found["name"], found["text"] or "")
            block, quiet = [], 0
            continue
        if _SKIP.match(text) or _NUMBERED.match(text):
            continue
        quiet += 1
        if quiet > _PATIENCE or text.startswith("Traceback"):
            yield _fact(window, start, index - 1, block)
            block, quiet = [], 0
    if block:
        yield _fact(window, start, len(window.lines) - 1, block)


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
    window: Window, start: int, end: int, block: list[tuple[Line, Frame]], exception: str = "", message: str = ""
) -> Traceback:
    line = window.lines[start]
    return Traceback(
        source=window.source(start), rank=line.rank, frames=tuple(frame for _, frame in block),
        exception=exception, message=message[:1000], end_line=window.lines[end].number,
    )  # fmt: skip
