"""The user's own code as the model: a function of theirs that returns model, batch and step. It is run, and said so.

    def factory():                            # or factory(micro_batch, seq_len), to be traced at any size
        return model, batch, step             # step(model, batch) -> loss, or (loss, outputs)

Under fake tensors it holds no memory and needs no GPU: a device "cuda" is taken for the one at hand, and what would
read weights is refused before it does.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ...errors import SettingsError
from ..settings import Settings
from .adapters import adapt
from .configs import one_line
from .optimizers import optimizer
from .plain import autocast, plain_transformers
from .techniques import checkpoint

MOST_REAL_BYTES = 1 << 30
"""How far the process may grow while a factory runs under fake tensors: room for imports, not for weights."""
_RETURNS = "it must return (model, batch, step), step(model, batch) giving the loss or (loss, outputs)"
_LOADERS = (
    ("torch", "load"),
    ("torch.hub", "load"),
    ("torch.hub", "load_state_dict_from_url"),
    ("safetensors.torch", "load_file"),
    ("safetensors.torch", "load_model"),
    ("transformers.modeling_utils", "PreTrainedModel.from_pretrained"),
    ("transformers.models.auto.auto_factory", "_BaseAutoModelClass.from_pretrained"),
    ("transformers.models.auto.modeling_auto", "AutoModelForCausalLM.from_pretrained"),
    ("transformers.models.auto.modeling_auto", "AutoModelForImageTextToText.from_pretrained"),
)


def from_factory(settings: Settings) -> Any:
    """A Job from ``settings.exact.factory``; SettingsError, in one line, where the code can't be traced."""
    from .models import Job, finish

    named = settings.exact.factory if settings.exact else ""
    with _running(named):
        function = _function(named)
    with _running(named):  # again, now that the libraries that it imports are there to be patched
        sized = _sized(function)
        made = function(**({"micro_batch": settings.micro_batch, "seq_len": settings.seq_len} if sized else {}))
    if not isinstance(made, tuple | list) or len(made) != 3 or not isinstance(made[0], torch.nn.Module):
        raise SettingsError(f"settings.model.factory: {named} returned {type(made).__name__}; {_RETURNS}")
    model, example, step = made
    if not callable(step):
        raise SettingsError(f"settings.model.factory: the step that {named} returned can't be called; {_RETURNS}")
    _check_fake(named, model)
    notes = [
        f"The model, its dtypes, attention, dropout and loss are those of your code, which was run: {named}.",
        "The depth can't be varied: the model is your code's.",
    ]
    if settings.lora:
        notes += adapt(model, settings, {}, named)
    if settings.checkpointing != "none":
        if not hasattr(model, "gradient_checkpointing_enable"):
            raise SettingsError(
                f"settings.checkpointing: {type(model).__name__} has no switch for it; do it in {named} and give none"
            )
        checkpoint(model, settings)
    if settings.fused_loss:
        notes.append("fused_loss changes nothing: the loss is your code's.")
    finish(model, settings, notes)
    batch = _batches(settings, example, function if sized else None, notes)
    return Job(
        model=model,
        batch=batch,
        loss=_loss(settings, step, named),
        optimizer=optimizer(settings),
        vocab=_vocabulary(model),
        notes=notes,
    )


# --- finding and running the user's code


def _function(named: str) -> Callable[..., Any]:
    module, _, name = named.rpartition(":")
    folder = Path(module).resolve().parent if module.endswith(".py") else Path.cwd()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise SettingsError(f"settings.model.factory: {module} is no file; give path/to/file.py:function")
        spec = importlib.util.spec_from_file_location(f"_factory_{Path(module).stem}", module)
        if spec is None or spec.loader is None:
            raise SettingsError(f"settings.model.factory: {module} is no Python file; give path/to/file.py:function")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded
        spec.loader.exec_module(loaded)
    else:
        loaded = importlib.import_module(module)
    with contextlib.suppress(OSError, TypeError, ImportError):
        if "transformers" in inspect.getsource(loaded):  # perhaps inside a function, which is too late
            importlib.import_module("transformers.models.auto.modeling_auto")
    function = getattr(loaded, name, None)
    if not callable(function):
        raise SettingsError(f"settings.model.factory: {module} has no function {name}; name one that is there")
    return function


def _sized(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return {"micro_batch", "seq_len"} <= {p.name for p in parameters} or any(
        p.kind is p.VAR_KEYWORD for p in parameters
    )


@contextlib.contextmanager
def _running(named: str) -> Iterator[None]:
    """The user's code runs inside: prints go to standard error, devices are the one at hand, errors become one line."""
    path, gradients = list(sys.path), torch.is_grad_enabled()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        with contextlib.redirect_stdout(sys.stderr), _no_weights(named), plain_transformers(), OneDevice():
            yield
    except (SettingsError, KeyboardInterrupt):
        raise
    except BaseException as e:  # noqa: BLE001 (whatever the user's code raises)
        where = _place(e.__traceback__) or named
        what = f"{type(e).__name__}: {one_line(e)}"
        raise SettingsError(f"settings.model.factory: {where}: {what}; mend the factory, or give hf_config") from None
    finally:
        sys.path[:] = path
        torch.set_grad_enabled(gradients)


def _place(trace: TracebackType | None) -> str:
    """file:line of the innermost frame in the user's own code: not this package, not an installed one."""
    found = ""
    own = str(Path(__file__).resolve().parents[2])
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((own, "<")) and "site-packages" not in file and not file.startswith(os.__file__[:-5]):
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


@contextlib.contextmanager
def _no_weights(named: str) -> Iterator[None]:
    """Whatever reads weights is refused before it allocates."""
    held: list[tuple[Any, str, Any]] = []
    if (hub := sys.modules.get("huggingface_hub.constants")) is not None:
        held.append((hub, "HF_HUB_OFFLINE", hub.HF_HUB_OFFLINE))
        hub.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]

    def refused(name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            frame = inspect.currentframe()
            where = named
            while frame := frame.f_back if frame else None:
                if "site-packages" not in frame.f_code.co_filename:
                    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    break
            raise SettingsError(
                f"settings.model.factory: {where} reads weights ({name}), and a trace takes none; "
                "build the model from its configuration (from_config)"
            )

        return refuse

    try:
        for module, name in _LOADERS:
            if (owner := sys.modules.get(module)) is not None:
                *outer, last = name.split(".")
                for part in outer:
                    owner = getattr(owner, part)
                held.append((owner, last, inspect.getattr_static(owner, last)))
                setattr(owner, last, staticmethod(refused(name)) if outer else refused(f"{module}.{name}"))
        yield
    finally:
        for owner, last, value in reversed(held):
            setattr(owner, last, value)


class OneDevice(TorchFunctionMode):
    """Maps every CUDA device to the one at hand, and watches how far the process grows under fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._fake = torch._guards.active_fake_mode() is not None
        self._start = _resident() if self._fake else 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._start and _resident() - self._start > MOST_REAL_BYTES:
            raise SettingsError(
                "settings.model.factory: the factory takes real memory, more than 1 GiB so far; "
                "build the model with torch alone and load nothing"
            )
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:  # .to(rank)
            args = (args[0], torch.device("cpu"), *args[2:])
        if type((kwargs or {}).get("device")) is int:
            kwargs = {**(kwargs or {}), "device": torch.device("cpu")}
        if func is torch.device:  # with a number for "cuda" too: the CPU has but one
            named = [*args, *(kwargs or {}).values()][0]
            return (
                torch.device("cpu") if isinstance(named, int) or _here(named) == "cpu" else func(*args, **kwargs or {})
            )
        return func(*(_here(a) for a in args), **{k: _here(v) for k, v in (kwargs or {}).items()})


def _here(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value) else value


def _resident() -> int:
    """Bytes of memory that the process has; 0 where the system doesn't say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def _check_fake(named: str, model: torch.nn.Module) -> None:
    if torch._guards.active_fake_mode() is None:
        return
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not isinstance(tensor, FakeTensor):
            raise SettingsError(
                f"settings.model.factory: {name[:80]} of the model from {named} is real memory, made outside the "
                "function; build the whole model inside it"
            )


# --- batches and the step


def _batches(
    settings: Settings, example: Any, function: Callable[..., Any] | None, notes: list[str]
) -> Callable[[int, int], Any]:
    """The example's tensors, new at each call; at other sizes made anew, or the example's with other dimensions."""
    given = (settings.micro_batch, settings.seq_len)
    known = {given: example}
    first = {t.shape[0] for t in tree_leaves(_plain(example)) if isinstance(t, torch.Tensor) and t.dim()}
    long = any(given[1] in t.shape[1:] for t in tree_leaves(_plain(example)) if isinstance(t, torch.Tensor))
    own = function is None and first != {given[0]}
    if own:
        notes.append(
            "The batch has your code's own size; micro_batch and seq_len of the settings do not apply. "
            "Let the factory take micro_batch and seq_len to vary them."
        )
    elif function is None and not long:
        notes.append("No dimension of the batch is seq_len long: the length can't be varied.")

    def batch(micro_batch: int, seq_len: int) -> Any:
        size = (micro_batch, seq_len)
        if function is not None and size not in known:
            named = settings.exact.factory if settings.exact else ""
            with _running(named):
                known[size] = function(micro_batch=micro_batch, seq_len=seq_len)[1]
        if size in known:
            return _mapped(known[size], lambda t: t.clone())
        if own:
            raise SettingsError(
                "settings.model.factory: its batch has one size; let it take micro_batch and seq_len to trace others"
            )

        def resized(t: torch.Tensor) -> torch.Tensor:
            shape = [seq_len if n == given[1] else n for n in t.shape]
            return torch.ones([micro_batch, *shape[1:]] if shape else [], dtype=t.dtype, device=t.device)

        return _mapped(example, resized)

    return batch


def _plain(batch: Any) -> Any:
    return dict(batch.data) if isinstance(batch, UserDict) else batch


def _mapped(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    mode = torch._guards.active_fake_mode()

    def fresh(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return change(mode.from_tensor(leaf) if mode is not None and not isinstance(leaf, FakeTensor) else leaf)

    if isinstance(batch, UserDict):
        new = copy.copy(batch)
        new.data = {key: fresh(value) for key, value in batch.data.items()}
        return new
    return tree_map(fresh, batch)


def _loss(settings: Settings, step: Callable[..., Any], named: str) -> Callable[[torch.nn.Module, Any], Any]:
    def loss(model: torch.nn.Module, batch: Any) -> Any:
        with _running(named), autocast(settings):
            result = step(model, batch)
        value, outputs = result if isinstance(result, tuple | list) and len(result) == 2 else (result, None)
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
            raise SettingsError(
                f"settings.model.factory: the step of {named} gave no loss, one number with gradients; {_RETURNS}"
            )
        return value, outputs if settings.keep_logits else None

    return loss


def _vocabulary(model: torch.nn.Module) -> int | None:
    """Rows of an embedding that some linear layer gives as many outputs as."""
    outputs = {m.out_features for m in model.modules() if isinstance(m, torch.nn.Linear)}
    rows = [m.num_embeddings for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    return max((n for n in rows if n in outputs), default=None)
