"""Remedies: what each would save, and the largest shape that fits."""

from __future__ import annotations

import pytest

from diag_kit.errors import SettingsError
from diag_kit.memory.formulas import estimate, peak_bytes
from diag_kit.memory.plan import changed, largest, remedies, saves
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
        assert r.fits == estimate(changed(s, r.change)).fits
        assert r.cost
        assert r.id == "together" or "pytorch" in r.code


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
