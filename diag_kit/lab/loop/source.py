"""Whose code a frame is, and what a line of it says: found in frames and sources, without running anything."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

_SURVEY = str(Path(__file__).with_name("survey.py"))
_OURS = str(Path(__file__).resolve().parents[2])
_LIBRARY = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})
_STORES = {"append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put", "put_nowait"}


class Site(NamedTuple):
    """A line of a function."""

    path: str
    line: int
    function: str


@functools.lru_cache(maxsize=4096)
def is_users(path: str) -> bool:
    """Whether a file is the user's: a file at all, and neither ours, the interpreter's nor an installed package's."""
    if path.startswith("<") and not path.startswith(("<ipython", "<cell")):
        return False
    if "site-packages" in path or "dist-packages" in path:
        return False
    return not os.path.realpath(path).startswith((_OURS + os.sep, *(one + os.sep for one in _LIBRARY)))


@functools.lru_cache(maxsize=4096)
def _is_plumbing(path: str) -> bool:
    """Code that runs between a user's line and a kernel: torch, Python, this package."""
    if path.startswith(("<", _OURS)) or f"{os.sep}torch{os.sep}" in path:
        return True
    return "site-packages" not in path and not is_users(path)


def site(frame: FrameType | None = None) -> Site | None:
    """The innermost line of the user's code that is running; else the innermost of a library other than torch."""
    frame = frame or sys._getframe(1)
    library = None
    while frame is not None and frame.f_code.co_filename != _SURVEY:
        code = frame.f_code
        if is_users(code.co_filename):
            return Site(code.co_filename, frame.f_lineno, code.co_qualname)
        if library is None and not _is_plumbing(code.co_filename):
            library = Site(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return library


def text_of(path: str, line: int) -> str:
    """The statement's source that begins at or spans a line, on one line; empty where there is none."""
    node = statement(path, line)
    beside = [one for one in ast.walk(tree(path) or ast.Module([], [])) if _begins(one, line)]
    if node is not None and not hasattr(node, "body") and len(beside) < 2:
        source = ast.get_source_segment("".join(linecache.getlines(path)), node) or ""
        return " ".join(source.split())[:160]
    return " ".join(linecache.getline(path, line).split())[:160]


@functools.lru_cache(maxsize=64)
def tree(path: str) -> ast.Module | None:
    """A file's syntax tree; None where it can't be read."""
    lines = linecache.getlines(path)
    if not lines and os.path.isfile(path) and os.path.getsize(path):  # noqa: PTH113, PTH202 (not text in its encoding)
        return None
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def reread(path: str) -> None:
    """What a file says is asked anew where it has changed since."""
    known = linecache.cache.get(path)
    linecache.checkcache(path)
    if linecache.cache.get(path) is not known or known is None:
        tree.cache_clear()


def calls_backward(run: Callable[..., Any]) -> bool:
    """Whether the file that a function stands in calls something's ``backward``."""
    inner = inspect.unwrap(getattr(run, "func", run))
    code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
    root = tree(code.co_filename) if code is not None else None
    return root is not None and any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
        for node in ast.walk(root)
    )


def statement(path: str, line: int) -> ast.stmt | None:
    """The innermost statement on a line."""
    found: ast.stmt | None = None
    for node in ast.walk(tree(path) or ast.Module([], [])):
        inside = isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
        if inside and (found is None or _innermost(node) >= _innermost(found)):
            found = node  # type: ignore[assignment]
    return found


def _begins(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.stmt) and node.lineno == line and not hasattr(node, "body")


def _innermost(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), -(getattr(node, "end_lineno", 0) or 0)


def stores(path: str, name: str, function: str = "") -> list[ast.stmt]:
    """Statements that put something into a variable or attribute ``name``, those that add to it before those that
    replace it; ``function``: qualified name of the only function that is looked at.
    """
    root = tree(path)
    if root is None:
        return []
    found: list[tuple[int, ast.stmt]] = []
    for node in _statements(root, function):
        rank = _stores(node, name)
        if rank is not None:
            found.append((rank, node))
    return [node for _, node in sorted(found, key=lambda one: (one[0], one[1].lineno))]


def _statements(root: ast.Module, function: str) -> Iterator[ast.stmt]:
    wanted = [part for part in function.split(".") if part != "<locals>"]
    scope: ast.AST = root
    for part in wanted:
        for node in ast.walk(scope):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == part:
                scope = node
                break
    for node in ast.walk(scope):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node


def _stores(node: ast.stmt, name: str) -> int | None:
    """How a statement stores into ``name``: 0 it adds to what is there, 1 it replaces it from itself, 2 anew."""
    for call in ast.walk(node):
        called = call.func if isinstance(call, ast.Call) else None
        given = call.args if isinstance(call, ast.Call) else []
        if isinstance(called, ast.Attribute) and called.attr in _STORES and _names(called.value, name):
            return 0
        if isinstance(called, ast.Name) and called.id == "setattr" and len(given) == 3 and _is_text(given[1], name):
            return 1
        if isinstance(call, ast.NamedExpr) and call.target.id == name:
            return 1
    if isinstance(node, ast.AugAssign) and _names(node.target, name):
        return 0
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for one in ast.walk(target):
                if isinstance(one, ast.Subscript) and _names(one.value, name):
                    return 0
                if isinstance(one, ast.Name | ast.Attribute) and _is(one, name) and isinstance(one.ctx, ast.Store):
                    if isinstance(node.value, ast.Constant | ast.List | ast.Dict):
                        return 3
                    return 1 if any(_is(used, name) for used in ast.walk(node.value)) else 2
    return None


def _names(node: ast.AST, name: str) -> bool:
    """Whether an expression is ``name``, or something within it: ``name[k]``, ``x.name``, ``name.setdefault(...)``."""
    while True:
        if _is(node, name):
            return True
        if isinstance(node, ast.Subscript | ast.Attribute):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return False


def _is(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _is_text(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == name


def carried_over(path: str, function: str, name: str) -> bool:
    """Whether a loop of the function reads ``name`` before it stores it: a turn uses what the last one left."""
    root = tree(path)
    if root is None:
        return False
    wanted = [part for part in function.split(".") if part != "<locals>"]
    scope: ast.AST = root
    for part in wanted:
        scope = next(
            (n for n in ast.walk(scope) if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part), scope
        )
    for loop in ast.walk(scope):
        if isinstance(loop, ast.For | ast.While):
            for node in loop.body:
                used = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name]
                if used:
                    if isinstance(node, ast.AugAssign) or any(isinstance(n.ctx, ast.Load) for n in used):
                        return True
                    break
    return False
