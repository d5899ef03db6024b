"""A run small enough to know by heart, and a workbook on it without a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag_kit.workbook import Workbook, workbook

LOG = """\
torchrun --nproc_per_node 1 train.py --per_device_train_batch_size 2
step 1 loss 2.31
step 2 loss 2.20
Traceback (most recent call last):
  File "/home/alice/train.py", line 31, in <module>
    loss = model(**batch).loss
  File "/home/alice/.venv/lib/python3.11/site-packages/torch/nn/functional.py", line 2140, in softmax
    ret = input.softmax(dim, dtype=dtype)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 79.15 GiB of \
which 2.10 GiB is free. Including non-PyTorch memory, this process has 77.04 GiB memory in use. Of the allocated memory \
74.00 GiB is allocated by PyTorch, and 1.92 GiB is reserved by PyTorch but unallocated.
"""
CONFIG = """\
{"n_layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "gated_ffn": true, "vocab": 128256,
 "tied_embeddings": true}
"""
SETTINGS = """\
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
max_seq_length: 4096
attn_implementation: eager
bf16: true
"""


@pytest.fixture(autouse=True)
def _kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program that was traced before is found, and none is left behind."""
    monkeypatch.setenv("DIAG_KIT_CACHE", str(tmp_path / "programs"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder as a failed run leaves it: log, settings, the model's configuration."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name, text in (("train.log", LOG), ("config.json", CONFIG), ("settings.yaml", SETTINGS)):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def book(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbook:
    """The workbook on that run, started in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    return workbook(run)
