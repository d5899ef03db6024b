"""What a step needs: the moments of its timeline, the largest of them, and what the device shows then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from .settings import Settings
from .terms import Term

SCHEMA = "diag_kit.estimate/1"
Progress = Callable[[str, int, int], None]
"""Told what is traced, how many traces are done and how many are meant to be."""
PHASES = ("forward", "loss", "backward", "optimizer", "eval", "checkpoint")


class Lead(NamedTuple):
    """The largest moment of a step: bytes, phase, and the operator in its module that made it."""

    peak_bytes: int
    phase: str
    label: str


@dataclass(frozen=True, slots=True)
class Moment:
    """Memory at one moment of the step, by category, in bytes. ``micro_step`` counts from 1; None in the optimizer."""

    label: str
    phase: str
    micro_step: int | None
    by_category: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.by_category.values())


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a step needs, in bytes.

    Attributes:
        terms: the named parts; ``timeline``: one optimizer step, later than the first (optimizer state exists).
        peak_allocated_bytes: the largest moment; ``components_at_peak`` sums to it exactly.
        steady_state_bytes: what stays between steps: parameters, optimizer state, buffers that persist.
        peak_reserved_bytes: what the caching allocator needs then, with little to spare; ``device_bytes`` adds the
            CUDA context.
        band_bytes: lowest and highest that the device may show: context and fragmentation aren't known exactly.
        method: ``formula`` or ``trace``; details: of the trace, as JSON.
        beside: moments outside the step (phases eval and checkpoint), which the peak does not count.
        every_phase_bytes: device_bytes of the largest phase, those of ``beside`` included.
        fits: the step's device_bytes stay within the capacity; headroom_bytes: capacity minus every_phase_bytes,
            ``headroom_phase`` the one that decides it. None without a capacity.
    """

    settings: Settings
    terms: tuple[Term, ...]
    timeline: tuple[Moment, ...]
    peak: Moment
    steady_state_bytes: int
    peak_reserved_bytes: int
    device_bytes: int
    band_bytes: tuple[int, int]
    assumptions: tuple[str, ...]
    method: str = "formula"
    beside: tuple[Moment, ...] = ()
    every_phase_bytes: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    def but(self, said: str) -> Estimate:
        """The same with something said first among the assumptions."""
        return replace(self, assumptions=(said, *self.assumptions))

    @property
    def peak_allocated_bytes(self) -> int:
        return self.peak.total_bytes

    @property
    def peak_phase(self) -> str:
        return self.peak.phase

    @property
    def components_at_peak(self) -> dict[str, int]:
        return self.peak.by_category

    @property
    def peak_by_phase(self) -> dict[str, int | None]:
        """Largest moment of each phase; None for a phase that these settings do not describe."""
        found: dict[str, int | None] = dict.fromkeys(PHASES)
        for moment in (*self.timeline, *self.beside):
            found[moment.phase] = max(found[moment.phase] or 0, moment.total_bytes)
        return found

    @property
    def headroom_bytes(self) -> int | None:
        capacity = self.settings.capacity_bytes
        return None if capacity is None else capacity - max(self.device_bytes, self.every_phase_bytes)

    @property
    def headroom_phase(self) -> str:
        """The phase with the largest moment of all: the step's, unless evaluation or saving needs more."""
        return max((self.peak, *self.beside), key=lambda moment: moment.total_bytes).phase

    @property
    def fits(self) -> bool | None:
        capacity = self.settings.capacity_bytes
        return None if capacity is None else self.device_bytes <= capacity

    def to_json(self) -> dict[str, Any]:
        """The document of ``diag-kit estimate --json``."""
        return {
            "schema": SCHEMA,
            "method": self.method,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "device_bytes": self.device_bytes,
            "peak_phase": self.peak_phase,
            "components_at_peak": dict(self.components_at_peak),
            "peak_by_phase": self.peak_by_phase,
            "headroom_bytes": self.headroom_bytes,
            "headroom_phase": self.headroom_phase,
            "band_bytes": list(self.band_bytes),
            "fits": self.fits,
            "assumptions": list(self.assumptions),
            "steady_state_bytes": self.steady_state_bytes,
            "peak_moment": self.peak.label,
            "settings": self.settings.to_json(),
            **self.details,
        }
