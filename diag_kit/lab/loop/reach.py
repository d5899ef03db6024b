"""Who holds a tensor: from live variables outward through the user's objects, and from tensors through their graphs.

Nothing is called: objects are read through their dictionaries, slots, cells and items; a saved tensor is looked at
without unpacking it, so that no checkpoint is recomputed and nothing that was offloaded comes back.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch

from .book import Book
from .source import Site, is_users

_DEEP, _MANY = 14, 200_000
"""How far and how wide the search goes: enough for a trainer's objects, not for a data set's samples."""
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(eq=False, slots=True)
class Node:
    """A place that holds something: a variable, an attribute, an item.

    ``edge``: how its parent holds it. ``where``: the code that it stands in. ``of``: the class of its parent.
    """

    edge: str
    key: Any
    value: Any
    parent: Node | None
    where: Site | None = None
    depth: int = 0
    of: str = ""

    def name(self) -> str:
        """As one writes it: ``history``, ``Trainer.log['loss']``, ``features[*]``."""
        if self.edge == "attribute" and self.parent is not None:
            return f"{self.of}.{self.key}"
        if self.edge == "item" and self.parent is not None:
            return f"{self.parent.name()}[{self.key!r}]" if isinstance(self.key, str) else f"{self.parent.name()}[*]"
        return str(self.key)

    def path(self) -> str:
        """The same place at another time has the same path."""
        return f"{self.parent.path() if self.parent else ''}/{self.edge}:{self.key!r:.80}"

    def bare(self) -> str:
        """The word to look for in the source: the variable or attribute, whatever item of it holds."""
        node = self
        while node.edge in ("item", "self") and node.parent is not None:
            node = node.parent
        return str(node.key)

    def root(self) -> Node:
        """The variable that the search began at."""
        return self if self.parent is None else self.parent.root()

    def line(self) -> Iterator[Node]:
        """From the root to here."""
        if self.parent is not None:
            yield from self.parent.line()
        yield self


@dataclass(eq=False)
class Hit:
    """A tensor that was found. Sets are indices of the book's allocations."""

    node: Node
    tensor_bytes: int
    direct: int | None
    graph: set[int] = field(default_factory=set)
    hidden: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """What attributes of custom functions hold: (file and class, attribute) -> allocations."""
    nodes: set[int] = field(default_factory=set)
    """Numbers of the autograd nodes that it keeps."""
    at: int | None = None
    """Number of its own autograd node."""

    @functools.cached_property
    def held(self) -> set[int]:
        """Everything that lives as long as this tensor does."""
        return self.graph | ({self.direct} if self.direct is not None else set())



def locals_of(frame: types.FrameType) -> dict[str, Any]:
    """A frame's variables, without the copy that Python < 3.13 would leave in the frame to keep them alive."""
    if frame.f_locals is frame.f_globals:
        return {}
    if sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    snapshot = frame.f_locals
    found = dict(snapshot)
    snapshot.clear()
    return found


def frames(innermost: types.FrameType | None, outermost: types.CodeType | None) -> list[types.FrameType]:
    """The user's frames between two, innermost first."""
    found = []
    while innermost is not None and innermost.f_code is not outermost:
        if is_users(innermost.f_code.co_filename):
            found.append(innermost)
        innermost = innermost.f_back
    return found


class Search:
    """One search at one moment; let go of it before the next, for it holds what it found.

    Args:
        book: whose allocations are looked for.
        live: the user's frames. roots: further objects by name, such as the step and the model.
    """

    def __init__(self, book: Book, live: Sequence[types.FrameType], roots: Mapping[str, Any]) -> None:
        self.book = book
        self.hits: list[Hit] = []
        self.places: list[Node] = []
        self._saved: dict[Any, tuple[set[int], dict[tuple[str, str], set[int]], list[Any]]] = {}
        self._queue: deque[Node] = deque()
        self._seen: set[int] = {id(book), id(book.model), id(self), id(self.hits)}
        self._names: dict[type, tuple[str, ...]] = {}
        for frame in live:
            code = frame.f_code
            where = Site(code.co_filename, code.co_firstlineno, code.co_qualname)
            for name, value in locals_of(frame).items():
                edge = "closure" if name in code.co_freevars else "local"
                self._push(Node(edge, name, value, None, where))
        for name, value in roots.items():
            self._push(Node("root", name, value, None))
        self._run()
        for module in _users_modules():
            where = Site(str(module.__file__), 1, "")
            for name, value in list(vars(module).items()):
                if not isinstance(value, types.ModuleType) and not name.startswith("__"):
                    self._push(Node("global", name, value, None, where))
        self._run()
        self._seen.discard(id(book.model))
        self._push(Node("root", "model", book.model, None))
        self._run()

    def close(self) -> None:
        """Let go of everything."""
        self.hits.clear()
        self.places.clear()
        self._saved.clear()
        self._queue.clear()

    # --- through objects

    def _push(self, node: Node) -> None:
        value = node.value
        if isinstance(value, _PLAIN) or id(value) in self._seen or len(self._seen) > _MANY or node.depth > _DEEP:
            return
        self._seen.add(id(value))
        self._queue.append(node)

    def _run(self) -> None:
        while self._queue:
            node = self._queue.popleft()
            self.places.append(node)
            if isinstance(node.value, torch.Tensor):
                self._tensor(node)
            of = node.value.__name__ if isinstance(node.value, type) else type(node.value).__name__
            for edge, key, value in _inside(node.value):
                self._push(Node(edge, key, value, node, _where(node.value) or node.where, node.depth + 1, of))

    def _tensor(self, node: Node) -> None:
        tensor = node.value
        index = self.book.index(tensor)
        size = 0 if index is None else self.book.recording.allocations[index].bytes
        hit = Hit(node, size, index)
        if tensor.grad_fn is not None:
            hit.at = tensor.grad_fn._sequence_nr()
            self._graph(tensor.grad_fn, hit)
        if index is not None or hit.graph:
            self.hits.append(hit)

    # --- through autograd's graph

    def _graph(self, start: Any, hit: Hit) -> None:
        waiting, seen = [start], {start}
        while waiting:
            node = waiting.pop()
            hit.nodes.add(node._sequence_nr())
            saved, hidden, further = self._node(node)
            hit.graph |= saved
            for name, held in hidden.items():
                hit.hidden.setdefault(name, set()).update(held)
            for one in further:
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)

    def _node(self, node: Any) -> tuple[set[int], dict[tuple[str, str], set[int]], list[Any]]:
        if node in self._saved:
            return self._saved[node]
        saved: set[int] = set()
        hidden: dict[tuple[str, str], set[int]] = {}
        further = [one for one, _ in node.next_functions if one is not None]
        kind = type(node)
        if kind not in self._names:
            self._names[kind] = tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))
        for name in self._names[kind]:
            saved |= self._indices(tensors(_data(_raw(node, name))))
        for name, value in attributes(node):
            found = list(tensors(value))
            if indices := self._indices(found):
                owner = getattr(kind, "_forward_cls", kind)
                hidden[f"{owner.__module__}:{owner.__qualname__}", name] = indices
                saved |= indices
            further += [t.grad_fn for t in found if t.grad_fn is not None]
        self._saved[node] = saved, hidden, further
        return self._saved[node]

    def _indices(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        return {index for tensor in tensors if (index := self.book.index(tensor)) is not None}


def attributes(node: Any) -> list[tuple[str, Any]]:
    """What the user's code put on a custom function's context."""
    kept = getattr(node, "__dict__", None) if isinstance(node, torch._C._FunctionBase) else None
    return list(kept.items()) if kept else []


def _raw(node: Any, name: str) -> Any:
    try:
        return getattr(node, name, None)
    except RuntimeError:  # freed by backward
        return None


def _data(saved: Any) -> Any:
    """What a saved tensor stands on, whether packed by hooks or not; None once it was freed."""
    if isinstance(saved, tuple | list):
        return [_data(one) for one in saved]
    try:
        return getattr(saved, "data", None)
    except RuntimeError:  # freed
        return None


def tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, list | tuple | set | deque):
        for one in value:
            yield from tensors(one, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for one in value.values():
            yield from tensors(one, depth + 1)


def _users_modules() -> list[types.ModuleType]:
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(module, types.ModuleType) and isinstance(file, str) and is_users(file):
            found.append(module)
    return found


def _where(value: Any) -> Site | None:
    """Where the code of a function or class stands, for what it holds."""
    function = getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)
    if isinstance(code, types.CodeType):
        return Site(code.co_filename, code.co_firstlineno, code.co_qualname)
    return None


def _inside(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """(edge, key, value) of what an object holds."""
    if isinstance(value, dict | types.MappingProxyType):
        yield from (("item", key if isinstance(key, str | int) else 0, one) for key, one in list(value.items()))
        return
    if isinstance(value, list | tuple | deque | AbstractSet):
        names = getattr(value, "_fields", ())
        for at, one in enumerate(list(value)):
            if not isinstance(one, _PLAIN):
                yield ("attribute", names[at], one) if at < len(names) else ("item", at, one)
        return
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            if _filled(cell):
                yield "closure", name, cell.cell_contents
        for at, one in enumerate(value.__defaults__ or ()):
            names = value.__code__.co_varnames[: value.__code__.co_argcount]
            yield "default", names[len(names) - len(value.__defaults__ or ()) + at], one
        for name, one in (value.__kwdefaults__ or {}).items():
            yield "default", name, one
        yield from (("attribute", name, one) for name, one in vars(value).items())
        return
    if isinstance(value, types.MethodType):
        yield "self", "self", value.__self__
        yield "self", value.__name__, value.__func__
        return
    if isinstance(value, functools.partial):
        yield from (("item", at, one) for at, one in enumerate(value.args))
        yield from (("item", name, one) for name, one in value.keywords.items())
        yield "self", "func", value.func
        return
    if isinstance(value, types.GeneratorType | types.CoroutineType):
        frame = value.gi_frame if isinstance(value, types.GeneratorType) else value.cr_frame
        if frame is not None and is_users(frame.f_code.co_filename):
            yield from (("local", name, one) for name, one in locals_of(frame).items())
        return
    if isinstance(value, BaseException):
        trace = value.__traceback__
        while trace is not None:
            if is_users(trace.tb_frame.f_code.co_filename):
                yield from (("local", name, one) for name, one in locals_of(trace.tb_frame).items())
            trace = trace.tb_next
    if isinstance(value, torch.Tensor):
        if value.is_leaf and value.grad is not None and value.grad.grad_fn is not None:
            yield "attribute", "grad", value.grad
        yield from (("item", 0, hook) for hook in list((value._backward_hooks or {}).values()))
    if isinstance(value, type) and not is_users(str(getattr(sys.modules.get(value.__module__), "__file__", "<"))):
        return
    if isinstance(value, torch.optim.Optimizer | types.ModuleType | torch.utils.data.Dataset):
        return
    for owner in type(value).__mro__:
        names = owner.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            slot = owner.__dict__.get(name)
            if isinstance(slot, types.MemberDescriptorType) and not owner.__module__.startswith(("builtins", "torch")):
                try:
                    yield "attribute", name, slot.__get__(value, owner)
                except AttributeError:
                    continue
    kept = getattr(value, "__dict__", None)
    if isinstance(kept, dict | types.MappingProxyType):
        for name, one in list(kept.items()):
            if isinstance(value, torch.nn.Module) and name in ("_parameters", "_modules", "_buffers") and one:
                yield from (("attribute", inner, x) for inner, x in one.items())
            elif not (name.startswith("__") and name.endswith("__")):
                yield "attribute", name, one


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
