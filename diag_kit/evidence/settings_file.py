"""Settings from a JSON or YAML file that the run left: arguments, DeepSpeed and accelerate configs, a model's
config.json; and the error files that torchelastic has its workers write.

An error file (``{"message": {"message": "RuntimeError: ...", "extraInfo": {"py_callstack": "Traceback ...",
"timestamp": "1696843291"}}}``, ``error.json`` in the folder of its rank) holds a traceback, which is read as a log's
is, with the time at which the worker failed. Source: torch/distributed/elastic/multiprocessing/errors/error_handler.py.

Nothing in such a file is trusted: YAML by the safe loader, a size limit, and a budget of nodes, so that neither deep
nesting nor aliases that multiply can hang the reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml

from .facts import Fact, Setting, Snapshot, Source
from .names import canonical, model_shape
from .parsers import all_parsers
from .text import Window, lines_of

MAX_BYTES = 4 << 20
_NODES = 20_000
_RANK_FOLDER = re.compile(r"(?:^|/)attempt_\d{1,9}/(\d{1,9})/[^/]{1,80}$")
"""torchelastic's folder of one worker, by its number on the node: its rank where there is one node."""
_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _LOADER(_BASE):  # type: ignore[misc, valid-type]
    """The safe loader without numbers to base 60 and of any length: their cost grows with the square of a line."""


_LOADER.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")]
    for first, known in _BASE.yaml_implicit_resolvers.items()
}
_LOADER.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(?:0|[1-9][0-9_]{0,30}|0x[0-9a-fA-F]{1,16}|0b[01]{1,64}|0[0-7]{1,22})$"),
    list("-+0123456789"),
)
_LOADER.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]{0,30}\.[0-9_]{0,40}|\.[0-9][0-9_]{0,40})(?:[eE][-+]?[0-9]{1,3})?$"),
    list("-+0123456789."),
)


def parse(path: str, text: str) -> tuple[list[Fact], list[str]]:
    """Facts of one settings file, and notes on what could not be read.

    Args:
        path: as the user named it; becomes the source of each fact.
        text: the whole file.
    """
    try:
        if path.lower().endswith(".json"):
            data = json.loads(text, parse_constant=lambda _: None)  # NaN and Infinity are no settings
        else:
            data = yaml.load(text, _LOADER)  # noqa: S506 (a safe loader, in C where it is there)
    except json.JSONDecodeError as error:
        return [], [f"not valid JSON (line {error.lineno}: {error.msg.lower()}); nothing was taken from it"]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        return [], [f"not valid YAML{f' (line {place.line + 1})' if place else ''}; nothing was taken from it"]
    if failure := _error(path, data, text):
        return failure, []
    if segments := _segments(data):
        return [_snapshot(path, label, rows) for label, rows in segments], []
    facts: list[Fact] = []
    if isinstance(data, dict) and (model := model_shape(data)):
        facts.append(Setting(source=_source(path, text, "hidden_size", "n_embd", "hidden"), name="model", value=model))
    budget = [_NODES]
    for key, value in _flat(data, "", budget):
        for name, known in canonical(key, value):
            leaf = key.rpartition(".")[2]
            facts.append(
                Setting(source=_source(path, text, leaf), name=name, value=known, raw=f"{key} = {value}"[:200])
            )
    notes = ["nested or repeated too deeply; only its first part was read"] if budget[0] <= 0 else []
    return facts, notes


def _flat(node: Any, prefix: str, budget: list[int]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and scalar values, until the budget of visited nodes is used up."""
    stack = [(prefix, node)]
    while stack and budget[0] > 0:
        budget[0] -= 1
        key, value = stack.pop()
        if isinstance(value, dict):
            stack.extend(
                (f"{key}.{name}" if key else str(name), inner) for name, inner in reversed(list(value.items())[:2000])
            )
        elif isinstance(value, list):
            stack.extend((key, inner) for inner in reversed(value[:200]) if isinstance(inner, dict))
        elif value is not None and key:
            yield key, value


def _error(path: str, data: Any, text: str) -> list[Fact]:
    """Facts of a worker's error file; none where the file is something else."""
    said = data.get("message") if isinstance(data, dict) else None
    extra = said.get("extraInfo") if isinstance(said, dict) else None
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    if not isinstance(said, dict) or not isinstance(extra, dict) or not isinstance(stack, str):
        return []
    number = text.count("\n", 0, max(0, text.find("py_callstack"))) + 1
    stamp = str(extra.get("timestamp", ""))
    time = float(stamp) if stamp.isdecimal() and len(stamp) <= 12 else None
    if not stack.strip():
        stack = str(said.get("message"))
    found = _RANK_FOLDER.search(path.replace("\\", "/"))
    lines = lines_of(stack.encode("utf-8", "replace"), rank=int(found[1]) if found else None)
    window = Window(path, [replace(line, number=number, time=time) for line in lines])
    return [fact for parser in all_parsers() for fact in parser.parse(window)]


def _source(path: str, text: str, *words: str) -> Source:
    """The line of a file on which one of the words stands as a key."""
    for word in words:
        at = next((found for quote in ('"', "'", "") if (found := text.find(f"{quote}{word}{quote}")) >= 0), -1)
        if at >= 0:
            start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            line = text[start : end if end >= 0 else None]
            return Source(path, text.count("\n", 0, at) + 1, line.strip()[:300])
    return Source(path)


def _segments(data: Any) -> list[tuple[str, list[dict[str, Any]]]]:
    """(label, segments) of an allocator snapshot that was saved as JSON."""
    groups = list(data.items())[:50] if isinstance(data, dict) else [("", data)]
    return [
        (str(label), rows)
        for label, rows in groups
        if isinstance(rows, list)
        and rows
        and all(isinstance(row, dict) and {"total_size", "allocated_size"} <= row.keys() for row in rows)
    ]


def _snapshot(path: str, label: str, segments: list[dict[str, Any]]) -> Snapshot:
    largest = split_free = reserved = allocated = 0
    for segment in segments:
        total, used = int(segment["total_size"]), int(segment["allocated_size"])
        blocks = segment.get("blocks") or segment.get("blocks_first") or []
        free = [int(b.get("size", 0)) for b in blocks if isinstance(b, dict) and b.get("state") == "inactive"]
        reserved, allocated = reserved + total, allocated + used
        largest = max([largest, *free])
        split_free += total - used if used else 0
    return Snapshot(
        source=Source(path),
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        label=label,
        segments=len(segments),
        largest_free_block_bytes=largest,
        free_in_split_segments_bytes=split_free,
    )
