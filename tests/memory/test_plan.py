"""Remedies: what each would save, and the largest shape that fits."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from itertools import combinations as subsets

import pytest

from diag_kit.errors import SettingsError
from diag_kit.memory.formulas import estimate, peak_bytes
from diag_kit.memory.plan import (
    FORMULAS,
    changed,
    combinations,
    largest,
    largest_pairs,
    longest_that,
    plan,
    remedies,
    saves,
)  # fmt: skip
from diag_kit.memory.remedies import CATALOG, SEGMENTS
from diag_kit.memory.settings import Settings
from diag_kit.units import GIB

LLAMA = {
    "n_layers": 16,
    "hidden": 2048,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 8192,
    "vocab": 128256,
    "tied_embeddings": True,
}


def run(**settings):
    """Settings of a 1B Llama in bf16 over 4096 tokens, changed as given."""
    return Settings.from_json({"model": LLAMA, "precision": "bf16", "seq_len": 4096, **settings})


@pytest.mark.parametrize("name", ["seq_len", "micro_batch"])
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_largest_fits_and_one_more_does_not(name, attention):
    """The solved size fits by the estimate, and the next one does not."""
    s = run(attention=attention, seq_len=1024, capacity_bytes=80 * GIB)
    most = largest(s, name)
    assert most is not None
    assert estimate(s.with_(**{name: most})).fits
    assert not estimate(s.with_(**{name: most + 1})).fits


def test_largest_is_none_where_nothing_fits_or_nothing_is_known():
    """No capacity, or a capacity below the states: no answer; another setting's name is refused."""
    assert largest(run(), "seq_len") is None
    assert largest(run(capacity_bytes=GIB), "micro_batch") is None
    with pytest.raises(SettingsError, match="grad_accum"):
        largest(run(), "grad_accum")


def test_remedies_save_what_they_say():
    """Each remedy lowers the peak by exactly what it states, says its cost, and carries code for PyTorch."""
    s = run(attention="eager", grad_accum=4, backward="deferred", micro_batch=4, capacity_bytes=80 * GIB)
    found = remedies(s)
    assert {"flash", "backward-each", "checkpointing", "micro-batch-half", "8bit-optimizer", "together"} <= {
        r.id for r in found
    }
    for r in found:
        assert r.peak_bytes == peak_bytes(changed(s, r.change))
        assert r.saves_bytes == saves(s, r.change) > 0
        assert (r.fits, r.device_bytes) == ((e := estimate(changed(s, r.change))).fits, e.device_bytes)
        assert r.cost and r.method == "formula"
        assert r.id == "together" or "pytorch" in r.code
        assert "<" not in r.action + "".join(r.code.values())


def test_remedies_that_fit_come_first():
    """Order: what makes it fit, then by cost, then by what it saves."""
    found = remedies(run(attention="eager", micro_batch=2, capacity_bytes=80 * GIB))
    assert [r.fits for r in found] == sorted((r.fits for r in found), reverse=True)
    assert any(r.fits for r in found)


def test_a_remedy_that_is_taken_or_does_not_apply_is_not_offered():
    """No flash where attention is fused already, no sharding on one GPU, no optimizer change for adapters."""
    ids = {r.id for r in remedies(run(attention="flash", checkpointing="full", fused_loss=True, lora={"rank": 8}))}
    assert not ids & {
        "flash",
        "checkpointing",
        "fused-loss",
        "drop-outputs",
        "shard",
        "8bit-optimizer",
        "lora",
        "backward-each",
    }


def test_words_stand_for_numbers():
    """half, one and double are read from the settings they change; half of one is one."""
    s = run(micro_batch=8, grad_accum=2)
    after = changed(s, {"micro_batch": "half", "grad_accum": "double"})
    assert (after.micro_batch, after.grad_accum) == (4, 4)
    assert changed(s, {"micro_batch": "one"}).micro_batch == 1
    assert saves(run(), {"micro_batch": "half"}) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"attention": "flash"},
        {"checkpointing": "full"},
        {"micro_batch": "half"},
        {"fused_loss": True},
        {"backward": "each-micro-batch"},
        {"optimizer": "adamw-8bit"},
    ],
)
def test_changes_of_the_encyclopedia_save_something(change):
    """The changes that failure entries name save memory in a run that suffers from all of them."""
    s = run(attention="eager", micro_batch=4, grad_accum=4, backward="deferred")
    assert saves(s, change) > 0


SEVEN_B = {"n_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}
TIGHT = [
    run(attention="eager", micro_batch=4, capacity_bytes=80 * GIB),
    run(attention="eager", micro_batch=4, precision="fp32", capacity_bytes=24 * GIB),
    run(model=SEVEN_B, micro_batch=4, precision="amp-bf16", capacity_bytes=80 * GIB),
    run(
        model=SEVEN_B,
        micro_batch=4,
        precision="amp-bf16",
        capacity_bytes=80 * GIB,
        parallelism={"strategy": "ddp", "world_size": 8},
    ),
    run(model=SEVEN_B, micro_batch=4, capacity_bytes=24 * GIB),
]


class Costly:
    """The closed forms, a tenth higher, under the name of an engine whose answers cost."""

    method = "trace"

    def __init__(self):
        self.asked = []

    def estimate(self, s):
        return replace(estimate(s), method=self.method)

    def peak_bytes(self, s):
        self.asked.append(s)
        return round(1.1 * peak_bytes(s))


@pytest.mark.parametrize("s", TIGHT)
def test_combinations_fit_and_hold_nothing_that_is_not_needed(s):
    """Each fits by its own estimate, and stops fitting when any member is left out; cheaper classes come first."""
    search = combinations(s)
    assert search.found and search.complete and search.evaluations <= search.most
    entries = {entry.id: entry for entry in CATALOG}
    for r in search.found:
        e = estimate(changed(s, r.change))
        assert r.fits and e.fits
        assert (r.peak_bytes, r.device_bytes) == (e.peak_allocated_bytes, e.device_bytes)
        assert r.cost_rank == max(entries[name].rank for name in r.members)
        for part in subsets(r.members, len(r.members) - 1):
            settings = s
            for name in part:
                words = {name: value for name, value in entries[name].change.items() if value != "accordingly"}
                if "largest" in words.values():
                    break  # what is solved fits by itself, or no size does
                settings = changed(settings, words)
            else:
                assert not estimate(settings).fits
    assert [r.cost_rank for r in search.found] == sorted(r.cost_rank for r in search.found)


def test_where_one_change_suffices_not_everything_is_tried():
    """A fused kernel alone makes it fit, for nothing: it comes first, after a small part of all sets of up to three."""
    search = combinations(TIGHT[0])
    assert search.found[0].members == ("flash",) and search.found[0].cost_rank == 0
    assert search.evaluations < 60
    assert combinations(run(capacity_bytes=80 * GIB)).found == ()
    assert combinations(run()).found == ()


def test_the_answer_that_stands_beside_decides_whether_it_fits():
    """Where a trace's replay says no and closed forms say yes, changes are searched and sizes stay below; and reverse."""
    s = run(capacity_bytes=80 * GIB)
    tight = s.with_(capacity_bytes=estimate(s).device_bytes)
    by_forms = estimate(tight)
    assert by_forms.fits
    refused = replace(by_forms, method="trace", device_bytes=by_forms.device_bytes + GIB // 4)
    found = plan(tight, answer=refused)
    assert found["combinations"] and all(one["saves_bytes"] >= GIB // 4 for one in found["combinations"])
    assert found["largest"]["seq_len"] < tight.seq_len
    accepted = replace(estimate(TIGHT[0]), method="trace", device_bytes=TIGHT[0].capacity_bytes)
    assert accepted.fits and plan(TIGHT[0], answer=accepted)["combinations"] == []


def test_where_nothing_fits_a_few_evaluations_say_so():
    """A capacity below what all changes together leave: no set is tried one by one."""
    search = combinations(run(model=SEVEN_B, capacity_bytes=2 * GIB))
    assert search.found == () and search.complete and search.evaluations < 40


@pytest.mark.parametrize("s", TIGHT)
def test_a_costly_engine_is_asked_little(s):
    """Guided by the closed forms, an engine that is a tenth off them is asked at most ``most`` times for sets."""
    engine = Costly()
    search = combinations(s, engine, most=24)
    structures = {(a.checkpointing, a.attention, a.fused_loss, a.keep_logits, a.optimizer, a.precision, a.lora, a.parallelism)
                  for a in engine.asked}  # fmt: skip
    assert search.evaluations <= 24 + 1 + 3 and len(structures) <= 28
    for r in search.found:
        assert r.method == "trace"
        assert engine.peak_bytes(changed(s, r.change)) <= s.capacity_bytes


@pytest.mark.parametrize("name", ["seq_len", "micro_batch"])
def test_another_engine_is_searched_by_halving(name):
    """From peaks alone the same size is found as from the closed forms' roots, within forty questions."""
    s = run(attention="eager", seq_len=1024, capacity_bytes=80 * GIB)
    engine = Costly()
    engine.peak_bytes = lambda at: engine.asked.append(at) or peak_bytes(at)
    assert largest(s, name, engine) == largest(s, name) == largest(s, name, FORMULAS)
    assert len(engine.asked) <= 40


def test_halving_finds_every_edge():
    """Nothing holds, everything holds, and each number between."""
    assert longest_that(lambda n: False, 100) == 0
    assert longest_that(lambda n: True, 100) == 100
    assert [longest_that(lambda n, most=most: n <= most, 100) for most in range(1, 100)] == list(range(1, 100))


def test_pairs_of_batch_and_length_fit_and_none_is_larger():
    """For each micro-batch the longest sequence: it fits, one token more does not, and it shrinks as the batch grows."""
    s = run(capacity_bytes=40 * GIB)
    pairs = largest_pairs(s)
    assert [b for b, _ in pairs] == [2**k for k in range(len(pairs))]
    assert [n for _, n in pairs] == sorted((n for _, n in pairs), reverse=True)
    for b, n in pairs[:5]:
        assert estimate(s.with_(micro_batch=b, seq_len=n)).fits
        assert not estimate(s.with_(micro_batch=b, seq_len=n + 1)).fits


def test_no_length_is_offered_beyond_the_positions_that_were_learned():
    """A model with a table of 1,024 positions can't run a longer sequence, whatever the device holds."""
    gpt = {"n_layers": 12, "hidden": 768, "heads": 12, "vocab": 50257, "gated_ffn": False, "positions": 1024}
    assert largest(run(model=gpt, seq_len=512, capacity_bytes=80 * GIB), "seq_len") == 1024


def test_a_lower_micro_batch_keeps_the_effective_batch_and_is_the_largest_that_fits():
    """The solved micro-batch fits with gradients held between micro-steps, one more does not."""
    s = run(attention="eager", micro_batch=16, capacity_bytes=200 * GIB)
    [fit] = [r for r in remedies(s) if r.id == "micro-batch-fit"]
    after = changed(s, fit.change)
    assert fit.fits and after.micro_batch * after.grad_accum >= 16
    assert not estimate(after.with_(micro_batch=after.micro_batch + 1)).fits
    assert f"per_device_train_batch_size={after.micro_batch}" in fit.code["trainer"]


def test_expandable_segments_act_on_reserved_memory_alone():
    """They save no allocated byte, at most what the band holds above the likely figure, and make nothing fit."""
    [one] = [r for r in remedies(run(micro_batch=2)) if r.id == SEGMENTS.id]
    e = estimate(run(micro_batch=2))
    assert one.saves_bytes == 0 and one.change == {} and one.peak_bytes == e.peak_allocated_bytes
    assert one.saves_reserved_bytes == e.band_bytes[1] - e.device_bytes > 0
    assert not [r for r in remedies(TIGHT[0]) if r.id == SEGMENTS.id]
    assert not [r for r in remedies(run(device="cpu")) if r.id == SEGMENTS.id]


def test_evaluation_is_told_where_a_remedy_makes_it_decide():
    """A fused loss lowers the step's peak below that of evaluation, which makes all logits: the estimate then says so."""
    s = run(micro_batch=8, checkpointing="full", optimizer="none")
    [fused] = [r for r in remedies(s) if r.id == "fused-loss"]
    assert estimate(changed(s, fused.change)).headroom_phase == "eval"
    assert "evaluation" in fused.cost


# TRL, trl/trainer/sft_config.py: fields of SFTConfig beside those of TrainingArguments; SFTTrainer's own parameters.
SFT = {"max_length", "packing", "padding_free", "loss_type", "activation_offloading", "peft_config"}


def test_every_option_of_the_trainer_exists():
    """Each keyword of a Trainer line is one of TrainingArguments, SFTConfig or SFTTrainer; each call's of its callable."""
    transformers = pytest.importorskip("transformers")
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    import dataclasses
    import inspect

    options = {f.name for f in dataclasses.fields(transformers.TrainingArguments)}
    optimizers = {kind.value for kind in transformers.training_args.OptimizerNames}
    known = {
        "LoraConfig": peft.LoraConfig, "get_peft_model": peft.get_peft_model,
        "BitsAndBytesConfig": transformers.BitsAndBytesConfig, "torch.autocast": torch.autocast,
        "torch.optim.AdamW": torch.optim.AdamW, "torch.optim.Adafactor": torch.optim.Adafactor,
        "checkpoint": torch.utils.checkpoint.checkpoint, "DataLoader": torch.utils.data.DataLoader,
    }  # fmt: skip
    seen = 0
    for entry in CATALOG:
        for framework in {"trainer", "pytorch"} & entry.code.keys():
            line = entry.code[framework].split("#")[0].replace("<", "").replace(">", "").strip()
            if framework == "trainer" and line.startswith("the Trainer"):
                continue
            keywords = framework == "trainer" and "(" not in line.split("=")[0]
            for node in ast.walk(ast.parse(f"f({line})" if keywords else line)):
                if not isinstance(node, ast.Call):
                    continue
                name, given = ast.unparse(node.func), {k.arg for k in node.keywords}
                if name == "f":
                    assert given <= options | SFT, (entry.id, given - options)
                    seen += len(given)
                    assert all(k.value.value in optimizers for k in node.keywords if k.arg == "optim")
                elif name in known:
                    assert given <= set(inspect.signature(known[name]).parameters), (entry.id, given)
    assert seen > 12


def test_deepspeed_lines_are_json():
    """What begins with a quotation mark is a piece of DeepSpeed's configuration."""
    lines = [entry.code["deepspeed"] for entry in CATALOG if entry.code.get("deepspeed", "").startswith('"')]
    for line in lines:
        json.loads("{" + line.replace("<micro_batch>", "1").replace("<grad_accum>", "1") + "}")
    assert len(lines) > 4


def test_a_plan_is_one_json_document():
    """Remedies, combinations, largest shapes and what the search cost, ready for ``json.dumps``."""
    document = json.loads(json.dumps(plan(TIGHT[3])))
    assert document["combinations"][0]["members"] == ["selective-checkpointing", "shard"]
    assert document["searched"]["complete"] and set(document["largest"]) == {"seq_len", "micro_batch", "pairs", "method"}
    assert {"pytorch"} <= set(document["combinations"][0]["code"])
