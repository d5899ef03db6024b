"""What if: the run's settings as controls, and what its memory would be, in plots, words and numbers.

A move costs one estimate and three specs; remedies, which need an estimate each, follow once the controls rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import ipywidgets as w

from ..errors import DiagKitError
from ..memory.settings import Settings
from ..prefill import MODELS
from ..units import GIB, gib
from . import figures
from .answers import Answers, Standing, neighbours
from .controls import Choice, Number
from .curves import Curves, room_of
from .data_figures import measured_figure
from .html import render
from .lengths_view import LengthsView
from .measured import passing, rows
from .plan_view import PlanView, fit
from .plot_view import PlotView
from .state import AtRest, WorkbookState, is_looping

LENGTHS = sorted(n << k for n in (2, 3) for k in range(7, 17))
COUNTS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
CARDS = [8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 180, 192, 256, 288]
OWN = "own"
REST_SECONDS = 1.0
"""How long a what-if that a person touched rests before its model is traced."""

NUMBERS = {
    "seq_len": ("Sequence length", "tokens", LENGTHS),
    "micro_batch": ("Micro-batch", "sequences", COUNTS),
    "grad_accum": ("Accumulation", "micro-steps", COUNTS),
}
CHOICES: dict[str, tuple[str, dict[str, str]]] = {
    "attention": ("Attention kernel", {"eager": "eager: scores in memory", "sdpa": "sdpa: what torch picks",
                                       "flash": "flash: fused", "efficient": "memory-efficient: fused"}),
    "checkpointing": ("Checkpointing", {"none": "none", "selective": "selective", "full": "full"}),
    "backward": ("Backward", {"each-micro-batch": "after each micro-batch", "deferred": "once, at the end"}),
    "precision": ("Precision", {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16",
                                "amp-bf16": "bf16 autocast, fp32 weights", "amp-fp16": "fp16 autocast, fp32 weights"}),
    "optimizer": ("Optimizer", {"adamw": "AdamW", "adamw-fused": "AdamW, fused", "adamw-loop": "AdamW, loop",
                                "adamw-foreach": "AdamW, foreach", "adamw-8bit": "AdamW, 8-bit",
                                "adafactor": "Adafactor", "sgd": "SGD", "none": "none"}),
}  # fmt: skip
SHAPE = {"n_layers": "Layers", "hidden": "Hidden size", "heads": "Heads", "kv_heads": "Key/value heads",
         "ffn": "Feed-forward size", "vocab": "Vocabulary"}  # fmt: skip


class WhatIfView(w.VBox):
    """Controls beside plots. ``controls`` holds each by the name of its setting.

    ``brief``: plots alone, without what would lower the peak, lengths, numbers, or a report to keep settings for.
    """

    def __init__(self, state: WorkbookState, *, brief: bool = False) -> None:
        self.state, self._brief = state, brief
        self.answers = Answers(self._show_traced)
        self.curves = Curves(self.answers)
        self.engine = EngineView()
        self.engine.button.on_click(lambda _: self.trace())
        self.engine.stop.on_click(lambda _: self._stop())
        self._showing, self._touched, self._was_exact = False, False, False
        self._rest = AtRest(self._trace_at_rest, seconds=REST_SECONDS)
        self._curves = AtRest(self._show_curves, seconds=0.02)
        self._tables = AtRest(self._show_tables)
        self._replayed = AtRest(self._show_replayed)
        self._held: tuple[Any, ...] = ()
        self._drawn: dict[str, figures.Figure] = {}
        numbers = {name: Number(label=label, unit=unit) for name, (label, unit, _) in NUMBERS.items()}
        choices = {
            name: Choice(label=label, options=[list(pair) for pair in options.items()])
            for name, (label, options) in CHOICES.items()
        }
        capacity = Number(label="GPU capacity", unit="GiB", stops=CARDS, whole=False, low=1, high=2048)
        self.shape = {name: Number(label=label, high=1e7) for name, label in SHAPE.items()}
        models = [[OWN, "its own numbers, below"], *([name, name] for name in MODELS)]
        self.model = Choice(label="Model", options=models)
        self.controls: dict[str, Any] = numbers | choices | {"capacity_bytes": capacity}
        for name in (*numbers, *choices):
            self.controls[name].observe(lambda change, name=name: self._change(**{name: _plain(change.new)}), "value")
        capacity.observe(lambda change: self._change(capacity_bytes=round(change.new * GIB)), "value")
        self.model.observe(self._choose_model, "value")
        for name, number in self.shape.items():
            number.observe(lambda change, name=name: self._change_shape(name, change.new), "value")

        self.verdict, self.against, self.beside, self.numbers = w.HTML(), w.HTML(), w.HTML(), w.HTML()
        self.plan = PlanView(state, lambda wanted: self.trace(wanted))
        self.plots = {
            name: PlotView(height=height)
            for name, height in (("step", 340), ("length", 300), ("micro_step", 300), ("measured", 280))
        }
        self.words = {name: w.HTML() for name in self.plots}
        self.reset = w.Button(description=f"Back to {state.start_name}", tooltip="Set every control back")
        self.keep = w.Button(description="Keep for the report", tooltip="Add these settings and their peak to it")
        self.forget = w.Button(tooltip="Take the kept settings out of the report")
        self.reset.on_click(lambda _: state.reset())
        self.keep.on_click(lambda _: state.explore())
        self.forget.on_click(lambda _: state.forget_explored())
        self.measured = self._figure("measured", "Memory as measured")
        self.model_box = w.Accordion(
            [w.VBox([self.model, *self.shape.values()]).add_class("dk-stack")], titles=("Model",)
        )
        controls = w.VBox([*self.controls.values(), self.model_box, self.reset, self.keep, self.forget])
        controls.add_class("dk-controls").add_class("dk-card")
        drawn = w.VBox([
            w.VBox([self.engine, self.verdict, self.against]),
            self._figure("step", "Memory over one optimizer step"),
            w.GridBox([self._figure("length", "Peak against sequence length"),
                       self._figure("micro_step", "Memory against micro-step")]).add_class("dk-pair"),
            self.measured, *(() if brief else (self.beside, self.plan, LengthsView(state, self.answers), self.numbers)),
        ]).add_class("dk-plots")  # fmt: skip
        self.keep.layout.display = "none" if brief else ""
        super().__init__([w.GridBox([controls, drawn]).add_class("dk-what-if")])
        self.add_class("dk")
        state.on("what_if", self._show)
        state.on("evidence", self._show_evidence)
        state.on("explored", self._show_kept)
        for show in (self._show_evidence, self._show_kept, self._show):
            show()

    def _figure(self, name: str, title: str) -> w.VBox:
        return w.VBox([w.HTML(f"<h3>{title}</h3>"), self.plots[name], self.words[name]]).add_class("dk-figure")

    def _choose_model(self, change: Any) -> None:
        if change.new != OWN:
            self._change(model=dict(MODELS[change.new]))

    def _change_shape(self, name: str, value: float) -> None:
        model = asdict(self.state.settings.model) | {name: int(value)}
        if name in ("hidden", "heads"):
            model["head_dim"] = 0  # follows from the two
        self._change(model=model)

    def _change(self, **changes: Any) -> None:
        if self._showing:
            return
        try:
            self._touched = True
            self.state.change(**changes)
        except DiagKitError as error:
            self.verdict.value = render("line.html", line=str(error))
            self._show_controls()

    def _show(self) -> None:
        """Controls, verdict and the step; curves follow within a blink, tables once the controls rest."""
        settings = self.state.settings
        now = self.answers.sketch(settings)
        self._show_controls()
        self._show_engine()
        self._draw("step", figures.step_figure(now, room_of(settings)))
        change = now.peak_allocated_bytes - self.answers.peak_bytes(self.state.logged)
        self.verdict.value = render(
            "verdict.html", now=now, settings=settings, change=change, start=self.state.start_name,
            example=self.state.example, fit=fit(now),
        )  # fmt: skip
        as_logged = settings.capacity_bytes == self.state.logged.capacity_bytes
        self.against.value = render(
            "against.html", capacity=self.state.capacity_note if as_logged else "", lines=self.state.compared
        )
        self._curves()
        self._tables()
        if self._touched:
            self._rest()

    def trace(self, wanted: Sequence[Settings] = ()) -> None:
        """Trace what these settings need, then ``wanted``, else what their sliders reach, in a process of its own."""
        self.answers.trace(self.state.settings, wanted or neighbours(self.state.settings))

    def _trace_at_rest(self) -> None:
        """Only what a person touched, on a loop that can show how far it is."""
        if not self.state.example and is_looping():
            self.trace()

    def _stop(self) -> None:
        self._touched = False
        self.answers.stop()
        self._show_engine()

    def _show_traced(self) -> None:
        """The tracing process told something: where closed forms stood and a program is there now, all is redrawn."""
        self.curves.forget()
        if self.answers.exact(self.state.settings) == self._was_exact:
            self._show_engine()
            self._curves()
        else:
            self._show()

    def _show_engine(self) -> None:
        standing = self.answers.standing(self.state.settings)
        self._was_exact = standing.exact
        self.engine.show(standing, example=self.state.example)

    def _show_curves(self) -> None:
        settings = self.state.settings
        self._draw("length", self.curves.length(settings))
        self._draw("micro_step", self.curves.micro_step(settings))

    def _show_tables(self) -> None:
        """Changes and plans; then what needs the allocator replayed, a part of a second each."""
        if not self._brief:
            self.plan.show(self.state.settings, self.answers.beside(self.state.settings))
            self._replayed()

    def _show_replayed(self) -> None:
        self.numbers.value = render("numbers.html", now=self.answers.estimate(self.state.settings))
        logged, diagnosis = self.state.logged, self.state.diagnosis
        held = (diagnosis, logged, self.answers.exact(logged))
        if held != self._held:
            self._held, now = held, self.answers.estimate(logged)
            known = diagnosis if "model" in self.state.origins else None
            beside = (list(rows(known, now)), passing(known, now)) if known else ((), "")
            self.beside.value = render("beside.html", rows=beside[0], passing=beside[1], now=now)

    def drawn(self) -> list[figures.Figure]:
        """The plots as they stand, for a report."""
        self._curves.now()
        return [self._drawn[name] for name in self.plots if name in self._drawn]

    def _draw(self, name: str, figure: figures.Figure) -> None:
        self._drawn[name] = figure
        self.plots[name].draw(figure.spec, f"{figure.title}. {figure.text}")
        self.words[name].value = render("words.html", text=figure.text)

    def _show_controls(self) -> None:
        settings, origins = self.state.settings, self.state.origins
        self._showing = True
        try:
            for name, control in self.controls.items():
                value = getattr(settings, name)
                logged = value == getattr(self.state.logged, name)
                control.assumed = not (logged and name in origins)
                control.origin = origins.get(name, "assumed") if logged else "changed"
                control.value = round(gib(value), 2) if name == "capacity_bytes" else value
            for name, control in self.shape.items():
                control.value = getattr(settings.model, name)
            shape = asdict(settings.model)
            self.model.value = next((name for name, known in MODELS.items() if known.items() <= shape.items()), OWN)
            self.model.origin = (
                origins.get("model", "assumed") if settings.model == self.state.logged.model else "changed"
            )
            self.model.assumed = "model" not in origins
        finally:
            self._showing = False

    def _show_evidence(self) -> None:
        """What a what-if does not move: the sliders' stops and the memory that was measured."""
        self._touched = False
        self.answers.stop()
        for name, (_, _, stops) in NUMBERS.items():
            self.controls[name].stops = sorted({*stops, getattr(self.state.logged, name)})
        self.model_box.selected_index = 0 if self.state.example else None
        diagnosis, figure = self.state.diagnosis, None
        if diagnosis:
            room = figures.Room(self.state.logged.capacity_bytes)
            figure = measured_figure(diagnosis.points, room, diagnosis.growth)
        self.measured.layout.display = "" if figure else "none"
        self._drawn.pop("measured", None)
        if figure:
            self._draw("measured", figure)

    def _show_kept(self) -> None:
        n = len(self.state.explored)
        self.forget.description = f"Forget the {n} kept"
        self.forget.layout.display = "" if n else "none"


class EngineView(w.HBox):
    """Which engine answers, in one line beside the plots, with a bar while it traces and the buttons for that."""

    def __init__(self) -> None:
        self.line = w.HTML()
        self.button = w.Button(description="Trace this model", tooltip="Run the model on fake tensors, without a GPU")
        self.stop = w.Button(description="Stop tracing", tooltip="Stay with closed forms; what is traced is kept")
        super().__init__([self.line, self.button, self.stop])
        self.add_class("dk-engine")

    def show(self, standing: Standing, *, example: bool) -> None:
        """Say which engine answers. ``example``: of a model that nobody named."""
        self.line.value = render("engine.html", s=standing, example=example)
        self.button.layout.display = "" if standing.can and not example else "none"
        self.stop.layout.display = "" if standing.busy else "none"


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, float) else value
