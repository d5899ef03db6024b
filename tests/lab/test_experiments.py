"""What every experiment of the lab must hold, found by the files; nothing here runs torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diag_kit import lab
from diag_kit.errors import DiagKitError
from diag_kit.failures import load_entries
from diag_kit.failures.records import CAUSES
from diag_kit.lab import catalog
from diag_kit.memory.settings import Settings

EXPERIMENTS = lab.experiments()
SETTINGS = Settings.from_json({
    "model": {"n_layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "gated_ffn": True, "vocab": 128256},
    "precision": "bf16", "micro_batch": 2, "seq_len": 2048, "grad_accum": 4,
})  # fmt: skip


def test_listing_needs_no_torch() -> None:
    """Listing the experiments, their code and what they carry imports no torch."""
    code = (
        "import sys; from diag_kit import lab; from diag_kit.memory.settings import Settings\n"
        "s = Settings.from_json({'model': {'n_layers': 2, 'hidden': 64, 'heads': 4, 'vocab': 512}})\n"
        "assert all(lab.carry(one.id, s) for one in lab.experiments())\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(lab.__file__).parents[2])


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.id)
def test_an_experiment_is_whole(one: lab.Experiment) -> None:
    """Its id is its file's name, entry and cause are known, its code is in view, its words end as sentences."""
    assert catalog.module(one.id).ABOUT.id == one.id
    assert one.entry in {entry.id for entry in load_entries()}
    assert one.cause in {"", *CAUSES}
    assert one.code.startswith("def ") and "def measure(" in one.code and "def judge(" not in one.code
    assert one.claim.endswith(".") and one.expect.endswith(".") and one.title and one.processes in (1, 2)


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.id)
def test_what_is_carried_comes_from_the_memory_model(one: lab.Experiment) -> None:
    """At a run's sizes each effect is whole bytes, with its engine named, and it moves with the run's shape."""
    found = lab.carry(one.id, SETTINGS)
    larger = lab.carry(one.id, SETTINGS.with_(micro_batch=4, seq_len=4096, model={
        "n_layers": 32, "hidden": 4096, "heads": 32, "ffn": 16384, "gated_ffn": True, "vocab": 128256,
    }))  # fmt: skip
    assert found and all(isinstance(c.bytes, int) and c.label and c.method == "formula" for c in found)
    assert [c.bytes for c in found] != [c.bytes for c in larger]


def test_an_entry_s_id_stands_for_all_of_its_experiments() -> None:
    """Once each, though one is named again; none named are all."""
    of_entry = [one.id for one in lab.experiments() if one.entry == "activation-memory-spike"]
    assert [one.id for one in lab.chosen(["activation-memory-spike", of_entry[0]])] == of_entry
    assert lab.chosen([]) == list(lab.experiments())


@pytest.mark.parametrize("wrong", ["graph", "", "retained_graph"])
def test_an_unknown_id_is_one_line_with_those_there_are(wrong: str) -> None:
    """The message names what was asked and lists every experiment."""
    with pytest.raises(DiagKitError, match=r"lab: no experiment '.*; there are .*retained-graph") as told:
        lab.experiment(wrong)
    assert "\n" not in str(told.value)
    with pytest.raises(lab.LabError):
        lab.carry(wrong, SETTINGS)
    with pytest.raises(lab.LabError):
        lab.run([wrong])


def test_the_list_can_be_asked_again() -> None:
    """The function keeps its name although a folder is called the same."""
    assert lab.experiments() == lab.experiments() == EXPERIMENTS
