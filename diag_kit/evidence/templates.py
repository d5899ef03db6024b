"""Lines as templates, so that the logs of two runs can be held against each other.

Numbers, sizes, ids, paths, addresses and progress bars become placeholders; words stay, and so do names with a digit in
them (``bf16``). Only the head and the tail of each log are read, so that a log of gigabytes costs what one of a
megabyte does; of many logs, a share of a fixed budget each.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from .facts import Event, FileCoverage, Setting, Source
from .files import find
from .run import Run
from .streams import codec_of, open_text
from .text import Line, lines_of

HEAD, TAIL, BUDGET, LEAST = 128 << 10, 512 << 10, 4 << 20, 4 << 10
"""Bytes read of the head and the tail of a log; of all logs but the most telling one together; of each at least."""
_CUT = 600
_MOST_PACKED = 16 << 20
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,200}\| ?\S{1,30} ?\[[^\]]{0,80}\]")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://\S{1,400}")
_PATH = re.compile(r"(?<![\w/.~])[~.]{0,2}(?:/[\w.@+=,-]{1,120}){2,40}/?|\b[A-Za-z]:\\[^\s:\"']{1,200}")
_ID = re.compile(r"\b0x[0-9a-fA-F]{1,16}\b|(?<![\w-])(?=(?:[A-Za-z_-]{0,40}\d){5})[\w-]{10,100}")
_NUMBERED = re.compile(r"\b([Rr]ank|GPU|gpu|cuda|[Ww]orker|[Nn]ode|[Ss]tep|[Ee]poch|[Ll]ayer|[Jj]ob|[Tt]ask)[-_]?\d+")
_NUMBER = re.compile(r"(?<![A-Za-z_\d])[-+]?\d[\d.,:/-]{0,60}(?:e[-+]?\d{1,3})?%?(?: ?[KMGT]i?B\b)?")
_WORD = re.compile(r"[^\W\d_]{3}")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|(?:During handling|The above exception was)")
_PACKAGES = (
    "torch|pytorch|transformers|accelerate|deepspeed|peft|trl|bitsandbytes|flash[-_]attn|xformers|triton|lightning|"
    "pytorch[-_]lightning|megatron[-_]core|transformer[-_]engine|unsloth|liger[-_]kernel|datasets|numpy|python|cuda|cudnn|"
    "nccl|driver"
)
_VERSION = re.compile(
    rf"(?i)(?<![\w./-])({_PACKAGES})(?:[ _]version| v|\.__version__)?[\"']?(?: ?[:=]{{1,2}} ?| )[\"']?v?"
    r"(\d{1,4}\.\d{1,6}(?:\.\d{1,6}){0,2}"
    r"(?:[.+-][a-z]{1,6}[\w.]{0,20}|(?:a|b|rc|post|dev)\d{1,4})?)"
    r"(?![\w./]| ?(?:%|x\b|m?s\b|[KMG]i?B|sec|it\b))"
)
_GPU = re.compile(
    r"\b(?:NVIDIA|Tesla|GeForce|Quadro) (?:(?:RTX|GTX|TITAN|Tesla|GeForce|Quadro) ){0,2}"
    r"([A-Z]{0,2}\d{2,4}[A-Za-z]{0,2}(?:[- ](?:Ti|SUPER|SXM\d?|PCIe?|NVL|\d{2,3}GB)){0,4})\b"
)
_SAME = {"pytorch": "torch", "pytorch lightning": "lightning"}


def template(text: str) -> str:
    """A line's template; empty where it holds no word.

    >>> template("[2026-05-19 10:21:31] packed 24,003 sequences of 4.5 GiB from /data/a/b.bin in bf16, rank 3")
    '[# #] packed # sequences of # from <path> in bf16, rank #'
    >>> template(" 12%|█▏        | 12/100 [00:03<00:20,  4.1it/s]")
    ''
    """
    text = _BAR.sub("", text[:_CUT]) if "%|" in text else text[:_CUT]
    text = _URL.sub("<url>", text) if "://" in text else text
    text = _PATH.sub("<path>", text) if "/" in text or "\\" in text else text
    text = _NUMBER.sub("#", _NUMBERED.sub(r"\1 #", _ID.sub("#", text)))
    return " ".join(text.split()) if _WORD.search(text) else ""


class Logs:
    """The ends of a run's logs. ``given``, ``text``: what the run was read from; ``first``: the log to read most of.

    ``partly``: how many logs were not read whole.
    """

    def __init__(self, run: Run, given: Sequence[str | Path], text: str | None = None, first: str = "") -> None:
        self.paths, self.text, self.partly = places(given), text, 0
        files = sorted((file for file in run.files if file.kind == "log"), key=lambda file: file.path != first)
        share = max(LEAST, min(HEAD + TAIL, BUDGET // max(1, len(files))))
        self.ends = [
            (file.path, lines_of(data), numbered)
            for file in files
            for data, numbered in self._read(file, HEAD + TAIL if file.path == first else share)
        ]
        """(file, lines, whether their numbers are known) of each head and tail; a small log is one, and whole."""

    def _read(self, file: FileCoverage, most: int) -> list[tuple[bytes, bool]]:
        path, keep = self.paths.get(file.path), most // 5 * 4
        stream: Any = path.open("rb") if path else io.BytesIO((self.text or "").encode("utf-8", "replace"))
        with stream:
            packed = path and codec_of(stream.read(4096))
            stream.seek(0)
            if not packed:
                head = stream.read(most - keep)
                stream.seek(max(len(head), file.size_bytes - keep))
                jumped, tail = stream.tell() > len(head), stream.read(most)
        if path and packed:  # it can only be read through: a large one is read from the front
            jumped, tail = file.size_bytes > _MOST_PACKED, b""
            with open_text(path) as text:
                head = text.read(most - keep)
                while file.size_bytes <= _MOST_PACKED and (more := text.read(1 << 20)):
                    jumped, tail = jumped or len(tail) + len(more) > keep, (tail + more)[-keep:]
        if not jumped:
            return [(head + tail, True)]
        self.partly += 1
        return [(head[: head.rfind(b"\n") + 1], True), (tail[tail.find(b"\n") + 1 :], False)]


def places(given: Sequence[str | Path]) -> dict[str, Path]:
    """The files of a run by the names that its facts know them under."""
    return {file.shown: file.path for file in find(given)[0]}


def versions(logs: Logs) -> dict[str, tuple[str, Source]]:
    """What the logs' heads state once or always alike: ``torch version`` -> ("2.5.1", where), and ``GPU``."""
    stated: dict[str, dict[str, Source]] = {}
    for path, lines, numbered in logs.ends:
        for line in lines if numbered else ():
            where = Source(path, line.number, line.text[:400])
            for found in _VERSION.finditer(line.text, 0, _CUT):
                name = found[1].lower().replace("-", " ").replace("_", " ")
                stated.setdefault(f"{_SAME.get(name, name)} version", {}).setdefault(found[2], where)
            for found in _GPU.finditer(line.text, 0, _CUT):
                stated.setdefault("GPU", {}).setdefault(found[1], where)
    return {name: next(iter(said.items())) for name, said in stated.items() if len(said) == 1}


def known(logs: Logs) -> frozenset[str]:
    """Every template that the logs hold."""
    return frozenset(map(template, {line.text for _, lines, _ in logs.ends for line in lines}))


def only_in(
    run: Run, logs: Logs, event: Event | None, seen: Collection[str], most: int
) -> list[tuple[int, bool, Source]]:
    """Lines whose template was not seen elsewhere, the most telling first: (how many such, whether after the failure,
    the nearest).

    Near and rare lines come first, those after the failure last. Tracebacks and the failure's own messages are left
    out: they are the failure. ``event`` is what stopped the run; without one, the end of each log counts.
    """
    own = {template(e.source.text) for e in run.events if e.role not in ("recovered", "advisory", "context")}
    anchors: dict[str, dict[str, int]] = {}
    for fact in run.facts:
        if fact.source.line and len(fact.source.text) > 12 and not isinstance(fact, Setting):
            anchors.setdefault(fact.source.path, {})[fact.source.text] = fact.source.line
    found: dict[str, tuple[float, int, bool, Source]] = {}
    for path, lines, numbered in logs.ends:
        offset = 0 if numbered else _offset(lines, anchors.get(path, {}))
        here = [
            index for index, line in enumerate(lines)
            if event and path == event.source.path and offset is not None and line.number + offset == event.source.line
        ]  # fmt: skip
        at, far = (here[-1], 0) if here else (len(lines), 1000)
        for index, line in enumerate(_outside_tracebacks(lines)):
            key = template(line.text) if line else ""
            if not line or not key or key in seen or key in own:
                continue
            number = line.number + offset if offset is not None else None
            score = math.log2(1 + abs(index - at) + far) + (8 if index > at else 0)
            best, count, *_ = found.get(key, (math.inf, 0))
            if score <= best:
                found[key] = (score, count + 1, index > at, Source(path, number, line.text.strip()[:_CUT]))
            else:
                found[key] = (best, count + 1, *found[key][2:])
    ranked = sorted(found.values(), key=lambda one: one[0] + math.log2(one[1]))
    return [(count, after, source) for _, count, after, source in ranked[:most]]


def _offset(lines: Sequence[Line], anchors: dict[str, int]) -> int | None:
    """What makes a tail's line numbers those of its file, by a line whose number a fact knows; None without one."""
    once: dict[str, int | None] = {}
    for line in lines:
        once[line.text[:2000]] = None if line.text[:2000] in once else line.number
    return next((anchors[text] - number for text, number in once.items() if number and text in anchors), None)


def _outside_tracebacks(lines: Sequence[Line]) -> Iterator[Line | None]:
    """The lines, None in place of those of a traceback, of whichever rank."""
    inside: set[int | None] = set()
    for line in lines:
        if _TRACEBACK.search(line.text, 0, _CUT):
            inside.add(line.rank)
            yield None
        elif line.rank in inside:
            if line.text[:1].strip():  # the exception's own line ends it
                inside.discard(line.rank)
            yield None
        else:
            yield line
