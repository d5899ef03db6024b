"""Figures derived from facts: the arithmetic of a message, the place of a failure, the shape of a series.

A figure is a plain value under a fixed name, with the source that it was derived from; conditions of failure entries
read nothing else. A figure that the evidence does not give is absent: not seen is never "not so".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..units import GIB, MIB
from . import origin
from .facts import DeviceMemory, Event, HostMemory, Setting, Source
from .figures import Figures
from .frames import Place, place
from .growth import figures_of_series
from .ranks import Crew
from .run import Run

_PHASE_OF_KIND = {"dataloader": "data", "nccl": "comm", "fsdp": "checkpoint", "vllm": "load"}
_NEAR_LINES = 200
_SCORES_NODE = re.compile(
    r"\bnode [\w/.-]{0,200}/(?:Batch)?(?:MatMul|Softmax|[Ee]insum)\w{0,20}"
    r"|\[Op:(?:Batch)?(?:MatMul|Softmax|Einsum)\w{0,20}"
    r"|\bnode [\w/.-]{0,200}(?:attention/self|[Ss]elf_?[Aa]tt\w{0,20}|[Mm]ulti_?[Hh]ead\w{0,20})/[\w/.-]{0,80}"
)
"""TensorFlow's name of a node, or of an operation run eagerly, that multiplies matrices or normalises scores; or of
whatever runs on them within self-attention (a mask, a dropout)."""
_NODE = re.compile(r"\b[Nn]ode:? (?P<name>\w[\w/.-]{2,300})")
_PHASE_OF_NODE = (
    ("backward", re.compile(r"(?:^|/)gradient(?:s|_tape)?(?:_\d{1,3})?/")),
    ("optimizer", re.compile(r"(?:^|/)(?:Adam|Momentum|RMSProp|Adagrad|SGD|Lamb)\w{0,20}/")),
    ("forward", re.compile(r"(?:encod|decod|layer|dense|conv|att|lstm|rnn|gru|block|embed|logits)\w{0,40}/")),
)
"""How TensorFlow's name scopes tell the phase, the first that fits; other nodes read data, save, or tell nothing."""
_MANY_WORDS = 4096
"""A smaller last dimension may be a width that happens to equal the vocabulary."""
_CONTEXT_BYTES = 2 * GIB
"""What a CUDA context, its kernels and library workspaces may hold outside the allocator, generously."""


def figures_of(run: Run) -> Figures:
    """All figures of a run."""
    figures = Figures(origin=origin.find(run))
    found = figures.origin
    events = run.events
    kinds = {event.kind for event in events} | ({"nccl.mismatch"} if found.disagreement else set())
    where = Source(run.files[0].path) if run.files else None
    figures.put(
        where,
        events=frozenset(kinds),
        family=found.family,
        ranks_seen=len(found.ranks) or None,
        ranks_failed_alike=found.alike if len(found.ranks) > 1 else None,
        single_process=_single_process(found.crew, events),
        recovered=any(e.role != "advisory" for e in found.survived),
        advisory=any(e.role == "advisory" for e in found.survived),
    )
    for event in events:  # the first event of a kind stands for "events has it"
        figures.sources.setdefault(f"events:{event.kind}", event.source)
    if found.disagreement:
        figures.put(found.disagreement[1].source, parted=" and ".join(map(_waited_in, found.disagreement)))
        one, other = found.disagreement
        figures.put(other.source, parted_in_one=one.figures["sequence"] == other.figures["sequence"])
    for name, setting in run.settings.items():
        figures.put(setting.source, **{f"setting.{name}": setting.value})
    if found.event:
        _of_event(figures, run, found.event)
        _of_host(figures, run, found.event)
        _of_place(figures, run, found.event)
    figures_of_series(figures, run)
    resumed = _resumed(run)
    if resumed:
        figures.put(resumed.source, resumed=True)
    # A snapshot speaks of this failure only where its sums agree with the message; another run's lies near in folders.
    reserved = figures.values.get("reserved_bytes")
    fitting = [
        s
        for s in run.snapshots
        if reserved and 0.75 * reserved <= s.reserved_bytes <= 1.1 * reserved and s.allocated_bytes
    ]
    for snapshot in fitting[-1:]:
        figures.put(
            snapshot.source,
            snapshot_largest_free_bytes=snapshot.largest_free_block_bytes,
            snapshot_free_bytes=snapshot.reserved_bytes - snapshot.allocated_bytes,
        )
    return figures


def _waited_in(wait: Event) -> str:
    count = wait.figures["elements"]
    return f"rank {wait.rank} in {wait.figures['collective']} of {count:,} element{'s' * (count != 1)}"


def _processes(crew: Crew, events: Sequence[Event]) -> int:
    """How many processes the job had, at least: a rank above 0 has others beside it, whether they are seen or not."""
    several = any(e.kind.startswith(("nccl.", "launcher.")) for e in events)
    return max(crew.world or 1, 2 if several else 1, max(crew.seen, default=0) + 1)


def _single_process(crew: Crew, events: Sequence[Event]) -> bool | None:
    """Whether the job was one process; None where nothing says: one rank seen is not one rank running."""
    return False if _processes(crew, events) > 1 else True if crew.world == 1 else None


def _of_event(figures: Figures, run: Run, event: Event) -> None:
    """The arithmetic of the message: what was asked against what there was, and who held the rest."""
    stated = event.figures
    asked = (
        stated.get("tried_to_allocate_bytes")
        or stated.get("requested_at_least_bytes")
        or stated.get("tensor_size_bytes")
    )
    total, free, allocated = (stated.get(f"{name}_bytes") for name in ("total", "free", "allocated"))
    cached = stated.get("reserved_unallocated_bytes")
    reserved = stated.get("reserved_bytes")
    if reserved is None and allocated is not None and cached is not None:
        reserved = allocated + cached
    if cached is None and reserved is not None and allocated is not None:
        cached = max(0, reserved - allocated)
    impossible = asked is not None and (asked >= origin.IMPOSSIBLE_BYTES or figures.origin.garbled)
    over = total is not None and allocated is not None and allocated > total
    figures.put(
        event.source,
        event_kind=event.kind,
        has_sizes=asked is not None and total is not None,
        request_bytes=asked,
        total_bytes=total,
        free_bytes=free,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        cached_bytes=cached,
        private_pools_bytes=stated.get("private_pools_bytes"),
        largest_free_bytes=stated.get("largest_free_block_bytes"),
        xla_temporary_bytes=stated.get("temporary_allocation_bytes"),
        xla_argument_bytes=_sum(stated, "parameters_allocation_bytes", "output_allocation_bytes"),
        request_impossible=impossible if asked is not None else None,
        allocated_exceeds_capacity=over if total is not None and allocated is not None else None,
    )
    siblings, others = _siblings(figures, event, _others(stated, reserved))
    own = stated.get("process_in_use_bytes")
    beside = siblings + (others or [])
    figures.put(event.source, sizes_consistent=_consistent(total, free, allocated, reserved, own, beside))
    if siblings:
        devices = figures.origin.crew.devices
        listed = stated.get("other_process_ids") or ()
        figures.put(
            event.source,
            sibling_process_count=len(siblings),
            sibling_process_bytes=sum(siblings),
            siblings_of_other_devices=sum(devices.get(pid, event.device) != event.device for pid in listed),
        )
    if others or (others is not None and not siblings):
        small = [size for size in others if size < _CONTEXT_BYTES]
        alike = len(small) >= 3 and max(small) <= 1.25 * min(small) and sum(small) >= 0.8 * sum(others)
        figures.put(event.source, others_are_strangers=_strangers(figures, run, event))
        figures.put(event.source, other_process_bytes=sum(others), other_process_count=len(others), others_alike=alike)
    if not others and not siblings:
        _of_listing(figures, run, event, reserved)
    if own is not None and reserved is not None:
        figures.put(event.source, non_torch_bytes=max(0, own - reserved))
    if asked is not None and total:
        figures.put(
            event.source, request_share=asked / total, request_exceeds_capacity=asked > total and not impossible
        )
    if asked is not None and free is not None:
        figures.put(
            event.source,
            free_margin_bytes=free - asked,
            request_fits_free=asked <= free,
            request_fits_free_and_cached=asked <= free + (cached or 0),
        )
    if total:
        shares = {
            "free_share": free,
            "allocated_share": allocated,
            "cached_share": cached,
            "other_process_share": sum(others) if others else None,
        }
        figures.put(event.source, **{name: value / total for name, value in shares.items() if value is not None})
    allowed = stated.get("allowed_bytes")
    if allowed is not None:
        need = max(allocated or 0, reserved or 0) + (stated.get("other_allocations_bytes") or 0) + (asked or 0)
        # With a cap below the card, a request that fits what is free can have been refused by the cap alone.
        refused = need > allowed or (asked is not None and free is not None and asked <= free)
        figures.put(
            event.source, allowed_bytes=allowed, cap_reached=refused and (total is None or allowed < 0.99 * total)
        )
    if total and free is not None and reserved is not None and not over:
        unaccounted, foreign = total - free - reserved, total - free - max(own or 0, reserved)
        held = max(own or 0, reserved) / total
        if own is not None and own <= total and not beside:
            figures.put(event.source, foreign_bytes=max(0, foreign), foreign_share=max(0, foreign) / total)
        figures.put(
            event.source,
            unaccounted_bytes=max(0, unaccounted),
            unaccounted_share=max(0, unaccounted) / total,
            device_full_of_this_process=(held >= 0.85 and (free + max(0, foreign)) / total < 0.15) or held >= 0.93,
        )


def _sum(stated: Mapping[str, Any], *names: str) -> int | None:
    """The sum of those that are stated; None where none is."""
    return sum(stated.get(name) or 0 for name in names) if any(name in stated for name in names) else None


def _of_listing(figures: Figures, run: Run, event: Event, reserved: int | None) -> None:
    """Other processes by nvidia-smi's list, where it explains what the message leaves unaccounted on the device.

    When the list was taken is not known, and its index may not be the run's: only a sum that fits counts.
    """
    total, free = event.figures.get("total_bytes"), event.figures.get("free_bytes")
    if total is None or free is None or reserved is None or event.device is None:
        return
    listed = [d for d in run.of(DeviceMemory) if d.pid is not None and d.used_bytes and d.device == event.device]
    ours = figures.origin.crew.siblings | {event.pid}
    latest = {d.pid: d for d in listed if d.pid not in ours}
    own = [d for d in latest.values() if reserved - 32 * MIB <= (d.used_bytes or 0) <= reserved + _CONTEXT_BYTES]
    others = [d for d in latest.values() if d not in own[:1]]
    held = sum(d.used_bytes or 0 for d in others)
    unaccounted = total - free - reserved
    if others and held >= GIB and unaccounted - _CONTEXT_BYTES <= held <= unaccounted + 256 * MIB:
        figures.put(others[0].source, other_process_bytes=held, other_process_count=len(others))


def _of_host(figures: Figures, run: Run, event: Event) -> None:
    """What the host, the job's limit and /dev/shm have, as the event or the tools state it."""
    names = ("memory_limit_bytes", "memory_used_bytes", "host_total_bytes", "killed_rss_bytes")
    figures.put(event.source, **{name: event.figures.get(name) for name in names})
    for fact in run.of(HostMemory):
        if fact.of == "shm":
            figures.put(fact.source, shm_total_bytes=fact.total_bytes)
        elif fact.of == "host" and "host_total_bytes" not in figures.values:
            figures.put(fact.source, host_total_bytes=fact.total_bytes)
    limit = event.figures.get("allocator_limit_bytes")
    card = next((d for d in run.of(DeviceMemory) if d.pid is None and d.device == event.device and d.total_bytes), None)
    if limit and card and card.total_bytes:
        figures.put(event.source, allocator_limit_share=limit / card.total_bytes)


def _siblings(figures: Figures, event: Event, others: list[int] | None) -> tuple[list[int], list[int] | None]:
    """The sizes of listed processes that are known to be the job's own, and of the rest."""
    known, listed = figures.origin.crew.siblings, event.figures.get("other_process_ids") or []
    sizes = event.figures.get("other_process_in_use_bytes") or []
    if others is None or len(listed) != len(sizes) or not known & set(listed):
        return [], others
    rest, own = list(others), []
    for pid, size in zip(listed, sizes, strict=True):
        if pid in known and size in rest:
            rest.remove(size)
            own.append(size)
    return own, rest


def _strangers(figures: Figures, run: Run, event: Event) -> bool | None:
    """Whether the processes that a message lists, siblings left out, are known not to be the job's own; None where
    that is open."""
    crew = figures.origin.crew
    listed = set(event.figures.get("other_process_ids") or []) - crew.siblings
    if not listed:
        return None
    known = {e.pid for e in run.events if e.pid is not None} | crew.siblings
    if listed & known:
        return False
    if crew.seen and crew.world is None and len(known) < 2:
        return None  # a rank's line says that there may be others; how many is open
    processes = _processes(crew, run.events)
    return True if processes == 1 or len(known) >= processes else None


def _consistent(
    total: int | None,
    free: int | None,
    allocated: int | None,
    reserved: int | None,
    own: int | None,
    others: list[int] | None,
) -> bool | None:
    """Whether the parts that a message states fit into its whole; None where it states too little.

    More allocated than there is counts as consistent: drivers that lend host memory print that.
    """
    if total is None or free is None:
        return None
    if allocated is not None and allocated > total:
        return free <= 0.05 * total
    held = max(own or 0, reserved or 0, allocated or 0)
    return (
        free <= total and (reserved or 0) >= 0.99 * (allocated or 0) and free + held + sum(others or []) <= 1.06 * total
    )


def _others(stated: Mapping[str, Any], reserved: int | None) -> list[int] | None:
    """Sizes of other processes. Inside a container the message can't tell its own process: one that holds what this
    allocator holds and a context, or that could not stand beside it on the card, is this one."""
    listed = stated.get("other_process_in_use_bytes")
    if listed is None:
        return None
    others = list(listed)
    if stated.get("process_in_use_bytes") is None and reserved is not None:
        total = stated.get("total_bytes")
        own = [
            size
            for size in others
            if size >= reserved - 32 * MIB
            and (size <= reserved + _CONTEXT_BYTES or (total and size + reserved > total))
        ]
        if own:
            others.remove(min(own))
    return others


def _of_place(figures: Figures, run: Run, event: Event) -> None:
    found = figures.origin
    traceback = found.traceback
    figures.place = place(traceback.frames) if traceback else Place()
    phase = _PHASE_OF_KIND.get(event.kind.partition(".")[0])
    if phase is None:
        phase = figures.place.phase
    if phase == "unknown" and any(e.kind.startswith("dataloader.") for e in run.events) and event.family == "host-oom":
        phase = "data"
    source = traceback.source if traceback else event.source
    if traceback and (frame := figures.place.operation_frame or figures.place.phase_frame):
        source = Source(
            traceback.source.path,
            frame.log_line,
            f"{frame.path}:{frame.line} in {frame.function}  {frame.code}".strip(),
        )
    operation = figures.place.operation
    shape = event.figures.get("tensor_shape") or []
    square = operation is None and len(shape) >= 4 and shape[-1] == shape[-2] >= 256
    texts = (event.message, *event.source.context) if shape else ()
    if phase == "unknown" and (node := next(filter(None, map(_NODE.search, texts)), None)):
        phase = next((name for name, scope in _PHASE_OF_NODE if scope.search(node["name"])), phase)
    said = texts if square else ()
    # A square for each head is a matrix of scores only where a product or a softmax made it: images are square as well.
    if made := next(filter(None, map(_SCORES_NODE.search, said)), None):
        operation, phase = "attention-scores", "forward" if phase == "unknown" else phase
        stated = f"the message states {' × '.join(map(str, shape))}, made by {made[0].strip('[')[-80:]}"
        figures.put(event.source, size_matches=operation, size_shape=stated)
    # Steps x batch x vocabulary; with two dimensions it may be the weights of the last layer.
    rows = [one for one in run.of(Setting) if one.name == "vocab" and len(shape) == 3 and one.value == shape[-1]]
    if operation is None and rows and shape[-1] >= _MANY_WORDS:
        operation, phase = "logits", "forward" if phase == "unknown" else phase
        stated = f"the message states {' × '.join(map(str, shape))}, the last of them the vocabulary ({rows[0].source})"
        figures.put(event.source, size_matches=operation, size_shape=stated)
    figures.put(
        source,
        phase=phase,
        operation=operation,
        exception=traceback.exception if traceback else None,
        operation_code=figures.place.operation_frame.code if figures.place.operation_frame else None,
    )
    before = [
        p
        for p in run.progress
        if p.source.path == event.source.path
        and (p.rank == event.rank or p.rank is None or event.rank is None)
        and (p.source.line or 0) <= (event.source.line or 0)
    ]
    large = any(file.path == event.source.path and not file.whole for file in run.files)
    if large:  # only neighbourhoods of a large log were read: a step far above need not be the last one
        before = [p for p in before if (event.source.line or 0) - (p.source.line or 0) <= _NEAR_LINES]
    if before:
        last = max(before, key=lambda p: (p.source.line or 0, p.step))
        steps = {p.step for p in before}
        early = len(steps) <= 2 and (max(steps) <= 1 or _resumed(run) is not None)
        figures.put(last.source, failed_step=last.step, first_steps=early)
    elif run.settings.get("total_steps"):
        figures.put(event.source, first_steps=True)


def _resumed(run: Run) -> Setting | None:
    """The sign that the run started from a checkpoint; one that is restored after training is no resume."""
    resumed = run.settings.get("resumed")
    if resumed is None or not resumed.source.line:
        return resumed
    here = [p for p in run.progress if p.source.path == resumed.source.path]
    return None if sum((p.source.line or 0) < resumed.source.line for p in here) >= 2 else resumed
