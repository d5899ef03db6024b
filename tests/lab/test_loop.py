"""The engineer's loop: in code met in public and in many styles, the line that holds memory is named, or nothing is said."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from diag_kit.failures.records import CAUSES
from diag_kit.lab.loop import inspect_loop
from diag_kit.lab.loop.kinds import KINDS, SPIKES
from diag_kit.lab.loop.result import lines, loop_from_json

SCRIPTS = Path(__file__).with_name("scripts")
GRAPH, TENSORS = "graph-retention", "tensor-accumulation"

PUBLIC = {
    "lstm_state_never_detached": ("carried", GRAPH, "state", 442368),
    "likelihood_summed_over_sentences": ("deferred", GRAPH, "sum_log_likelihood", 84484),
    "output_on_its_own_context": ("swept", GRAPH, "Clone: ctx.y", 2048),
    "step_outputs_kept_for_the_epoch": ("graph", GRAPH, "Forecaster.training_step_outputs", 1540),
    "attentions_kept_in_evaluation": ("outputs", TENSORS, "all_attentions", 294912),
    "gradients_with_a_graph": ("gradients", GRAPH, "Parameter.grad", 33536),
}
SHAPES = {
    "in_dict": ("graph", "seen"),
    "in_deque": ("outputs", "window"),
    "in_attribute_of_a_helper": ("graph", "Meter.values"),
    "in_global": ("graph", "HISTORY"),
    "in_closure_sum": ("evaluation", "total"),
    "in_generator": ("graph", "kept"),
    "in_dataclass": ("deferred", "Record.losses"),
    "in_hook": ("graph", "features"),
    "in_nested_function": ("evaluation", "kept"),
    "in_trainers_log": ("evaluation", "Trainer.log['activations']"),
    "in_default_argument": ("graph", "cache"),
    "in_module_buffer": ("grows", "Memory.bank"),
    "in_alias": ("outputs", "SimpleNamespace.buffers['out']"),
    "in_partial": ("graph", "remember"),
    "in_linked_list": ("evaluation", "last"),
    "in_context_of_a_kept_loss": ("hidden", "losses"),
    "in_tensor_hook": ("outputs", "norms"),
    "auxiliary_head_never_backpropagated": ("graph", "auxiliary"),
    "in_caught_exception": ("graph", "errors"),
    "in_last_of_window": ("graph", "curve"),
}
HEALTHY = [
    "public_healthy.py:gpt_accumulation",
    "public_healthy.py:ppo_rollout",
    "public_healthy.py:language_model_with_truncated_state",
    "shapes.py:healthy_scalars",
    "shapes.py:healthy_last_output",
    "shapes.py:healthy_short_deque",
    "shapes.py:healthy_average_of_weights",
    "shapes.py:healthy_cache",
    "shapes.py:healthy_to_cpu",
    "shapes.py:healthy_checkpointed",
    "shapes.py:healthy_accumulated_grads",
    "shapes.py:healthy_two_models",
    "shapes.py:healthy_growing_lengths",
]


def marked(holding, function: str) -> bool:
    """Whether the line that was named is marked LEAK, and is the factory's own where the factory has such a line."""
    source = Path(holding.line.path).read_text().splitlines()
    start = source.index(f"def {function}():")
    end = next((at for at in range(start + 1, len(source)) if source[at] and not source[at].startswith((" ", ")"))), len(source))
    own = [at + 1 for at in range(start, end) if "# LEAK" in source[at]]
    return "# LEAK" in source[holding.line.line - 1] and (not own or holding.line.line in own)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_leak_is_named(name):
    """Of a loop that leaked in public: the line, the holder, the kind, the failure's name and the bytes of a micro-step."""
    kind, cause, holder, kept = PUBLIC[name]
    found = inspect_loop(f"{SCRIPTS}/public_leaks.py:{name}")
    (holding,) = found.holdings
    assert (holding.kind, holding.cause, holding.holder) == (kind, cause, holder)
    assert marked(holding, name)
    assert holding.bytes_per_micro_step == kept
    assert holding.made and all(made.line is not None for made in holding.made)


HELD_OUT = {
    "every_state_of_the_model": ("outputs", TENSORS, "states"),
    "inner_losses_adapted_once": ("deferred", GRAPH, "loss"),
    "extra_losses_of_a_step": ("graph", GRAPH, "outputs"),
    "batch_called_data": ("retained", GRAPH, "caught"),
}


@pytest.mark.parametrize("name", HELD_OUT)
def test_what_a_hold_out_of_public_loops_missed_is_named(name):
    """Copies made by deepcopy count, a list that the function goes over makes it a loop, a tuple called data is a batch."""
    found = inspect_loop(f"{SCRIPTS}/public_leaks.py:{name}")
    holding = found.holdings[0]
    assert (holding.kind, holding.cause, holding.holder) == HELD_OUT[name]
    assert marked(holding, name) and not found.peak.cause


def test_a_square_feature_map_is_no_attention():
    """Images, and a softmax over classes, as square as scores: no product of queries and keys made them."""
    found = inspect_loop(f"{SCRIPTS}/public_healthy.py:segmentation_of_square_images")
    assert not found.holdings and not found.peak.cause
    assert found.peak.made[0].shape[-2:] == (48, 48)


@pytest.mark.parametrize("name", SHAPES)
def test_every_style_of_keeping_is_named(name):
    """Dictionary, deque, attribute, global, closure, generator, dataclass, hook and so on: one holding, its line."""
    kind, holder = SHAPES[name]
    (holding,) = inspect_loop(f"{SCRIPTS}/shapes.py:{name}").holdings
    assert (holding.kind, holding.holder) == (kind, holder)
    assert marked(holding, name)
    assert holding.bytes_per_micro_step >= 1024


@pytest.mark.parametrize("factory", HEALTHY)
def test_healthy_loop_is_left_alone(factory):
    """Loops that keep nothing: no holding, no known spike, next to no bytes."""
    found = inspect_loop(f"{SCRIPTS}/{factory}")
    assert not found.holdings and not found.peak.cause
    assert found.small_bytes < 1024 and found.micro_steps == 3
    assert "Nothing stays alive" in lines(found)[1]


def test_the_line_moves_with_the_code(tmp_path):
    """The line is read from what runs: the same code further down and under other names is named there."""
    source = (SCRIPTS / "shapes.py").read_text().replace("HISTORY", "souvenirs")
    (tmp_path / "train.py").write_text("# moved\n" * 7 + source)
    (holding,) = inspect_loop(f"{tmp_path}/train.py:in_global").holdings
    assert holding.holder == "souvenirs"
    assert "souvenirs.append(out)" in (tmp_path / "train.py").read_text().splitlines()[holding.line.line - 1]


def test_hidden_attribute_is_named_beside_the_holder():
    """A list of losses that keeps tensors by way of a custom function: both lines are told."""
    (holding,) = inspect_loop(f"{SCRIPTS}/shapes.py:in_context_of_a_kept_loss").holdings
    assert "losses.append(loss)" in holding.line.text
    assert holding.through is not None and "ctx.doubled = x * 2" in holding.through.text


def test_activation_spike_is_named_by_line():
    """Eager attention over a long batch: nothing stays, and the peak is the scores, by the line that made them."""
    found = inspect_loop(f"{SCRIPTS}/public_leaks.py:long_batch_with_eager_attention")
    assert not found.holdings
    assert found.peak.cause == "attention-quadratic"
    assert found.peak.made[0].shape[-2:] == (256, 256)
    source = (SCRIPTS / "public_leaks.py").read_text().splitlines()
    assert any("softmax" in source[m.line.line - 1] or "scores" in source[m.line.line - 1] for m in found.peak.made)


def test_every_kind_has_a_cause_of_the_contract():
    """What is found goes by the names of the encyclopedia."""
    assert {kind.cause for kind in (*KINDS.values(), *SPIKES.values())} <= set(CAUSES)


def test_bytes_are_those_of_the_tensors():
    """The bytes of a micro-step are the sizes of what is kept: output and the activation that its graph saved."""
    (holding,) = inspect_loop(f"{SCRIPTS}/shapes.py:in_global").holdings
    assert holding.bytes_per_micro_step == 16 * 128 * 4 + 16 * 32 * 4
    assert sum(made.bytes for made in holding.made) == 2 * holding.bytes_per_micro_step


def test_more_micro_steps_and_other_ways_to_iterate():
    """Five micro-steps are five; batches may be taken by index, and gone over again within a window."""
    assert inspect_loop(f"{SCRIPTS}/shapes.py:in_dict", micro_steps=5).micro_steps == 5
    found = inspect_loop(f"{SCRIPTS}/changes.py:epochs")
    assert found.micro_steps == 6 and found.holdings[0].holder == "kept"


def test_a_window_lasts_until_the_loops_first_backward():
    found = inspect_loop(f"{SCRIPTS}/shapes.py:summed_until_the_fourth_micro_step")
    assert found.micro_steps == 4 and any("micro-step 4" in note for note in found.notes)
    [holding] = found.holdings
    assert holding.kind == "deferred" and holding.holder == "total"
    assert marked(holding, "summed_until_the_fourth_micro_step")
    assert found.peak.cause == "" and found.gradients is not None


@pytest.mark.parametrize("count", [4, 8])
def test_what_backward_freed_at_a_windows_end_was_held_within_it(count):
    found = inspect_loop(f"{SCRIPTS}/shapes.py:summed_until_the_fourth_micro_step", micro_steps=count)
    assert [one.kind for one in found.holdings] == ["deferred"] and not found.notes
    assert found.holdings[0].until == "the window ends"


def test_no_backward_in_many_micro_steps_is_said():
    found = inspect_loop(f"{SCRIPTS}/shapes.py:evaluation_in_a_file_that_also_trains")
    assert [one.kind for one in found.holdings] == ["evaluation"] and found.micro_steps == 3
    assert any("no backward ran in 32 micro-steps" in note for note in found.notes)


def test_backward_after_the_batches_needs_no_longer_window():
    found = inspect_loop(f"{SCRIPTS}/shapes.py:backward_after_the_loop")
    assert [one.kind for one in found.holdings] == ["deferred"] and found.micro_steps == 3 and not found.notes


def test_json_and_back():
    """What is written as JSON is read back the same, lines and all."""
    found = inspect_loop(f"{SCRIPTS}/shapes.py:in_context_of_a_kept_loss")
    document = found.to_json()
    assert document["schema"] == "diag_kit.loop/1"
    assert document["kept_bytes_per_micro_step"] == found.kept_bytes
    assert loop_from_json(document) == found
