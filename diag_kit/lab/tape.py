"""Live and highest bytes between marks, from real allocation events; imports torch, so it is loaded when one runs.

On the CPU torch's profiler reports every allocation and free of its allocator, those inside kernels included. On CUDA
the caching allocator's own statistics are read: ``memory_allocated`` and ``max_memory_allocated``.
"""

from __future__ import annotations

import gc
from operator import itemgetter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

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
            self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
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
        events = [(e.start_ns(), e.name(), e.nbytes()) for e in self._profile.profiler.kineto_results.events()]
        live = highest = 0
        for _, name, size in sorted(events, key=itemgetter(0)):
            if name == "[memory]":
                live += size
                highest = max(highest, live)
                self.peak = max(self.peak, live)
            elif name == _MARK:
                self.live.append(live)
                self.highest.append(highest)
                highest = live
        self._profile = None


class Bench:
    """Where an experiment runs: ``device``, ``cpu`` or ``cuda``."""

    def __init__(self, device: str) -> None:
        self.device = device

    def tape(self) -> Tape:
        """A new tape for this device."""
        return Tape(self.device)
