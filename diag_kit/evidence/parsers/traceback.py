"""Tracebacks as Python, Jupyter, rich, TorchScript and launchers draw them.

* Python: ``File "/p/train.py", line 12, in step`` and a code line; caret lines (3.11) are skipped. The block may be
  indented (a launcher quotes it), stand behind ``|`` (exception groups), or have ``>`` and ``└`` marks (loguru).
* TorchScript: the code of a function, with ``~~~~ <--- HERE`` below the line that failed.
* Jupyter: ``<ipython-input-5-a2>`` or ``~/x.py in f(...)`` with ``---> 29 code``; ``File ~/x.py:29, in f(...)``;
  ``Cell In[22], line 29``, ``Input In [5], in f(x)``; Colab wraps the name into a Markdown link and leaves out ``9
  frames``; Databricks writes ``<command-12>``.
* pytest: ``src/net.py:33: in forward`` and the code below it, or the function with ``>`` at the line that failed, its
  message behind ``E``, and ``src/attn.py:12: OutOfMemoryError`` below; frames are parted by ``_ _ _ _``.
* VS Code: ``Exception has occurred: RuntimeError``, the message, then the frames with the innermost first.
* rich: ``/p/train.py:773 in <module>`` inside a box, the line marked ``❱ 773``; a long path or the function's name is
  wrapped into the next line, and a box of locals may stand inside.

The exception is the first unindented ``Name: message`` after the frames. A block without one (truncated log) still
yields its frames. Chained blocks are separate facts in file order. An empty result means no frames were printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ..facts import Frame, Traceback
from ..text import Window

LITERALS = (
    "Traceback", 'File "', "File ~", "File <", "ipython-input", "<command-", "Cell In", "Input In [", "❱", " in <",
    "line: ", "_ _ _ _", "= FAILURES =",
)  # fmt: skip

_PYTHON = re.compile(r'^\s*>? ?File "(?P<path>[^"]+)", line (?P<line>\d{1,15})(?:, in (?P<func>.+))?')
_JUPYTER = (
    re.compile(r"^\s*File (?P<path>[~/\w<][^\s:]*(?:\.py|>)):(?P<line>\d{1,15})(?:,? in (?P<func>[^(]+)|$)"),
    re.compile(r"^\s*Cell In\s*\[\d{1,15}\], line (?P<line>\d{1,15})(?:, in (?P<func>[^(]+))?"),
    re.compile(r"^\s*Input In\s*\[\d{1,15}\], in (?P<func>[^(]+)"),
    re.compile(
        r"^\s*\[?(?P<path><(?:ipython-input|command)-[^>]+>|[~/][^\s\]]+\.py)(?:\]\([^)]*\))? in (?P<func>[^(]+)"
    ),
)
_RICH = re.compile(r"^\s*(?P<path>(?:[A-Za-z]:)?[\w./\\~<>-]+\.py):(?P<line>\d{1,15}) in\b\s*(?P<func>\S+)?\s*$")
_PYTEST = re.compile(
    r"^(?P<path>(?:[A-Za-z]:)?[\w./\\~<>-]{1,300}\.py):(?P<line>\d{1,9}): ?(?:in (?P<func>[\w.<>]{1,120})|(?P<name>[\w.]{1,120}))?\s*$"
)
_PYTEST_MARKS = ("_ _ _ _", "= FAILURES =")
_GROUP = re.compile(r"^\s{0,24}\| ?")
_MARKED = re.compile(r"^\s*(?:-{1,8}>|❱)\s*(\d{1,15})\s*(?:│\s*)*(.*)$")
_EXCEPTION = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|OutOfResources|Failed|Fault))(?::\s?(?P<text>.*))?$"
)
_SKIP = re.compile(r"^\s*(?:[\^~]+(?: <--- HERE)?\s*$|\[Previous line repeated|[│╭╰└])")
_NUMBERED = re.compile(r"^\s*\d{1,15}\s*(?:│|[^\d].*)?$")
_REVERSED = re.compile(r"^Exception has occurred: (?:[\w.]*\.)?(\w+)")
_PART = re.compile(r"^\s*(?:[/~]|[A-Za-z]:)[^\s:]{30,300}\s*$")
"""The first part of a path that a box was too narrow for."""
_PATIENCE = 14
"""Lines without a frame after which a block is taken to have ended (code listings of boxes are shorter)."""


def parse(window: Window) -> Iterator[Traceback]:
    """Traceback facts, rank by rank: lines that several ranks wrote in turn are taken apart first."""
    streams: dict[int | None, list[int]] = {}
    for index, line in enumerate(window.lines):
        streams.setdefault(line.rank, []).append(index)
    for indices in streams.values():
        yield from _of_stream(window, indices)
        if any(mark in window.lines[index].text for index in indices for mark in _PYTEST_MARKS):
            yield from _of_pytest(window, indices)


def _of_stream(window: Window, indices: list[int]) -> Iterator[Traceback]:
    block: list[Frame] = []
    start = end = quiet = indent = 0
    expecting = announced = above = ""
    for index in indices:
        line, end = window.lines[index], index
        text = _GROUP.sub("", line.text) if line.text.lstrip()[:2] == "| " else line.text
        frame, style = _frame(text)
        if frame and style == "rich" and frame.path[:1] not in "/~" and _PART.match(above):
            frame = replace(frame, path=above.strip() + frame.path)
        failed, above = above, text
        if frame:
            start = start if block else index
            block.append(replace(frame, log_line=line.number))
            quiet, expecting, indent = 0, style, len(text) - len(text.lstrip())
            continue
        if not block:
            if found := _REVERSED.match(text):
                announced = found[1]
            continue
        if "<--- HERE" in text and index > start:  # the line above is the one that failed
            block[-1] = _with_code(block[-1], failed.strip())
        elif expecting == "python" and text.startswith((" ", "\t")) and not _SKIP.match(text):
            code = f"{block[-1].code} {text.strip().removeprefix('line: ')}".strip()
            block[-1] = _with_code(block[-1], code)
            expecting = "python" if code.count("(") > code.count(")") else ""
        elif (marked := _MARKED.match(text)) and expecting in ("jupyter", "rich"):
            block[-1] = _with_code(block[-1], marked[2].strip(" │"), int(marked[1]))
            expecting = ""
        elif expecting == "rich" and not block[-1].function and re.fullmatch(r"\s*\w+\s*", text):
            block[-1] = replace(block[-1], function=text.strip())
        elif (not text.startswith(("  ", "\t")) or len(text) - len(text.lstrip()) == indent - 2) and (
            found := _EXCEPTION.match(text.strip())
        ):
            yield _fact(window, start, index, block, found["name"], found["text"] or "")
            block, quiet = [], 0
        elif not (_SKIP.match(text) or _NUMBERED.match(text)):
            quiet += 1
            if quiet > _PATIENCE or text.startswith("Traceback"):
                yield _fact(window, start, index, _outermost_first(block, announced), announced)
                block, quiet, announced = [], 0, ""
    if block:
        yield _fact(window, start, end, _outermost_first(block, announced), announced)


def _of_pytest(window: Window, indices: list[int]) -> Iterator[Traceback]:
    """One traceback for each failed test: its frames up to the one that ends in the exception's name."""
    block: list[Frame] = []
    start = 0
    code = function = message = ""
    waiting = False
    for index in indices:
        text = window.lines[index].text
        if text.startswith("_____") or "= FAILURES =" in text:
            block, code, function, message = [], "", "", ""
        elif waiting and text.startswith("    "):
            block[-1], waiting = _with_code(block[-1], text.strip()), False
        elif text.startswith(">"):
            code = text[1:].strip()
        elif text.startswith("    ") and (found := _EXCEPTION.match(text.strip())):
            message = found["text"] or ""
        elif text.startswith("    def "):
            function = text[8:].partition("(")[0].strip()
        elif found := _PYTEST.match(text):
            start = start if block else index
            frame = Frame(
                found["path"],
                int(found["line"]),
                found["func"] or function,
                "" if found["func"] else code[:400],
                window.lines[index].number,
            )
            block.append(frame)
            waiting, code, function = bool(found["func"]), "", ""
            if found["name"]:
                yield _fact(window, start, index, block, found["name"], message)
                block = []


def _outermost_first(block: list[Frame], announced: str) -> list[Frame]:
    """Frames in Python's order; a debugger that announces the exception first lists the innermost frame first."""
    return block[::-1] if announced else block


def _frame(text: str) -> tuple[Frame | None, str]:
    if 'File "' in text and (found := _PYTHON.match(text)):
        return Frame(found["path"], int(found["line"]), (found["func"] or "").strip()), "python"
    if " in" in text or "Cell In" in text or "File <" in text:
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
