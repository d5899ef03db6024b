"""Takes over the user's code in the forms that it comes in, and runs it where it can do no harm.

    def factory(**settings): return model, batch, step      # step(model, batch) -> loss or (loss, outputs), of which
                                                            # the lab runs backward; or a step that runs it itself
    def factory(**settings): return model, batches, loop    # loop(model, batches): a window of micro-steps of its own
    def factory(**settings): return trainer                 # a transformers Trainer

A loop is told from a step by what it takes: a data loader, an iterator, a list that its own ``for`` goes over, or a
second parameter called ``batches``, ``loader`` or the like; ``form`` says it outright.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ...memory.trace.factory import OneDevice
from ...memory.trace.plain import plain_transformers
from ...units import GIB, format_bytes
from .book import Book, TooBigError
from .result import LoopError
from .source import calls_backward, is_users, reread, tree

if TYPE_CHECKING:
    from .survey import Survey

MOST = 32
"""Micro-steps after which the first window stops waiting for a backward."""
MEND = "; mend it, or hand over a smaller factory"
_RETURNS = "it must return (model, batch, step), (model, batches, loop) or a Trainer"
_PLURAL = ("batches", "loader", "dataloader", "data", "iterator", "micro_batches", "microbatches", "samples", "dl")
_EITHER = ("data", "samples")


@dataclass
class Job:
    """What is run. ``roots``: objects of the user's, by name, that may hold tensors. ``has_backward``: the file that
    the loop stands in calls ``backward`` somewhere.
    """

    target: str
    form: str
    model: torch.nn.Module
    batches: list[Any]
    run: Callable[[Batches], Any]
    roots: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    has_backward: bool = False


def named(target: str | Callable[..., Any]) -> str:
    """The factory as one writes it: ``train.py:factory``."""
    if isinstance(target, str):
        return target
    code = getattr(target, "__code__", None)
    name = getattr(target, "__qualname__", type(target).__name__)
    ours = isinstance(code, CodeType) and is_users(code.co_filename)
    return f"{os.path.relpath(code.co_filename)}:{name}" if ours and code is not None else name


def prepare(
    target: str | Callable[..., Any],
    settings: Mapping[str, Any],
    count: int,
    form: str = "auto",
    device: str = "cpu",
    edited: Mapping[str, ast.Module] | None = None,
) -> Job:
    """Run the factory; ``count`` batches are drawn at once. LoopError where what it returns is none of the forms."""
    name = named(target)
    function = _function(target, edited or {}) if isinstance(target, str) else target
    positional, by_name = _arguments(function, settings, name)
    made = function(*positional, **by_name)
    if hasattr(made, "training_step") and hasattr(made, "get_train_dataloader"):
        from .trainer import of_trainer

        return of_trainer(made, name, count)
    if not isinstance(made, tuple | list) or len(made) != 3 or not isinstance(made[0], torch.nn.Module):
        raise LoopError(f"{name} returned {type(made).__name__}; {_RETURNS}")
    model, batch, run = made
    if not callable(run):
        raise LoopError(f"{name} returned no function as its third value but {type(run).__name__}; {_RETURNS}")
    if device != "cpu":
        model = model.to(device)
    if form == "loop" or (form == "auto" and _is_loop(run, batch)):
        batches = _drawn(batch, count, name)
        batches = [_moved(one, device) for one in batches]
        job = Job(name, "loop", model, batches, lambda given: run(model, given), {"loop": run})
    else:
        job = Job(name, "step", model, [_moved(batch, device)] * count, _steps(model, run, name), {"step": run})
    job.has_backward = calls_backward(run)
    return job


def _steps(model: torch.nn.Module, step: Callable[..., Any], name: str) -> Callable[[Batches], None]:
    """A loop over the user's step: where it gives a loss and ran no backward, backward is run for it."""

    def window(batches: Batches) -> None:
        ours = False
        for batch in batches:
            before = len(batches.book.backwards)
            result = step(model, batch)
            if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
                kind = type(result).__name__.replace("_", " ")
                if inspect.iscoroutine(result):
                    result.close()
                raise LoopError(f"{name}: its step gives back a {kind}, which runs nothing by itself; hand over "
                                "a plain function that runs it")  # fmt: skip
            if len(batches.book.backwards) == before:
                loss = result[0] if isinstance(result, tuple | list) and result else result
                loss = loss.get("loss") if isinstance(loss, dict) else getattr(loss, "loss", loss)
                if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad:
                    loss.backward()
                    ours = True
                del loss
            del result
        if ours:
            model.zero_grad(set_to_none=True)

    return window


def _is_loop(run: Callable[..., Any], batch: Any) -> bool:
    if isinstance(batch, torch.utils.data.DataLoader | Iterator):
        return True
    try:
        taken = [p.name for p in inspect.signature(run).parameters.values()]
    except (TypeError, ValueError):
        return False
    word = taken[1] if len(taken) > 1 else ""
    if word in _EITHER and isinstance(batch, torch.Tensor | tuple | Mapping):
        return False  # ``data`` is one batch as often as all of them; a tuple of tensors is one
    if word in _PLURAL or word.endswith(("loader", "batches", "_iter", "iterator", "_dl")):
        return True
    return isinstance(batch, list) and len(batch) > 1 and _goes_over(run, word)


def _goes_over(run: Callable[..., Any], word: str) -> bool:
    """Whether a ``for`` statement of the function goes over that parameter, as it is or by ``enumerate`` or a bar."""
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(run)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    for node in ast.walk(parsed):
        over = node.iter if isinstance(node, ast.For) else None
        while isinstance(over, ast.Call) and over.args:
            over = over.args[0]
        if isinstance(over, ast.Name) and over.id == word:
            return True
    return False


def _drawn(batches: Any, count: int, name: str) -> list[Any]:
    try:
        drawn = list(itertools.islice(iter(batches), count))
    except TypeError:
        raise LoopError(f"{name}: its batches ({type(batches).__name__}) can't be iterated over; {_RETURNS}") from None
    if not drawn:
        raise LoopError(f"{name}: its batches are empty; give at least one")
    return [drawn[at % len(drawn)] for at in range(count)]


def _moved(batch: Any, device: str) -> Any:
    if device == "cpu":
        return batch
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, batch)


def _arguments(
    function: Callable[..., Any], settings: Mapping[str, Any], name: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return (), dict(settings)
    needed = [p for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if "settings" in parameters or (len(needed) == 1 and needed[0].name not in settings):
        return (dict(settings),), {}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in settings:
            if key not in parameters:
                known = ", ".join(parameters) or "none"
                raise LoopError(f"{name} takes no setting {key!r}; it takes {known}")
    missing = [p.name for p in needed if p.name not in settings]
    if missing:
        raise LoopError(f"{name} needs {', '.join(missing)}; give a default, or name it as a setting")
    return (), dict(settings)


def _function(target: str, edited: Mapping[str, ast.Module]) -> Callable[..., Any]:
    where, _, name = target.rpartition(":")
    if not where or not name.isidentifier():
        raise LoopError(f"{target}: is no factory; write path/to/file.py:function")
    if where.endswith(".py"):
        loaded = _loaded(Path(where), edited)
    else:
        try:
            loaded = importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise LoopError(f"{target}: {error}; write path/to/file.py:function, or install what it imports") from None
    function = getattr(loaded, name, None)
    if not callable(function):
        there = [n for n, v in vars(loaded).items() if inspect.isfunction(v) and v.__module__ == loaded.__name__]
        raise LoopError(f"{where} has no function {name}; it has {', '.join(there) or 'none'}")
    return function


def _loaded(path: Path, edited: Mapping[str, ast.Module]) -> ModuleType:
    if not path.is_file():
        raise LoopError(f"{path}: is no file; write path/to/file.py:function")
    path = path.resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"_loop_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise LoopError(f"{path}: is no Python file; write path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    reread(str(path))
    parsed = edited.get(str(path)) or tree(str(path))
    if parsed is None:
        spec.loader.exec_module(module)  # raises what is wrong with it
    else:  # not with this file's own __future__
        code = compile(parsed, str(path), "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102 (the user's own file, at their word)
    return module


class Batches:
    """What the loop iterates over. A window that ends before the loop's backward shows its graph as kept for good; so,
    where the survey ``waits``, the first window goes on until backward has run, and the others are as long.
    """

    def __init__(self, survey: Survey) -> None:
        self.book = survey.book
        self._survey = survey
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return self._survey.count

    def __next__(self) -> Any:
        self._survey.pulled(sys._getframe(1))
        if self._next >= self._survey.count and not self._waits():
            self._next = 0  # a loop that goes over its batches again starts anew
            raise StopIteration
        self._next += 1
        self.book.begin_step()
        return self._drawn(self._next - 1)

    def __getitem__(self, at: int) -> Any:
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        self._survey.pulled(sys._getframe(1))
        self.book.begin_step()
        return self._drawn(at % len(self))

    def _drawn(self, at: int) -> Any:
        batches = self._survey.job.batches
        return batches[at % len(batches)]

    def _waits(self) -> bool:
        survey, book = self._survey, self.book
        if not survey.waits or book.window > 1:
            return False
        if book.backwards:
            if self._next > survey.count:
                survey.count = survey.first_backward = self._next
            return False
        return self._next < MOST


# --- a place where it can do no harm


class _Here(OneDevice):
    """Takes the GPU of the user's code for the CPU; what goes to ``.cpu()`` leaves the books, as it leaves a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.book: Book | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cpu and self.book is not None:
            copied = args[0].clone()
            self.book.leaves(copied)
            return copied
        return super().__torch_function__(func, types, args, kwargs)


class _Ceiling(TorchDispatchMode):
    """Refuses a tensor that would not fit, before it is made."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in Ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        size = args[0] if args else None
        device = torch.device((kwargs or {}).get("device") or "cpu")
        if device.type == "cpu" and isinstance(size, list | tuple) and size and all(type(n) is int for n in size):
            wanted = ((kwargs or {}).get("dtype") or torch.get_default_dtype()).itemsize
            for n in size:
                wanted *= n
            if wanted >= 1 << 24 and wanted > (free := free_bytes()):
                raise TooBigError(f"a tensor of {format_bytes(wanted)} is asked for, and {format_bytes(free)} are free")
        return func(*args, **(kwargs or {}))


def free_bytes() -> int:
    """Bytes of memory that may be taken here, with a tenth left to everybody else; 4 GiB where the system won't say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        told = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
        free, total = told["MemAvailable"], told["MemTotal"]
    except (OSError, KeyError, ValueError):
        return 4 * GIB
    with contextlib.suppress(OSError, ValueError):
        most = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free, total = min(free, most - int(Path("/sys/fs/cgroup/memory.current").read_text())), min(total, most)
    return max(free - total // 10, 1 << 28)


@contextlib.contextmanager
def at_work(name: str, device: str, fake: bool) -> Iterator[_Here | None]:
    """The user's code runs inside: its prints go to standard error, what it raises becomes one line, and torch's
    random state, gradient mode and defaults are as they were afterwards.
    """
    path, modules = list(sys.path), set(sys.modules)
    gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(0)
        here = None
        if fake:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            stack.enter_context(plain_transformers())
        else:
            stack.enter_context(_Ceiling())
        if device == "cpu":
            here = stack.enter_context(_Here())
        try:
            yield here
        except (LoopError, TooBigError, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever the user's code raises
            if os.environ.get("DIAG_KIT_DEBUG"):
                raise
            raise LoopError(_said(error, name, device)) from None
        finally:
            sys.path[:] = path
            for one in set(sys.modules) - modules:
                if one.startswith("_loop_"):
                    del sys.modules[one]
            torch.set_grad_enabled(gradients)
            torch.set_default_dtype(dtype)


def _said(error: BaseException, name: str, device: str) -> str:
    where = _place(error.__traceback__) or name
    try:
        text = " ".join(str(error).split())[:200]
    except Exception:  # noqa: BLE001 (an error of theirs that can't say what it is)
        text = "(without words)"
    what = f"{where}: {type(error).__name__}: {text}"
    if device == "cpu" and any(word in text for word in ("CUDA", "NVIDIA", "cuda")):
        return f"{what}; it needs a GPU: run it where there is one (--device cuda), or take the device from the model"
    return f"{what}{MEND}"


def _place(trace: TracebackType | None) -> str:
    found = ""
    while trace is not None:
        if is_users(trace.tb_frame.f_code.co_filename):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
