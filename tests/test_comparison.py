"""A good run beside the failed one: what differs is named with both places, and never said to prove more than it does."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from diag_kit import DiagKitError, diagnose
from diag_kit.cli import main
from diag_kit.evidence.run import load_run
from diag_kit.evidence.templates import Logs, template, versions
from diag_kit.findings import Diagnosis
from diag_kit.report import render, terminal
from diag_kit.units import GIB, MIB
from tests.effort import costs_less

MODEL = {"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True, "model_type": "llama"}  # fmt: skip
BASE = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_seq_length": 2048, "bf16": True,
        "optim": "adamw_torch", "attn_implementation": "sdpa", "gradient_checkpointing": True}  # fmt: skip
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of "
    "which 1.10 GiB is free. Including non-PyTorch memory, this process has 38.29 GiB memory in use. Of the allocated "
    "memory 37.20 GiB is allocated by PyTorch, and 310.00 MiB is reserved by PyTorch but unallocated."
)
OTHER = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of "
    "which 1.10 GiB is free. Process 4711 has 20.00 GiB memory in use. Including non-PyTorch memory, this process has "
    "18.29 GiB memory in use. Of the allocated memory 17.20 GiB is allocated by PyTorch, and 310.00 MiB is reserved by "
    "PyTorch but unallocated."
)
FRAMES = """\
Traceback (most recent call last):
  File "/home/mira/train.py", line 31, in <module>
    out = layer(hidden)
  File "/home/mira/.venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
"""
ENDED = "{'train_runtime': 310.2, 'train_loss': 1.9, 'epoch': 1.0}\n"


def _run(
    folder: Path, *, settings: dict | None = None, head: str = "", end: str = ENDED, peak: int | None = None, steps: int = 9
) -> Path:
    """A run's folder: a log with a step each line, settings, the model, and where ``peak`` is given a table of memory."""
    folder.mkdir(parents=True)
    lines = "".join(f"step {n} loss {3 - n / 10:.3f}\n" for n in range(1, steps + 1))
    (folder / "train.log").write_text(f"{head}start of training\n{lines}{end}", encoding="utf-8")
    if settings is not None:
        (folder / "training_args.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
        (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    if peak is not None:
        rows = [f"{n},{(peak + n % 3 * 8 * MIB) / MIB:.1f}" for n in range(1, steps + 1)]
        (folder / "memory.csv").write_text("\n".join(["step,peak_allocated_mib", *rows]) + "\n", encoding="utf-8")
    return folder


def _pair(tmp_path: Path, failed: dict | None = None, good: dict | None = None) -> Diagnosis:
    """The diagnosis of a failed run against a good one; each given by what `_run` takes."""
    bad = _run(tmp_path / "bad", **{"settings": BASE, "end": FRAMES + OOM + "\n", **(failed or {})})
    return diagnose(bad, against=_run(tmp_path / "good", **{"settings": BASE, **(good or {})}))


def test_one_change_is_named_with_its_prediction_and_what_was_measured(tmp_path: Path) -> None:
    """Length doubled and nothing else: both values, both places, predicted and measured bytes, the step from which on."""
    longer = {**BASE, "max_seq_length": 4096}
    diagnosis = _pair(tmp_path, {"settings": longer, "peak": 36 * GIB}, {"peak": 30 * GIB})
    beside = diagnosis.comparison
    (change,) = beside.differences
    assert (change.name, change.failed, change.good, change.raises) == ("seq_len", 4096, 2048, True)
    assert str(change.failed_source) == "training_args.json:4"
    assert str(change.good_source) == f"{tmp_path}/good/training_args.json:4"
    assert change.predicted_bytes > GIB and beside.predicted_bytes == change.predicted_bytes
    assert (beside.memory.metric, beside.memory.steps, beside.memory.parted_step) == ("peak_allocated", 9, 1)
    assert beside.memory.difference_bytes == pytest.approx(6 * GIB, rel=0.001)
    assert beside.verdict.startswith("The only difference that the evidence shows: seq_len 4096, in the good run 2048")
    assert "Measured at the same steps: +6.00 GiB peak allocated" in beside.verdict
    said = [s for f in diagnosis.findings for s in f.for_ if "in the good run 2048" in s.text]
    assert said and all(str(beside.differences[0].good_source) in s.text for s in said)
    assert "seq_len set back to 2048" in diagnosis.missing[0].what


def test_a_change_never_confirms_and_lifts_one_cause_at_most(tmp_path: Path) -> None:
    """Length bears on several causes: each gets a line for it, and none becomes firmer than without the good run."""
    bad = _run(tmp_path / "bad", settings={**BASE, "max_seq_length": 8192}, end=FRAMES + OOM + "\n")
    alone = {f.cause: f.verdict for f in diagnose(bad).findings}
    beside = diagnose(bad, against=_run(tmp_path / "good", settings=BASE)).findings
    order = ("ruled-out", "possible", "likely", "confirmed")
    risen = [f.cause for f in beside if order.index(f.verdict) > order.index(alone[f.cause])]
    assert len(risen) <= 1 and "confirmed" not in {f.verdict for f in beside if f.cause in risen}


def test_the_only_change_makes_its_one_cause_likely(tmp_path: Path) -> None:
    """Checkpointing switched off bears on one of the causes at hand: possible becomes likely, with the check to make."""
    off = {**BASE, "gradient_checkpointing": False}
    diagnosis = _pair(tmp_path, {"settings": off})
    alone = {f.cause: f.verdict for f in diagnose(tmp_path / "bad").findings}
    first, *rest = diagnosis.findings
    assert (alone[first.cause], first.cause, first.verdict) == ("possible", "activations-too-large", "likely")
    assert {f.cause: f.verdict for f in rest} == {cause: verdict for cause, verdict in alone.items() if cause != first.cause}
    assert "checkpointing set back to full" in first.missing[0].what and first.missing[0] in diagnosis.missing
    assert "Likely: activations too large" in diagnosis.summary
    assert "checkpointing set back to full" in diagnosis.next_action


@pytest.mark.parametrize(
    ("failed", "good"),
    [
        ({"learning_rate": 1e-3}, {"learning_rate": 1e-4}),  # two differences
        ({}, {"dataloader_num_workers": 4}),  # one run alone states what memory depends on
        ({"gradient_checkpointing": True}, {"gradient_checkpointing": False}),  # the change lowers memory
    ],
)
def test_nothing_becomes_likely_otherwise(tmp_path: Path, failed: dict, good: dict) -> None:
    """Another difference, an open one, or one in the wrong direction: no verdict moves."""
    off = {**BASE, "gradient_checkpointing": False}
    diagnosis = _pair(tmp_path, {"settings": off | failed}, {"settings": BASE | good})
    alone = diagnose(tmp_path / "bad")
    assert {f.cause: f.verdict for f in diagnosis.findings} == {f.cause: f.verdict for f in alone.findings}


@pytest.mark.parametrize("alike", [True, False])
def test_the_same_length_passed_elsewhere(tmp_path: Path, alike: bool) -> None:
    """A batch as long as the failing one passed on a card of the same size: against the length as cause; with other
    settings it says nothing.
    """
    table = "step,seq_len,peak_allocated_mib\n" + "".join(f"{n},512,{9000 + n % 3}\n" for n in range(1, 10))
    sized = {**BASE, "gpu_memory": "39.39 GiB"}
    bad = _run(tmp_path / "bad", settings=sized, end=FRAMES + OOM + "\n")
    good = _run(tmp_path / "good", settings=sized if alike else {**sized, "per_device_train_batch_size": 1})
    (bad / "memory.csv").write_text(table + "10,4096,38100\n", encoding="utf-8")
    (good / "memory.csv").write_text(table + "10,4096,14000\n11,512,9001\n", encoding="utf-8")
    diagnosis = diagnose(bad, against=good)
    found = next(f for f in diagnosis.findings if f.cause == "long-sequence-outlier")
    assert any("4,096 long passed" in s.text for s in found.against) is alike
    assert found.verdict != "confirmed" or not alike
    assert diagnosis.missing or not alike


def test_five_changes_prove_nothing(tmp_path: Path) -> None:
    """Several at once: said to prove nothing, with an order to try them in, and no verdict moves."""
    many = {**BASE, "max_seq_length": 8192, "per_device_train_batch_size": 4, "gradient_checkpointing": False,
            "attn_implementation": "eager", "learning_rate": 1e-3}  # fmt: skip
    failed = {"settings": many}
    diagnosis = _pair(tmp_path, failed, {"settings": {**BASE, "learning_rate": 1e-4}})
    beside = diagnosis.comparison
    assert "5 differences at once: none of them is proven. Change one at a time, in this order: " in beside.verdict
    assert set(beside.order) == {"seq_len", "micro_batch", "checkpointing", "attention", "learning_rate"}
    assert beside.order[-1] == "learning_rate"
    alone = diagnose(tmp_path / "bad")
    assert {f.cause: f.verdict for f in diagnosis.findings} == {f.cause: f.verdict for f in alone.findings}


def test_no_change_but_another_process(tmp_path: Path) -> None:
    """Same settings, and a message that names a stranger: said to lie outside of the settings, with both places."""
    diagnosis = _pair(tmp_path, {"end": FRAMES + OTHER + "\n"})
    assert diagnosis.comparison.differences == () and diagnosis.comparison.order == ()
    assert "settings and versions that both runs state differs" in diagnosis.comparison.verdict
    other = next(f for f in diagnosis.findings if f.cause == "other-process")
    assert any("none of them is what changed" in s.text and "good/training_args.json" in s.text for s in other.for_)
    alone = {f.cause: f.verdict for f in diagnose(tmp_path / "bad").findings}
    assert {f.cause: f.verdict for f in diagnosis.findings} == alone


def test_only_another_torch(tmp_path: Path) -> None:
    """A version alone is named as the only difference, and supports no cause."""
    head = "torch {} | transformers 4.51.3 | NVIDIA A100-SXM4-40GB\n"
    beside = _pair(tmp_path, {"head": head.format("2.5.1+cu124")}, {"head": head.format("2.4.0+cu121")}).comparison
    (change,) = beside.differences
    assert (change.name, change.failed, change.good, change.bears) == (
        "torch version", "2.5.1+cu124", "2.4.0+cu121", False
    )  # fmt: skip
    assert str(change.failed_source) == "train.log:1"
    assert "It supports none of the causes found" in beside.verdict


@pytest.mark.parametrize(
    ("end", "doubt"),
    [
        (FRAMES + OOM + "\n", "its own diagnosis is “gpu-oom”"),
        ("", "its own diagnosis is “undetermined”"),
        (OOM + "\nWARNING: ran out of memory in forward pass, skipping batch\n" + ENDED, "survived it"),
    ],
)
def test_a_good_run_that_is_not_good_proves_nothing(tmp_path: Path, end: str, doubt: str) -> None:
    """It failed too, its end is not shown, or it survived an out-of-memory: said, and no finding is touched by it."""
    diagnosis = _pair(tmp_path, {"settings": {**BASE, "max_seq_length": 8192}}, {"end": end})
    assert doubt in diagnosis.comparison.doubt
    assert "What differs proves nothing" in diagnosis.comparison.verdict
    assert [d.name for d in diagnosis.comparison.differences] == ["seq_len"]
    assert diagnosis.findings == diagnose(tmp_path / "bad").findings


def test_a_level_series_is_no_end(tmp_path: Path) -> None:
    """A run judged ok only because its memory stays level is not known to have ended."""
    assert diagnose(_run(tmp_path / "x", end="", peak=30 * GIB)).family == "ok"
    beside = _pair(tmp_path, {}, {"end": "", "peak": 30 * GIB}).comparison
    assert beside.doubt == "its memory stays level, but nothing shows how it ended"


def test_a_good_run_that_ended_earlier_proves_nothing(tmp_path: Path) -> None:
    """Nine steps that went well say nothing of the forty-first."""
    beside = _pair(tmp_path, {"steps": 40}, {"steps": 9}).comparison
    assert "it ended after step 9, and the failed run came to step" in beside.doubt


def test_identical_runs_differ_in_nothing(tmp_path: Path) -> None:
    """Two copies of one good run: no difference, no line of one alone, nothing to explain."""
    diagnosis = _pair(tmp_path, {"end": ENDED, "peak": 30 * GIB}, {"peak": 30 * GIB})
    beside = diagnosis.comparison
    assert (diagnosis.family, beside.differences, beside.lines, beside.doubt) == ("ok", (), (), "")
    assert (beside.memory.difference_bytes, beside.memory.parted_step) == (0, None)
    assert "nothing to explain" in beside.verdict


def test_what_one_run_alone_states_is_open(tmp_path: Path) -> None:
    """Not stated is not "not so": what memory depends on and one run alone states may differ, and is said to."""
    bare = {name: value for name, value in BASE.items() if name != "gradient_checkpointing"}
    beside = _pair(tmp_path, {"settings": {**BASE, "max_seq_length": 4096}}, {"settings": bare}).comparison
    assert beside.order == ("seq_len",)
    assert beside.verdict.startswith("The only difference that both runs state: ")
    assert "Stated by one run alone, so that it may differ or not: checkpointing." in beside.verdict


def test_one_series_is_no_comparison(tmp_path: Path) -> None:
    """A series in the good run alone: no common step, and peak against what the message says was held."""
    text = _pair(tmp_path, {}, {"peak": 30 * GIB}).comparison.memory.text
    assert text.startswith("no common step: the failed run has no series; the good run's highest peak allocated was 30.")
    assert "the failed run held 37.20 GiB and asked for 2.00 GiB more" in text


def test_memory_parts_where_the_runs_do(tmp_path: Path) -> None:
    """Alike for five steps, then apart: the sixth is named, and noise before it is not."""
    bad = _run(tmp_path / "bad", settings=BASE, end=FRAMES + OOM + "\n")
    good = _run(tmp_path / "good", settings=BASE)
    for folder, late in ((bad, 2048), (good, 0)):
        rows = [f"{n},{20_000 + n % 2 * 40 + (late if n > 5 else 0)}" for n in range(1, 10)]
        (folder / "memory.csv").write_text("\n".join(["step,allocated_mib", *rows]) + "\n", encoding="utf-8")
    memory = diagnose(bad, against=good).comparison.memory
    assert (memory.parted_step, memory.parted_bytes) == (6, 2 * GIB)
    assert "apart from step 6 on (+2.00 GiB)" in memory.text


def test_ranks_are_paired_alike(tmp_path: Path) -> None:
    """Of two ranks with series, the one that failed is held against the same rank of the good run."""
    for name, extra, end in (("bad", 4, OOM), ("good", 0, "Training finished")):
        for rank in (0, 1):
            lines = [f"[rank{rank}]: step {n} memory: {20 + extra * rank:.2f}GiB(50.0%)" for n in range(1, 8)]
            last = [f"[rank{rank}]: {end}"] if name == "good" or rank == 1 else []
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"rank{rank}.log").write_text("\n".join([*lines, *last]) + "\n", encoding="utf-8")
            rows = [f"{n},{rank},{20 + extra * rank}" for n in range(1, 8)]
            (tmp_path / name / f"mem{rank}.csv").write_text("\n".join(["step,rank,peak_allocated_gib", *rows]) + "\n")
    memory = diagnose(tmp_path / "bad", against=tmp_path / "good").comparison.memory
    assert (memory.failed_rank, memory.good_rank, memory.difference_bytes) == (1, 1, 4 * GIB)


def test_lines_of_one_run_alone_come_nearest_first(tmp_path: Path) -> None:
    """What the failed run alone says is found whatever its numbers; the traceback and the message are not repeated."""
    shared = "[2026-05-0{} 10:00:0{}] loader: shard /data/u{}/part-0000{}.bin ready, {}.5 MiB\n"
    rare = "collate: sample 88121 is 16,384 tokens long\n"
    far = "note: using the slow tokenizer\n"
    bad = _run(tmp_path / "bad", settings=BASE, head=far + shared.format(1, 2, 3, 4, 5), end=rare + FRAMES + OOM + "\n")
    with (bad / "train.log").open("a", encoding="utf-8") as log:
        log.write("wandb: run history uploaded\n")
    good = _run(tmp_path / "good", settings=BASE, head=shared.format(6, 7, 8, 9, 1))
    lines = diagnose(bad, against=good).comparison.lines
    assert [line.text for line in lines] == [rare.strip(), far.strip(), "wandb: run history uploaded"]
    assert [line.after for line in lines] == [False, False, True]
    assert str(lines[0].source) == "train.log:13"


def test_large_logs_cost_their_ends(tmp_path: Path) -> None:
    """Of a log of 2 MiB the ends are read; a line near the failure is found with its number, and the limit is told."""
    bad, good = _run(tmp_path / "bad", settings=BASE), _run(tmp_path / "good", settings=BASE)
    filler = "".join(f"step {n} loss 1.0 lr 0.1 tokens {n * 7}\n" for n in range(1, 50_000))
    (good / "train.log").write_text(filler + ENDED, encoding="utf-8")
    (bad / "train.log").write_text(f"{filler}loader: shard is damaged, retrying\n{FRAMES}{OOM}\n", encoding="utf-8")
    run = load_run([bad])
    assert Logs(run, [bad], first="train.log").partly == 1
    assert costs_less(lambda: Logs(run, [bad], first="train.log"), 20)
    beside = diagnose(bad, against=good).comparison
    assert beside.lines[0].text == "loader: shard is damaged, retrying" and beside.lines[0].source.line == 50_000
    assert beside.read == "of 2 logs only the beginning and the end"


@pytest.mark.parametrize("whole", [True, False])
def test_packed_logs_are_compared_too(tmp_path: Path, whole: bool) -> None:
    """A log that was packed after the run is read through, its end too."""
    bad = _run(tmp_path / "bad", settings=BASE, head="" if whole else "step 1 loss 1.0\n" * 50_000,
               end="loader: shard is damaged, retrying\n" + FRAMES + OOM + "\n")  # fmt: skip
    (bad / "train.log.gz").write_bytes(gzip.compress((bad / "train.log").read_bytes()))
    (bad / "train.log").unlink()
    beside = diagnose(bad, against=_run(tmp_path / "good", settings=BASE)).comparison
    assert [line.text for line in beside.lines] == ["loader: shard is damaged, retrying"]
    assert beside.read.startswith("all lines" if whole else "of 1 logs only")


def test_a_thousand_logs_stay_cheap(tmp_path: Path) -> None:
    """1,024 ranks against 1,024 ranks: the comparison adds a small share of what reading them costs."""
    for name, last in (("bad", OOM), ("good", "Training finished")):
        (tmp_path / name).mkdir()
        for rank in range(1024):
            lines = [f"[rank{rank}]: step {n} loss {n / 7:.4f} on shard {n * rank}" for n in range(8)]
            (tmp_path / name / f"rank{rank}.log").write_text("\n".join([*lines, f"[rank{rank}]: {last}"]) + "\n")
    runs = load_run([tmp_path / "bad"]), load_run([tmp_path / "good"])

    def compare() -> None:
        for run, name in zip(runs, ("bad", "good"), strict=True):
            logs = Logs(run, [tmp_path / name])
            assert sum(len(lines) for _, lines, _ in logs.ends) < 30_000

    assert costs_less(compare, 25)


def test_pasted_text_can_be_the_good_run() -> None:
    """Both sides may be text; places of the good one say so."""
    bad = f"python train.py --max_seq_length 4096\nstep 1\n{FRAMES}{OOM}\n"
    beside = diagnose(text=bad, against_text=f"python train.py --max_seq_length 2048\nstep 1\nstep 2\n{ENDED}").comparison
    assert beside.good == ("pasted text",) and beside.order == ("seq_len",)
    assert str(beside.differences[0].good_source) == "good run: pasted text:1"


SECRET = "hf_AbCdEfGhIjKlMnOpQrStUv"


def test_no_secret_of_the_good_run_reaches_a_report(tmp_path: Path) -> None:
    """Tokens, accounts and hosts of the good run become aliases in every form of the report; markup stays inert."""
    hostile = f"echo <script>alert(1)</script> | --api-key {SECRET}\n"
    good = _run(tmp_path / "home/mira/good", settings={**BASE, "optim": f"adamw <b>{SECRET}</b>"}, head=hostile,
                end=f"RuntimeError: login {SECRET} refused on gpu-77.cluster.internal\n")  # fmt: skip
    bad = _run(tmp_path / "bad", settings=BASE, head=hostile.replace("echo", "say"), end=FRAMES + OOM + "\n")
    diagnosis = diagnose(bad, against=good)
    assert diagnosis.comparison.differences and diagnosis.comparison.lines
    for suffix in (".html", ".md", ".json"):
        text = render(suffix, diagnosis)
        assert SECRET not in text and "gpu-77" not in text and "seq_len" in text
        assert suffix != ".html" or ("<script>alert" not in text and "<b>" + SECRET not in text)
    assert SECRET not in json.dumps([line.text for line in diagnosis.comparison.lines])


@pytest.mark.parametrize("suffix", [".html", ".md"])
def test_a_report_has_the_table(tmp_path: Path, suffix: str) -> None:
    """The section stands in the report with values, places and prediction; without a good run it does not."""
    diagnosis = _pair(tmp_path, {"settings": {**BASE, "max_seq_length": 4096}})
    text = render(suffix, diagnosis, redact=False)
    assert "Beside the good run" in text and "4096" in text and "good/training_args.json:4" in text
    assert "Beside the good run" not in render(suffix, diagnose(tmp_path / "bad"))


def test_json_and_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--against on the command line: one JSON document with the comparison, null without; a compact block in text."""
    bad = _run(tmp_path / "bad", settings={**BASE, "max_seq_length": 4096}, end=FRAMES + OOM + "\n")
    good = _run(tmp_path / "good", settings=BASE)
    assert main(["diagnose", "--json", "--against", str(good), str(bad)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["comparison"]["differences"][0]["good_source"] == {
        "path": f"{good}/training_args.json", "line": 4
    }  # fmt: skip
    assert main(["diagnose", "--json", str(bad)]) == 0
    assert json.loads(capsys.readouterr().out)["comparison"] is None
    shown = terminal.render(diagnose(bad, against=good), width=100)
    block = shown.split("beside ")[1].split("\nmissing")[0]
    assert "seq_len 4096" in block and "memory:" in block and len(block.splitlines()) <= 9


@pytest.mark.parametrize("good", ["nowhere", "bad", ".", "bad/train.log", "bad/*.log", "empty", "blob.bin"])
def test_a_good_run_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], good: str
) -> None:
    """Missing, the run itself, a folder around or a file inside of it, nothing to read: exit 2 and one line."""
    bad = _run(tmp_path / "bad", settings=BASE)
    (tmp_path / "empty").mkdir()
    (tmp_path / "blob.bin").write_bytes(bytes(range(256)) * 9)
    assert main(["diagnose", str(bad), "--against", str(tmp_path / good)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and (tmp_path / good).name in told.err
    with pytest.raises(DiagKitError):
        diagnose(bad, against=[])


def test_a_plain_diagnosis_loads_none_of_it(tmp_path: Path) -> None:
    """Who compares nothing pays nothing."""
    for name in ("diag_kit.comparison", "diag_kit.evidence.templates"):
        sys.modules.pop(name, None)
    diagnose(_run(tmp_path / "bad", settings=BASE, end=FRAMES + OOM + "\n"))
    assert not {"diag_kit.comparison", "diag_kit.evidence.templates"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("loaded /a/b/c.bin in 3.2 s", "loaded /x/y.bin in 14 s"),
        ("[rank0] seed 1f3a9c77be", "[rank12] seed 99ab01cd77"),
        ("2026-01-02 10:11:12,345 used 3.5 GiB", "2027-11-12 01:01:01,001 used 812 MiB"),
        ("  5%|▌     | 5/100 [00:01<00:20,  4.9it/s] retry", " 50%|█████ | 50/100 [00:11<?, ?it/s] retry"),
        ("see https://a.b/c?d=1", "see http://x.y/z"),
    ],
)
def test_templates_take_out_what_varies(one: str, other: str) -> None:
    """Numbers, sizes, ids, paths, addresses, times, ranks and bars do not tell two lines apart."""
    assert template(one) == template(other) != ""


@pytest.mark.parametrize(
    ("one", "other"), [("loss is nan", "loss is 2.3"), ("using bf16", "using fp16"), ("cache hit", "cache miss")]
)
def test_templates_keep_what_tells(one: str, other: str) -> None:
    """Words do, and names with a digit in them."""
    assert template(one) != template(other)


@pytest.mark.parametrize("line", ["/a" * 10_000, "1-" * 10_000, "a1" * 10_000, "5%|" * 7000, "torch " * 4000, "#" * 20_000])
def test_a_hostile_line_costs_little(line: str) -> None:
    """No pattern goes back and forth over a long line."""
    text = f"{line}\n{OOM}\n"
    assert costs_less(lambda: (template(line), versions(Logs(load_run(text=text), [], text))), 10)


def test_versions_are_versions(tmp_path: Path) -> None:
    """Times and sizes beside a package's name are none; a package that is stated twice otherwise is left out."""
    text = (
        "PyTorch version: 2.5.1+cu121\ntransformers==4.51.3\nCUDA 12.2\nCUDA: 12.4\ndeepspeed 3.25 ms\n"
        "cuda: 8.8GB\nGPU: NVIDIA H100 80GB HBM3\n/opt/python3.11/lib\n" + OOM
    )
    found = {name: value for name, (value, _) in versions(Logs(load_run(text=text), [], text)).items()}
    assert found == {"torch version": "2.5.1+cu121", "transformers version": "4.51.3", "GPU": "H100 80GB"}
