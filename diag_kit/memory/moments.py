"""The moments of one optimizer step at which memory can peak, each as a count of terms that are alive.

Between two neighbouring moments memory only moves straight (a layer more, a layer less), so the peak of a step is the
largest of its moments. No phase is ever added to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .activations import FEED_FORWARD, NORMS, SCORES
from .settings import Settings
from .states import stage_layers

Counts = dict[str, int]
_ALWAYS = (
    "parameters",
    "adapters",
    "optimizer moments",
    "fp32 master weights",
    "batch",
    "gradient buckets",
    "library workspace",
)
_GRADIENTS = ("attention", "feed-forward", "embedding", "head")


@dataclass(frozen=True, slots=True)
class Row:
    """One moment: how many units of each named term are alive."""

    label: str
    phase: str
    micro_step: int | None
    counts: Counts


def shown_micro_steps(s: Settings) -> list[int]:
    """Micro-steps that stand for all: the first three and the last (from the second on: the same, or on a line)."""
    return sorted({m for m in (1, 2, 3, s.grad_accum) if m <= s.grad_accum})


class Step:
    """Counts of terms over one optimizer step. ``names``: terms that exist; ``block``: those that one layer saves."""

    def __init__(self, s: Settings, names: Iterable[str], block: Iterable[str]) -> None:
        self.s, self.layers, self.names, self.block = (
            s,
            stage_layers(s),
            set(names),
            {name: 2 if name in NORMS else 1 for name in block},
        )
        self.full = s.checkpointing == "full"
        self.selective = s.checkpointing == "selective"
        self.kept = "selectively kept" in self.names
        of = {f"gradients of {part}": self.layers if part in _GRADIENTS[:2] else 1 for part in _GRADIENTS}
        self.gradients = {name: count for name, count in of.items() if name in self.names}
        self.persistent = self.gradients if s.parallelism.strategy in ("megatron", "zero3") else {}
        self.base = self._have(*_ALWAYS)
        if s.parallelism.strategy == "zero3":  # DeepSpeed's stage 3 makes it once, stages 1 and 2 for each backward
            self.base |= self._have("reduce bucket")
        self.root = self._have("gathered embedding and head", "live parameters")

    def retained(self) -> Counts:
        """What one graph keeps alive whose backward has not run: saved tensors of all layers, head input, loss."""
        names = ("final norm and head input", "log-probabilities", "gradient of the head's input", "autocast head")
        return self._saved(self.layers) | self._have(*names) | (self._have("attention mask") if self.full else {})

    def rows(self, micro_steps: Sequence[int]) -> Iterator[Row]:
        """Moments of one step in order, of the micro-steps given."""
        s, last = self.s, self.s.grad_accum
        deferred = s.backward == "deferred"
        in_flight = min(s.parallelism.pipeline, last) - 1
        repeated: list[Row] = []
        for m in micro_steps:
            if not repeated:
                held = self.gradients if m > 1 and not deferred else self.persistent
                rows = [*self._forward(m, held, m - 1 if deferred else in_flight)]
                rows += [] if deferred else self._backward(m, held, in_flight)
                repeated = rows if m > 1 and not deferred else []
                yield from rows
            else:
                yield from (Row(row.label, row.phase, m, row.counts) for row in repeated)
        if last not in micro_steps:
            return
        if deferred:
            yield from self._backward(last, self.persistent, last - 1)
            if last > 1:
                yield from self._backward(last, self.gradients, last - 2, " of an earlier graph")
        yield self._row("optimizer step", "optimizer", None, self.gradients, self._have("optimizer temporaries"))
        yield self._row("gradients set to None", "optimizer", None, self.persistent)

    def beside(self) -> Iterator[Row]:
        """Moments outside the step: a batch evaluated without a graph, and the saving of a checkpoint.

        To be asked of settings with ``checkpointing`` full, so that a layer's input has a size: it and the residual
        stream are what a layer without a graph keeps. Within 2.5 % of real execution where scores or logits lead.
        """
        cast = self._have("autocast weights", count=1 if self.s.lora else self.layers)
        layer = self._have("layer input", "gathered layer", count=2)
        layer |= self._have("attention mask", "dequantised weight")
        running = self.root | layer | cast
        for part in ("attention", "feed-forward"):
            passing = self._have(f"forward temporaries of {part}")
            yield self._row(f"evaluation, {part}", "eval", None, self.persistent, running, passing)
        head = self.root | cast | self._have("autocast head") | self._have("layer input", count=2)
        loss = self._have("logits", "logits in fp32", "log-probabilities")
        yield self._row("evaluation, loss", "eval", None, self.persistent, head, loss)
        yield self._row("checkpoint saved", "checkpoint", None, self.persistent, self._have("gathered for saving"))

    def _forward(self, m: int, held: Counts, graphs: int) -> Iterator[Row]:
        kept = held | self._have("retained graph", count=graphs)
        yield self._row("forward begins", "forward", m, kept)
        mask = self._have("attention mask")
        saved = self._saved(self.layers) | self._have("autocast weights", count=self._cast_layers(forward=True))
        running = self.root | self._have("gathered layer", count=2)
        if self.full:
            for part in ("attention", "feed-forward"):
                passing = self._have(f"forward temporaries of {part}", "dequantised weight")
                yield self._row(f"last layer, forward {part}", "forward", m, kept, saved, mask, running, passing)
        else:
            yield self._row(
                "last layer, forward attention",
                "forward",
                m,
                kept,
                _used(saved, *FEED_FORWARD),
                mask,
                running,
                self._have("masked scores"),
            )
        head = self._have("final norm and head input", "logits", "autocast head")
        yield self._row("head, forward", "forward", m, kept, saved, mask, self.root, head)
        loss = self._have(
            "logits in fp32",
            "log-probabilities",
            "logits of one chunk",
            "gradient of the head's input",
            "gradient of a fused head",
        )
        yield self._row("loss", "loss", m, kept, saved, mask if self.full else {}, self.root, head, loss)

    def _backward(self, m: int, held: Counts, graphs: int, which: str = "") -> Iterator[Row]:
        kept = self.s.keep_logits and not which and self.s.parallelism.strategy != "megatron"
        logits = self._have("logits") if kept else {}
        alive = self._have("retained graph", count=graphs) | self.root | logits | self._have("reduce bucket")
        alive |= self._have("attention mask") if self.s.checkpointing != "none" else {}
        saved = self._saved(self.layers) | self._have("autocast weights", count=self._cast_layers())
        head_input = self._have("final norm and head input", "autocast head")

        def row(label: str, grads: Counts, *parts: Counts) -> Row:
            return self._row(label + which, "backward", m, alive, grads, *parts)

        tied = "gradients of head" not in self.gradients
        first = "gradients of embedding" if tied and self.s.model.lm_head else "gradients of head"
        head = self._have(first) if first in self.gradients else {}
        if "log-probabilities" in self.names:
            yield row(
                "cross-entropy backward",
                held,
                saved,
                head_input,
                self._have("log-probabilities", "gradients of the loss"),
            )
            yield row(
                "head backward",
                _add(held, head) if not self.persistent else held,
                saved,
                head_input,
                self._have("gradient of the logits"),
            )
        running = self._have("gathered layer", count=2) | self._have(
            "unsharded gradient", "dequantised weight"
        )
        running |= self._have("gradient of the head's input")
        layer = _add(saved, self._recomputed())
        ffn, attention = "backward temporaries of feed-forward", "backward temporaries of attention"
        yield row(
            "last layer, feed-forward backward",
            self._grown(held, head, 0, 0),
            _used(layer, "down-projection input"),
            running,
            self._have(ffn),
        )
        yield row(
            "last layer, attention backward",
            self._grown(held, head, 0, 1),
            _used(layer, *_BEFORE_ATTENTION),
            running,
            self._have(attention),
        )
        bottom = self._saved(1) | self._have("autocast weights")
        yield row(
            "first layer, attention backward",
            self._grown(held, head, self.layers, self.layers),
            _used(_add(bottom, self._recomputed()), *_BEFORE_ATTENTION),
            running,
            self._have(attention),
        )
        again = self._have("gradients of embedding") if (held or tied) and not self.persistent else {}
        yield row("backward ends", _add(self.gradients, again) if self.gradients else {})

    def _grown(self, held: Counts, head: Counts, attention: int, ffn: int) -> Counts:
        """Gradients so far; where they are held already, a fresh one is added in place and alive for its layer only."""
        if self.persistent:
            return held
        counts = {"gradients of attention": attention, "gradients of feed-forward": ffn}
        if held:
            return _add(held, {name: min(count, 1) for name, count in counts.items() if name in self.gradients})
        return head | {name: count for name, count in counts.items() if name in self.gradients and count}

    def _saved(self, layers: int) -> Counts:
        if self.full:
            return {"layer input": layers}
        if self.selective and self.kept:
            return {"selectively kept": layers}
        return {n: layers * each for n, each in self.block.items() if not (self.selective and n in SCORES)}

    def _recomputed(self) -> Counts:
        """What the backward of one layer brings back to life."""
        if self.full or (self.selective and self.kept):
            return self.block
        return {name: 1 for name in self.block if self.selective and name in SCORES}

    def _cast_layers(self, forward: bool = False) -> int:
        """Layers whose 16-bit weight copies are alive: all, but in a checkpointed backward only the one recomputed."""
        return 1 if self.full and (not forward or self.s.lora) else self.layers

    def _have(self, *names: str, count: int = 1) -> Counts:
        return {name: count for name in names if name in self.names} if count > 0 else {}

    def _row(self, label: str, phase: str, m: int | None, *parts: Counts) -> Row:
        counts = dict(self.base)
        for part in parts:
            counts.update(part)
        return Row(label, phase, m, counts)


_BEFORE_ATTENTION = (*NORMS, *FEED_FORWARD, "attention output", "attention probabilities, cast", "attention dropout")
"""Terms of a block of which one is freed by the time that the gradient of its attention is taken."""


def _used(counts: Counts, *names: str) -> Counts:
    return _add(counts, {name: -1 for name in names if name in counts})


def _add(*parts: Counts) -> Counts:
    total: Counts = {}
    for part in parts:
        for name, count in part.items():
            total[name] = total.get(name, 0) + count
    return {name: count for name, count in total.items() if count}
