"""An engineer's own loop, run small in a child process: what stays alive, the line that holds it, the fix tried."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import ipywidgets as w

from ..errors import StateError
from ..report.words import Line as Shown
from ..units import GIB, KIB, MIB, format_bytes
from . import places
from .controls import Page, field
from .entries_view import Reader, titles
from .figures import FLAT, RISING, Figure, Spec, escaped, layout_of
from .html import render
from .jobs import Job
from .plot_view import PlotView
from .state import WorkbookState

if TYPE_CHECKING:
    from ..lab.loop.result import Comparison, Line, Loop

BY = "lab"
"""Whose mark a measurement is."""
FIXED = "universal/fix-removes-symptom"
AROUND = 3
LONGEST = 200
SOURCE_BYTES = 4 << 20


class Answer(NamedTuple):
    """What came of a loop that was run: what stays alive, and each change that was tried."""

    loop: Loop
    tried: tuple[Comparison, ...]


class LoopView(w.VBox):
    """A form, a button, and the answer. A fix that was measured ticks the checklist of the open run."""

    def __init__(self, state: WorkbookState) -> None:
        self.state = state
        self.job: Job[Answer] | None = None
        self.path = w.Text(placeholder="train.py:factory")
        self.steps = w.BoundedIntText(value=3, min=2, max=64, layout=w.Layout(width="80px"))
        self.fix = w.Checkbox(value=True, description="Try the fix on a copy", indent=False)
        self.button = w.Button(description="Run it small", button_style="primary")
        self.button.tooltip = "Runs your code for a few micro-steps, in a process of its own"
        self.halt = w.Button(description="Stop", tooltip="End the process")
        self.status, self.answer, self.tried = w.HTML(), Page(), Page()
        self.plot, self.words = PlotView(height=250), w.HTML()
        line = w.HBox([field("Your factory", self.path), field("Micro-steps", self.steps)]).add_class("dk-loop-form")
        tools = w.HBox([self.button, self.halt, self.fix, self.status]).add_class("dk-line").add_class("dk-lab-tools")
        about = w.HTML(render("loop_about.html"))
        self.reader, drawn = Reader(state), w.VBox([self.plot, self.words]).add_class("dk-figure")
        super().__init__([about, line, tools, self.answer, drawn, self.tried, self.reader])
        self.tried.on_msg(lambda _page, message, _buffers: self.reader.ask(message))
        self.add_class("dk").add_class("dk-card").add_class("dk-stack").add_class("dk-loop")
        self.button.on_click(lambda _: self._run())
        self.halt.on_click(lambda _: self._stop())
        self.path.on_msg(self._on_enter)
        self._show_busy()
        self._draw(None)

    def _on_enter(self, _widget: Any, message: Mapping[str, Any], _buffers: Any) -> None:
        if message.get("event") == "submit":
            self._run()

    def _run(self) -> None:
        given = self.path.value.strip()
        if self.job or not given:
            self._say("" if self.job else "name a file and the function in it: train.py:factory")
            return
        name, colon, function = given.rpartition(":")
        target = f"{places.start_folder() / Path(name).expanduser()}:{function}" if colon else given
        steps, fix = self.steps.value, self.fix.value
        self.job = Job(lambda stop: _look_at(target, steps, fix, stop), self._done)
        self._show_busy()
        self.job.start()

    def _stop(self) -> None:
        if self.job:
            self.job.stop.set()

    def _done(self) -> None:
        job, self.job = self.job, None
        self._show_busy()
        if job is None:
            return
        if job.problem:
            self._say(job.problem)
        if job.result:
            self.show(job.result)

    def _show_busy(self) -> None:
        self.button.disabled = bool(self.job)
        self.halt.layout.display = "" if self.job else "none"
        self.status.value = render("loop_line.html", busy=bool(self.job), problem="")

    def _say(self, problem: str) -> None:
        self.status.value = render("loop_line.html", busy=False, problem=problem)

    def show(self, answer: Answer) -> None:
        """Show what came of a loop, and tick what it settles."""
        holdings = [(one, around(one.line)) for one in answer.loop.holdings]
        self.answer.value = render("loop.html", ran=answer.loop, holdings=holdings, near=_near)
        self.tried.value = render(
            "loop_tried.html", ran=answer.loop, holdings=holdings, tried=answer.tried, ticked=self._tick(answer),
            entries=titles(), causes=_owners(), near=_near,
        )  # fmt: skip
        self._draw(loop_figure(answer) if answer.loop.holdings else None)

    def _draw(self, figure: Figure | None) -> None:
        for view in (self.plot, self.words):
            view.layout.display = "" if figure else "none"
        if figure:
            self.plot.draw(figure.spec, f"{figure.title}. {figure.text}")
            self.words.value = render("words.html", text=figure.text)

    def _tick(self, answer: Answer) -> str:
        """Mark the targeted fix of the open run by what was measured; the word of the mark, empty without one."""
        told = next((one for one in answer.tried if one.verdict and one.measure == "kept"), None)
        if told is None or FIXED not in {item.id for item in self.state.checklist}:
            return ""
        state = "refuted" if told.verdict == "unchanged" else "confirmed"
        note = (f"{_near(answer.loop.target)}: {told.change}: {told.verdict}, {format_bytes(told.before_bytes, 1)} to "
                f"{format_bytes(told.after_bytes, 1)} a micro-step"
                f"{'; what is learnt changes too' if told.gradients == 'changed' else ''}")  # fmt: skip
        try:
            self.state.mark(FIXED, state, BY, note)
        except StateError:
            return ""
        return state


def _look_at(target: str, steps: int, fix: bool, stop: Event) -> Answer:
    from ..lab.loop.child import inspect_apart

    return Answer(*inspect_apart(target, try_fix=fix, micro_steps=steps, stop=stop))


def _near(path: str) -> str:
    """A path as one writes it in the folder that the command was given in."""
    return path.removeprefix(f"{places.start_folder()}{os.sep}")


def _owners() -> dict[str, str]:
    """Cause -> id of the entry that explains it."""
    from ..failures import load_entries

    return {cause.id: one.id for one in load_entries() for cause in one.causes}


def around(line: Line | None) -> list[Shown]:
    """The named line among its neighbours, as the file has them; the line alone where the file can't be read."""
    if line is None:
        return []
    path = places.start_folder() / line.path
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.stat().st_size < SOURCE_BYTES else ""
    except OSError:
        text = ""
    rows = text.splitlines()
    first = max(line.line - 1 - AROUND, 0)
    near = rows[first : line.line + AROUND]
    return [Shown(row[:LONGEST], n == line.line) for n, row in enumerate(near, first + 1)] or [Shown(line.text, True)]


def loop_figure(answer: Answer) -> Figure:
    """What is alive after each micro-step at the rates that were measured, before and after the fix."""
    loop = answer.loop
    lets_go = sum(one.bytes_per_micro_step for one in loop.holdings if "window" in one.until)
    lines = [("as it is", lets_go, loop.kept_bytes - lets_go, RISING)]
    for one in answer.tried:
        if one.measure == "kept" and one.after_bytes is not None:
            falls, stays = (one.after_bytes, 0) if lets_go else (0, one.after_bytes)
            lines.append((one.change, falls, stays, FLAT))
    steps = list(range(1, loop.micro_steps * loop.windows + 1))
    drawn = [(name, [_alive(n, loop.micro_steps, falls, stays) for n in steps], colour)
             for name, falls, stays, colour in lines]  # fmt: skip
    top = max(max(sizes) for _, sizes, _ in drawn)
    unit_name, unit = next(((n, u) for n, u in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)) if top >= u), ("bytes", 1))
    layout = layout_of("micro-step", top)
    layout["yaxis"] |= {"title": {**layout["yaxis"]["title"], "text": unit_name}, "range": [0, 1.12 * top / unit]}
    layout["xaxis"] |= {"dtick": 1 if len(steps) < 24 else None}
    data: list[Spec] = [
        {"type": "scatter", "mode": "lines+markers", "name": escaped(name[:60]), "x": steps,
         "y": [round(size / unit, 4) for size in sizes], "line": {"color": colour, "width": 2.5},
         "marker": {"size": 8, "color": colour}, "hovertemplate": f"%{{y:.2f}} {unit_name}"}
        for name, sizes, colour in drawn
    ]  # fmt: skip
    said = "; ".join(f"{name}: {format_bytes(sizes[-1], 1)} after micro-step {steps[-1]}" for name, sizes, _ in drawn)
    text = f"At the measured rates. {said}."
    return Figure("What stays alive", {"data": data, "layout": layout}, text, measured=True)


def _alive(step: int, window: int, falls: int, stays: int) -> int:
    """Bytes after a micro-step: some let go at the window's end, some never."""
    return stays * step + falls * (step % window)
