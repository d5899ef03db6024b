"""Models as settings name them, built without weights or network, on fake tensors and on real ones."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402

from diag_kit.memory.settings import Settings  # noqa: E402
from diag_kit.memory.trace.models import Job, build  # noqa: E402

SMALL = {"n_layers": 2, "hidden": 64, "heads": 4, "vocab": 500}
PLAIN = SMALL | {"gated_ffn": False}
NUMBERS: dict[str, dict[str, Any]] = {
    "llama": SMALL | {"kv_heads": 2, "ffn": 128},
    "qwen2, biases on query, key and value": SMALL | {"qkv_bias": True},
    "wide heads": SMALL | {"head_dim": 32},
    "gated with layer norm": SMALL | {"norm": "layer"},
    "gpt2": PLAIN | {"positions": 128, "tied_embeddings": True, "activation": "gelu_new"},
    "gpt2, untied": PLAIN | {"positions": 128},
    "opt": PLAIN | {"positions": 128, "fused_qkv": False},
    "gpt-neox": PLAIN,
    "plain with grouped heads": PLAIN | {"kv_heads": 2},
    "plain with rms norm": PLAIN | {"norm": "rms"},
}


def job(model: dict[str, Any], layers: int | None = None, **more: Any) -> Job:
    return build(Settings.from_json({"model": model, "micro_batch": 2, "seq_len": 48, **more}), layers)


def step(one: Job, micro_batch: int = 2, seq_len: int = 48) -> Any:
    loss, outputs = one.loss(one.model, one.batch(micro_batch, seq_len))
    loss.backward()
    optimizer = one.optimizer(one.model.parameters())
    assert optimizer is not None
    optimizer.step()
    return loss, outputs


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_become_a_model_with_as_many_parameters(name: str) -> None:
    """A model known by its numbers is built with exactly the parameters that the closed forms count, and it trains."""
    one = job(NUMBERS[name])
    built = sum(p.numel() for p in one.model.parameters())
    assert built == Settings.from_json({"model": NUMBERS[name]}).model.params
    assert torch.isfinite(step(one)[0])


def test_fake_models_hold_no_memory() -> None:
    """Under fake tensors the same code builds a model of 70 thousand million parameters, and nothing in it is real."""
    big = {"n_layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 128256}
    with FakeTensorMode(allow_non_fake_inputs=True):
        one = job(big, layers=2, precision="bf16")
        batch = one.batch(3, 40)
    held = [*one.model.parameters(), *one.model.buffers(), *batch.values()]
    assert all(isinstance(t, FakeTensor) for t in held)
    assert (one.layers, one.full_layers, one.period) == (2, 80, 1)
    assert next(one.model.parameters()).dtype is torch.bfloat16
    assert batch["input_ids"].shape == (3, 40) and batch["labels"].dtype is torch.int64
