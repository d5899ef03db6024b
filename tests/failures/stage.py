"""What the code of a fix finds around it when it is run: a small model, its data, and a CPU that answers for a GPU.

A block is run as it stands, in a namespace of the names that a training script would have (`names`). Calls of
``torch.cuda`` keep their signatures and answer from a ledger of the storages that are alive, so that a wrong argument
fails and a memory test sees memory; "cuda" as a device means the CPU. What a block defines is then used: a test is
called, a Trainer or callback trains for two steps, an autograd Function has its gradient checked.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

VOCABULARY, LENGTH = 64, 12
CAPACITY = 2**30
ABSENT = ("peft", "bitsandbytes", "liger_kernel", "trl", "torch_xla", "triton", "deepspeed", "vllm", "flash_attn", "xformers")
"""Libraries that a block may need and that the test set-up leaves out: most have no CPU build, or too large a one."""


class Ledger(TorchDispatchMode):
    """Bytes of all storages made under it that are still alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[Any, int]] = {}
        self.most = self.peak = 0  # most: what would be alive if nothing had died since it was last counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if type(tensor) in (torch.Tensor, nn.Parameter):
                ref = StorageWeakRef(tensor.untyped_storage())
                held = self.live.get(ref.cdata)
                if held is None or held[0].expired():
                    self.live[ref.cdata] = (ref, tensor.untyped_storage().nbytes())
                    self.most += self.live[ref.cdata][1]
        if self.most > self.peak:
            self.peak = max(self.peak, self.bytes())
        return out

    def bytes(self) -> int:
        """Bytes that are alive now."""
        self.live = {key: pair for key, pair in self.live.items() if not pair[0].expired()}
        self.most = sum(size for _, size in self.live.values())
        return self.most


class CpuForCuda(TorchFunctionMode):
    """Where a call names the device "cuda", the CPU is meant; pinning is left out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "pin_memory":
            return args[0]
        if getattr(func, "__name__", "") == "cuda":
            return args[0]
        args, kwargs = tree_map(_device, (args, kwargs or {}))
        return func(*args, **kwargs)


def _device(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type in ("cuda", "xpu") else value
    return "cpu" if isinstance(value, str) and value.split(":")[0] in ("cuda", "xpu") else value


def _answering(real: Callable[..., Any], answer: Callable[[], Any]) -> Callable[..., Any]:
    """A function that takes what the real one takes, and answers from here."""
    signature = inspect.signature(real)

    def call(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return answer()

    return call


@contextlib.contextmanager
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """torch.cuda answered from a ledger, and "cuda" taken for the CPU."""
    ledger = Ledger()

    def lower() -> None:
        ledger.peak = ledger.bytes()

    answers: dict[str, Callable[[], Any]] = {
        "memory_allocated": ledger.bytes, "memory_reserved": ledger.bytes,
        "max_memory_allocated": lambda: ledger.peak, "max_memory_reserved": lambda: ledger.peak,
        "mem_get_info": lambda: (CAPACITY - ledger.bytes(), CAPACITY), "reset_peak_memory_stats": lower,
        "memory_stats": lambda: {"num_alloc_retries": 0, "num_ooms": 0, "inactive_split_bytes.all.current": 0},
        "synchronize": lambda: None, "empty_cache": lambda: None, "set_device": lambda: None,
        "set_per_process_memory_fraction": lambda: None,
        "get_device_properties": lambda: SimpleNamespace(total_memory=CAPACITY, name="none"),
        "memory_summary": lambda: "", "ipc_collect": lambda: None,
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, _answering(getattr(torch.cuda, name), answer))
    for name in ("_record_memory_history", "_dump_snapshot"):
        monkeypatch.setattr(torch.cuda.memory, name, _answering(getattr(torch.cuda.memory, name), lambda: None))
    arguments = transformers.TrainingArguments
    real = arguments.__init__
    monkeypatch.setattr(arguments, "__init__", lambda self, *a, **k: real(self, *a, **{"use_cpu": True} | k))
    with ledger, CpuForCuda():
        yield ledger


def forget_accelerate() -> None:
    """accelerate keeps its state for the process; each block starts without."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._shared_state.clear()


def tiny(layers: int = 1) -> Any:
    """A Llama of some thousand parameters, from its configuration, with a fixed seed."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def saved(folder: Path) -> str:
    """A folder from which a tiny model and its tokenizer load."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"w{i}": 4 + i for i in range(VOCABULARY - 4)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
    )
    tiny().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def rows(lengths: list[int]) -> list[dict[str, list[int]]]:
    """Samples of these lengths, as a tokenizer leaves them."""
    made = []
    for index, length in enumerate(lengths):
        ids = [4 + (index + i) % (VOCABULARY - 4) for i in range(length)]
        made.append({"input_ids": ids, "labels": ids, "attention_mask": [1] * length})
    return made


def collate(samples: list[dict[str, list[int]]]) -> dict[str, Any]:
    """A padded batch."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    fill = {"input_ids": 0, "labels": -100, "attention_mask": 0}
    return {key: torch.tensor([s[key] + [fill[key]] * (longest - len(s[key])) for s in samples]) for key in fill}


def names(code: str, model_folder: str, tmp_path: Path) -> dict[str, Any]:
    """The namespace of a block, with those names that it uses. Each is what a reader would take it for."""
    from torch.utils.data import DataLoader

    def used(made: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        return {name: make() for name, make in made.items() if re.search(rf"\b{name}\b", code)}

    model = tiny()
    object.__setattr__(model, "layers", model.model.layers)  # as models of one's own name them; not registered twice
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lengths = [3, 12, 5, 8, 4, 9, 6, 7]
    dataset, even = rows(lengths), rows([6] * 8)
    micro_batches = [collate(dataset[i : i + 2]) for i in range(0, 8, 2)]
    batch = micro_batches[0]
    space: dict[str, Any] = {
        "__name__": "fix", "torch": torch, "nn": nn, "F": torch.nn.functional, "os": os, "gc": gc, "contextlib": contextlib,
        "DataLoader": DataLoader, "device": torch.device("cpu"), "step": 0, "rank": 0, "world_size": 1,
        "model": model, "optimizer": optimizer, "config": model.config, "name": model_folder,
        "batch": batch, "inputs": {key: batch[key] for key in ("input_ids", "attention_mask")}, "labels": batch["labels"],
        "ids": batch["input_ids"], "micro_batches": micro_batches, "batches": list(micro_batches),
        "micro_batch": 2, "accumulation": len(micro_batches), "last_micro_step": False,
        "dataset": dataset, "data": even, "train": even, "valid": even[:4], "lengths": lengths,
        "texts": ["w1 w2 w3", "w4 w5"], "collate": collate, "collator": collate,
        "x": torch.randn(4, 8), "y": torch.randn(4, 8), "points": torch.randn(9, 3), "part": torch.randn(4, 3),
        "boxes": torch.rand(700, 4), "history": [], "losses": [], "predictions": [], "features": [], "replay": [],
        "sample": {"state": torch.randn(4, requires_grad=True) * 2}, "rows": 3, "columns": 4, "row_counts": [3, 4],
        "compute_metrics": lambda prediction: {"rows": len(prediction.predictions)},
        **{name: torch.randn(1, 2, LENGTH, 8, requires_grad=True) for name in "qkv"},
    }  # fmt: skip
    space |= used({
        "tokenizer": lambda: transformers.AutoTokenizer.from_pretrained(model_folder),
        "scheduler": lambda: torch.optim.lr_scheduler.ConstantLR(optimizer),
        "loader": lambda: DataLoader(dataset, batch_size=2, collate_fn=collate),
        "args": lambda: training_arguments(tmp_path),
        "hidden": lambda: model.model(input_ids=batch["input_ids"]).last_hidden_state,
        "outputs": lambda: model(**batch), "loss": lambda: model(**batch).loss,
        "main_loss": lambda: model(**batch).loss, "path": lambda: checkpoint(model, tmp_path),
    })  # fmt: skip
    space["auxiliary_loss"] = space["main_loss"] * 2 if "main_loss" in space else None
    space |= {name: getattr(transformers, name) for name in (
        "Trainer", "TrainingArguments", "TrainerCallback", "AutoModelForCausalLM", "AutoTokenizer", "AutoConfig")}  # fmt: skip

    def loss_of(batch: Any) -> Any:
        return model(**batch).loss

    def train_one_step(batch: Any) -> None:
        space["model"](**batch).loss.backward()
        space["optimizer"].step()
        space["optimizer"].zero_grad(set_to_none=True)

    def train_one_window() -> None:
        for part in space["micro_batches"]:
            (space["model"](**part).loss / len(space["micro_batches"])).backward()
        space["optimizer"].step()

    space |= {"loss_of": loss_of, "train_one_step": train_one_step, "train_one_window": train_one_window}
    return space


def checkpoint(model: Any, folder: Path) -> str:
    """The path of a saved model and optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
    return str(folder / "state.pt")


def training_arguments(folder: Path, **more: Any) -> Any:
    """Arguments of a Trainer for two quiet steps."""
    quiet = {"max_steps": 2, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    return transformers.TrainingArguments(output_dir=str(folder / "out"), per_device_train_batch_size=2, **quiet | more)


def short(args: Any, folder: Path) -> Any:
    """A block's own arguments, cut to two quiet steps here."""
    args.output_dir, args.max_steps, args.report_to, args.save_strategy = str(folder / "out"), 2, [], "no"
    args.disable_tqdm, args.gradient_accumulation_steps = True, min(args.gradient_accumulation_steps, 2)
    return args


@contextlib.contextmanager
def one_rank(code: str, space: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one where the code speaks of ranks; DDP or FSDP around the model where it calls their methods."""
    spoken = ("torch.distributed", "fully_shard", ".no_sync(", "set_requires_gradient_sync", "DistributedDataParallel")
    if "LOCAL_RANK" in code:
        monkeypatch.setenv("LOCAL_RANK", "0")
    if not any(word in code for word in spoken):
        yield
        return
    dist = torch.distributed
    start = dist.init_process_group
    store = dist.FileStore(str(folder / "store"), 1)
    start("gloo", store=store, rank=0, world_size=1)
    monkeypatch.setattr(dist, "init_process_group", _answering(start, lambda: None))
    try:
        if ".no_sync(" in code:
            space["model"] = nn.parallel.DistributedDataParallel(space["model"])
            space["loss"] = space["model"](**space["batch"]).loss
        if "set_requires_gradient_sync" in code:
            from torch.distributed.fsdp import fully_shard

            space["model"] = fully_shard(space["model"])
        yield
    finally:
        dist.destroy_process_group()


def run(code: str, space: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a block and use what it defines; the names that it made or bound anew.

    Raises:
        Exception: whatever the code raises.
    """
    before = dict(space)
    if "trainer." in code:
        more = training_arguments(folder, save_strategy="steps", save_steps=1)
        space["trainer"] = before["trainer"] = _trainer(space, folder, args=more)
        space["trainer"].train()
    with missing():
        exec(compile(code, "fix", "exec"), space)
    made = {name: value for name, value in space.items() if value is not before.get(name)}
    made.pop("__builtins__", None)
    for name, value in list(made.items()):
        _use(name, value, space, folder)
    return made


@contextlib.contextmanager
def missing() -> Iterator[None]:
    """What needs a library or a device that is not here is skipped, with the reason; any other error passes."""
    try:
        yield
    except ImportError as error:
        if named := [name for name in ABSENT if name in str(error).replace("-", "_")]:
            pytest.skip(f"arguments taken, not trained: {', '.join(named)} is not installed")
        raise
    except AssertionError as error:
        if "Torch not compiled with CUDA" in str(error):
            pytest.skip("runs up to where it needs a GPU")
        raise


def _trainer(space: dict[str, Any], folder: Path, kind: Any = None, **more: Any) -> Any:
    kind = kind or transformers.Trainer
    keep = {"args": training_arguments(folder), "train_dataset": space["dataset"], "data_collator": collate} | more
    return kind(model=tiny(), **keep)


def _use(name: str, value: Any, space: dict[str, Any], folder: Path) -> None:
    if inspect.isclass(value) and value.__module__ != "fix":
        return  # imported, not defined
    if inspect.isfunction(value) and name.startswith("test_"):
        value()
    elif isinstance(value, transformers.TrainingArguments):
        short(value, folder)
        if not value.fsdp:
            trainer = _trainer(space, folder, args=value, eval_dataset=space["valid"])
            with missing():
                trainer.train()
    elif isinstance(value, transformers.Trainer):
        short(value.args, folder)
        if value.train_dataset is not None:
            value.train()
        if value.eval_dataset is not None:
            value.evaluate()
    elif inspect.isclass(value) and issubclass(value, transformers.Trainer):
        _trainer(space, folder, value).train()
    elif inspect.isclass(value) and issubclass(value, transformers.TrainerCallback):
        _trainer(space, folder, callbacks=[value()]).train()
    elif inspect.isclass(value) and issubclass(value, torch.autograd.Function):
        torch.autograd.gradcheck(value.apply, torch.randn(3, dtype=torch.float64, requires_grad=True))
    elif inspect.isgenerator(value) or isinstance(value, torch.utils.data.DataLoader):
        assert next(iter(value)) is not None
    _use_lightning(value, space, folder)


def _use_lightning(value: Any, space: dict[str, Any], folder: Path) -> None:
    kinds = value.__mro__ if inspect.isclass(value) else type(value).__mro__
    if not any(kind.__module__.startswith("lightning.") for kind in kinds):
        return
    import lightning

    quiet = {"max_steps": 2, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
             "enable_model_summary": False, "accelerator": "cpu", "default_root_dir": str(folder)}  # fmt: skip
    loader = torch.utils.data.DataLoader(space["dataset"], batch_size=2, collate_fn=collate)
    if not inspect.isclass(value):
        if isinstance(value, lightning.Trainer):
            value.fit_loop.epoch_loop.max_steps, value.accumulate_grad_batches = 2, 1
            value.fit(_module(lightning), loader)
    elif issubclass(value, lightning.LightningModule):
        module = value()
        module.model = tiny()
        lightning.Trainer(**quiet).fit(module, loader)
    elif issubclass(value, lightning.Callback):
        lightning.Trainer(**quiet, callbacks=[value()]).fit(_module(lightning), loader)


def _module(lightning: Any) -> Any:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.model(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    return Module()
