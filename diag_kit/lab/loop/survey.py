"""Runs a few windows of micro-steps and says what stays alive from one to the next, who holds it, and on which line.

Three windows: the first warms up (optimizer state, caches), in the second what survives is measured and its holders
are searched, in the third the lines that store into them are watched. Something counts when at least two micro-steps
(or two windows) each left it behind and a later one has passed: the variable that the next turn overwrites doesn't.
"""

from __future__ import annotations

import ast
import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from .book import Book, TooBigError
from .explain import describe, peak_of
from .forms import MOST, Batches, Job, at_work, free_bytes, named, prepare
from .judge import Found, contexts, growing, holders
from .lines import Watch
from .reach import Node, Search, frames
from .result import Holding, Loop, LoopError
from .source import Site

LEAST_BYTES = 1024
"""What a micro-step may leave behind unsaid: the scalars of a log."""
WINDOWS = 3


class Survey:
    """One look at one job."""

    def __init__(self, job: Job, book: Book, count: int, least_bytes: int, wait: bool = False) -> None:
        self.job, self.book, self.count, self.least_bytes = job, book, count, least_bytes
        self.own: set[int] = set()
        self.within: list[Found] = []
        self.over: list[Found] = []
        self.survived: dict[int, int] = {}
        self.at_end: set[int] = set()
        self.grown: dict[str, tuple[Node, int, int]] = {}
        self.small = 0
        self.swept: list[Found] = []
        self.left: set[int] = set()
        self.turns = Counter[int]()
        self._before: dict[str, int] = {}
        self._sizes: list[dict[str, int]] = []
        self._direct: dict[str, int] = {}
        self.first_steps: dict[int, int] = {}
        self.waits, self.first_backward = wait, 0
        self._watch: Watch | None = None
        self._code = Survey._window.__code__

    def run(self) -> None:
        """All windows."""
        for window in range(1, WINDOWS + 1):
            self.book.begin_window()
            self.first_steps[window] = self.book.step + 1
            if window == WINDOWS:
                self._watch = Watch(self._nodes())
            try:
                self._window()
            finally:
                if self._watch is not None:
                    self._watch.stop()
            self.turns[window] = self.book.pulled
            if self.book.pulled < 2:
                took = f"took {self.book.pulled} of {self.count} batches" if self.book.pulled else "took no batch"
                raise LoopError(
                    f"{self.job.target}: the loop {took}, so that nothing can be seen from one micro-step to the next; "
                    "let it take several, or hand over a step instead (--form step)"
                )
            self._ended(window)

    def _window(self) -> None:
        self.job.run(Batches(self))

    def _nodes(self) -> list[Node]:
        found = [one.node for one in (*self.within, *self.over) if one.node is not None]
        return found + [node for node, _, _ in self.grown.values()]

    # --- at the end of a micro-step

    def pulled(self, frame: FrameType) -> None:
        """The loop asks for the next batch: the micro-step before it is over."""
        book = self.book
        if book.pulled == 0:
            return
        if book.window == 1:
            gc.collect()
            return
        with _disable_current_modes():
            held = book.held()
            hidden = contexts(book) if book.window == 2 else {}
            if book.window == 2 or (self._watch is not None and not self._watch.found_all and book.pulled == 1):
                alive = book.alive()
                search = Search(book, frames(frame, self._code), self.job.roots)
                if book.window == 2:
                    self._look(search, alive)
                    self._swept(held - alive, hidden)
                elif self._watch is not None:
                    self._watch.find(search.places)
                search.close()
                del search
        if self._watch is not None:
            self._watch.start(frame)

    def _look(self, search: Search, alive: set[int]) -> None:
        book, first = self.book, self.first_steps[2]
        self.own |= book.own(self.job.model)
        aged = {i for i in alive - self.own if first <= book.step_of(i) < book.step}
        by_step = Counter[int]()
        for index in aged:
            by_step[book.step_of(index)] += book.recording.allocations[index].bytes
        self._sizes.append({hit.node.path(): hit.tensor_bytes for hit in search.hits if hit.direct is not None})
        grown = growing(self._sizes, self.least_bytes)
        for hit in search.hits:
            path, now = hit.node.path(), hit.direct
            if path in grown and now is not None and now not in aged and book.comes_from(now, self._direct[path]):
                self.grown[path] = (hit.node, self._sizes[-1][path] - self._sizes[-2][path], now)
        self._direct = {hit.node.path(): hit.direct for hit in search.hits if hit.direct is not None}
        if len(by_step) >= 2:
            large = [one for one in by_step.values() if one >= self.least_bytes]
            if len(large) >= 2:
                self.survived = dict(by_step)
                self.within = holders(search, aged, self._before, self.least_bytes)
                self._free(self.within)
            elif not self.within:  # what an earlier micro-step showed was there, though a backward freed it since
                self.small = by_step[book.step - 1]
        self._before = {hit.node.path(): hit.at for hit in search.hits if hit.at is not None}
        for node, _, _ in self.grown.values():
            _emptied(node)

    def _swept(self, garbage: set[int], hidden: dict[int, tuple[str, str]]) -> None:
        """What a micro-step left in cycles lives until Python's collector runs, which memory doesn't wait for."""
        mine = {index for index in garbage if self.book.step_of(index) == self.book.step}
        if self._bytes(mine) >= self.least_bytes:
            found = Found("swept", None, mine)
            for index in mine & set(hidden):
                found.hidden.setdefault(hidden[index], set()).add(index)
            self.swept.append(found)

    def _free(self, found: list[Found]) -> None:
        """Keep names, not tensors."""
        for one in found:
            one.graphed = one.graph
            one.most = getattr(one.node.value, "maxlen", None) if one.node is not None else None
            for hit in one.hits:
                _emptied(hit.node)
            if one.node is not None:
                _emptied(one.node)

    # --- at the end of a window

    def _ended(self, window: int) -> None:
        book = self.book
        with _disable_current_modes():
            alive = book.alive()
            self.own |= book.own(self.job.model)
            old = {i for i in alive - self.own if 0 < book.windows[i] < window}
            if window == 2:
                self.left = alive
            if window == 2 and self._bytes(old) >= self.least_bytes:
                search = Search(book, [], self.job.roots)
                self.over = holders(search, old, {}, self.least_bytes)
                self._free(self.over)
                search.close()
            if window == WINDOWS:
                self.at_end = old
                left = Counter[int]()
                for index in old:
                    left[book.windows[index]] += book.recording.allocations[index].bytes
                if min(left[1], left[2]) < self.least_bytes:
                    self.over = []
                elif not self.within:
                    search = Search(book, [], self.job.roots)
                    recent = {i for i in old if book.windows[i] == 2}
                    self.over = holders(search, recent, {}, self.least_bytes)
                    self._free(self.over)
                    search.close()
            del alive
        gc.collect()

    def _bytes(self, indices: set[int]) -> int:
        return sum(self.book.recording.allocations[index].bytes for index in indices)

    # --- what is said of it

    def result(self, device: str, fake: bool, seconds: float) -> Loop:
        """The look in words and numbers."""
        holdings = []
        last = max(self.survived, default=0)
        for found in self.within:
            step_bytes = self._bytes({i for i in found.held if self.book.step_of(i) == last})
            if step_bytes >= self.least_bytes:
                never = bool(found.held & self.at_end)
                holdings.append(describe(self, found, step_bytes, "never" if never else "the window ends"))
            else:
                self.small += step_bytes
        if not self.within:
            for found in self.over:
                window_bytes = self._bytes({i for i in found.held if self.book.windows[i] == 2})
                if window_bytes >= self.least_bytes:
                    holdings.append(describe(self, found, window_bytes // max(self.turns[2], 1), "never"))
        for node, step_bytes, index in self.grown.values():
            found = Found("grows", node, {index})
            holdings.append(describe(self, found, step_bytes, "never" if index in self.left else "the window ends"))
        if len(self.swept) >= 2:
            found = self.swept[-1]
            holdings.append(describe(self, found, self._bytes(found.held), "Python's collector runs"))
        notes = list(self.job.notes)
        if self.first_backward:
            notes.append(f"backward first runs in micro-step {self.first_backward}, so a window has as many")
        if len({self.turns[w] for w in range(1, WINDOWS + 1)}) > 1:
            notes.append("the windows took different numbers of batches; figures are those of the second")
        return Loop(
            target=self.job.target,
            form=self.job.form,
            device=device,
            fake=fake,
            micro_steps=self.turns[2],
            windows=WINDOWS,
            holdings=_merged(holdings),
            small_bytes=self.small,
            peak=peak_of(self),
            notes=tuple(notes),
            gradients=self.book.gradients,
            seconds=round(seconds, 3),
        )

    def line_of(self, node: Node) -> Site | None:
        """The line that was seen storing into a holder; None where none was."""
        return self._watch.lines.get(node.path()) if self._watch is not None else None


def _merged(holdings: list[Holding]) -> tuple[Holding, ...]:
    """Holders of one name that one line fills, such as a cache in each layer, as one; most bytes first."""
    found: dict[tuple[Any, ...], Holding] = {}
    for one in holdings:
        key = (one.kind, one.holder, one.line)
        if (same := found.get(key)) is not None:
            total = same.bytes_per_micro_step + one.bytes_per_micro_step
            found[key] = replace(same, bytes_per_micro_step=total, made=(*same.made, *one.made)[:3])
        else:
            found[key] = one
    return tuple(sorted(found.values(), key=lambda one: -one.bytes_per_micro_step))


def _emptied(node: Node) -> None:
    for one in node.line():
        one.value = None


def inspect_loop(
    factory: str | Callable[..., Any],
    *,
    settings: Mapping[str, Any] | None = None,
    micro_steps: int = 3,
    form: str = "auto",
    device: str = "cpu",
    fake: bool | None = None,
    least_bytes: int = LEAST_BYTES,
    edited: Mapping[str, ast.Module] | None = None,
) -> Loop:
    """Run the user's code and say what stays alive from one micro-step to the next.

    Args:
        factory: ``path/to/file.py:function`` or a callable; ``forms`` says what it returns.
        settings: its keyword arguments, or the dict that it takes.
        micro_steps: of a window, 2 to 64; more where the loop's first backward comes later, up to 32.
        form: ``step`` or ``loop`` where the lab can't tell.
        device: ``cpu``, where code written for a GPU runs as well, or ``cuda``.
        fake: tensors without memory; None takes them where the real ones would not fit.
        least_bytes: a micro-step that leaves less behind is not spoken of.
        edited: syntax trees to run in place of files, by absolute path.

    Raises:
        LoopError: the code can't be run or watched, in one line.
    """
    if not 2 <= micro_steps <= 64:
        raise LoopError(f"micro_steps: {micro_steps} is outside 2 to 64")
    if device not in ("cpu", "cuda"):
        raise LoopError(f"device: {device!r} is neither cpu nor cuda")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise LoopError("device: cuda is asked for, and torch sees no GPU here; leave it out to run on the CPU")
    try:
        how = (factory, dict(settings or {}), micro_steps, form, device, fake, least_bytes, edited)
        found, unseen = _inspected(*how)
        if not unseen or micro_steps >= MOST:
            return found
        longer, unseen = _inspected(*how, wait=True)
        note = f"no backward ran in {MOST} micro-steps, though the file has one; --micro-steps takes more"
        return replace(found, notes=(*found.notes, note)) if unseen else longer
    except LoopError as error:
        said = str(error)
    raise LoopError(said)  # a new one: the other's frames hold the model


def _inspected(
    factory: str | Callable[..., Any],
    given: dict[str, Any],
    micro_steps: int,
    form: str,
    device: str,
    fake: bool | None,
    least_bytes: int,
    edited: Mapping[str, ast.Module] | None,
    wait: bool = False,
) -> tuple[Loop, bool]:
    """What was found, and whether the code has a backward that did not run."""
    name = named(factory)
    told: list[str] = []
    for without in (False, True) if fake is None else (fake,):
        begun = time.perf_counter()
        freeze = gc.get_freeze_count() == 0
        if freeze:
            gc.freeze()  # what is there already needs no look at each micro-step
        automatic = gc.isenabled()
        gc.disable()  # it runs at the end of each micro-step; between, what waits for it is to be seen
        try:
            with at_work(name, device, without) as here:
                job = prepare(factory, given, micro_steps + 1, form, device, edited)
                if not without:
                    _room(job)
                most = free_bytes() if device == "cpu" and not without else None
                with Book(job.model, device, most) as book:
                    if here is not None:
                        here.book = book
                    survey = Survey(job, book, micro_steps, least_bytes, wait)
                    survey.run()
                    found = survey.result(device, without, time.perf_counter() - begun)
                    unseen = job.has_backward and not book.backwards
            return _with_notes(found, told), unseen
        except TooBigError as error:
            if fake is not None:
                raise LoopError(f"{name}: {error}") from None
            told = [f"{error}; so fake tensors were used, which have sizes and no memory"]
        finally:
            job = book = survey = here = None  # type: ignore[assignment]
            gc.collect()
            if freeze:
                gc.unfreeze()
            if automatic:
                gc.enable()
    raise LoopError(f"{name}: too big even for fake tensors; hand over fewer layers")


def _room(job: Job) -> None:
    weights = sum(p.numel() * p.element_size() for p in job.model.parameters())
    if job.form != "trainer" and weights > (free := free_bytes()) and next(job.model.parameters()).device.type == "cpu":
        raise TooBigError(f"gradients need {weights >> 20} MiB beside the parameters, and {free >> 20} MiB are free")


def _with_notes(found: Loop, told: list[str]) -> Loop:
    return replace(found, notes=(*told, *found.notes)) if told else found
