"""What answers the what-if: programs traced from the run's own model where they are kept, closed forms until then.

A move of a slider asks for programs that are there; it never traces. Tracing is a process of its own (`Background`),
begun by a person, or once the what-if was touched and rests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from ..memory import formulas
from ..memory.background import Background
from ..memory.engine import Traces, missing_for_trace, refusal
from ..memory.estimates import Estimate
from ..memory.plan import FORMULAS, Engine
from ..memory.settings import Settings

LOOK_SECONDS = 0.25


class Standing(NamedTuple):
    """Which engine answers and how far tracing is: ``line`` in words, ``can`` be traced on request, ``busy`` at it."""

    exact: bool
    line: str
    can: bool = False
    busy: bool = False
    done: int = 0
    meant: int = 0


class Answers:
    """Estimates by what is there, and the process that makes them exact. ``on_change`` is called as that goes on."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self.on_change = on_change
        self.traces = Traces()
        self.background: Background | None = None
        self._failed: dict[Settings, str] = {}
        self._seen = (-1, -1)

    # --- answers

    def exact(self, s: Settings) -> bool:
        """Whether a program that is there answers."""
        return self.traces.has(s)

    def sketch(self, s: Settings) -> Estimate:
        """By the program that is there, else by closed forms; never traces, never replays the allocator."""
        return self.traces.sketch(s) if self.exact(s) else formulas.estimate(s)

    def estimate(self, s: Settings) -> Estimate:
        """As `sketch`, with reserved bytes by replaying the allocator."""
        return self.traces.estimate(s) if self.exact(s) else formulas.estimate(s)

    def peak_bytes(self, s: Settings) -> int:
        """The peak of `sketch`."""
        return self.traces.peak_bytes(s) if self.exact(s) else formulas.peak_bytes(s)

    def beside(self, s: Settings) -> Engine:
        """The engine for changes of these settings."""
        return Beside(self, self.peak_bytes(s) - formulas.peak_bytes(s)) if self.exact(s) else FORMULAS

    # --- tracing

    def standing(self, s: Settings) -> Standing:
        """Which engine answers these settings, why, and what is under way."""
        b = self.background
        busy = b is not None and b.running
        if self.exact(s):
            traced, _ = self.traces.traced(s)
            named = next((n for n in traced.notes if n.startswith("Built from")), "")
            model = _class_of(s, named)
            check = "traced live" if traced.off_bytes is None else f"self-check {traced.off_bytes} bytes off"
            line = f"Exact: traced from {model}, {check}"
            if b and busy:
                line += f"; tracing {self._about(b.settings[min(b.at, len(b.settings) - 1)], s)} too"
            return Standing(True, line, busy=busy, done=b.done if b else 0, meant=b.meant if b else 0)
        if absent := missing_for_trace():
            return Standing(False, f"Closed forms: {absent} is not installed here, so the model can't be traced")
        if why := refusal(s) or self._failed.get(alike(s)):
            return Standing(False, f"Closed forms: {why}")
        if b and busy and alike(s) in map(alike, b.settings):
            line = "Closed forms: traced model not ready" + (f" ({b.done} of {b.meant} traces)" if b.meant else "")
            return Standing(False, f"{line}, {b.what}" if b.what else line, busy=True, done=b.done, meant=b.meant)
        return Standing(False, "Closed forms: these settings are not traced yet", can=True, busy=busy)

    def trace(self, s: Settings, ahead: Iterable[Settings] = ()) -> None:
        """Begin to trace what these settings need; what is traced for others ends."""
        wanted = [one for one in dict.fromkeys((s, *ahead)) if not self.exact(one) and not refusal(one)]
        wanted = [one for one in wanted if alike(one) not in self._failed]
        if not wanted or missing_for_trace():
            return
        if self.background and self.background.running and alike(wanted[0]) in map(alike, self.background.settings):
            return
        self.stop()
        self.background, self._seen = Background(wanted), (-1, -1)
        with contextlib.suppress(RuntimeError):  # no loop: whoever has none waits
            self._look(asyncio.get_running_loop(), self.background)
        self.on_change()

    def _look(self, loop: asyncio.AbstractEventLoop, background: Background) -> None:
        if background is not self.background:
            return
        self.heard()
        if background.running:
            loop.call_later(LOOK_SECONDS, self._look, loop, background)

    def heard(self) -> None:
        """Take note of what the process told, and say so where it is news."""
        b = self.background
        if b is None:
            return
        for at, why in b.errors.items():
            self._failed[alike(b.settings[at])] = why
        for at, layers in b.layers.items():  # of some models only they themselves know
            self.traces.exact(b.settings[at]).full_layers = layers
        for one in b.settings[: b.at]:
            if alike(one) not in self._failed and not self.exact(one):
                self._failed[alike(one)] = "the trace could not be kept; name a folder to keep it in DIAG_KIT_CACHE"
        now = (b.at, b.done if b.running else -2)
        if now != self._seen:
            self._seen = now
            self.on_change()

    def wait(self) -> None:
        """Until the process ends; for a notebook that runs without a person."""
        if self.background:
            self.background.wait()
            self.heard()

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.background and self.background.running:
            self.background.stop()
        self.background = None

    def _about(self, one: Settings, s: Settings) -> str:
        """What of these settings is another in the one that is traced."""
        if one.model == s.model and one.micro_batch != s.micro_batch:
            return f"micro-batch {one.micro_batch}"
        if one.grad_accum != s.grad_accum:
            return f"{one.grad_accum} micro-steps"
        changes = [n for n in ("attention", "checkpointing", "precision", "optimizer", "backward")
                   if getattr(one, n) != getattr(s, n)]  # fmt: skip
        return f"{changes[0]} {getattr(one, changes[0])}" if changes else "another change"


def _class_of(s: Settings, note: str) -> str:
    """The model's class, as the configuration or the trace's own note has it."""
    config = (s.exact.config if s.exact else None) or {}
    named = config.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str):
        return named[0][:60]
    return note.rpartition(" ")[2].rstrip(".") or "the model"


def alike(s: Settings) -> Settings:
    """Settings that one trace covers as one: numbers that a program is evaluated at are put aside."""
    return replace(s, seq_len=8 if not s.seq_len % 8 else 9, capacity_bytes=None, method="auto",
                   micro_batch=min(s.micro_batch, 2), grad_accum=min(s.grad_accum, 2))  # fmt: skip


def neighbours(s: Settings) -> list[Settings]:
    """What sliders reach from here: one micro-batch or several, accumulating or not, as programs tell them apart."""
    more = s.with_(micro_batch=2 if s.micro_batch == 1 else 1)
    return [more, *(one.with_(grad_accum=2 if s.grad_accum == 1 else 1) for one in (s, more))]


class Beside:
    """The engine for changes of settings whose peak is exact: where a change is not traced, closed forms say what it
    saves, and that is taken off the exact peak. ``gap``: the exact peak less that of closed forms.
    """

    method = "trace"

    def __init__(self, answers: Answers, gap: int) -> None:
        self.answers, self.gap = answers, gap

    def estimate(self, s: Settings) -> Estimate:
        """As `Answers.sketch`, closed forms moved by the gap."""
        if self.answers.exact(s):
            return self.answers.sketch(s)
        e = formulas.estimate(s)
        held, gap = e.components_at_peak, self.gap
        low, high = e.band_bytes
        return replace(
            e, peak=replace(e.peak, by_category={**held, "temporaries": held["temporaries"] + gap}),
            device_bytes=e.device_bytes + gap, peak_reserved_bytes=e.peak_reserved_bytes + gap,
            band_bytes=(low + gap, high + gap), every_phase_bytes=e.every_phase_bytes + gap,
        )  # fmt: skip

    def peak_bytes(self, s: Settings) -> int:
        """The peak of `estimate`."""
        if self.answers.exact(s):
            return self.answers.peak_bytes(s)
        return max(formulas.peak_bytes(s) + self.gap, 1)
