"""The experiments, found by the files in ``experiments/``; none of them imports torch when it is loaded.

A file holds ``ABOUT`` (an `Experiment` whose id is the file's name with dashes), ``measure(bench)`` that runs torch and
gives a `Measured`, ``judge(measured)`` that gives the verdict from it alone, and ``carry(settings)``.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from .records import Experiment, LabError

FOLDER = Path(__file__).parent / "experiments"


@cache
def experiments() -> tuple[Experiment, ...]:
    """All experiments, by entry and id."""
    found = []
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        about: Experiment = module(path.stem.replace("_", "-")).ABOUT
        found.append(replace(about, code=code_in_view(path.read_text(encoding="utf-8"))))
    return tuple(sorted(found, key=lambda one: (one.entry, one.id)))


def experiment(id: str) -> Experiment:
    """One experiment.

    Raises:
        LabError: there is none of that id; the message lists those there are.
    """
    found = {one.id: one for one in experiments()}
    if id not in found:
        near = difflib.get_close_matches(str(id), found, 1)
        hint = f"; did you mean {near[0]}" if near else ""
        raise LabError(f"lab: no experiment {str(id)[:60]!r}{hint}; there are {', '.join(found)}")
    return found[id]


def chosen(ids: Sequence[str]) -> list[Experiment]:
    """The experiments of these ids, an entry's id for all of that entry; all there are for none.

    Raises:
        LabError: an id is neither.
    """
    found: dict[str, Experiment] = {}
    for id in ids:
        of_entry = [one for one in experiments() if one.entry == id]
        found |= {one.id: one for one in of_entry or [experiment(id)]}
    return list(found.values()) or list(experiments())


@cache
def module(id: str) -> ModuleType:
    """The file of an experiment, loaded."""
    return import_module(f"{__package__}.experiments.{id.replace('-', '_')}")


def code_in_view(source: str) -> str:
    """Of an experiment's file, ``measure`` and the functions that it calls, in the file's order."""
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    shown, left = set(), ["measure"]
    while left:
        if (name := left.pop()) in functions and name not in shown:
            shown.add(name)
            left += [node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)]
    segments = [ast.get_source_segment(source, node) or "" for name, node in functions.items() if name in shown]
    return "\n\n\n".join(segments)
