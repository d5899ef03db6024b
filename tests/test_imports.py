"""Imports go one way, each third-party library stays in its room, and no failure's name stands in a condition of the
code.

All of it is read from the sources with ``ast``; nothing is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

PACKAGE = Path(__file__).resolve().parents[1] / "diag_kit"

ROOMS: dict[str, tuple[int, str]] = {
    # prefix of the module -> (floor, room); the longest prefix that fits holds. A file imports from lower floors and
    # from its own room. The workbook stands above the report because it writes reports.
    "errors": (0, "ground"), "units": (0, "ground"), "findings": (0, "ground"), "beside": (0, "ground"), "redact": (0, "ground"),
    "evidence.facts": (0, "ground"), "evidence.text": (0, "ground"), "evidence.names": (0, "ground"),
    "evidence.torch_sizes": (0, "ground"), "evidence.decode": (0, "ground"),
    "evidence.scan": (1, "scan"), "evidence.parsers": (1, "parsers"), "failures": (1, "failures"),
    "evidence": (2, "evidence"), "memory": (2, "memory"),
    "diagnosis": (3, "diagnosis"), "wording": (3, "diagnosis"), "restart": (3, "diagnosis"),
    "missing": (3, "diagnosis"), "prefill": (3, "diagnosis"), "reproduced": (3, "diagnosis"),
    "comparison": (3, "diagnosis"), "differences": (3, "diagnosis"),
    "checklist": (4, "checklist"), "lab": (4, "lab"), "history": (4, "history"), "reproduction": (4, "reproduction"),
    # guard says with the lab's words which line keeps what; pytest_plugin is its hand in pytest
    "guard": (5, "guard"), "pytest_plugin": (5, "guard"), "report": (5, "report"), "workbook": (6, "workbook"),
    "cli": (7, "top"), "": (7, "top"), "__main__": (7, "top"),
}  # fmt: skip

LIBRARIES: dict[str, tuple[str, ...]] = {
    # library -> the only modules (by prefix) that may import it
    "yaml": ("evidence", "failures", "memory", "cli"),
    "jinja2": ("report", "workbook"), "markupsafe": ("report", "workbook"),
    "platformdirs": ("history", "memory.kept"),
    "plotly": ("report", "workbook"),
    "pygments": ("workbook",), "pandas": ("workbook",), "ipywidgets": ("workbook",), "anywidget": ("workbook",), "traitlets": ("workbook",),
    "IPython": ("workbook",),
    "torch": ("memory.trace", "lab", "guard"), "pytest": ("pytest_plugin",), "transformers": ("memory.trace",), "peft": ("memory.trace",),
    "numpy": ("memory.program", "memory.compiling", "memory.kept", "memory.traced", "memory.sharing"),
    "hyperscan": ("evidence.scan.engines",), "ahocorasick_rs": ("evidence.scan.engines",),
    "isal": ("evidence.streams",), "backports": ("evidence.streams",), "compression": ("evidence.streams",),
}  # fmt: skip
LAZY = {
    ("torch", "guard"),
    ("plotly", "report"), ("plotly", "workbook"), ("transformers", "memory.trace"), ("peft", "memory.trace"),
    ("hyperscan", "evidence.scan.engines"), ("ahocorasick_rs", "evidence.scan.engines"),
    ("isal", "evidence.streams"), ("backports", "evidence.streams"), ("compression", "evidence.streams"),
}  # fmt: skip
"""(library, module prefix): imported inside a function only, so that the module loads without it."""
HEAVY = (
    "memory.trace", "memory.program", "memory.compiling", "memory.exact", "memory.kept", "memory.traced", "memory.sharing",
    "lab.tape", "lab.toys", "lab.loop",
)  # fmt: skip
"""Rooms whose modules import torch or numpy when they are loaded: from outside they are imported inside functions only."""
LIGHT = ("memory.trace", "memory.trace.recording", "lab.loop", "lab.loop.result", "lab.loop.child")
"""Of these, the modules that import neither."""

FAMILIES = {"gpu-oom", "host-oom", "shared-memory", "not-memory", "ok", "undetermined"}
"""Words of the contract that name what stopped a run; code may tell them apart although two are names of causes too."""


@dataclass(frozen=True)
class Import:
    """One import of a module: what, on which line, and whether it waits for a call."""

    target: str
    line: int
    lazy: bool
    typing_only: bool


def imports(source: str, module: str, *, package: bool, known: frozenset[str]) -> Iterator[Import]:
    """Absolute targets of all imports in a source; ``known`` are the package's modules, as dotted names."""
    tree = ast.parse(source)
    within = module if package else module.rpartition(".")[0]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    conditions = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    for_types = [node for node in conditions if "TYPE_CHECKING" in ast.unparse(node.test)]
    lazy = {id(child) for node in functions for child in ast.walk(node)}
    typing_only = {id(child) for node in for_types for child in ast.walk(node)}
    for node in ast.walk(tree):
        how = {"lazy": id(node) in lazy, "typing_only": id(node) in typing_only}
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, node.lineno, **how)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = within.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            for name in node.names:
                below = f"{base}.{name.name}"
                yield Import(below if below in known else base, node.lineno, **how)


def place(module: str) -> tuple[int, str]:
    """(floor, room) of ``diag_kit.x.y``."""
    inside = module.removeprefix("diag_kit").removeprefix(".")
    parts = inside.split(".")
    for end in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:end])) in ROOMS:
            return ROOMS[prefix]
    raise KeyError(f"{module} stands on no floor; give it one in ROOMS")


def breaches(source: str, module: str, *, package: bool, known: frozenset[str]) -> list[str]:
    """What this source imports and may not, one line each."""
    floor, room = place(module)
    inside = module.removeprefix("diag_kit").removeprefix(".")
    found = []
    for one in imports(source, module, package=package, known=known):
        top = one.target.partition(".")[0]
        if top == "diag_kit":
            there, other = place(one.target)
            sideways = room == "parsers" and other == "parsers" and module != "diag_kit.evidence.parsers"
            loads = one.target.removeprefix("diag_kit.")
            heavy = any(_under(loads, room) for room in HEAVY) and loads not in LIGHT
            if heavy and not (one.lazy or one.typing_only or any(_under(inside, room) for room in HEAVY)):
                found.append(f"{module}:{one.line} imports {one.target} when it is loaded, not when it is called")
            if sideways or not (there < floor or other == room):
                found.append(f"{module}:{one.line} (floor {floor}) imports {one.target} (floor {there})")
        elif top not in sys.stdlib_module_names and not one.typing_only:
            rooms = LIBRARIES.get(top, ())
            if not any(_under(inside, prefix) for prefix in rooms):
                found.append(f"{module}:{one.line} imports {top}, which only {', '.join(rooms) or 'nobody'} may")
            elif not one.lazy and any(_under(inside, prefix) for library, prefix in LAZY if library == top):
                found.append(f"{module}:{one.line} imports {top} when it is loaded, not when it is called")
    return found


def _under(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def named_in_conditions(source: str, names: set[str]) -> list[tuple[int, str]]:
    """(line, name) for each of these strings in a comparison, a condition or a match case."""
    asked: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare | ast.MatchValue):
            asked.append(node)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            asked.append(node.test)
        elif isinstance(node, ast.comprehension):
            asked += node.ifs
    return sorted({
        (constant.lineno, constant.value) for node in asked for constant in ast.walk(node)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str) and constant.value in names
    })  # fmt: skip


@cache
def failure_names() -> set[str]:
    """Ids of all entries and causes, read from the entries' heads; words that are families too are left out."""
    texts = [path.read_text(encoding="utf-8") for path in (PACKAGE / "failures").glob("*.md")]
    heads = [yaml.safe_load(text.split("---\n")[1]) for text in texts]
    return ({head["id"] for head in heads} | {cause["id"] for head in heads for cause in head["causes"]}) - FAMILIES


def modules() -> dict[str, Path]:
    """Every module of the package: dotted name -> file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
KNOWN = frozenset(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    """A module imports from lower floors or its own room, parsers never each other, and libraries where they belong."""
    path = MODULES[module]
    assert not breaches(path.read_text(encoding="utf-8"), module, package=path.name == "__init__.py", known=KNOWN)


@pytest.mark.parametrize("module", [m for m in MODULES if not m.startswith("diag_kit.failures")])
def test_no_failure_is_named_in_a_condition(module: str) -> None:
    """What is known of failures is data in failures/; code that judges does not know their names."""
    assert not named_in_conditions(MODULES[module].read_text(encoding="utf-8"), failure_names())


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_small(module: str) -> None:
    """No module is longer than 400 lines."""
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 400


def test_package_is_small() -> None:
    """At most 160 modules that hold code and 30,000 lines of them; apart from the parsers, one file for each format, and
    the experiments, one file for each claim: each at most 250 and 180 lines.
    """
    apart = (".parsers.", ".experiments.")
    sources = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items() if not any(part in name for part in apart)}
    holding = [s for s in sources.values() if any(not isinstance(node, ast.Expr) for node in ast.parse(s).body)]
    assert len(holding) <= 160
    assert sum(source.count("\n") for source in sources.values()) <= 30_000
    formats = [path.read_text(encoding="utf-8") for name, path in MODULES.items() if ".parsers." in name]
    assert max(source.count("\n") for source in formats) <= 250
    claims = [path.read_text(encoding="utf-8") for name, path in MODULES.items() if ".experiments." in name]
    assert max(source.count("\n") for source in claims) <= 180


@pytest.mark.parametrize(
    ("module", "source", "told"),
    [
        ("diag_kit.units", "from .evidence.run import load_run", "floor 0"),
        ("diag_kit.evidence.parsers.one", "from .two import parse", "parsers.two"),
        ("diag_kit.evidence.parsers.one", "from . import two", "parsers.two"),
        ("diag_kit.evidence.run", "from ..memory import plan", "memory"),
        ("diag_kit.memory.formulas", "from ..evidence.run import Run", "evidence.run"),
        ("diag_kit.report.page", "def f():\n    from ..workbook import state", "workbook"),
        ("diag_kit.diagnosis", "import diag_kit", "imports diag_kit"),
        ("diag_kit.diagnosis", "import pandas as pd", "pandas"),
        ("diag_kit.memory.formulas", "def f():\n    import torch", "torch"),
        ("diag_kit.memory.engine", "from .trace.step import run", "when it is loaded"),
        ("diag_kit.cli", "from .memory.program import Program", "when it is loaded"),
        ("diag_kit.report.html", "from plotly.offline import get_plotlyjs", "when it is loaded"),
        ("diag_kit.report.html", "import ipywidgets", "ipywidgets"),
        ("diag_kit.evidence.scan", "import scipy", "nobody"),
    ],
)
def test_a_bad_import_is_caught(module: str, source: str, told: str) -> None:
    """Each kind of wrong arrow is found: up, across, between parsers, in a function, a library out of its room."""
    known = KNOWN | {"diag_kit.evidence.parsers.two", "diag_kit.memory.trace.step", "diag_kit.memory.program"}
    (breach,) = breaches(source, module, package=False, known=known)
    assert told in breach


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("diag_kit.evidence.parsers.one", "from ..facts import Event\nfrom ...units import MIB"),
        ("diag_kit.memory.trace.ledger", "import torch\nfrom .step import run"),
        ("diag_kit.memory.engine", "def f():\n    from .trace.step import run"),
        ("diag_kit.workbook.page", "import ipywidgets\nfrom ..report import write"),
        ("diag_kit.lab.graphs", "import torch"),
    ],
)
def test_a_good_import_passes(module: str, source: str) -> None:
    """Arrows that point down, and libraries in their rooms, are left alone."""
    assert not breaches(source, module, package=False, known=KNOWN | {"diag_kit.memory.trace.step"})


@pytest.mark.parametrize(
    "source",
    [
        "if finding.cause == 'graph-retention': pass",
        "found = [f for f in findings if f.cause in ('fragmentation', 'kv-cache')]",
        "x = 1 if cause != 'other-process' else 2",
        "match cause:\n    case 'logits-loss-peak':\n        pass",
        "if causes.get('attention-quadratic'): pass",
    ],
)
def test_a_failure_named_in_a_condition_is_caught(source: str) -> None:
    """Comparison, membership, conditional expression, match case and lookup in a condition are all seen."""
    names = {"graph-retention", "fragmentation", "other-process", "logits-loss-peak", "attention-quadratic"}
    assert named_in_conditions(source, names)
    assert not named_in_conditions("NAMES = {'graph-retention': 1}\nif family == 'gpu-oom': pass", {"graph-retention"})
