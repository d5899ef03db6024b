"""Curves of the what-if: by the traced program where one is there, by closed forms where not, each saying which."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ..memory.activations import FUSED
from ..memory.device import attention_kernel
from ..memory.estimates import Lead
from ..memory.formulas import device_limit, micro_step_curve, quadratics, textbook
from ..memory.plan import LONGEST, largest, longest_that
from ..memory.settings import Settings
from . import figures
from .answers import Answers

STEP = 8
"""Kinks are told to multiples of this: what every program covers, whatever kernels pad to."""
MOST_KINKS = 3


def room_of(s: Settings) -> figures.Room:
    """The device's room by the memory model's own rule of what fits."""
    limit = device_limit(s)
    return figures.Room(s.capacity_bytes, round(limit) if limit < float("inf") else None)


def axis(here: int) -> list[int]:
    """Lengths to twice the current one, rounded up to a power of two: the axis seldom jumps under a moving slider."""
    step = max(4096, 1 << (2 * here - 1).bit_length()) // 64
    return [STEP, *(step * i for i in range(1, 65))]


class Shape(NamedTuple):
    """A curve over lengths. ``leads``: of a traced one, the winner at each length; ``kinks``: where it changes."""

    peaks: tuple[int, ...]
    fits_to: int | None
    kinks: tuple[tuple[int, Lead], ...] = ()
    exact: bool = False


class Curves:
    """Curves over the answers that are there; the last ones are kept, so that a length slider only moves a point."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self._exact = lru_cache(16)(self._traced)
        self._forms = lru_cache(16)(_formula)

    def forget(self) -> None:
        """Something was traced: what was drawn by closed forms may be exact now."""
        self._exact.cache_clear()

    def length(self, s: Settings) -> figures.Figure:
        """Peak over length with this kernel and with the other kind of kernel, and the textbook's line."""
        lengths, room = tuple(axis(s.seq_len)), room_of(s)
        fused = attention_kernel(s) in FUSED
        others = ("eager",) if fused else ("sdpa", "flash")
        other = next((k for k in others if self.answers.exact(s.with_(attention=k))), others[-1])
        drawn = []
        for settings, is_fused in ((s, fused), (s.with_(attention=other), not fused)):
            shape = self.shape(settings, lengths)
            name = ("fused, linear" if is_fused else "eager, quadratic") + ("" if shape.exact else " (closed form)")
            colour = figures.FLAT if is_fused else figures.RISING
            drawn.append((is_fused, figures.Curve(name, shape.peaks, colour, shape.fits_to), shape))
        own = drawn[0][2]
        eager, flat = (curve for _, curve, _ in sorted(drawn, key=lambda one: one[0]))
        here = (s.seq_len, self.answers.peak_bytes(s))
        book = [textbook(s, n) for n in lengths]
        return figures.length_figure(lengths, eager, flat, here, room, own.kinks, (book, textbook(s, s.seq_len)))

    def shape(self, s: Settings, lengths: tuple[int, ...]) -> Shape:
        """Peaks at these lengths, whatever length is set."""
        base = s.with_(seq_len=lengths[-1])
        return (self._exact(base, lengths) if self.answers.exact(base) else None) or self._forms(base, lengths)

    def _traced(self, s: Settings, lengths: tuple[int, ...]) -> Shape | None:
        traces = self.answers.traces
        leads = traces.curve(s, lengths)
        if leads is None:
            return None
        kinks = []
        for (low, a), (high, b) in pairwise(zip(lengths, leads, strict=True)):
            if part_of(a) != part_of(b) and (between := traces.curve(s, range(low, high + 1, STEP))):
                at = next((i for i, lead in enumerate(between) if part_of(lead) == part_of(b)), len(between) - 1)
                kinks.append((low + STEP * at, between[at]))
        fits_to = largest(s, "seq_len", self.answers.beside(s))
        return Shape(tuple(lead.peak_bytes for lead in leads), fits_to, tuple(kinks[-MOST_KINKS:]), True)

    def micro_step(self, s: Settings) -> figures.Figure:
        """Highest memory in each micro-step of a window, graphs kept or let go."""
        window, room = max(8, 1 << (s.grad_accum - 1).bit_length()), room_of(s)
        drawn = {}
        for backward, name, colour in (("deferred", "graphs kept", figures.RISING),
                                       ("each-micro-batch", "backward each micro-step", figures.FLAT)):  # fmt: skip
            probe = s.with_(grad_accum=window, backward=backward)
            exact = self.answers.exact(probe)
            peaks = self._steps(probe) if exact else micro_step_curve(probe.with_(grad_accum=1), window, backward)
            name += "" if exact else " (closed form)"
            drawn[backward] = figures.Curve(name, peaks, colour, figures.last_fit(peaks, room))
        at = s.grad_accum
        kept, each = drawn["deferred"], drawn["each-micro-batch"]
        return figures.micro_step_figure(kept, each, (at, drawn[s.backward].peaks[at - 1]), room)

    def _steps(self, s: Settings) -> list[int]:
        """From the traced timeline: its first, second and last but one micro-steps, and the line between these two."""
        phases = ("forward", "loss") if s.backward == "deferred" else ("forward", "loss", "backward")
        found: dict[int, int] = {}
        for m in self.answers.sketch(s).timeline:
            if m.micro_step and m.phase in phases:
                found[m.micro_step] = max(found.get(m.micro_step, 0), m.total_bytes)
        known = sorted(found)
        peaks = []
        for step in range(1, s.grad_accum + 1):
            high = next(k for k in known if k >= step)
            low = max(k for k in known if k <= step)
            part = (step - low) / (high - low) if high > low else 0
            peaks.append(round(found[low] + part * (found[high] - found[low])))
        return peaks


def part_of(lead: Lead) -> tuple[str, str]:
    """What a person would say leads: the phase, and the part of the model."""
    return lead.phase, lead.label.rpartition(" in ")[2] if " in " in lead.label else ""


def _formula(s: Settings, lengths: tuple[int, ...]) -> Shape:
    limit = device_limit(s)
    moments = quadratics(s, "seq_len")

    def peak(n: int) -> int:
        return round(max(a + n * (b + n * c) for a, b, c in moments))

    fits_to = None
    if limit < float("inf"):
        fits_to = longest_that(lambda n: peak(n) <= limit, LONGEST) or None
    return Shape(tuple(peak(n) for n in lengths), fits_to)
