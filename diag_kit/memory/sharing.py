"""Strategies that share the work, by formula over the trace of one rank: DDP, ZeRO, Megatron's data parallel, offload.

The program of a rank as if it were alone gives activations, scores, logits and temporaries. What strategies change is
put in their place: parameters, gradients and optimizer state are scaled to what the closed forms of ``states`` say a
rank keeps, in the widths of ``precision``; buffers for communication are added in the phases that have them. FSDP is
traced itself (``trace.sharded``); the formula stands in for it under offload, and where torch can't shard a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .precision import SIXTEEN_BIT_ENGINES, widths
from .program import Point, Program
from .settings import Parallelism, Settings
from .states import BUCKET_ELEMENTS, LIVE_ELEMENTS, gradients_on_host, ranks, share
from .terms import CATALOG, CATEGORIES, Entry, Term

_PARAMETERS, _GRADIENTS, _STATE, _COMMUNICATION = (
    CATEGORIES.index(name) for name in ("parameters", "gradients", "optimizer_state", "communication")
)
STEP = ("forward", "loss", "backward")
_TERMS = CATALOG | {
    "gradient partition": Entry(
        "gradients",
        "model",
        "N·g / w",
        "one buffer for as long as the run lasts",
        "DeepSpeed stage3.py, Megatron-LM",
    )
}


def by_trace(s: Settings) -> bool:
    """Whether the sharding itself is traced: FSDP over more than one rank, nothing offloaded."""
    p = s.parallelism
    return p.strategy == "fsdp" and p.data > 1 and p.offload == "none"


def by_formula(program: Program, s: Settings) -> bool:
    """Whether anything must be added to a program, which was traced of a rank alone."""
    p = s.parallelism
    shared = p.strategy != "none" or p.offload != "none"
    return shared and not (program.category == _COMMUNICATION).any()


def local(s: Settings, traced: bool | None = None) -> Settings:
    """The settings of one rank as if it were alone.

    Engines and FSDP compute in 16 bits without autocast: for a formula the model is in 16 bits from the start, for
    FSDP by trace (``traced``, by default where it can be) its weights are fp32 and gathered as 16 bits.
    """
    p = s.parallelism
    traced = by_trace(s) if traced is None else traced
    if p.strategy == "none" and p.offload == "none":
        return s
    precision, kind = s.precision, s.optimizer
    if precision.startswith("amp-") and p.strategy in ("fsdp", *SIXTEEN_BIT_ENGINES):
        precision = "fp32" if traced else precision.removeprefix("amp-")
    if not traced and not _unchanged(s) and kind in ("adamw", "adamw-foreach", "adamw-loop"):
        kind = "adamw-fused"  # whose step has no temporaries: those of a shard are added
    return replace(s, precision=precision, optimizer=kind, parallelism=Parallelism())


def _unchanged(s: Settings) -> bool:
    """Whether every rank steps as if it were alone."""
    return s.parallelism.strategy == "ddp" and s.parallelism.offload == "none"


def factors_of(program: Program, factors: Sequence[float]) -> NDArray[np.float64] | None:
    """A factor for each size of a program from those of parameters, gradients and optimizer state; None without."""
    if not factors:
        return None
    scale = np.ones(len(program.category))
    for category, factor in zip((_PARAMETERS, _GRADIENTS, _STATE), factors, strict=True):
        scale[program.category == category] = factor
    return scale


class Part(NamedTuple):
    """What a strategy adds: bytes of a term of ``_TERMS``, times ``units``, in the phases named."""

    name: str
    bytes: int
    phases: tuple[str, ...]
    units: int = 1

    def term(self) -> Term:
        """As the terms of an estimate name it."""
        category, unit, formula, said, source = _TERMS[self.name]
        return Term(self.name, category, self.bytes, unit, self.units, formula, said, source, self.phases)


class Sharing:
    """A program's moments at a point as they are on one rank of a strategy; the program's own where nothing is shared.

    Attributes:
        factors: of parameters, gradients and optimizer state. scale: the factor of each size; None without factors.
        parts: what is added.
    """

    def __init__(self, program: Program, p: Point, s: Settings) -> None:
        self.program, self.p, self.s = program, p, s
        self.factors: tuple[float, ...] = ()
        self.scale: NDArray[np.float64] | None = None
        self.parts: list[Part] = []
        self._steps = [segment for segment in program.segments if segment.phase == "optimizer"]
        if by_formula(program, s):
            self._share()

    @property
    def said(self) -> str:
        """For the assumptions; empty where the program says it all."""
        p = self.s.parallelism
        if self.scale is None:
            return ""
        on = f"{p.strategy} on {p.data} ranks" if p.strategy != "none" else "one device"
        moved = {"none": "", "optimizer": ", optimizer state on the host", "all": ", all states on the host"}
        return f"states and communication by formula for {on}{moved[p.offload]}, activations by trace"

    def totals(self) -> NDArray[np.float64]:
        """Bytes alive at each moment."""
        totals = self.program.totals(self.p, self.scale)
        for part in self.parts:
            for first, last in self._rows(part):
                totals[first:last] += part.bytes * part.units
        return totals

    def by_category(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """(rows × categories) bytes at these moments; each row sums to its total."""
        table = self.program.by_category(self.p, rows, self.scale)
        for part in self.parts:
            column = CATEGORIES.index(_TERMS[part.name].category)
            for first, last in self._rows(part):
                table[[i for i, row in enumerate(rows) if first <= row < last], column] += part.bytes * part.units
        return table

    def terms(self, phase: str) -> Iterator[Term]:
        """What is added in a phase."""
        return (part.term() for part in self.parts if phase in part.phases and part.bytes)

    def _rows(self, part: Part) -> Iterator[tuple[int, int]]:
        for segment in self.program.segments:
            if segment.phase in part.phases:
                passing = part.name == "optimizer temporaries"  # gone when the step ends
                yield segment.first, segment.last - passing

    def _share(self) -> None:
        s, program = self.s, self.program
        p, w, alone = s.parallelism, widths(s), widths(local(s, traced=False))
        of = ranks(s)
        sizes = program.sizes(self.p)
        counts = program.alive(self.p, self._steps[0].first)
        amounts = [float((sizes * counts)[program.category == c].sum()) for c in range(len(CATEGORIES))]
        n = amounts[_GRADIENTS] / alone.grad
        kept = 0 if p.offload == "all" else w.param / alone.param / of["params"]
        unsharded = p.no_sync and p.strategy == "fsdp" and s.grad_accum > 1
        grads = 0.0 if gradients_on_host(s) else w.grad / alone.grad / of["grads"]
        grads = w.reduced / alone.grad if unsharded else grads
        state = 0.0 if p.offload != "none" else 1 / of["state"]
        if s.optimizer.startswith("adamw") and s.optimizer != "adamw-8bit":
            state *= w.state / alone.state
        persistent = p.strategy in ("megatron", "zero3")
        if persistent and grads:
            self._add("gradient partition", amounts[_GRADIENTS] * grads, (*STEP, "optimizer"))
            grads = 0
        self.factors = (kept, grads, state)
        self.scale = factors_of(program, self.factors)
        if p.offload == "none" and s.optimizer != "none":
            largest = float(sizes[(program.category == _GRADIENTS) & (counts > 0)].max(initial=0)) / alone.grad
            self._step(n / of["state"], largest / of["state"])
        if p.data > 1:
            self._communicate(n, amounts[_PARAMETERS])

    def _step(self, n: float, largest: float) -> None:
        """Of the optimizer, for a rank's ``n`` elements: fp32 weights, temporaries of its step."""
        s, w = self.s, widths(self.s)
        kind = s.optimizer
        if kind == "adamw":
            kind = "adamw-loop" if s.device == "cpu" else "adamw-foreach"
        self._add("fp32 master weights", n * w.master, (*STEP, "optimizer"))
        if _unchanged(s):
            return
        passing = {"adamw-foreach": n * w.state, "adamw-loop": 2 * largest * w.state}.get(kind, 0.0)
        if w.master:  # ZeRO casts its gradient partition to fp32 for the step; Megatron's gradients are fp32 already
            passing = 0 if s.parallelism.strategy == "megatron" else 4 * n
        self._add("optimizer temporaries", passing, ("optimizer",))

    def _communicate(self, n: float, parameters: float) -> None:
        """Buffers for ``n`` trained elements of a model whose parameters, as gathered, have so many bytes."""
        s, w, strategy = self.s, widths(self.s), self.s.parallelism.strategy
        if strategy == "ddp":
            self._add("gradient buckets", n * w.grad, (*STEP, "optimizer"))
        if strategy in ("zero1", "zero2", "zero3"):
            held = (*STEP, "optimizer") if strategy == "zero3" else ("backward",)
            self._add("reduce bucket", min(n, BUCKET_ELEMENTS) * w.gathered, held)
        if strategy == "zero3":
            self._add("live parameters", min(parameters, LIVE_ELEMENTS * w.gathered), STEP)
        if strategy == "fsdp":
            layer = self._layer()
            self._add("gathered embedding and head", parameters - self.p.layers * layer, STEP)
            self._add("gathered layer", layer, ("forward", "backward"), 2)
            if not s.lora:
                self._add("unsharded gradient", layer / w.gathered * (w.gathered + w.reduced), ("backward",))

    def _layer(self) -> float:
        """Bytes of a layer's parameters as gathered: what one more adds to the program, else by its numbers."""
        program = self.program
        sizes = program.sizes(self.p) * (program.category == _PARAMETERS)
        row = self._steps[0].first
        if program.period:
            return float(program.counts[1][row] @ sizes)
        if not (self.s.base_quantization or (self.s.exact and self.s.exact.uncovered)):
            part = share(self.s)
            return (part.linear + part.rest) * widths(self.s).gathered
        return float(program.alive(self.p, row) @ sizes) / max(self.p.layers, 1)

    def _add(self, name: str, amount: float, phases: Iterable[str], units: int = 1) -> None:
        if amount:
            self.parts.append(Part(name, round(amount), tuple(phases), units))
