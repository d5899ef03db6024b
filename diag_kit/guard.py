"""For your own tests: memory that must not grow from one micro-step to the next, and peaks that must stay in a budget.

    from diag_kit.guard import assert_no_graph_retention, assert_peak_below

    def test_training_keeps_nothing():
        model, batches = small_model(), short_batches()
        with assert_no_graph_retention(model=model) as guard:
            for batch in guard.watch(batches):          # or call guard.step() at the end of each micro-step
                train_step(model, batch)

    def test_longest_batch_fits():
        with assert_peak_below("64 MiB", model=model):
            train_step(model, longest_batch)

    assert_no_graph_retention(lambda: train_step(model, batch))      # as plain calls: run, then judged
    assert_peak_below("64 MiB", lambda: train_step(model, longest_batch))

No GPU is needed: every storage that the block makes is booked as it is made and let go of, with the line that made it.
On a GPU only its own tensors count, and the peak is the one that torch's allocator measured. Both are assertions, so
that any test runner reports them; pytest has them as the fixture ``memory_guard`` and the marker ``memory_budget``.
Importing this module imports no torch.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from .errors import DiagKitError
from .units import format_bytes, parse_size

if TYPE_CHECKING:
    from .lab.loop.judge import Found
    from .lab.loop.reach import Node
    from .lab.loop.result import Holding

LEAST_BYTES = 1024
"""What a micro-step may leave behind: the scalars of a log."""
LEAST_STEPS = 3
"""Two micro-steps that left something behind, and one that came after."""


class MemoryGrewError(AssertionError):
    """Something stays alive from one micro-step to the next; the text names the line."""


class PeakExceededError(AssertionError):
    """The peak is above the budget; the text names what is largest at the peak."""


def assert_no_graph_retention(
    step: Callable[[], Any] | None = None,
    *,
    model: Any = None,
    steps: int = 4,
    least_bytes: int = LEAST_BYTES,
    device: str | None = None,
) -> RetentionGuard:
    """Fail when at least two micro-steps leave tensors behind that outlive the next one, with a graph or without.

    Args:
        step: run ``steps`` times and judged at once. Without it, use what is returned in a ``with`` block, and tell it
            where micro-steps end by ``watch(batches)`` or ``step()``.
        model: its gradients are told apart, its modules named.
        steps: how often ``step`` is run.
        least_bytes: what a micro-step may leave behind.
        device: ``cpu`` or ``cuda``; by default where the model is.

    Raises:
        MemoryGrewError: memory grew; also an AssertionError.
        DiagKitError: fewer than three micro-steps were seen.
    """
    guard = RetentionGuard(model, least_bytes, device)
    if step is not None:
        with guard:
            for _ in range(steps):
                step()
                guard.step()
    return guard


def assert_peak_below(
    budget: str | int,
    step: Callable[[], Any] | None = None,
    *,
    model: Any = None,
    device: str | None = None,
) -> PeakGuard:
    """Fail when memory passes ``budget``, such as ``"2 GiB"`` or a number of bytes.

    On the CPU the peak is that of what the block makes, plus the parameters, buffers and gradients that ``model`` has
    when it begins; on a GPU it is the allocator's own, with all that is there.

    Raises:
        PeakExceededError: the peak was above it; also an AssertionError.
        DiagKitError: the budget is no size.
    """
    allowed = parse_size(budget) if isinstance(budget, str) else budget if type(budget) is int else None
    if allowed is None or allowed <= 0:
        raise DiagKitError(f"budget: {budget!r} is no size; write such as '2 GiB', or bytes as a number")
    guard = PeakGuard(model, allowed, device)
    if step is not None:
        with guard:
            step()
    return guard


class _Guard:
    """Books what is made inside a ``with`` block."""

    def __init__(self, model: Any, device: str | None) -> None:
        try:
            import torch
        except ImportError as error:
            raise DiagKitError(f"{error}; watching memory needs torch: pip install 'diag-kit[torch]'") from None
        from .lab.loop.book import Book

        self.model = model if isinstance(model, torch.nn.Module) else torch.nn.Module()
        first = next(self.model.parameters(), None)
        self.device = device or (first.device.type if first is not None else "cpu")
        self.book = Book(self.model, self.device)
        self.own: set[int] = set()
        self.turns: Counter[int] = Counter()
        self.first_steps = {2: 1}

    def _enter(self) -> None:
        self.book.__enter__()
        self._frozen = gc.get_freeze_count() == 0
        if self._frozen:
            gc.freeze()  # the collector looks at what the block makes, not at all that was imported
        self.book.window = 2  # the window that is measured
        self.book.begin_step()

    def _exit(self) -> None:
        if self._frozen:
            gc.unfreeze()
        self.book.__exit__(None, None, None)

    def line_of(self, node: Node) -> None:
        """The line that was seen storing; none is watched here, the source is asked."""


class RetentionGuard(_Guard):
    """Looks at what is alive at the end of each micro-step. ``holdings``: what was found to stay."""

    def __init__(self, model: Any, least_bytes: int, device: str | None) -> None:
        super().__init__(model, device)
        self.least_bytes = least_bytes
        self.holdings: tuple[Holding, ...] = ()
        self.steps = 0
        self._before: dict[str, int] = {}

    def __enter__(self) -> RetentionGuard:
        self._enter()
        return self

    def __exit__(self, kind: Any, *_: Any) -> Literal[False]:
        __tracebackhide__ = True  # pytest then shows the test's line, not ours
        self._exit()
        if kind is None:
            self._judge()
        return False

    def watch(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches; each is a micro-step, which ends when the next is asked for."""
        for batch in batches:
            yield batch
            del batch
            self.step(sys._getframe(1))

    def step(self, frame: Any = None) -> None:
        """A micro-step ends here."""
        from torch.utils._python_dispatch import _disable_current_modes

        from .lab.loop.reach import Search, frames

        self.steps += 1
        self.turns[2] = self.steps
        with _disable_current_modes():
            alive = self.book.alive()
            self.own |= self.book.own(self.model)
            aged = {i for i in alive - self.own if self.book.step_of(i) < self.book.step}
            left: Counter[int] = Counter()
            for index in aged:
                left[self.book.step_of(index)] += self.book.recording.allocations[index].bytes
            search = Search(self.book, frames(frame or sys._getframe(1), None), {})
            self.holdings = ()
            if sum(size >= self.least_bytes for size in left.values()) >= 2:
                self.holdings = self._described(search, aged, max(left))
            self._before = {hit.node.path(): hit.at for hit in search.hits if hit.at is not None}
            search.close()
        self.book.begin_step()

    def _described(self, search: Any, aged: set[int], last: int) -> tuple[Holding, ...]:
        from .lab.loop.explain import describe
        from .lab.loop.judge import holders

        found: list[Found] = holders(search, aged, self._before, self.least_bytes)
        described = []
        for one in found:
            one.graphed = one.graph
            size = sum(self.book.recording.allocations[i].bytes for i in one.held if self.book.step_of(i) == last)
            if size >= self.least_bytes:
                described.append(describe(self, one, size, "as far as was seen"))
        return tuple(described)

    def _judge(self) -> None:
        __tracebackhide__ = True
        if self.steps < LEAST_STEPS:
            raise DiagKitError(
                f"{self.steps} micro-steps were seen and {LEAST_STEPS} are needed; iterate over guard.watch(batches), "
                "or call guard.step() at the end of each"
            )
        if self.holdings:
            said = []
            for one in self.holdings:
                where = f"{one.line.path}:{one.line.line}: {one.line.text}" if one.line else "no line was found"
                made = f"; made: {one.made[0]}" if one.made else ""
                said.append(
                    f"{format_bytes(one.bytes_per_micro_step)} stay alive per micro-step, held by {one.holder} "
                    f"({where}): {one.title}; {one.advice}{made}"
                )
            raise MemoryGrewError("\n".join(said))


class PeakGuard(_Guard):
    """Follows the bytes alive. ``peak_bytes``: the most at once, after the block."""

    def __init__(self, model: Any, budget: int, device: str | None) -> None:
        super().__init__(model, device)
        self.budget = budget
        self.peak_bytes = 0
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [p.grad for p in self.model.parameters() if p.grad is not None]
        sizes = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        self._held = sum(sizes.values())

    def __enter__(self) -> PeakGuard:
        if self.device == "cuda":
            import torch

            gc.collect()
            torch.cuda.reset_peak_memory_stats()
        self._enter()
        return self

    def __exit__(self, kind: Any, *_: Any) -> Literal[False]:
        __tracebackhide__ = True  # pytest then shows the test's line, not ours
        self.own = self.book.own(self.model)
        self._exit()
        self.peak_bytes = self._held + self.book.peak_bytes
        if self.device == "cuda":
            import torch

            self.peak_bytes = torch.cuda.max_memory_allocated()
        if kind is None and self.peak_bytes > self.budget:
            from .lab.loop.explain import peak_of

            peak = peak_of(self)
            said = [
                f"the peak of {format_bytes(self.peak_bytes)} is above the budget of {format_bytes(self.budget)}, "
                f"in {peak.phase}; the parameters and what was there before are {format_bytes(self._held)} of it"
            ]
            said += [f"  {one}" for one in peak.made]
            raise PeakExceededError("\n".join([*said, *([f"  {peak.says}"] if peak.says else [])]))
        return False
