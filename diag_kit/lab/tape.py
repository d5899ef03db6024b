"""Live and highest bytes between marks, from real allocation events; imports torch, so it is loaded when one runs.

On the CPU torch's profiler reports every allocation and free of its allocator, those inside kernels included. On CUDA
the caching allocator's own statistics are read: ``memory_allocated`` and ``max_memory_allocated``.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile, record_function

_MARK = "diag_kit.lab mark"


class Tape:
    """Records while it is open. Afterwards ``live[i]`` is what was alive at the i-th mark, ``highest[i]`` the most that
    was alive between the mark before (or the start) and it; ``peak`` the most of all. Bytes since the start.

    A mark may be set anywhere in the code; it costs a few microseconds and allocates nothing on the device.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.live: list[int] = []
        self.highest: list[int] = []
        self.peak = 0
        self._profile: Any = None
        self._before = 0

    def __enter__(self) -> Tape:
        gc.collect()
        if self.device == "cpu":
            self._profile = profile(profile_memory=True)
            self._profile.__enter__()
        else:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        return self

    def mark(self) -> None:
        """Note what is alive here."""
        if self.device == "cpu":
            with record_function(_MARK):
                pass
        else:
            self.live.append(torch.cuda.memory_allocated() - self._before)
            self.highest.append(torch.cuda.max_memory_allocated() - self._before)
            torch.cuda.reset_peak_memory_stats()

    def __exit__(self, *failure: object) -> None:
        if self.device == "cpu":
            self._profile.__exit__(*failure)
            if failure[0] is None:
                self._count()
        else:
            torch.cuda.synchronize()
            self.peak = max([torch.cuda.max_memory_allocated() - self._before, *self.highest])

    def _count(self) -> None:
        held: dict[int, int] = {}
        live = highest = 0
        for _, pointer, size in sorted(_events(self._profile.kineto_results.experimental_event_tree())):
            if size > 0:
                held[pointer] = size
                live += size
                highest = max(highest, live)
                self.peak = max(self.peak, live)
            elif size < 0:
                live -= held.pop(pointer, 0)  # what was made before the start and is freed now is not counted
            else:
                self.live.append(live)
                self.highest.append(highest)
                highest = live
        self._profile = None


def _events(tree: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """(time, address, bytes) of each allocation, with negative bytes of each free, and with none of each mark."""
    left = list(tree)
    while left:
        event = left.pop()
        left += event.children
        if event.tag == _EventType.Allocation:
            if event.extra_fields.alloc_size:  # an empty tensor allocates nothing
                yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size
        elif event.name == _MARK:
            yield event.start_time_ns, 0, 0


class _Mallinfo(ctypes.Structure):
    """As malloc.h has it (mallinfo(3)); of its ten sizes two are bytes in use, in arenas and mapped."""

    _fields_ = (
        ("before", ctypes.c_size_t * 4), ("hblkhd", ctypes.c_size_t), ("between", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t), ("after", ctypes.c_size_t * 2),
    )  # fmt: skip


def heap_bytes() -> int | None:
    """What this process has taken of the C library's heap, where autograd's nodes live; None without mallinfo2."""
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _Mallinfo
        found = library.mallinfo2()
    except (AttributeError, OSError, TypeError):
        return None
    return int(found.uordblks + found.hblkhd)


class Bench:
    """Where an experiment runs: ``device``, ``cpu`` or ``cuda``.

    ``importing``: processor seconds that ranks, processes of their own, took to import torch; the experiment adds them.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.importing = 0.0

    def tape(self) -> Tape:
        """A new tape for this device."""
        return Tape(self.device)
