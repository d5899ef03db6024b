"""Takes the same measure again with one thing changed: a setting, or the named line on a copy of the source in memory.

A verdict is what was measured: ``gone``, ``reduced`` or ``unchanged``. Where the change can't be made or the loop no
longer runs with it, there is none, and the reason is said. Gradients are compared too, because an edit that changes
what is learnt is more than a mend of memory.
"""

from __future__ import annotations

import ast
import copy
import linecache
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .forms import MEND
from .result import Comparison, Holding, Line, Loop, LoopError
from .source import tree
from .survey import inspect_loop


def compare(
    factory: str | Callable[..., Any],
    *,
    change: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    before: Loop | None = None,
    **how: Any,
) -> tuple[Comparison, ...]:
    """Measure with each setting of ``change`` by itself, all others as they are.

    Args:
        factory: as for ``inspect_loop``.
        change: settings to try, each by itself.
        settings: as for ``inspect_loop``.
        before: its answer, where it is there already.
        **how: as for ``inspect_loop``.

    Raises:
        LoopError: the loop can't be run as it is. One that can't be run with the change gives a Comparison without a
            verdict.
    """
    given = dict(settings or {})
    base = before or inspect_loop(factory, settings=given, **how)
    found = []
    for name, value in change.items():
        said = f"{name}={value}"
        try:
            after = inspect_loop(factory, settings=given | {name: value}, **how)
        except LoopError as error:
            found.append(_none(said, base, str(error)))
        else:
            found.append(_judged(said, base, after))
    return tuple(found)


def try_fix(
    factory: str,
    *,
    settings: Mapping[str, Any] | None = None,
    before: Loop | None = None,
    **how: Any,
) -> tuple[Comparison, ...]:
    """Try a plain edit of each named line, on a copy of the file in memory, one at a time.

    What is tried: ``.detach()`` on what is appended, summed or assigned, or on each tensor in it; a carried state
    detached where it is taken up; ``retain_graph=True`` dropped. A line for which none of them is plain gives a
    Comparison without a verdict.

    Raises:
        LoopError: the loop can't be run as it is, or the factory isn't ``path/to/file.py:function``.
    """
    where = factory.rpartition(":")[0] if isinstance(factory, str) else ""
    if not where.endswith(".py"):
        raise LoopError("an edit is tried on a copy of a file: hand the factory over as path/to/file.py:function")
    base = before or inspect_loop(factory, settings=settings, **how)
    path = str(Path(where).resolve())
    found: list[Comparison] = []
    for holding in base.holdings:
        tried = list(_edits(holding, path))
        if not tried:
            found.append(_none("an edit of the line", base, _why_none(holding, path), holding.line))
        for said, line, new, edited in tried:
            try:
                after = inspect_loop(factory, settings=settings, edited={path: edited}, **how)
            except LoopError as error:
                why = str(error).removesuffix(MEND)
                if (within := _of_items(why, line, path)) is not None:
                    tried.append(within)  # what is kept holds tensors and is none: each of them, then
                    continue
                found.append(_none(said, base, f"with it the loop fails: {why}", line, new))
            else:
                found.append(_judged(said, base, after, line, new))
                if found[-1].verdict == "gone":
                    break
    return tuple(found)


def _none(said: str, base: Loop, why: str, line: Line | None = None, new: str = "") -> Comparison:
    measure = "kept" if base.holdings else "peak"
    bytes_before = base.kept_bytes if base.holdings else base.peak.bytes
    return Comparison(
        said, None, measure, bytes_before, None, base.peak.bytes, None, line=line, new=new, problem=why
    )  # fmt: skip


def _judged(said: str, base: Loop, after: Loop, line: Line | None = None, new: str = "") -> Comparison:
    kept = bool(base.holdings)
    if broken := _broken(base, after):
        return _none(said, base, broken, line, new)
    was, now = (base.kept_bytes, after.kept_bytes) if kept else (base.peak.bytes, after.peak.bytes)
    verdict = "unchanged"
    if now < was * 0.95:
        verdict = "gone" if kept and not after.holdings else "reduced"
    gradients = "unknown"
    if base.gradients is not None and after.gradients is not None:
        gradients = "same" if math.isclose(base.gradients, after.gradients, rel_tol=1e-3) else "changed"
    return Comparison(
        said, verdict, "kept" if kept else "peak", was, now, base.peak.bytes, after.peak.bytes, gradients, line, new
    )  # fmt: skip


def _broken(base: Loop, after: Loop) -> str:
    """Why a loop that ran trains no longer, so that what it keeps tells nothing; empty where none is seen."""
    if after.micro_steps < base.micro_steps:
        return f"with it the loop takes {after.micro_steps} micro-steps where it took {base.micro_steps}"
    if not base.gradients or not math.isfinite(base.gradients):
        return ""
    if not after.gradients:
        return "with it no gradient reaches the parameters any more: nothing would be learnt"
    return "" if math.isfinite(after.gradients) else "with it the gradients are no numbers any more"


# --- edits


def _edits(holding: Holding, path: str) -> Iterable[tuple[str, Line, str, ast.Module]]:
    """(what is done, the line, the line as it would be, the file's tree with it), most telling first."""
    for asked in holding.retain:
        if asked.path == path and (made := _changed(path, asked.line, _Dropped())) is not None:
            yield "dropping retain_graph=True", asked, *made
    line = holding.line
    if line is None or line.path != path:
        return
    if holding.kind == "carried":
        made = _taken_up_detached(path, line.line, holding.holder)
        if made is not None:
            yield "detaching the state where it is taken up", line, *made
            return
    if holding.kind == "deferred" and (made := _backward_each(path, line.line, holding.holder)) is not None:
        yield "running backward in each micro-step", line, *made
    if holding.kind in ("graph", "retained", "evaluation", "carried", "deferred", "hidden"):
        made = _changed(path, line.line, _Detached())
        if made is not None:
            yield "detaching what is kept", line, *made


def _of_items(why: str, line: Line, path: str) -> tuple[str, Line, str, ast.Module] | None:
    """The edit that detaches each tensor in what is kept, where a trial said that it is a container of some."""
    for kind in ("dict", "tuple", "list"):
        if f"'{kind}' object has no attribute 'detach'" in why:
            made = _changed(path, line.line, _Detached(kind))
            return None if made is None else (f"detaching the tensors in the {kind} that is kept", line, *made)
    return None


def _why_none(holding: Holding, path: str) -> str:
    if holding.line is None:
        return "no line was found to edit"
    if holding.line.path != path:
        return f"the line stands in {holding.line.path}, another file than the factory's; edit it by hand"
    return f"no plain edit mends this; {holding.advice}"


def _changed(path: str, line: int, change: _Edit) -> tuple[str, ast.Module] | None:
    parsed = tree(path)
    if parsed is None:
        return None
    edited = copy.deepcopy(parsed)
    found = [n for n in ast.walk(edited) if isinstance(n, ast.stmt) and n.lineno == line and not hasattr(n, "body")]
    if not found:
        return None
    old = ast.unparse(found[-1])
    change.visit(found[-1])
    ast.fix_missing_locations(edited)
    new = ast.unparse(found[-1])
    return None if new == old or not change.done else (new, edited)


class _Edit(ast.NodeTransformer):
    done = False


class _Dropped(_Edit):
    """Takes ``retain_graph=True`` out of a call."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        kept = [k for k in node.keywords if k.arg != "retain_graph"]
        self.done |= len(kept) < len(node.keywords)
        node.keywords = kept
        return node


class _Detached(_Edit):
    """Puts ``.detach()`` on what a statement appends, adds or assigns; ``kind``: on each tensor in that container."""

    def __init__(self, kind: str = "") -> None:
        self._kind = kind

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "appendleft", "add", "put", "insert"):
            node.args = [*node.args[:-1], self._detached(node.args[-1])] if node.args else node.args
            return node
        if isinstance(node.func, ast.Attribute) and node.func.attr == "extend" and node.args:
            node.args = [self._detached(node.args[0])]
            return node
        return self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        node.value = self._detached(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if isinstance(node.value, ast.BinOp):
            target = ast.unparse(node.targets[0])
            if ast.unparse(node.value.left) == target:
                node.value.right = self._detached(node.value.right)
                return node
        node.value = self._detached(node.value)
        return node

    def _detached(self, value: ast.expr) -> ast.expr:
        if isinstance(value, ast.Tuple | ast.List | ast.Set):
            value.elts = [self._detached(one) for one in value.elts]
            return value
        if isinstance(value, ast.Dict):
            value.values = [self._detached(one) for one in value.values]
            return value
        if isinstance(value, ast.Starred | ast.Constant | ast.Lambda) or _is_number(value):
            return value
        self.done = True
        if self._kind:
            source, cut = ast.unparse(value), "v.detach() if hasattr(v, 'detach') else v"
            each = f"{self._kind}({cut} for v in {source})"
            if self._kind == "dict":
                each = f"{{k: {cut} for k, v in ({source}).items()}}"
            return ast.parse(each, mode="eval").body
        return ast.Call(ast.Attribute(value, "detach", ast.Load()), [], [])


def _is_number(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    named = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return named in ("item", "tolist", "float", "int", "len", "detach", "numpy", "cpu")


def _taken_up_detached(path: str, line: int, name: str) -> tuple[str, ast.Module] | None:
    """The statement, followed by one that cuts the state off from the graph that made it."""
    parsed = tree(path)
    if parsed is None or not all(part.isidentifier() for part in name.split(".")):
        return None
    edited = copy.deepcopy(parsed)
    for node in ast.walk(edited):
        bodies: list[Any] = [getattr(node, part, None) for part in ("body", "orelse", "finalbody")]
        for body in bodies:
            for statement in list(body) if isinstance(body, list) else []:
                if isinstance(statement, ast.Assign) and statement.lineno == line and not _into_item(statement):
                    target = _target(statement, name.rpartition(".")[2])
                    if target is None or node.__class__.__name__ == "Module":
                        return None
                    each = f"tuple(s.detach() for s in {target}) if isinstance({target}, tuple)"
                    before = f"if {target} is not None: {target} = {each} else {target}.detach()"
                    first = body.index(statement)
                    body[first:first] = _placed(before, line)
                    ast.fix_missing_locations(edited)
                    return f"{before}\n{' '.join(linecache.getline(path, line).split())}", edited
    return None


def _into_item(statement: ast.Assign) -> bool:
    """Whether it stores into one place of a container, which has nothing to detach itself."""
    return any(isinstance(target, ast.Subscript) for target in statement.targets)


def _backward_each(path: str, line: int, name: str) -> tuple[str, ast.Module] | None:
    """``total += loss`` with ``total.backward()`` at the end, as ``loss.backward()`` each time and a sum of numbers."""
    parsed = tree(path)
    if parsed is None or not name.isidentifier():
        return None
    edited = copy.deepcopy(parsed)
    new = ""
    for function in [n for n in ast.walk(edited) if isinstance(n, ast.FunctionDef)]:
        lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        if line not in lines:
            continue
        last = [n for n in ast.walk(function) if isinstance(n, ast.Expr) and ast.unparse(n) == f"{name}.backward()"]
        for body in [b for n in ast.walk(function) if isinstance(b := getattr(n, "body", None), list)]:
            for at, statement in enumerate(body):
                if statement.lineno != line or len(last) != 1 or (added := _added(statement, name)) is None:
                    continue
                new = f"_loss = {ast.unparse(added)}\n_loss.backward()\n{name} = {name} + _loss.detach()"
                body[at : at + 1] = _placed(new, line)
                last[0].value = ast.Constant(None)
                ast.fix_missing_locations(edited)
                return new, edited
    return None


def _added(statement: ast.stmt, name: str) -> ast.expr | None:
    """What a statement adds to a sum."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return statement.value if ast.unparse(statement.target) == name else None
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        same = ast.unparse(statement.value.left) == name == ast.unparse(statement.targets[0])
        return statement.value.right if same and isinstance(statement.value.op, ast.Add) else None
    return None


def _placed(source: str, line: int) -> list[ast.stmt]:
    body = ast.parse(source).body
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.stmt | ast.expr):
                node.lineno = node.end_lineno = line
    return body


def _target(statement: ast.Assign, word: str) -> str | None:
    for target in statement.targets:
        for one in ast.walk(target):
            if isinstance(one, ast.Name) and one.id == word:
                return word
            if isinstance(one, ast.Attribute) and one.attr == word:
                return ast.unparse(one)
    return None
