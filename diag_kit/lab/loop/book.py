"""Books every storage with the line of the user's code that made it, and every backward with the line that ran it."""

from __future__ import annotations

import functools
import gc
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ...errors import DiagKitError
from ...memory.trace.ledger import Ledger
from ...memory.trace.recording import Allocation
from ...units import format_bytes
from .source import Site, site


class TooBigError(DiagKitError):
    """The model or its step takes more memory than there is."""


@dataclass(frozen=True)
class Backward:
    """One call of a backward pass."""

    window: int
    step: int
    site: Site | None
    retains: bool
    pulled: int
    """Micro-steps begun in its window when it was called."""


class Book(Ledger):
    """A ledger over several micro-steps, with real tensors or fake ones.

    Args:
        model: modules are named by it. device: only tensors there count, such as ``cpu``.
        most_bytes: beyond it ``TooBigError`` is raised rather than the machine exhausted.
    """

    def __init__(self, model: torch.nn.Module, device: str = "cpu", most_bytes: int | None = None) -> None:
        super().__init__(model)
        self.device = device
        self.most_bytes = most_bytes
        self.sites: list[Site | None] = []
        self.windows: list[int] = []
        self.backwards: list[Backward] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.window = self.step = self.pulled = 0
        self.live_bytes = self.peak_bytes = self.peak_event = 0
        self.gradients: float | None = None
        self.recorded: list[bool] = []
        self._steps: list[int] = []
        self._views = self._records = False
        self._inputs: tuple[int, ...] = ()
        self._parents: list[tuple[int, ...]] = []
        self._numbers: list[int] = []
        self._lines: list[Site | None] = []

    def __enter__(self) -> Book:
        super().__enter__()
        for name in ("backward", "grad"):
            original = getattr(torch.autograd, name)
            self._hooks.callback(setattr, torch.autograd, name, original)
            setattr(torch.autograd, name, self._watching(original))
        pre = register_optimizer_step_pre_hook(self._optimizer_begins)
        post = register_optimizer_step_post_hook(self._optimizer_ends)
        self._hooks.callback(pre.remove)
        self._hooks.callback(post.remove)
        return self

    # --- where the loop is

    def begin_window(self) -> None:
        """A window of micro-steps begins."""
        self.window += 1
        self.pulled = 0

    def begin_step(self) -> None:
        """A micro-step begins."""
        self.step += 1
        self.pulled += 1
        self.mark("forward", self.step)

    def alive(self) -> set[int]:
        """Indices of the allocations that live, after a collection of what only cycles hold."""
        gc.collect()
        return self.held()

    def held(self) -> set[int]:
        """Indices of the allocations that live, with what only cycles hold."""
        return {index for _, index in self._held.values()}

    def index(self, tensor: torch.Tensor) -> int | None:
        """The allocation under a tensor; None where its storage is older than the book."""
        try:
            held = self._held.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # sparse tensors and such have no storage of their own
            return None
        return None if held is None else held[1]

    def own(self, model: torch.nn.Module) -> set[int]:
        """What training keeps by design: parameters, buffers, gradients, optimizer state."""
        tensors = [*model.parameters(), *model.buffers()]
        for one in self.optimizers:
            tensors += [p for group in one.param_groups for p in group["params"]]
            tensors += [t for t in tree_leaves(list(one.state.values())) if isinstance(t, torch.Tensor)]
        tensors += [p.grad for p in tensors if p.is_leaf and p.grad is not None]
        return {index for t in tensors if (index := self.index(t)) is not None}

    def step_of(self, index: int) -> int:
        """The micro-step, counted over all windows, in which an allocation was made."""
        return self._steps[index]

    def leaves(self, tensor: torch.Tensor) -> None:
        """A tensor that leaves the device counts no longer."""
        self._end(tensor.untyped_storage()._cdata)

    def parents(self, index: int) -> tuple[int, ...]:
        """The allocations that an allocation was computed from, by one operator."""
        return self._parents[index]

    def comes_from(self, index: int, older: int) -> bool:
        """Whether one allocation was computed from another, over any number of operators."""
        waiting, seen = [index], {index}
        while waiting:
            for parent in self._parents[waiting.pop()]:
                if parent == older:
                    return True
                if parent > older and parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)
        return False

    # --- how it is booked

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._views = _gives_views(func) and not self._new_storage(func, args)
        given = [
            one
            for argument in args
            for one in (argument if isinstance(argument, list | tuple) else (argument,))
            if isinstance(one, torch.Tensor)
        ]
        self._records = torch.is_grad_enabled() and any(one.requires_grad for one in given)
        self._inputs = tuple(index for one in given if (index := self.index(one)) is not None)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _new_storage(self, func: Any, args: Any) -> bool:
        """Whether a tensor is set onto a storage that is new here; ``copy.deepcopy`` copies by no operator."""
        if func._schema.name != "aten::set_" or len(args) < 2 or not isinstance(args[1], torch.UntypedStorage):
            return False
        models = {t.untyped_storage()._cdata for t in (*self.model.parameters(), *self.model.buffers())}
        return args[1]._cdata not in models

    def _see(self, tensor: torch.Tensor, op: str) -> None:
        if tensor.device.type != self.device and self._fake is None:
            return
        if self._views and self.index(tensor) is None:
            return  # a view of what was there before, such as a parameter or a batch
        super()._see(tensor, op)

    def _begin(self, storage: Any, key: int, size: int, op: str, tensor: torch.Tensor) -> None:
        super()._begin(storage, key, size, op, tensor)
        self._booked(size)

    def _begin_again(self, storage: Any, key: int, size: int, old: Allocation) -> None:
        super()._begin_again(storage, key, size, old)
        self._booked(size)

    def _booked(self, size: int) -> None:
        self.sites.append(self._site())
        self.windows.append(self.window)
        self._steps.append(self.step)
        self.recorded.append(self._records)
        self._parents.append(self._inputs)
        self.live_bytes += size
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_event = self.live_bytes, len(self.recording.events)
        if self.most_bytes is not None and self.live_bytes > self.most_bytes:
            raise TooBigError(
                f"the step takes more than the {format_bytes(self.most_bytes)} that are free here; "
                "make the batch or the model smaller, or ask for fake tensors"
            )

    def _site(self) -> Site | None:
        """The line that runs; in a backward, the line of the forward whose gradient is computed, by the number that
        autograd gives to its nodes in the order of the forward.
        """
        node = torch._C._current_autograd_node()
        if node is not None:
            at = bisect_right(self._numbers, node._sequence_nr())
            return self._lines[at] if at < len(self._lines) else site()
        here = site()
        self._numbers.append(torch.autograd._get_sequence_nr())
        self._lines.append(here)
        return here

    def _end(self, key: int) -> None:
        if key in self._held:
            self.live_bytes -= self.recording.allocations[self._held[key][1]].bytes
        super()._end(key)

    def _answer(self, func: Any, args: Any) -> Any:
        return func(*args) if self._fake is None else super()._answer(func, args)

    # --- backward and optimizer

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(_ARGUMENTS[original.__name__], args, strict=False)) | kwargs
            retains = bool(given.get("retain_graph") or given.get("create_graph"))
            self.backwards.append(Backward(self.window, self.step, site(), retains, self.pulled))
            self.mark("backward", self.step)
            try:
                return original(*args, **kwargs)
            finally:
                self.mark("forward", self.step)
                if self._fake is None:
                    self._sum_gradients()

        return watched

    def _sum_gradients(self) -> None:
        with _disable_current_modes(), torch.no_grad():
            grads = [p.grad for p in self.model.parameters() if p.grad is not None and not p.grad.is_sparse]
            self.gradients = float(sum(g.detach().double().abs().sum() for g in grads)) if grads else None

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not any(one is optimizer for one in self.optimizers):
            self.optimizers.append(optimizer)
        self.mark("optimizer", self.step)

    def _optimizer_ends(self, *_: Any) -> None:
        self.mark("forward", self.step)

    def at_peak(self) -> tuple[list[int], str, int]:
        """(allocations alive at the peak, phase, micro-step counted over all windows)."""
        live: set[int] = set()
        for event in self.recording.events[: self.peak_event]:
            if event > 0:
                live.add(event - 1)
            else:
                live.discard(-event - 1)
        mark = next(m for m in reversed(self.recording.marks) if m.event < self.peak_event or m.event == 0)
        return sorted(live), mark.phase, mark.micro_step


@functools.lru_cache(maxsize=4096)
def _gives_views(func: Any) -> bool:
    """Whether what an operator returns stands on what it was given; ``torch.tensor(...)`` is a view of nothing."""
    lifted = func._schema.name.startswith("aten::lift")
    return not lifted and any(one.alias_info is not None for one in func._schema.returns)


_ARGUMENTS = {
    "backward": ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs"),
    "grad": ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused"),
}
