"""What a traced step did: its allocations and their deaths in order, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

SAVED = ("activations", "attention_scores", "logits")
"""Categories of what a forward pass leaves for its backward; of an earlier micro-step they are a retained graph."""
BASE = "base"
"""Phase of what is alive before the recorded step: parameters, buffers, optimizer state."""


@dataclass(slots=True)
class Allocation:
    """One storage.

    Attributes:
        op: the operator that made it. shape, dtype: of the first tensor seen on it.
        module: path of the module that ran, of the backward too; empty outside any.
        phase, micro_step: when it was made; micro-steps count from 1.
        category: one of ``memory.terms.CATEGORIES``.
    """

    bytes: int
    op: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    phase: str
    micro_step: int
    category: str = "temporaries"


class Mark(NamedTuple):
    """A phase begins at event ``event``."""

    event: int
    phase: str
    micro_step: int


class Move(NamedTuple):
    """Bytes of allocation ``place`` enter (+1) or leave (-1) ``category``; ``turned``: for another category."""

    place: int
    sign: int
    category: str
    turned: bool = False


class Decision(NamedTuple):
    """A question that the model's code asked of a tensor's values, and the answer assumed."""

    op: str
    module: str
    answer: float


class Kernel(NamedTuple):
    """An attention call: the kernel taken, why, and by which module."""

    kernel: str
    why: str
    module: str


@dataclass(slots=True)
class Recording:
    """One optimizer step. ``events``: i + 1 where allocation i begins, -(i + 1) where it dies, in order.

    ``marks`` begin with the base, which holds what is alive before the step.
    """

    allocations: list[Allocation] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def spans(self) -> Iterator[tuple[Mark, int]]:
        """Each mark and the event at which its phase ends."""
        ends = [mark.event for mark in self.marks[1:]] + [len(self.events)]
        yield from zip(self.marks, ends, strict=True)

    def peak_bytes(self) -> int:
        """Most bytes alive at once."""
        live = most = 0
        for event in self.events:
            live += self.allocations[event - 1].bytes if event > 0 else -self.allocations[-event - 1].bytes
            most = max(most, live)
        return most


def segments(recording: Recording) -> Iterator[tuple[Mark, list[Move]]]:
    """The step's phases, each with its moves between categories.

    Deaths with no birth between them stand in the order of birth: some containers let go in an order of their own.
    What an earlier micro-step saved counts as ``retained_graphs`` while another micro-step runs. A backward over
    several graphs at once is cut where it turns from one graph to the next.
    """
    allocations = recording.allocations
    live: dict[int, str] = {}

    def turn(current: int) -> list[Move]:
        """Saved bytes of micro-step ``current`` are activations, those of all others a retained graph."""
        moves = []
        for index, category in list(live.items()):
            own = allocations[index]
            if own.category not in SAVED or own.phase == BASE:
                continue
            wanted = own.category if own.micro_step == current else "retained_graphs"
            if wanted != category:
                moves += [Move(index, -1, category, True), Move(index, 1, wanted, True)]
                live[index] = wanted
        return moves

    for mark, end in recording.spans():
        graph = mark.micro_step
        moves = turn(graph) if mark.phase in ("forward", "backward") else []
        begun = mark
        for event in recording.events[mark.event : end]:
            index = abs(event) - 1
            own = allocations[index]
            if event > 0:
                live[index] = own.category
                moves.append(Move(index, 1, own.category))
                continue
            earlier = own.phase in ("forward", "loss") and own.category in SAVED and own.micro_step < graph
            if mark.phase == "backward" and earlier and live[index] == "retained_graphs":
                yield begun, list(_ordered(moves))
                graph = own.micro_step
                begun, moves = Mark(mark.event, "backward", graph), turn(graph)
            moves.append(Move(index, -1, live.pop(index)))
        yield begun, list(_ordered(moves))


def _ordered(moves: list[Move]) -> Iterator[Move]:
    deaths: list[Move] = []
    for move in moves:
        if move.sign < 0 and not move.turned:
            deaths.append(move)
        else:
            yield from sorted(deaths)
            deaths.clear()
            yield move
    yield from sorted(deaths)


def any_layer(module: str) -> str:
    """A module's path with a * for each number: the same for all layers of a stack."""
    return ".".join("*" if part.isdigit() else part for part in module.split("."))
