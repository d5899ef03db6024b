"""The size that failed, as a tensor of the settings and as allocations of a trace."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from diag_kit.errors import SettingsError
from diag_kit.memory.forensics import which_tensors
from diag_kit.memory.settings import Settings
from diag_kit.units import GIB, MIB

MODEL = {"n_layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "ffn": 18944, "vocab": 152064}


def run(model=MODEL, **settings):
    """Settings of a 7B model in bf16, three sequences of 2,900 tokens, changed as given."""
    return Settings.from_json({"model": model, "precision": "bf16", "micro_batch": 3, "seq_len": 2900, **settings})


@dataclass
class Allocation:
    bytes: int
    op: str = "aten._softmax"
    shape: tuple = (3, 28, 2900, 2900)
    dtype: str = "float32"
    module: str = "model.layers.3.self_attn"
    phase: str = "forward"


@dataclass
class Recording:
    allocations: list = field(default_factory=list)


def test_scores_are_said_in_symbols_with_numbers():
    """The example of the manual: heads and batch counted, the length squared, bytes of an element, which layer's."""
    model = {**MODEL, "hidden": 4096, "heads": 32, "kv_heads": 8}
    found = which_tensors("16.00 GiB", run(model, micro_batch=4, seq_len=8192))
    assert (
        "16.00 GiB is a batch of 4 × 32 heads × 8,192² × 2 bytes: attention scores of one layer (exactly)."
        in found.text
    )
    assert found.matches[0].off_bytes == 0


@pytest.mark.parametrize(
    ("size", "tensor", "how"),
    [
        (3 * 28 * 2900 * 2900 * 2, "attention-scores", "exact"),
        (3 * 28 * 2900 * 2900 * 4, "attention-scores", "exact"),
        (3 * 2900 * 152064 * 4, "logits", "exact"),
        (152064 * 3584 * 2, "weights", "exact"),
        (f"{3 * 2900 * 152064 * 4 / GIB:.2f} GiB", "logits", "printed"),
        (f"{-(-3 * 2900 * 152064 * 4 // (2 * MIB)) * 2} MiB", "logits", "rounded"),
    ],
)
def test_a_size_names_its_tensor_and_how_exactly(size, tensor, how):
    """Whole bytes are exact; printed digits and the allocator's segments are told as such; the chance is stated."""
    found = which_tensors(size, run())
    assert (found.matches[0].tensor, found.matches[0].how) == (tensor, how)
    assert found.claimed == tensor and found.chance < 0.05 and "by chance" in found.text


def test_full_precision_keeps_no_tensor_in_two_bytes():
    """In fp32 a size that only 16-bit scores would have is no match; the shape it would need is told instead."""
    size = 3 * 28 * 2900 * 2900 * 2
    assert which_tensors(size, run()).matches
    found = which_tensors(size, run(precision="fp32"))
    assert not found.matches and "as logits about" in found.text and "attention scores a length of about" in found.text


def test_what_fsdp_gathers_is_a_tensor_too():
    """One unit's weights, counted exactly, biases and norms included."""
    s = run(parallelism={"strategy": "fsdp", "world_size": 8})
    found = which_tensors(s.model.layer_params * 2, s)
    assert "gathered" in {one.tensor for one in found.matches}
    assert not [one for one in which_tensors(s.model.layer_params * 2, run()).matches if one.tensor == "gathered"]


@pytest.mark.parametrize("text", ["20.00 MiB", "2 MiB"])
def test_small_segments_tell_nothing(text):
    """What the allocator asks for on behalf of any small tensor names none."""
    found = which_tensors(text, run())
    assert not found.matches and "tells no shape" in found.text


@pytest.mark.parametrize("text", ["many", "", "-3 GiB", "0 bytes", "9" * 400 + " GiB", "16 GiB; rm -rf /"])
def test_what_is_no_size_ends_in_one_line(text):
    """The line shows the text, cut, and how a size is written."""
    with pytest.raises(SettingsError, match="--size: ") as error:
        which_tensors(text, run())
    assert len(str(error.value)) < 200


def test_a_trace_names_every_allocation_of_that_size():
    """Grouped by operator, kind of module and shape: counted, with phases; other sizes are left out."""
    size = 3 * 28 * 2900 * 2900 * 4
    layers = [Allocation(size, module=f"model.layers.{n}.self_attn") for n in range(28)]
    back = [Allocation(size, module=f"model.layers.{n}.self_attn", phase="backward") for n in range(28)]
    other = [Allocation(size, op="aten.mul", module=""), Allocation(size - 4096), Allocation(12)]
    found = which_tensors(size, run(), Recording([*layers, *back, *other]))
    assert [(one.tensor, one.count, one.module) for one in found.traced] == [
        ("aten._softmax", 56, "model.layers.*.self_attn"), ("aten.mul", 1, ""),
    ]  # fmt: skip
    assert found.traced[0].phases == ("forward", "backward")
    assert (
        "The trace makes 56 such by aten._softmax in model.layers.*.self_attn: 3 × 28 × 2,900 × 2,900 of float32"
        in found.text
    )
    printed = which_tensors(f"{size / GIB:.2f} GiB", run(), Recording([Allocation(size - 4096)]))
    assert printed.traced[0].how == "printed"


def test_it_is_a_json_document():
    """Ready for ``json.dumps``."""
    document = json.loads(json.dumps(which_tensors("2.63 GiB", run()).to_json()))
    assert {"size_bytes", "matches", "traced", "tried", "chance", "claimed", "text"} == set(document)
