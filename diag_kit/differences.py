"""What two runs state differently, what that is predicted to do to memory, and their memory at the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from .beside import Beside, Difference
from .evidence.facts import MemoryPoint, Source
from .evidence.run import Run
from .memory.spelling import contract_word
from .units import MIB, format_bytes
from .wording import words

STATES = "model-states-too-large optimizer-state-first-step"
MEMORY: dict[str, tuple[str, str]] = {
    # setting -> its values from least memory to most (words of a group alike; + and - for numbers), and the causes that
    # a rise through it can explain. The order is that in which to undo changes.
    "seq_len": ("+", "attention-quadratic activations-too-large logits-loss-peak long-sequence-outlier kv-cache"),
    "micro_batch": ("+", "attention-quadratic activations-too-large logits-loss-peak"),
    "precision": ("bf16 fp16|amp-bf16 amp-fp16 fp32", f"activations-too-large {STATES}"),
    "attention": ("flash efficient sdpa|eager", "attention-quadratic activations-too-large"),
    "checkpointing": ("full|selective|none", "attention-quadratic activations-too-large"),
    "strategy": ("zero3 fsdp|zero2|zero1|ddp none", f"grad-accumulation-buffer {STATES}"),
    "world_size": ("", f"grad-accumulation-buffer {STATES}"),
    "offload": ("all cpu nvme|optimizer|none", STATES),
    "fused_loss": ("True|False", "logits-loss-peak"),
    "grad_accum": ("+", "graph-retention"),
    "backward": ("each-micro-batch|deferred", "graph-retention"),
    "no_sync": ("False|True", "grad-accumulation-buffer"),
    "gradient_dtype": ("bf16 fp16|fp32", "grad-accumulation-buffer"),
    "optimizer": ("none|sgd|adafactor adamw-8bit|adamw adamw-foreach adamw-loop adamw-fused", STATES),
    "lora": ("+", STATES),
    "model": ("", f"activations-too-large logits-loss-peak {STATES}"),
    "dropout": ("+", "activations-too-large"),
    "eval_batch": ("+", "eval-peak"),
    "eval_accumulation_steps": ("+", "eval-peak"),
    "num_workers": ("+", "shared-memory host-oom"),
    "resumed": ("False|True", "resume-duplicate-states"),
    "packing": ("", ""),
    "curriculum": ("", ""),
    "batch_ramp": ("", ""),
    "alloc_conf": ("", ""),
    "gpu_memory_utilization": ("", ""),
    "capacity_bytes": ("-", f"attention-quadratic activations-too-large logits-loss-peak {STATES}"),
}
_SHARDED = ("zero3", "fsdp", "zero2", "zero1")
_FOLLOWS = {
    "effective_batch": ("micro_batch", "grad_accum", "world_size"),
    "total_steps": ("micro_batch", "grad_accum", "world_size", "seq_len"),
    "n_params": ("model", "lora"),
    "weights_dtype": ("precision",),
}
Stated = Mapping[str, tuple[Any, Source]]
"""Name -> value, and where it stands."""
_PREFERRED = ("peak_allocated", "used", "allocated", "peak_reserved", "reserved")
_At = tuple[int | None, int | None]
_Series = dict[tuple[str, int | None], dict[_At, MemoryPoint]]


def signed(size: int) -> str:
    """A difference of sizes: ``+6.00 GiB``."""
    return ("+" if size > 0 else "") + format_bytes(size)


def causes_of(one: Difference) -> Sequence[str]:
    """Causes that this change can explain: where memory rises through it, those that its setting bears on."""
    return MEMORY[one.name][1].split() if one.raises and one.bears else ()


def change_text(one: Difference) -> str:
    """A difference in words: ``seq_len 8192, in the good run 4096``."""
    predicted = f"; predicted {signed(one.predicted_bytes)} at the peak" if one.predicted_bytes is not None else ""
    return f"{one.name} {shown(one.name, one.failed)}, in the good run {shown(one.name, one.good)}{predicted}"


def shown(name: str, value: Any) -> str:
    """A setting's value for a person; of a model the numbers that are given."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {words(key, inner)}" for key, inner in value.items())
    return "not stated" if value is None else words(name, value)


def differences_of(failed: Stated, good: Stated) -> tuple[list[Difference], dict[str, Any]]:
    """What both state otherwise and what one alone states, and what both state alike."""
    found: list[Difference] = []
    alike: dict[str, Any] = {}
    sharded = any(side.get("strategy", ("",))[0] in _SHARDED for side in (failed, good))
    for name in dict.fromkeys((*failed, *good)):
        here, there = failed.get(name), good.get(name)
        one, other = (contract_word(name, side[0]) if side else None for side in (here, there))
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            keys = [key for key in one if one[key] is not None and other.get(key) not in (None, one[key])]
            one, other = {key: one[key] for key in keys}, {key: other[key] for key in keys}
        if here and there and _same(name, one, other):
            alike[name] = here[0]
        elif (here and there) or name in MEMORY:
            raises = _raises(name, one, other, "-" if name == "world_size" and sharded else "")
            found.append(Difference(name, one, other, here and here[1], there and there[1], name in MEMORY, raises))
    changed = {one.name for one in found if one.counts}
    return [replace(one, follows=bool(changed & {*_FOLLOWS.get(one.name, ())})) for one in found], alike


def _same(name: str, one: Any, other: Any) -> bool:
    """Whether two values are one; sizes as different programs round them are."""
    if name.endswith("_bytes") and isinstance(one, int) and isinstance(other, int):
        return abs(one - other) <= 0.02 * max(one, other)
    return bool(one == other)


def _raises(name: str, failed: Any, good: Any, scale: str = "") -> bool | None:
    """Whether memory rises from the good run's value to the failed one's; None where that is not known."""
    scale = scale or MEMORY.get(name, ("", ""))[0]
    if scale in ("+", "-"):
        numbers = isinstance(failed, int | float) and isinstance(good, int | float)
        return (failed > good) == (scale == "+") if numbers else None
    at = {word: rank for rank, group in enumerate(scale.split("|")) for word in group.split()}
    here, there = at.get(str(failed)), at.get(str(good))
    return None if here is None or there is None or here == there else here > there


def predicted(
    differences: Sequence[Difference], failed: Stated, good: Stated, *, deferred: bool
) -> tuple[list[Difference], int | None, tuple[str, ...]]:
    """The differences with what the memory model says of each, in the order to try them; what it says of all together.

    It speaks only where both runs state model, micro-batch, length and precision; what else is not stated, the third of
    what is returned, it assumes to be alike. ``deferred``: memory grows by the micro-step, as where graphs are kept.
    """
    from .memory.formulas import peak_bytes
    from .memory.settings import from_run

    kept = {"backward": "deferred"} if deferred and "backward" not in failed else {}
    start, end = ({name: value for name, (value, _) in side.items()} | kept for side in (good, failed))
    (base, assumed), (together, also) = from_run(start), from_run(end)
    found, total = list(differences), None
    if base and together and not {"micro_batch", "seq_len", "precision"} & {*assumed, *also}:
        before = peak_bytes(base)
        for at, one in enumerate(found):
            moved = from_run({**start, one.name: end[one.name]})[0] if one.counts and one.bears else None
            if moved and moved.with_(capacity_bytes=base.capacity_bytes) != base:
                change = peak_bytes(moved) - before
                rise = change > 0 if abs(change) >= MIB else one.raises
                found[at] = replace(one, predicted_bytes=change, raises=rise)
        if any(one.predicted_bytes is not None for one in found):
            total = peak_bytes(together) - before
    places = {name: place for place, name in enumerate(MEMORY)}

    def last(one: Difference) -> tuple[Any, ...]:
        rise = max(one.predicted_bytes or 0, 0)
        return not one.counts, not one.bears, one.raises is False, -rise, places.get(one.name, 99), one.name

    return sorted(found, key=last), total, tuple(sorted({*assumed, *also})) if total is not None else ()


# --- memory at the same steps ---------------------------------------------------------------------------------------


def beside(run: Run, good: Run, rank: int | None) -> Beside:
    """Memory of two runs at the same steps: one metric, the same rank where both have it, ``rank`` before others."""
    left, right = _series(run), _series(good)
    best: tuple[Any, ...] = ()
    chosen = None
    for metric, own in left:
        ranks = [there for name, there in right if name == metric]
        if not ranks:
            continue
        other = own if own in ranks else min(ranks, key=lambda r: -1 if r is None else r)
        a, b = _alike(left[metric, own], right[metric, other])
        key = (not a.keys() & b.keys(), own != other, own != rank, _PREFERRED.index(metric))
        if not best or key < best:
            best, chosen = key, (metric, own, other, a, b)
    if chosen is None:
        return Beside(_without_series(left, right))
    metric, own, other, a, b = chosen
    top, peak = (max(side.values(), key=lambda point: point.value_bytes) for side in (a, b))
    common = sorted(a.keys() & b.keys(), key=lambda at: (at[0] or 0, at[1] or 0))
    who = "" if own is None else f" of rank {own}"
    who += "" if own == other else f" (rank of the good run: {'not stated' if other is None else other})"
    peaks = f"peak {format_bytes(top.value_bytes)} against {format_bytes(peak.value_bytes)}"
    found = Beside(
        "", metric, own, other, len(common), failed_peak_bytes=top.value_bytes, good_peak_bytes=peak.value_bytes,
        failed_source=top.source, good_source=peak.source,
    )  # fmt: skip
    name = metric.replace("_", " ")
    if not common:
        return replace(found, text=f"{name}{who}: no step is shown by both runs; {peaks}")
    apart = {at: a[at].value_bytes - b[at].value_bytes for at in common}
    levels = [b[at].value_bytes for at in common]
    moves = [abs(one - other) for one, other in zip(levels[2:], levels[1:], strict=False)]
    noise = round(max(16 * MIB, 0.01 * median(levels), 3 * median(moves or [0])))
    middle = round(median(apart.values()))
    parted = next((at for at in common if abs(apart[at]) > noise), None)
    said = f"at no step more than {format_bytes(noise)} apart"
    if parted is not None:
        later = [at for at in common if at >= parted]
        over = sum(abs(apart[at]) > noise for at in later)
        at = f"step {parted[0]}" + (f", micro-step {parted[1]}" if parted[1] is not None else "")
        said = (
            f"apart from {at} on" if over == len(later) else f"first apart at {at}, and at {over} of {len(later)} since"
        )
        said += f" ({signed(apart[parted])})"
        found = replace(found, parted_step=parted[0], parted_micro_step=parted[1], parted_bytes=apart[parted])
    count = f"{len(common):,} common step{'s' if len(common) > 1 else ''}"
    text = f"{name}{who}, {count}: {signed(middle)} in the median, {said}; {peaks}"
    return replace(found, text=text, difference_bytes=middle, noise_bytes=noise)


def _series(run: Run) -> _Series:
    """Readings by metric and rank, then by step and micro-step: of several at one step the highest."""
    found: _Series = {}
    for point in run.points:
        at = (point.step, point.micro_step)
        if point.metric in _PREFERRED and not point.relative and at != (None, None):
            _put(found.setdefault((point.metric, point.rank), {}), at, point)
    return found


def _put(series: dict[_At, MemoryPoint], at: _At, point: MemoryPoint) -> None:
    if at not in series or series[at].value_bytes < point.value_bytes:
        series[at] = point


def _alike(one: dict[_At, MemoryPoint], other: dict[_At, MemoryPoint]) -> tuple[dict[_At, MemoryPoint], ...]:
    """Both by step alone where only one of them has micro-steps."""
    if any(at[1] is not None for at in one) == any(at[1] is not None for at in other):
        return one, other
    sides: list[dict[_At, MemoryPoint]] = [{}, {}]
    for side, series in zip(sides, (one, other), strict=True):
        for (step, _), point in series.items():
            _put(side, (step, None), point)
    return tuple(sides)


def _without_series(left: _Series, right: _Series) -> str:
    """What can be said where no metric is in the series of both runs."""
    absent = "no metric is in both series" if left and right else "neither run has a series"
    if bool(left) != bool(right):
        absent = f"the {'good' if left else 'failed'} run has no series"
    if not right:
        return f"no common step: {absent}"
    metric = min((name for name, _ in right), key=_PREFERRED.index)
    top = max(point.value_bytes for (name, _), points in right.items() if name == metric for point in points.values())
    return f"no common step: {absent}; the good run's highest {metric.replace('_', ' ')} was {format_bytes(top)}"
