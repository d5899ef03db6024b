"""From what survived and who reaches it to the holders: pure bookkeeping over a search, no guess about names."""

from __future__ import annotations

import gc
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import torch

from .book import Book
from .reach import Hit, Node, Search, attributes, tensors


@dataclass(eq=False)
class Found:
    """A holder. ``held``: the surviving allocations that it keeps; ``slot``: collects, carries, keeps or cycle."""

    slot: str
    node: Node | None
    held: set[int]
    hits: list[Hit] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    hidden: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    graphed: set[int] = field(default_factory=set)
    most: int | None = None

    @property
    def graph(self) -> set[int]:
        """What is held by way of autograd's graph, or has one of its own."""
        by_graph = {index for hit in self.hits for index in hit.graph}
        return self.held & (by_graph | {hit.direct for hit in self.hits if hit.at is not None})


def holders(search: Search, survivors: set[int], before: dict[str, int], least_bytes: int) -> list[Found]:
    """Who keeps the survivors, largest first; each survivor counts for one holder.

    Args:
        search: who was found to hold what.
        survivors: allocations of earlier micro-steps that live and should not.
        before: numbers of the autograd nodes that the variables had a micro-step ago, by path. A variable whose
            former node is part of its present graph is what carries that graph on.
        least_bytes: what no variable reaches is looked for further where it is as much.
    """
    book, sizes = search.book, search.book.recording.allocations
    under: dict[Node, set[int]] = defaultdict(set)
    children: dict[Node, list[Node]] = defaultdict(list)
    leaves: dict[Node, Hit] = {}
    for hit in search.hits:
        leaves[hit.node] = hit
        last = None
        for node in hit.node.line():
            if last is not None and node not in under:
                children[last].append(node)
            under[node] |= hit.held
            last = node

    def newest(node: Node) -> int:
        return max((book.step_of(index) for index in under[node]), default=0)

    candidates: list[Found] = []

    def visit(node: Node) -> None:
        if not under[node] & survivors:
            return
        collects = isinstance(node.value, list | deque | dict | set | tuple) or any(
            type(child.value) is type(node.value) for child in children[node]  # linked, one to the one before
        )
        if collects and len({newest(child) for child in children[node]}) > 1:
            inner = [hit for leaf, hit in leaves.items() if node in leaf.line()]
            candidates.append(Found("collects", node, under[node] & survivors, inner))
            return
        if (hit := leaves.get(node)) is not None:
            carried = before.get(node.path()) in hit.nodes
            candidates.append(Found("carries" if carried else "keeps", node, hit.held & survivors, [hit]))
        for child in children[node]:
            visit(child)

    for node in [node for node in under if node.parent is None]:
        visit(node)

    def weight(held: set[int]) -> int:
        return sum(sizes[index].bytes for index in held)

    order = {"collects": 0, "carries": 1, "keeps": 2}
    candidates.sort(key=lambda one: (order[one.slot] // 2, -weight(one.held), order[one.slot]))
    chosen: list[Found] = []
    rest = set(survivors)
    for one in candidates:
        new = one.held & rest
        if weight(new) * 20 > weight(one.held) and new:
            one.held, rest = new, rest - new
            for hit in one.hits:
                for name, indices in hit.hidden.items():
                    one.hidden.setdefault(name, set()).update(indices & new)
            chosen.append(one)
        elif one.slot != "keeps" and one.node is not None:
            owner = next((other for other in chosen if weight(one.held & other.held) * 2 > weight(other.held)), None)
            word = one.node.name()
            if owner is not None and owner.node is not None and word not in (*owner.also, owner.node.name()):
                owner.also.append(word)
    if weight(rest) >= least_bytes:
        chosen += _cycles(search, rest)
    return sorted(chosen, key=lambda one: -weight(one.held))


def _cycles(search: Search, rest: set[int]) -> list[Found]:
    """Holders that no variable reaches: contexts of custom functions, and tensors that only gradients' graphs keep."""
    found: list[Found] = []
    kinds = torch._C._FunctionBase | torch.Tensor
    objects: list[Any] = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    for one in objects:
        if isinstance(one, torch._C._FunctionBase) and attributes(one):
            hit = Hit(Node("cycle", type(one).__name__, None, None), 0, None)
            search._graph(one, hit)
            if held := hit.graph & rest:
                rest = rest - held
                hidden = {name: indices & held for name, indices in hit.hidden.items()}
                found.append(Found("cycle", None, held, [hit], [], hidden))
    if rest:
        kept = {index for one in objects if isinstance(one, torch.Tensor) and (index := search.book.index(one)) in rest}
        found.append(Found("cycle", None, set(rest), [Hit(Node("cycle", "", None, None), 0, None, set(kept))]))
    merged: dict[str, Found] = {}
    for each in found:
        key = str(sorted(each.hidden)) if each.hidden else ""
        if key in merged:
            merged[key].held |= each.held
            merged[key].hits += each.hits
            for name, indices in each.hidden.items():
                merged[key].hidden.setdefault(name, set()).update(indices)
        else:
            merged[key] = each
    return list(merged.values())


def contexts(book: Book) -> dict[int, tuple[str, str]]:
    """(class, attribute) of the custom functions' contexts that hold allocations as attributes."""
    found = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch._C._FunctionBase):
            owner = getattr(type(one), "_forward_cls", type(one))
            for name, value in attributes(one):
                for tensor in tensors(value):
                    if (index := book.index(tensor)) is not None:
                        found[index] = (f"{owner.__module__}:{owner.__qualname__}", name)
    return found


def growing(sizes: list[dict[str, int]], least_bytes: int) -> list[str]:
    """Paths of variables whose one tensor is larger at each boundary than at the last, by ``least_bytes`` or more."""
    if len(sizes) < 3:
        return []
    last = sizes[-3:]
    return [
        path for path in last[0]
        if path in last[1] and path in last[2]
        and last[1][path] - last[0][path] >= least_bytes and last[2][path] - last[1][path] >= least_bytes
    ]  # fmt: skip

