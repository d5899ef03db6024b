"""A user's own function as the model: run under fake tensors, refused in one line where it can't be traced."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402

from diag_kit.errors import SettingsError  # noqa: E402
from diag_kit.memory.settings import Settings  # noqa: E402
from diag_kit.memory.trace.models import Job, build  # noqa: E402
from diag_kit.memory.trace.plain import plain_transformers  # noqa: E402

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self, wide=32):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(99, wide), nn.Linear(wide, wide), nn.Linear(wide, 99)
    def forward(self, ids):
        return self.head(torch.relu(self.body(self.embed(ids))))

def step(model, batch):
    logits = model(batch["ids"].cuda())
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].cuda().flatten()), logits

def tokens(*shape):
    return {name: torch.randint(0, 99, shape) for name in ("ids", "labels")}
"""


@pytest.fixture
def traced(tmp_path: Path) -> Any:
    """A function from the factory's source, and settings, to the Job built under fake tensors."""

    def make(body: str, name: str = "factory", fake: bool = True, **settings: Any) -> Job:
        file = tmp_path / "mine.py"
        file.write_text(HEAD + textwrap.dedent(body))
        document = {"model": {"factory": f"{file}:{name}"}, "micro_batch": 2, "seq_len": 24, **settings}
        s = Settings.from_json(document)
        if not fake:
            return build(s)
        with FakeTensorMode(allow_non_fake_inputs=True):
            return build(s)

    return make


def refused(traced: Any, body: str, **more: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        traced(body, **more)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    return text


SIZED = """
def factory(micro_batch, seq_len):
    print("building")
    return Net().to("cuda"), tokens(micro_batch, seq_len), step
"""


def test_a_factory_runs_without_a_gpu_or_memory(traced: Any, capsys: Any) -> None:
    """Code that asks for a GPU is built on fake tensors and steps at any size; its prints stay off standard output."""
    one = traced(SIZED)
    assert capsys.readouterr().out == ""
    assert all(isinstance(p, FakeTensor) for p in one.model.parameters())
    assert (one.layers, one.full_layers, one.vocab) == (None, None, 99)
    assert any("your code" in note and "mine.py:factory" in note for note in one.notes)
    mode = next(one.model.parameters()).fake_mode
    for size in ((2, 24), (5, 7)):
        with mode, plain_transformers():
            batch = one.batch(*size)
            loss, outputs = one.loss(one.model, batch)
            loss.backward()
        assert batch["ids"].shape == size
        assert outputs.shape == (*size, 99)


@pytest.mark.parametrize("device", ["torch.device('cuda', 0)", "torch.device('cuda:1')", "torch.device(0)"])
def test_a_device_with_a_number_is_the_one_at_hand(traced: Any, device: str) -> None:
    """However a GPU is named, model and batch lie on one device."""
    body = f"def factory():\n    d = {device}\n    x = torch.zeros(2, device=d) + torch.zeros(2)\n"
    traced(body + "    return Net().to(d), tokens(2, 24), step\n")


def test_a_model_that_trains_nothing_is_told(traced: Any) -> None:
    """Without a parameter to train there is no optimizer, and the settings say so."""
    one = traced("def factory():\n    return Net().requires_grad_(False), tokens(2, 24), step\n")
    with pytest.raises(SettingsError, match="no parameter of the model is trained"):
        one.optimizer(one.model.parameters())


def test_the_same_factory_runs_for_real(traced: Any) -> None:
    """Outside fake tensors the same code steps on real ones, so that a real run can check a trace."""
    one = traced(SIZED, fake=False, keep_logits=False)
    loss, outputs = one.loss(one.model, one.batch(2, 24))
    loss.backward()
    assert torch.isfinite(loss)
    assert outputs is None


def test_each_batch_is_a_new_one(traced: Any) -> None:
    """A data loader hands over new tensors each time, so two batches share no memory."""
    one = traced(SIZED, fake=False)
    first, second = one.batch(2, 24), one.batch(2, 24)
    assert first["ids"].data_ptr() != second["ids"].data_ptr()


def test_a_batch_of_the_stated_size_is_resized(traced: Any) -> None:
    """A factory without arguments is traced at other sizes where its batch has the size that the settings state."""
    one = traced("def factory():\n    return Net(), tokens(2, 24), step\n", fake=False)
    assert one.batch(3, 10)["labels"].shape == (3, 10)
    one.loss(one.model, one.batch(3, 10))


def test_a_batch_of_another_size_is_said_to_be_fixed(traced: Any) -> None:
    """Where the batch is not of the stated size, its own is traced, said so, and no other size is made up."""
    one = traced("def factory():\n    return Net(), tokens(7, 11), step\n", fake=False)
    assert one.batch(2, 24)["ids"].shape == (7, 11)
    assert any("do not apply" in note for note in one.notes)
    with pytest.raises(SettingsError, match="take micro_batch and seq_len"):
        one.batch(3, 24)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def factory():\n    return Net(1 // 0), 1, step\n", ("mine.py:", "ZeroDivisionError")),
        ("def factory():\n    raise SystemExit(3)\n", ("mine.py:", "SystemExit")),
        ("def factory():\n    raise GeneratorExit\n", ("mine.py:", "GeneratorExit")),
        ("import nowhere_to_be_found\n", ("mine.py:", "nowhere_to_be_found")),
        ("def factory():\n    return Net()\n", ("returned Net", "(model, batch, step)")),
        ("def factory():\n    return Net(), 1, 2\n", ("can't be called",)),
        ("def other():\n    pass\n", ("no function factory",)),
        ("net = Net()\n", ("no function factory",)),
        ("def factory():\n    torch.load('weights.pt')\n", ("mine.py:", "torch.load", "from_config")),
        (
            "def factory():\n    import numpy\n    model = Net()\n"
            "    with torch._subclasses.fake_tensor.unset_fake_temporarily():\n        model.extra = nn.Linear(4, 4)\n"
            "    return model, tokens(2, 24), step\n",
            ("extra.weight", "real memory"),
        ),
    ],
)
def test_a_factory_that_cannot_be_traced_is_told_in_one_line(traced: Any, body: str, said: tuple[str, ...]) -> None:
    """What is wrong with the user's code is said with its place and what to do, never as a traceback."""
    text = refused(traced, body)
    for part in ("settings.model.factory", *said):
        assert part in text


def test_weights_are_refused_before_they_are_read(traced: Any, tmp_path: Path) -> None:
    """transformers' from_pretrained is stopped where the user calls it, and works again afterwards."""
    pytest.importorskip("transformers")
    import transformers

    before = transformers.AutoModelForCausalLM.from_pretrained
    text = refused(
        traced,
        "def factory():\n    import transformers\n"
        "    return transformers.AutoModelForCausalLM.from_pretrained('gpt2'), tokens(2, 24), step\n",
    )
    assert "mine.py:" in text
    assert "reads weights" in text
    assert transformers.AutoModelForCausalLM.from_pretrained == before


def test_a_step_without_a_loss_is_told(traced: Any) -> None:
    """A step that returns anything but one number with gradients is refused when it is run."""
    one = traced("def factory():\n    return Net(), tokens(2, 24), lambda m, b: m(b['ids'])\n", fake=False)
    with pytest.raises(SettingsError, match="gave no loss"):
        one.loss(one.model, one.batch(2, 24))


def test_a_step_that_fails_is_told_with_its_place(traced: Any) -> None:
    """An error in the user's step names their file and line."""
    one = traced("def factory():\n    return Net(), tokens(2, 24), lambda m, b: m(b['absent'])\n", fake=False)
    with pytest.raises(SettingsError, match=r"mine\.py:\d+: KeyError"):
        one.loss(one.model, one.batch(2, 24))


def test_real_memory_is_bounded(traced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A factory that fills the machine's memory past its room is stopped at its next operation."""
    monkeypatch.setattr("diag_kit.memory.trace.factory.MOST_REAL_BYTES", 64 << 20)
    body = (
        "def factory():\n    import ctypes\n    kept = []\n    for _ in range(8):\n"
        "        kept.append(bytearray(b'1') * (32 << 20))\n        torch.zeros(1)\n    return Net(), tokens(2, 24), step\n"
    )
    assert "takes real memory" in refused(traced, body)


def test_a_module_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A factory that names no file or module is one line."""
    for named in (f"{tmp_path}/absent.py:factory", "absent_module_of_mine:factory"):
        with pytest.raises(SettingsError, match="absent"):
            build(Settings.from_json({"model": {"factory": named}}))
