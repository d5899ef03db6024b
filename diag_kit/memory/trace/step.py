"""The training step that is traced, and that a real run executes to check the trace: one code for both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ...errors import SettingsError
from ..settings import Settings
from ..sharing import by_trace, local
from .cuda import as_cuda
from .ledger import Ledger, categorise
from .models import Job, build
from .plain import plain_transformers
from .recording import Kernel, Recording


class Watcher(Protocol):
    """Told where the step is and what its tensors are for."""

    def mark(self, phase: str, micro_step: int = 0) -> None: ...

    def book(self, tensors: Any, category: str) -> None: ...


class Nobody:
    """A watcher that does not look: for a run that something else measures."""

    def mark(self, phase: str, micro_step: int = 0) -> None:
        """Nothing."""

    def book(self, tensors: Any, category: str) -> None:
        """Nothing."""


def optimizer_step(job: Job, s: Settings, optimizer: torch.optim.Optimizer | None, watch: Watcher) -> None:
    """One optimizer step over ``s.grad_accum`` micro-steps; gradients are set to None at its end."""
    summed = outputs = None
    parameters = [p for p in job.model.parameters() if p.requires_grad]
    for m in range(1, s.grad_accum + 1):
        job.before_micro_step(m, m == s.grad_accum)
        watch.mark("forward", m)
        batch = job.batch(s.micro_batch, s.seq_len)
        watch.book(_tensors(batch), "buffers")
        with _loss_begins(job.model, watch, m):
            loss, outputs = job.loss(job.model, batch)
        if not s.keep_logits or (s.backward == "deferred" and m < s.grad_accum):
            outputs = None
        if s.grad_accum > 1:
            loss = loss / s.grad_accum
        if s.backward == "deferred":
            summed = loss if summed is None else summed + loss
            del loss
            if m < s.grad_accum:
                continue
            loss, summed = summed, None
        watch.mark("backward", m)
        loss.backward()
        watch.book((p.grad for p in parameters), "gradients")
        loss = outputs = None  # noqa: F841  lets go of the graph and the outputs
    watch.mark("optimizer")
    if optimizer is not None:
        optimizer.step()
        watch.book(_tensors(list(optimizer.state.values())), "optimizer_state")
        optimizer.zero_grad(set_to_none=True)
    for p in parameters:
        p.grad = None


@contextlib.contextmanager
def _loss_begins(model: torch.nn.Module, watch: Watcher, micro_step: int) -> Iterator[None]:
    """Marks the loss once the model's output head has run."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        yield
        return
    hook = head.register_forward_hook(lambda *_: watch.mark("loss", micro_step))
    try:
        yield
    finally:
        hook.remove()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Session:
    """A model built once under fake tensors, of a given depth, whose steps are recorded at any batch and length."""

    def __init__(self, s: Settings, layers: int | None = None) -> None:
        self.s = s
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        with self._mode, as_cuda(s):
            self.job = build(local(s), layers)
            if by_trace(s):
                from .sharded import shard

                shard(self.job, s)
            self.trained = [p for p in self.job.model.parameters() if p.requires_grad]
            self.optimizer = self.job.optimizer(self.trained)
        self._warm = False

    def record(self, micro_batch: int, seq_len: int, grad_accum: int) -> Recording:
        """An optimizer step later than the first: optimizer state exists, and DTensor has planned its operators."""
        s = self.s.with_(micro_batch=micro_batch, seq_len=seq_len, grad_accum=grad_accum)
        job, model, optimizer = self.job, self.job.model, self.optimizer
        try:
            with self._mode, plain_transformers(), as_cuda(s) as cuda:
                if not self._warm:
                    with Ledger(model):
                        optimizer_step(job, s.with_(grad_accum=1), optimizer, Nobody())
                    self._warm = True
                job.batch(micro_batch, seq_len)  # a factory may have to run for a new size: not within the step
                cuda.kernels.clear()
                with Ledger(model) as ledger:
                    cuda.where = ledger.module
                    ledger.book(model.parameters(), "parameters")
                    ledger.book(model.buffers(), "buffers")
                    if optimizer is not None:
                        ledger.book(_tensors(list(optimizer.state.values())), "optimizer_state")
                    with self._watched(ledger):
                        optimizer_step(job, s, optimizer, ledger)
        except SettingsError:
            raise
        except Exception as e:
            raise SettingsError(f"trace: {_where(e)}") from e
        recording = ledger.recording
        categorise(recording, job.vocab, micro_batch, seq_len)
        recording.kernels = [Kernel(c.kernel, c.why, c.module) for c in cuda.kernels if not c.recomputed]
        recording.notes = list(job.notes)
        return recording

    def _watched(self, ledger: Ledger) -> contextlib.AbstractContextManager[None]:
        if not by_trace(self.s):
            return contextlib.nullcontext()
        from .sharded import watched

        return watched(ledger)


def _where(e: BaseException) -> str:
    """An exception of the model's code in one line, with the innermost file and line."""
    frame = e.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})" if frame else ""
    first = str(e).strip().splitlines()[0] if str(e).strip() else ""
    return f"the model's step failed: {type(e).__name__}: {first:.200}{place}; mend the model's configuration or code"
