"""Puts what was found in words: its kind, its line, where the bytes were made, and the peak."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from .book import Backward
from .judge import Found
from .kinds import KINDS, SPIKES
from .reach import Node
from .result import Holding, Line, Made, Peak
from .source import Site, carried_over, statement, stores, text_of

if TYPE_CHECKING:
    from collections import Counter

    from .book import Book


class Survey(Protocol):
    """What was run: three windows of a job, or a block under a guard. Window 2 is the one that is measured."""

    book: Book
    own: set[int]
    turns: Counter[int]
    first_steps: dict[int, int]

    def line_of(self, node: Node) -> Site | None: ...


def line_at(site: Site | None) -> Line | None:
    """A place in the source, with what stands there."""
    if site is None:
        return None
    node = statement(site.path, site.line)
    line = site.line if node is None or hasattr(node, "body") else node.lineno
    return Line(site.path, line, site.function, text_of(site.path, site.line))


def describe(survey: Survey, found: Found, step_bytes: int, until: str) -> Holding:
    """A holder as a record."""
    kind = _kind(survey, found)
    said = KINDS[kind]
    hidden = max(found.hidden.items(), key=lambda one: len(one[1]), default=(None, set()))[0]
    through = _attribute(hidden) if hidden is not None and kind in ("hidden", "cycle", "swept") else None
    node = found.node
    if node is None:
        holder = f"{hidden[0].partition(':')[2]}: ctx.{hidden[1]}" if hidden else "no variable"
        where, line = "", through
        through = None
    else:
        holder, where, line = node.name().removesuffix("[*]"), _where(node), _line(survey, found)
    retain: set[Site] = set()
    if kind in ("retained", "carried", "gradients"):
        retain = {one.site for one in survey.book.backwards if one.retains and one.site is not None}
    if kind == "gradients" and retain:
        line = line_at(min(retain))
    advice = said.advice
    if found.most:
        advice = f"{advice} (its maxlen, {found.most}, bounds it)"
    return Holding(
        kind=kind,
        cause=said.cause,
        title=said.title,
        holder=holder,
        where=where,
        line=line,
        bytes_per_micro_step=step_bytes,
        until=until,
        made=tuple(made_of(survey, found.held)[:3]),
        through=through,
        also=tuple(found.also),
        retain=tuple(one for site in sorted(retain) if (one := line_at(site)) is not None),
        advice=advice,
    )


def _where(node: Node) -> str:
    """The function whose variable it is, or that of the variable that leads to it."""
    for one in reversed(list(node.line())):
        if one.edge in ("local", "closure", "default") and one.where is not None:
            return one.where.function
        if one.edge == "global" and one.where is not None:
            return Path(one.where.path).name
    return ""


def _kind(survey: Survey, found: Found) -> str:
    if found.slot in ("grows", "swept"):
        return found.slot
    if found.node is not None and (found.node.of, found.node.key) == ("Parameter", "grad"):
        return "gradients"
    sizes = survey.book.recording.allocations

    def weight(indices: Iterable[int]) -> int:
        return sum(sizes[index].bytes for index in indices)

    total = weight(found.held)
    if found.slot == "cycle" and not found.hidden:
        return "cycle"
    if 2 * weight({i for held in found.hidden.values() for i in held} & found.held) >= total:
        return "cycle" if found.slot == "cycle" else "hidden"
    if found.slot == "cycle":
        return "cycle"
    if 2 * weight(found.graphed) < total:
        return "outputs"
    if found.slot == "carries" and not _adds(survey, found):
        return "carried"
    ran = [one for one in survey.book.backwards if one.window == 2]
    if not ran:
        return "evaluation" if not survey.book.backwards else "graph"
    if len(ran) < survey.turns[2]:
        return "deferred" if _spans(ran, survey.turns[2]) else "graph"
    return "retained" if any(one.retains for one in ran) else "graph"


def _spans(ran: list[Backward], turns: int) -> bool:
    """Whether some backward came after several micro-steps without one."""
    last = 0
    for one in ran:
        if one.pulled - last > 1:
            return True
        last = one.pulled
    return turns - last > 1


def _adds(survey: Survey, found: Found) -> bool:
    """Whether the line adds to what is there, as a running sum does."""
    line = _line(survey, found)
    if line is None:
        return False
    import ast

    node = statement(line.path, line.line)
    if isinstance(node, ast.AugAssign):
        return True
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)


def _line(survey: Survey, found: Found) -> Line | None:
    """The line that stores into a holder: as it was seen, else as the source has it."""
    node = found.node
    if node is None:
        return None
    if (seen := survey.line_of(node)) is not None:
        return line_at(seen)
    root, word = node.root(), node.bare()
    if root.edge == "local" and root.where and all(one.edge in ("local", "item") for one in node.line()):
        for statement_ in stores(root.where.path, word, root.where.function):
            if found.slot != "carries" or carried_over(root.where.path, root.where.function, word):
                return line_at(Site(root.where.path, statement_.lineno, root.where.function))
    for ran in sorted({site for site in survey.book.sites if site is not None and node.where is not None}):
        if there := stores(ran.path, word, ran.function):  # a function that ran, before another that has the name
            return line_at(Site(ran.path, there[0].lineno, ran.function))
    if node.where is not None and (there := stores(node.where.path, word)):
        return line_at(Site(node.where.path, there[0].lineno, node.where.function))
    files = {site.path for site in survey.book.sites if site is not None}
    for path in sorted(files):
        if there := stores(path, word):
            return line_at(Site(path, there[0].lineno, ""))
    return None


def _attribute(hidden: tuple[str, str]) -> Line | None:
    """Where a custom function stores an attribute on its context."""
    module, _, name = hidden[0].partition(":")
    loaded = sys.modules.get(module) or importlib.import_module(module)
    path = getattr(loaded, "__file__", None)
    if not path:
        return None
    there = stores(path, hidden[1], name) or stores(path, hidden[1])
    return line_at(Site(path, there[0].lineno, name)) if there else None


def made_of(survey: Survey, indices: Iterable[int]) -> list[Made]:
    """Allocations by the line, module and operator that made them, most bytes first."""
    groups: dict[tuple[Site | None, str, str], list[int]] = defaultdict(list)
    book = survey.book
    for index in indices:
        own = book.recording.allocations[index]
        groups[book.sites[index], own.module, own.op].append(index)
    found = []
    for (site, module, op), members in groups.items():
        largest = max((book.recording.allocations[i] for i in members), key=lambda one: one.bytes)
        size = sum(book.recording.allocations[i].bytes for i in members)
        found.append(Made(line_at(site), module, op, largest.shape, largest.dtype, size, len(members)))
    return sorted(found, key=lambda one: -one.bytes)


def peak_of(survey: Survey) -> Peak:
    """The peak, its largest makers, and whether it is a spike that is known."""
    book = survey.book
    live, phase, step = book.at_peak()
    others = [index for index in live if index not in survey.own]
    total = sum(book.recording.allocations[index].bytes for index in others)
    made = made_of(survey, others)
    begins = max((first for first in survey.first_steps.values() if first <= step), default=1)
    within = step - begins + 1
    spikes: dict[str, int] = defaultdict(int)
    scores = _scores(book)
    for index in others:
        own = book.recording.allocations[index]
        if index in scores:
            spikes["scores"] += own.bytes
        elif own.shape and own.shape[-1] == _vocabulary(book.model) and len(own.shape) >= 2:
            spikes["logits"] += own.bytes
        if not book.backwards and book.recorded[index]:  # most general, so last in SPIKES
            spikes["autograd"] += own.bytes
    large = [name for name in SPIKES if spikes[name] * 5 >= total * 2 > 0]
    if not large:
        return Peak(book.peak_bytes, phase, within, tuple(made[:3]))
    spike, size = SPIKES[large[0]], spikes[large[0]]
    says = f"{size * 100 // total} % of it: {spike.title}; {spike.advice}"
    return Peak(book.peak_bytes, phase, within, tuple(made[:3]), spike.cause, says)


def _scores(book: Book) -> set[int]:
    """Attention scores and what is computed from them, told by their making: a batched product of square result, and a
    softmax after it. An image or feature map can be as square, and is none.
    """
    from_product: set[int] = set()
    softmax = False
    for index, own in enumerate(book.recording.allocations):
        if len(own.shape) < 3 or not own.shape[-1] == own.shape[-2] >= 32:
            continue
        if own.op in ("bmm", "baddbmm") or any(parent in from_product for parent in book.parents(index)):
            from_product.add(index)
            softmax |= "softmax" in own.op
    return from_product if softmax else set()


def _vocabulary(model: torch.nn.Module) -> int:
    """Outputs of a model's head that has as many as an embedding has rows, when they are many; 0 for none."""
    outputs = {m.out_features for m in model.modules() if isinstance(m, torch.nn.Linear)}
    rows = {m.num_embeddings for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    return max((n for n in rows & outputs if n >= 512), default=0)
