"""The memory of a training step in closed form: named terms, the moments they are alive in, and the largest moment.

>>> from diag_kit.memory.settings import Settings
>>> s = Settings.from_json({"model": {"n_layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192,
...                                   "vocab": 128256, "tied_embeddings": True}, "precision": "bf16", "seq_len": 4096})
>>> estimate(s).peak_phase
'backward'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from ..errors import SettingsError
from ..units import format_bytes
from .activations import block_sizes, model_sizes, passing_sizes
from .architecture import Architecture
from .device import RESERVED_OVER_ALLOCATED, attention_kernel, context_bytes, workspace_bytes
from .estimates import Estimate, Moment
from .moments import Row, Step, shown_micro_steps
from .precision import widths
from .settings import Parallelism, Settings
from .states import state_sizes
from .terms import CATALOG, CATEGORIES, Term

_DEFAULTS = Settings(Architecture(1, 1, 1, 1))
_NO_ASSUMPTION = ("model", "method", "exact")


def estimate(settings: Settings | Mapping[str, Any]) -> Estimate:
    """Memory of one optimizer step of a run with these settings, from closed forms.

    Args:
        settings: a Settings, or the document of one as JSON would hold it (SettingsError where that is wrong).
    """
    s = settings if isinstance(settings, Settings) else Settings.from_json(settings)
    size, step = _model(s)
    rows = list(step.rows(shown_micro_steps(s)))
    timeline = tuple(_moment(row, size) for row in rows)
    peak = max(timeline, key=lambda moment: moment.total_bytes)
    terms = _terms(size, [*rows, *(row for row in step.beside() if row.phase == "checkpoint")])
    reserved, device, band = _outside(s, peak.total_bytes)
    beside = beside_step(s)
    every = _outside(s, max(moment.total_bytes for moment in (peak, *beside)))[1]
    steady, told = timeline[-1].total_bytes, _assumptions(s, terms)
    return Estimate(s, terms, timeline, peak, steady, reserved, device, band, told, "formula", beside, every)


def beside_step(s: Settings) -> tuple[Moment, ...]:
    """Moments of evaluation and of saving a checkpoint, as their assumptions say; no part of the training step.

    Evaluation: parameters, optimizer state and the largest moment of a forward pass without a graph or dropout, at the
    training's shape; a fused loss makes all logits there, as Liger's does outside training.
    """
    size, step = _model(replace(s, checkpointing="full", fused_loss=False, dropout=0.0))
    return tuple(_moment(row, size) for row in step.beside())


def peak_bytes(s: Settings) -> int:
    """The peak of ``estimate``, without its details: the last micro-step is as high as any."""
    size, step = _model(s)
    return max(sum(size[name] * count for name, count in row.counts.items()) for row in step.rows([s.grad_accum]))


def peak_curve(s: Settings, lengths: Sequence[int]) -> list[int]:
    """Peak allocated bytes at each sequence length: the upper envelope of the moments, each a quadratic in length."""
    curves = quadratics(s, "seq_len")
    return [round(max(a + n * (b + n * c) for a, b, c in curves)) for n in lengths]


def micro_step_curve(s: Settings, steps: int, backward: str) -> list[int]:
    """Highest allocated bytes in each of ``steps`` micro-steps, with ``backward`` each-micro-batch or deferred.

    Deferred: the forward passes only; each micro-step adds one retained graph, from the second on on a straight line.
    """
    probe = replace(s, grad_accum=max(steps, 4), backward=backward)
    size, step = _model(probe)
    highest: dict[int, int] = {}
    for row in step.rows((1, 2, 3)):
        total = sum(size[name] * count for name, count in row.counts.items())
        highest[row.micro_step or 0] = max(highest.get(row.micro_step or 0, 0), total)
    slope = highest[3] - highest[2]
    return [highest[m] if m < 3 else highest[3] + (m - 3) * slope for m in range(1, steps + 1)]


def quadratics(s: Settings, name: str) -> list[tuple[float, float, float]]:
    """Each moment's bytes as a + b·x + c·x² in x = ``seq_len`` or ``micro_batch``, without those that never lead."""
    unit = 1024 if name == "seq_len" else 1
    shapes: list[dict[str, Any]] = [{name: x * unit} for x in (1, 2, 3)]
    at = [_model(replace(s, **shape))[0] for shape in shapes]
    _, step = _model(s)
    found = set()
    for row in step.rows([s.grad_accum]):
        y1, y2, y3 = (sum(size[term] * count for term, count in row.counts.items()) for size in at)
        c = (y3 - 2 * y2 + y1) / 2
        b = y2 - y1 - 3 * c
        found.add((y1 - b - c, b / unit, c / unit**2))
    return [p for p in found if not any(q != p and all(x >= y for x, y in zip(q, p, strict=True)) for q in found)]


def textbook(s: Settings, length: int) -> int:
    """Weights, gradients and optimizer state as they stay, and 34·s·b·h + 5·a·s²·b for each layer.

    The formula of Korthikanti and others (2022, arXiv:2205.05198, equation 1): activations in 16 bits, attention scores
    in memory, no checkpointing, no logits.
    """
    m, b = s.model, s.micro_batch
    layer = 34 * length * b * m.hidden + 5 * m.heads * length * length * b
    return _states(s.with_(seq_len=1, micro_batch=1)) + m.n_layers * layer


@lru_cache(64)
def _states(s: Settings) -> int:
    now = estimate(s)
    return now.steady_state_bytes + max(moment.by_category["gradients"] for moment in now.timeline)


def largest_root(a: float, b: float, c: float) -> float:
    """The largest x with a + b·x + c·x² ≤ 0, for b and c not negative; -1 where there is none."""
    if a > 0:
        return -1
    if c > 0:
        return math.floor((math.sqrt(b * b - 4 * a * c) - b) / (2 * c))
    return math.floor(-a / b) if b > 0 else math.inf


def device_limit(s: Settings) -> float:
    """Allocated bytes up to which ``device_bytes`` stays within the capacity; infinite without a capacity."""
    if s.capacity_bytes is None:
        return float("inf")
    fixed = _outside(s, 0)[1]
    return (s.capacity_bytes - fixed) / (1 if s.device == "cpu" else RESERVED_OVER_ALLOCATED[1])


def _outside(s: Settings, allocated: int) -> tuple[int, int, tuple[int, int]]:
    """Reserved bytes, device bytes and the band of the latter, for bytes allocated at the peak."""
    low, middle, high = (1.0, 1.0, 1.0) if s.device == "cpu" else RESERVED_OVER_ALLOCATED
    context = context_bytes(s)
    reserved = round(allocated * middle)
    band = (round(allocated * low) + context[0], round(allocated * high) + context[1])
    return reserved, reserved + sum(context) // 2, band


def _model(s: Settings) -> tuple[dict[str, int], Step]:
    """Bytes of one unit of each term, and the step that counts units. SettingsError where no closed form covers it."""
    if s.exact and s.exact.uncovered:
        raise SettingsError(s.exact.uncovered)
    w = widths(s)
    block = block_sizes(s, w)
    sizes = {**state_sizes(s, w), **block, **model_sizes(s, w), **passing_sizes(s, w)}
    if workspace := workspace_bytes(s):
        sizes["library workspace"] = workspace
    if w.copy:
        m, tp = s.model, s.parallelism.tensor
        if not s.base_quantization:
            sizes["autocast weights"] = m.layer_linear_params * w.copy / tp
        if m.lm_head:
            sizes["autocast head"] = m.vocab * m.hidden * w.copy / tp
    size = {name: round(value) for name, value in sizes.items()}
    step = Step(s, (*size, "retained graph"), block)
    size["retained graph"] = sum(size[name] * count for name, count in step.retained().items())
    return size, step


def _moment(row: Row, size: dict[str, int]) -> Moment:
    by_category = dict.fromkeys(CATEGORIES, 0)
    for name, count in row.counts.items():
        by_category[CATALOG[name].category] += size[name] * count
    return Moment(row.label, row.phase, row.micro_step, by_category)


def _terms(size: dict[str, int], rows: Sequence[Row]) -> tuple[Term, ...]:
    terms = []
    for name, unit_bytes in size.items():
        alive = [row for row in rows if row.counts.get(name)]
        if alive and unit_bytes:
            entry = CATALOG[name]
            count = max(row.counts[name] for row in alive)
            phases = tuple(dict.fromkeys(row.phase for row in alive))
            terms.append(
                Term(
                    name,
                    entry.category,
                    unit_bytes,
                    entry.unit,
                    count,
                    entry.formula,
                    entry.assumption,
                    entry.source,
                    phases,
                )
            )
    return tuple(terms)


def _assumptions(s: Settings, terms: Sequence[Term]) -> tuple[str, ...]:
    picked = f" (sdpa on {s.gpu or 'an A100'})" if s.attention == "sdpa" and s.device == "cuda" else ""
    told = [
        f"attention runs the {attention_kernel(s)} kernel{picked}",
        "a step after the first: optimizer state exists, gradients are set to None after it; modelling code as in "
        "Hugging Face transformers, without torch.compile",
    ]
    if s.parallelism.pipeline > 1:
        told.append("the first pipeline stage: embedding, no logits, one micro-batch in flight for each stage")
    usual = [
        f.name for f in fields(s) if f.name not in _NO_ASSUMPTION and getattr(s, f.name) == getattr(_DEFAULTS, f.name)
    ]
    if usual:
        told.append("settings at their default: " + ", ".join(f"{name} {_plain(getattr(s, name))}" for name in usual))
    logits = s.micro_batch * s.seq_len * s.model.vocab * 4 if s.model.lm_head else 0
    collected = f"; a Trainer that collects them keeps {format_bytes(logits)} more for each batch until it moves them"
    told.append(
        "evaluation is no part of the step: a forward pass without a graph at the training's micro-batch and length, "
        f"with one batch's logits in fp32{collected if logits else ''}"
    )
    gathers = s.parallelism.data > 1 and s.parallelism.strategy in ("fsdp", "zero3")
    how = "one full tensor at a time, moved to the host" if gathers else "what each rank holds; nothing new on it"
    told.append(f"saving a checkpoint is no part of the step: {how}")
    return tuple(told) + tuple(f"{t.name}: {t.assumption}" for t in terms if t.assumption)


def _plain(value: Any) -> str:
    """A default as the settings file would say it."""
    return "none" if value is None or isinstance(value, Parallelism) else str(value).lower()
