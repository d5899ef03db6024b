"""PyTorch's caching allocator replayed: from a program's requests and frees to the bytes reserved on the device.

The rules are those of torch's ``c10/cuda/CUDACachingAllocator.cpp``: sizes in steps of 512; requests up to 1 MiB from
segments of 2 MiB, larger ones from 20 MiB or, from 10 MiB on, their own size in steps of 2 MiB; best fit by size, then
address, within a stream; the rest of a block becomes a free block where it is worth it; neighbours merge when freed;
and cached segments go back to the device before a request fails.

Held against: the two recordings of real GPUs in tests/memory/data, address by address (default settings, one stream);
and, setting by setting, torch 2.14.1's own compiled allocator run on a device of arithmetic
(benchmarks/allocator_reference), which knows no GPU. A replay says which by ``verified``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import DiagKitError
from ..units import MIB
from .allocator_config import AllocatorConfig, parse_config
from .caching import DEFAULT, Allocator, OutOfMemory

__all__ = ["Allocator", "AllocatorConfig", "OutOfMemory", "Replay", "parse_config", "replay", "required_capacity"]

UNVERIFIED = "simulated, unverified"
"""Said of a replay under rules that no recording of a GPU has been held against."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a sequence of requests and frees made of the allocator. Sizes in bytes.

    ``peak_allocated_bytes``: of blocks, so rounded. ``reserved_at_allocated_peak_bytes``: reserved at that moment.
    ``fragmentation_bytes``: the most that lay unused in segments when more had to be reserved. ``segments_at_peak``:
    their number at the peak of reserved. ``retries``: how often the cache was given back because the device was full.
    ``oom``: the index of the event at which it stayed full, where the replay ended, with the request's rounded size in
    ``oom_bytes``; None where all of it ran. ``verified``: only rules were at work that were held against recordings of
    real GPUs and reproduced them (default settings, one stream, a device never full); if not, say ``UNVERIFIED``.
    """

    events: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    reserved_at_allocated_peak_bytes: int
    fragmentation_bytes: int
    segments_at_peak: int
    retries: int
    oom: int | None
    oom_bytes: int | None
    verified: bool


def replay(
    ids: Sequence[int],
    sizes: Sequence[int],
    config: AllocatorConfig = DEFAULT,
    capacity_bytes: int | None = None,
    streams: Sequence[int] | None = None,
) -> Replay:
    """Replays events: with ``sizes[i]`` above 0, so many bytes are allocated as ``ids[i]``; else ``ids[i]`` is freed.

    A name may be used again once it is freed, so a step's events can be repeated for steps in a steady state. Requests
    of 0 bytes are no events: torch's allocator does not hear of them.

    Args:
        ids: a name for each event, as a list or an array.
        sizes: bytes requested, or 0 or less for a free; as many.
        config: the allocator's settings.
        capacity_bytes: what the device can give to this allocator, or None for a device without end.
        streams: the stream of each event, or None for one stream.

    Errors: DiagKitError that names the event, where one is impossible (freed twice, never allocated, no size).
    """
    ids, sizes = _plain(ids), _plain(sizes)
    streams = [0] * len(ids) if streams is None else _plain(streams)
    if not len(ids) == len(sizes) == len(streams):
        raise DiagKitError(f"ids, sizes and streams differ in number: {len(ids):,}, {len(sizes):,}, {len(streams):,}")
    allocator = Allocator(config, capacity_bytes)
    malloc, free = allocator.malloc, allocator.free
    oom: OutOfMemory | None = None
    done = 0
    try:
        for key, size, stream in zip(ids, sizes, streams, strict=True):
            if size > 0:
                malloc(key, size, stream)
            else:
                free(key)
            done += 1
    except OutOfMemory as full:
        oom = full
    except DiagKitError as wrong:
        raise DiagKitError(f"event {done:,}: {wrong}") from None
    return Replay(
        events=done,
        peak_allocated_bytes=allocator.peak_allocated,
        peak_reserved_bytes=allocator.peak_reserved,
        reserved_at_allocated_peak_bytes=allocator.reserved_at_peak,
        fragmentation_bytes=allocator.fragmentation,
        segments_at_peak=allocator.segments_at_peak,
        retries=allocator.retries,
        oom=None if oom is None else done,
        oom_bytes=None if oom is None else oom.bytes,
        verified=config == DEFAULT and allocator.retries == 0 and len(set(streams)) < 2,
    )


def required_capacity(
    ids: Sequence[int],
    sizes: Sequence[int],
    config: AllocatorConfig = DEFAULT,
    streams: Sequence[int] | None = None,
    tolerance_bytes: int = 2 * MIB,
) -> int:
    """The least bytes of a device on which these events run: cached memory is given back before a request fails.

    Found by halving between what is alive at the peak and what is reserved on a device without end, to
    ``tolerance_bytes``: the events run at the result and not at one tolerance less. (That they run on every larger
    device is no law of this allocator, nor of torch's.) The other arguments and errors are those of ``replay``.
    """
    ids, sizes = _plain(ids), _plain(sizes)
    high = -(-replay(ids, sizes, config, None, streams).peak_reserved_bytes // tolerance_bytes)
    alive: dict[int, int] = {}
    total = peak = 0
    for key, size in zip(ids, sizes, strict=True):
        if size > 0:
            alive[key] = config.round(size)
            total += alive[key]
            peak = max(peak, total)
        else:
            total -= alive.pop(key)
    low = -(-peak // tolerance_bytes)
    while low < high:
        middle = (low + high) // 2
        if replay(ids, sizes, config, middle * tolerance_bytes, streams).oom is None:
            high = middle
        else:
            low = middle + 1
    return high * tolerance_bytes


def _plain(numbers: Sequence[int]) -> Sequence[int]:
    """Python's own numbers, which are quicker one by one than those of an array."""
    plain: Sequence[int] = getattr(numbers, "tolist", lambda: numbers)()
    return plain
