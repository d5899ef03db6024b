"""FSDP2 by trace: torch's own ``fully_shard`` on a process group that only pretends to have other ranks.

One rank is executed under fake tensors: shards, gathered layers, unsharded gradients and the buffers of collectives are
allocated by torch's code, and come and go when it says so. Layers and the root are units, as torchtitan and accelerate
make them; the root stays gathered from forward to backward.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.testing._internal.distributed.fake_pg import FakeStore

from ...errors import SettingsError, UnshardableError
from ..settings import Settings
from .configs import one_line
from .optimizers import DTYPES

if TYPE_CHECKING:
    from .ledger import Ledger
    from .models import Job


@contextlib.contextmanager
def pretended_group(ranks: int) -> Iterator[None]:
    """A process group of which this process is rank 0 and the others answer nothing; gone at the end, whatever happens.

    Models sharded within can't be used after it. SettingsError where the process has a group of its own.
    """
    if dist.is_initialized():
        raise SettingsError(
            "settings.parallelism.strategy: fsdp can't be traced in a process that has a process group of its own; "
            "ask in another process, or use method formula"
        )
    hook = sys.excepthook  # which torch replaces, to name the rank
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def shard(job: Job, s: Settings) -> None:
    """Shards the job's model in place over the process group, which must exist; its optimizer is made afterwards.

    The model's weights are those that a rank keeps (fp32 under amp-*): in 16 bits they are gathered, and gradients
    reduced in fp32.
    """
    model, kind = job.model, DTYPES[s.precision.removeprefix("amp-")]
    mixed = MixedPrecisionPolicy(kind, torch.float32) if s.precision.startswith("amp-") else MixedPrecisionPolicy()
    with unset_fake_temporarily():  # ranks are numbers, which a fake tensor does not have
        mesh = init_device_mesh("cpu", (s.parallelism.data,))
    how: dict[str, Any] = {"mesh": mesh, "mp_policy": mixed}
    units = layers(model)
    try:
        for unit in (*units, model):
            fully_shard(unit, **how)
    except Exception as e:
        raise UnshardableError(f"FSDP by formula: fully_shard refuses {type(model).__name__}: {one_line(e)}") from e
    silent = s.parallelism.no_sync

    def before(_: int, last: bool) -> None:
        model.set_requires_gradient_sync(last or not silent)

    job.before_micro_step = before
    reduced = ", gathered in 16 bits, gradients reduced in fp32" if mixed.param_dtype else ""
    job.notes.append(
        f"FSDP2 (fully_shard) over {s.parallelism.data} ranks, traced on one of them: each layer and the rest "
        f"a unit{reduced}; the rest stays gathered from forward to backward."
    )


def layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """What is sharded as a unit: the modules that the model says not to split, else those of a list of equal ones."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    if named := [module for module in model.modules() if type(module).__name__ in names and module is not model]:
        return named[::-1]  # inner ones first
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) > 1]
    return [one for module in lists if len({type(child) for child in module}) == 1 for one in module]


@contextlib.contextmanager
def watched(ledger: Ledger) -> Iterator[None]:
    """Books what FSDP allocates to gather parameters and to reduce gradients as ``communication``.

    Gradients that stay whole, since nothing is reduced under no_sync, are gradients.
    """
    groups = _groups(ledger.model)
    for group in groups:
        for p in group.fsdp_params:
            ledger.book(p.all_gather_outputs, "communication", "all_gather")  # without bytes until refilled

    def booked(plain: Any, *, reduces: bool = False) -> Any:
        def run(group: Any, *args: Any) -> Any:
            purpose, ledger.purpose = ledger.purpose, "communication"
            try:
                result = plain(group, *args)
            finally:
                ledger.purpose = purpose
            if reduces:
                ledger.book((_kept(p) for p in group.fsdp_params), "gradients")
            return result

        return run

    held = {name: getattr(FSDPParamGroup, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
    for name, plain in held.items():
        setattr(FSDPParamGroup, name, booked(plain, reduces=name == "post_backward"))
    try:
        yield
    finally:
        for name, plain in held.items():
            setattr(FSDPParamGroup, name, plain)


def _groups(model: torch.nn.Module) -> list[Any]:
    states = (module._get_fsdp_state() for module in model.modules() if hasattr(module, "_get_fsdp_state"))
    return [group for state in states for group in state._fsdp_param_groups]


def _kept(p: Any) -> torch.Tensor | None:
    """A parameter's whole gradient, where one is kept."""
    if p.unsharded_accumulated_grad is not None:
        return p.unsharded_accumulated_grad
    return getattr(getattr(p, "_unsharded_param", None), "grad", None)
