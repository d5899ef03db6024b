"""The bundled sample runs: rebuilt byte for byte, consistent in themselves, and diagnosed as they were meant."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from diag_kit import diagnose
from diag_kit.findings import Diagnosis
from diag_kit.units import GIB, parse_size

DATA = Path(__file__).resolve().parents[1] / "data"
SAMPLES = DATA / "samples"
INDEX = json.loads((SAMPLES / "INDEX.json").read_text(encoding="utf-8"))["samples"]
FOLDERS = [sample["folder"] for sample in INDEX]
OUT_OF_MEMORY = re.compile(
    r"Tried to allocate (?P<request>[\d.]+ \w+)\. GPU \d has a total capacity of (?P<total>[\d.]+ \w+) of which "
    r"(?P<free>[\d.]+ \w+) is free\. (?:Process \d+ has (?P<other>[\d.]+ \w+) memory in use\. )?"
    r"Including non-PyTorch memory, this process has (?P<used>[\d.]+ \w+) memory in use\. "
    r"Of the allocated memory (?P<allocated>[\d.]+ \w+) is allocated by PyTorch, and (?P<idle>[\d.]+ \w+) is reserved"
)


def _build() -> dict[str, bytes]:
    sys.path.insert(0, str(DATA))
    try:
        spec = importlib.util.spec_from_file_location("make_samples", DATA / "make_samples.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.build()
    finally:
        sys.path.remove(str(DATA))


def _sizes(folder: str) -> dict[str, int]:
    """The figures of the one out-of-memory message of a sample, in bytes."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((SAMPLES / folder).glob("*.log"))]
    found = {match.group() for text in texts for match in OUT_OF_MEMORY.finditer(text)}
    assert len(found) == 1
    return {name: parse_size(size) for name, size in OUT_OF_MEMORY.match(found.pop()).groupdict().items() if size}


def _json(path: str) -> dict[str, Any]:
    return json.loads((SAMPLES / path).read_text(encoding="utf-8"))


def test_rebuilt_byte_for_byte() -> None:
    """data/make_samples.py writes exactly what is in data/samples: no file more, none less, none changed by hand."""
    here = {path.relative_to(SAMPLES).as_posix(): path.read_bytes() for path in SAMPLES.rglob("*") if path.is_file()}
    built = _build()
    assert set(built) == set(here)
    assert [name for name in built if built[name] != here[name]] == []


def test_index() -> None:
    """INDEX.json names each folder once, with a title and one sentence, and one default."""
    assert sorted(FOLDERS) == sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
    assert [sample["default"] for sample in INDEX].count(True) == 1
    assert all(sample["title"] and sample["teaser"].endswith(".") for sample in INDEX)


@pytest.mark.parametrize("folder", ["accumulation-spike", "activation-spike", "long-batch-outlier", "many-ranks"])
def test_message_adds_up(folder: str) -> None:
    """In each message the parts make the whole, within its two decimals, and what was asked for was not there."""
    s = _sizes(folder)
    assert abs(s["total"] - s["free"] - s["used"] - s.get("other", 0)) < 0.02 * GIB
    context = s["used"] - s["allocated"] - s["idle"]
    assert 0.3 * GIB < context < 2 * GIB
    assert s["request"] > s["free"]


def test_activation_request_is_a_scores_matrix() -> None:
    """The softmax asks for batch x heads x length² x 4 bytes of its own settings, to the byte."""
    config, arguments = _json("activation-spike/config.json"), _json("activation-spike/training_args.json")
    batch, length = arguments["per_device_train_batch_size"], arguments["max_seq_length"]
    scores = batch * config["num_attention_heads"] * length**2 * 4
    assert _sizes("activation-spike")["request"] == scores
    assert config["attn_implementation"] == "eager"


def test_many_ranks_request_is_the_logits() -> None:
    """Rank 3 asks for batch x length x vocabulary x 4 bytes; had the card been its own, it would have got them."""
    s = _sizes("many-ranks")
    logits = 2 * 8192 * _json("many-ranks/config.json")["vocab_size"] * 4
    assert s["request"] == pytest.approx(logits, abs=0.005 * GIB)
    assert s["free"] + s["other"] > 2 * s["request"]


def test_accumulation_grows_within_a_window_and_resets() -> None:
    """Allocated memory climbs by the same amount each micro-step, and starts again at the same level with each step."""
    with (SAMPLES / "accumulation-spike/memory.csv").open(newline="") as file:
        read = csv.DictReader(file)
        rows = [(int(row["step"]), int(row["micro_step"]), float(row["allocated_mib"])) for row in read]
    rises = [b[2] - a[2] for a, b in itertools.pairwise(rows) if a[0] == b[0]]
    assert max(rises) - min(rises) <= 0.21
    starts = [allocated for step, micro, allocated in rows if micro == 1 and step > 1]
    assert len(set(starts)) == 1
    states = starts[0] - rises[0]
    assert states == pytest.approx(3 * 2 * 1_100_048_384 / 2**20, abs=0.2)  # bf16 weights and AdamW's two states


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_sample_is_small(folder: str) -> None:
    """No file of a sample is larger than 60 kB, and none tells what is wrong with the run."""
    for path in (SAMPLES / folder).iterdir():
        assert path.stat().st_size <= 60_000
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"graph.retention|activation.spike|root cause is|memory leak\b", text, re.I)


@pytest.fixture(scope="module")
def diagnoses() -> dict[str, Diagnosis]:
    """Each sample's diagnosis."""
    return {folder: diagnose(SAMPLES / folder) for folder in FOLDERS}


@pytest.mark.parametrize(
    ("folder", "family", "cause", "verdicts"),
    [
        ("accumulation-spike", "gpu-oom", "graph-retention", ("likely", "confirmed")),
        ("activation-spike", "gpu-oom", "attention-quadratic", ("confirmed",)),
        ("long-batch-outlier", "gpu-oom", "long-sequence-outlier", ("likely", "confirmed")),
        ("many-ranks", "gpu-oom", "other-process", ("likely", "confirmed")),
    ],
)
def test_a_failed_sample_is_diagnosed(
    diagnoses: dict[str, Diagnosis], folder: str, family: str, cause: str, verdicts: tuple[str, ...]
) -> None:
    """The first finding is the cause that the run was made with, as firm as evidence allows; no other is confirmed."""
    diagnosis = diagnoses[folder]
    first, *others = diagnosis.findings
    assert (diagnosis.family, first.cause) == (family, cause)
    assert first.verdict in verdicts
    assert "confirmed" not in {finding.verdict for finding in others}
    assert diagnosis.failure is not None
    assert diagnosis.failure.phase in ("forward", "loss")
    assert diagnosis.next_action


def test_the_rank_that_failed_first(diagnoses: dict[str, Diagnosis]) -> None:
    """Of eight ranks, rank 3 began it; the seven that waited are named as collateral."""
    diagnosis = diagnoses["many-ranks"]
    assert diagnosis.initiating_rank == 3
    assert {entry.rank for entry in diagnosis.collateral} == {0, 1, 2, 4, 5, 6, 7}


@pytest.mark.parametrize(("folder", "family"), [("healthy-run", "ok"), ("activation-trial", "ok"), ("not-memory", "not-memory")])
def test_no_false_alarm(diagnoses: dict[str, Diagnosis], folder: str, family: str) -> None:
    """Where memory stopped nothing, no memory cause is likely or confirmed, whatever words stand in the log."""
    diagnosis = diagnoses[folder]
    assert diagnosis.family == family
    accused = {f.cause for f in diagnosis.findings if f.verdict in ("confirmed", "likely")}
    assert accused <= {"not-memory", "misreported"}


def test_no_remedy_is_predicted_to_raise_the_peak(diagnoses: dict[str, Diagnosis]) -> None:
    saved = {
        folder: [fix.saves_bytes for finding in one.findings for fix in finding.fixes if fix.saves_bytes is not None]
        for folder, one in diagnoses.items()
    }
    assert any(saved.values())
    assert min(itertools.chain.from_iterable(saved.values())) >= 0, saved


def test_settings_are_read(diagnoses: dict[str, Diagnosis]) -> None:
    """The what-if starts from the run's own model, batch and length."""
    settings = {name: value for name, (value, _) in diagnoses["activation-spike"].settings.items()}
    assert (settings["micro_batch"], settings["seq_len"], settings["attention"]) == (2, 4096, "eager")
    assert settings["model"]["n_layers"] == 22
