"""Sees every operator that runs, books each new storage as an allocation and its death as a free.

A storage is born where an operator's output stands on one that is not booked, and dies when Python lets go of it, as
it does in a real run. Nothing is computed: under ``FakeTensorMode`` storages have sizes and no bytes.
"""

from __future__ import annotations

import contextlib
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

from .recording import BASE, Allocation, Decision, Mark, Recording

_ASKS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default, torch.ops.aten.equal.default}
_NO = {"any", "isnan", "isinf", "zeros", "zeros_like", "zero_", "ne", "lt", "gt"}
"""Operators whose result, asked for its value, is taken as 0: in a healthy run nothing is masked or overflows."""


class Ledger(TorchDispatchMode):
    """Books allocations into ``recording``. One ledger records one step.

    ``purpose``: category of what is allocated from here on, until ``book`` or the end of the step tells better.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.recording = Recording(marks=[Mark(0, BASE, 0)])
        self.model = model
        self.purpose = "temporaries"
        self._held: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._dying: list[int] = []
        self._origin = WeakIdKeyDictionary()
        self._fake = torch._guards.detect_fake_mode(next(model.parameters(), None))
        self._names = {module: name for name, module in model.named_modules()}
        self._stack: list[str] = []
        self._nodes: list[int] = [-1]
        self._node_modules: list[str] = [""]
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> Ledger:
        pre = torch.nn.modules.module.register_module_forward_pre_hook(self._enter_module)
        post = torch.nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True)
        self._hooks.callback(pre.remove)
        self._hooks.callback(post.remove)
        resize = torch.UntypedStorage.resize_
        self._hooks.callback(setattr, torch.UntypedStorage, "resize_", resize)
        torch.UntypedStorage.resize_ = self._resizing(resize)
        return super().__enter__()

    def __exit__(self, *failure: Any) -> None:
        self._hooks.close()
        self._held.clear()  # what dies from here on is no part of the step
        super().__exit__(*failure)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, which takes seconds, to shield this class from it

    # --- what happens in the step

    def mark(self, phase: str, micro_step: int = 0) -> None:
        """A phase begins."""
        self.recording.marks.append(Mark(len(self.recording.events), phase, micro_step))

    def book(self, tensors: Iterable[Any], category: str, op: str = "") -> None:
        """Give these tensors' storages a category; those not booked yet are alive from here on."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                for local in _local(tensor):
                    self._see(local, op or category)
                    if (held := self._held.get(local.untyped_storage()._cdata)) is not None:
                        self.recording.allocations[held[1]].category = category

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked for two times out of three, and no storage is made
        if any(kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it comes again as operators on the local shards
        if func in _ASKS:
            return self._answer(func, args)
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        for leaf in tree_iter(out):
            if isinstance(leaf, torch.Tensor):
                if leaf.numel() == 1:
                    self._origin[leaf] = name
                self._see(leaf, name)
        return out

    # --- how it is booked

    def _see(self, tensor: torch.Tensor, op: str) -> None:
        mode = getattr(tensor, "fake_mode", None)
        if mode is not None and mode is not self._fake:
            return  # DTensor plans its sharding on fake tensors of global size of its own
        for local in _local(tensor):
            storage = local.untyped_storage()
            key = storage._cdata
            if key not in self._held:
                self._begin(storage, key, storage.nbytes(), op, local)

    def _begin(self, storage: Any, key: int, size: int, op: str, tensor: torch.Tensor) -> None:
        recording = self.recording
        mark = recording.marks[-1]
        index = len(recording.allocations)
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        where = (self.module(), mark.phase, mark.micro_step)
        recording.allocations.append(Allocation(size, op, shape, dtype, *where, self.purpose))
        recording.events.append(index + 1)
        self._held[key] = (weakref.ref(storage, lambda _: self._end(key)), index)

    def _end(self, key: int) -> None:
        if (held := self._held.pop(key, None)) is not None:
            self.recording.events.append(-(held[1] + 1))

    def _resizing(self, original: Any) -> Any:
        """FSDP frees and refills its gathered parameters by resizing their storage, which no operator shows."""

        def resize_(storage: Any, size: int) -> Any:
            result = original(storage, size)
            key = storage._cdata
            if key in self._held:
                _, index = self._held[key]
                old = self.recording.allocations[index]
                if old.bytes != size:
                    self._end(key)
                    self._begin_again(storage, key, size, old)
            return result

        return resize_

    def _begin_again(self, storage: Any, key: int, size: int, old: Allocation) -> None:
        recording, mark = self.recording, self.recording.marks[-1]
        index = len(recording.allocations)
        recording.allocations.append(
            Allocation(size, old.op, old.shape, old.dtype, self.module(), mark.phase, mark.micro_step, old.category)
        )
        recording.events.append(index + 1)
        self._held[key] = (weakref.ref(storage, lambda _: self._end(key)), index)

    def _answer(self, func: Any, args: Any) -> Any:
        """A value that only real data could tell: assumed from the operator that made it, and written down."""
        asked = args[0]
        source = self._origin.get(asked, "")
        value = 0 if source in _NO else 1
        self.recording.decisions.append(Decision(source, self.module(), value))
        if func is not torch.ops.aten._local_scalar_dense.default or asked.dtype is torch.bool:
            return bool(value)
        return float(value) if asked.dtype.is_floating_point else value

    # --- which module runs

    def _enter_module(self, module: torch.nn.Module, _: Any) -> None:
        if module in self._names:
            self._stack.append(self._names[module])
            self._note_nodes()

    def _leave_module(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        if self._stack and self._names.get(module) == self._stack[-1]:
            self._stack.pop()
            self._note_nodes()

    def _note_nodes(self) -> None:
        self._nodes.append(torch.autograd._get_sequence_nr())
        self._node_modules.append(self._stack[-1] if self._stack else "")

    def module(self) -> str:
        """The module whose forward runs, or whose backward: autograd numbers its nodes in the order of the forward."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        return self._node_modules[bisect_right(self._nodes, node._sequence_nr()) - 1]


def _local(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold the memory: of a wrapper such as DTensor, whose own storage is nominal, the inner ones."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            if isinstance(inner := getattr(tensor, name), torch.Tensor):  # DTensor names its mesh, too
                yield from _local(inner)
    else:
        yield tensor


def categorise(recording: Recording, vocab: int | None, micro_batch: int, seq_len: int) -> None:
    """Name what the forward pass left for its backward, the attention scores and the logits among it."""
    starts = {m.micro_step: m.event for m in reversed(recording.marks) if m.phase == "backward"}
    last = max(starts.values(), default=0)
    ends = {-event - 1: at for at, event in enumerate(recording.events) if event < 0}
    tokens = micro_batch * seq_len
    for index, own in enumerate(recording.allocations):
        if own.category != "temporaries":
            continue
        elements = 1
        for n in own.shape:
            elements *= n
        if vocab and own.shape and own.shape[-1] == vocab and elements >= micro_batch * (seq_len - 1) * vocab:
            own.category = "logits"
        elif len(own.shape) >= 3 and own.shape[-1] == own.shape[-2] == seq_len and elements > tokens * seq_len:
            own.category = "attention_scores"
        elif own.phase in ("forward", "loss") and ends.get(index, 1 << 62) >= starts.get(own.micro_step, last):
            own.category = "activations"
