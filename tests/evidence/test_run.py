"""A run is read from files, folders and pasted text; what can't be read costs one clear line and loses nothing else."""

import json
import os

import pytest

from diag_kit.errors import EvidenceError
from diag_kit.evidence import reading
from diag_kit.evidence.facts import Event, Setting
from diag_kit.evidence.run import load_run
from tests.effort import costs_less
from tests.evidence.samples import SAMPLES

OOM = SAMPLES["torch_oom"][0]


def test_a_folder_gives_facts_of_every_kind_of_file(tmp_path):
    """Logs, settings and tables of one folder are told apart; each fact names its file."""
    (tmp_path / "rank3.log").write_text(OOM)
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 512,
                "num_hidden_layers": 8,
                "num_attention_heads": 8,
                "intermediate_size": 1376,
                "vocab_size": 32000,
            }
        )
    )
    (tmp_path / "args.yaml").write_text("train:\n  micro_batch_size: 6\n  bf16: true\n")
    (tmp_path / "mem.csv").write_text("step,allocated_mib\n1,100\n2,101\n")
    run = load_run([tmp_path])
    assert [(event.kind, event.rank, event.source.path) for event in run.of(Event)] == [("torch.oom", 3, "rank3.log")]
    settings = {
        name: (setting.value, setting.source.path, setting.source.line) for name, setting in run.settings.items()
    }
    assert settings["micro_batch"] == (6, "args.yaml", 2) and settings["precision"] == ("amp-bf16", "args.yaml", 3)
    assert settings["model"][0]["ffn"] == 1376 and settings["model"][0]["gated_ffn"] is True
    assert [(p.step, p.value_bytes, p.source.line) for p in run.points] == [(1, 100 << 20, 2), (2, 101 << 20, 3)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "absent.log", "no such file"),
        (lambda p: ((p / "empty.log").write_bytes(b"") and None) or p / "empty.log", "is empty"),
        (lambda p: (p / "core").write_bytes(bytes(range(256)) * 64) and p / "core", "binary"),
        (lambda p: (p / "d").mkdir() or p / "d", "holds no files"),
        (lambda p: (p / "s.pickle").write_bytes(b"\x80\x04}.") and p / "s.pickle", "snapshot"),
    ],
)
def test_what_is_no_evidence_gets_one_line(tmp_path, make, words):
    """Each refusal is one line that says what is wrong and what to do."""
    path = make(tmp_path)
    with pytest.raises(EvidenceError) as refused:
        load_run([path])
    text = str(refused.value)
    assert words in text and str(path.name) in text and "\n" not in text and "; " in text


def test_a_fifo_is_refused_without_waiting(tmp_path):
    """A pipe that nobody writes to would hang a reader; it is refused by its kind."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EvidenceError, match="neither a file nor a folder"):
        load_run([tmp_path / "pipe"])


def test_unreadable_and_broken_files_leave_the_rest(tmp_path):
    """A broken settings file and a binary are noted in the coverage; the log is still read."""
    (tmp_path / "run.log").write_text(OOM)
    (tmp_path / "config.json").write_text('{"hidden_size": ')
    (tmp_path / "weights.bin").write_bytes(b"\0" * 4096)
    (tmp_path / "loop").symlink_to(tmp_path)
    run = load_run([tmp_path])
    assert [event.kind for event in run.of(Event)] == ["torch.oom"]
    notes = " | ".join(run.coverage()["notes"])
    assert "config.json: not valid JSON (line 1" in notes and "weights.bin" in notes


@pytest.mark.parametrize(
    "text",
    [
        "&a [*a, *a]",
        "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c]",
        "[" * 5000,
        "!!python/object/apply:os.system ['echo hi']",
    ],
)
def test_hostile_settings_neither_run_nor_hang(tmp_path, text):
    """Aliases that multiply, deep nesting and tags that would build objects give at most a note."""
    (tmp_path / "run.log").write_text(OOM)
    (tmp_path / "evil.yaml").write_text(text)
    assert len(load_run([tmp_path]).of(Setting)) < 100


def test_the_same_evidence_has_the_same_key_wherever_it_lies(tmp_path):
    """Checklist state finds its evidence again by content, not by path."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.log").write_text(OOM)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.log").write_text(OOM + "!")
    keys = [load_run([tmp_path / name]).content_key for name in "abc"]
    assert keys[0] == keys[1] != keys[2]


def test_trainer_banner_and_command_line_become_settings():
    """What a log prints of its settings is read under canonical names, with the line."""
    run = load_run(
        text="$ torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 4 --max_seq_length=2048 --bf16 True\n"
        "  Gradient Accumulation steps = 16\n"
    )
    assert {name: setting.value for name, setting in run.settings.items()} == {
        "world_size": 8,
        "micro_batch": 4,
        "seq_len": 2048,
        "precision": "amp-bf16",
        "grad_accum": 16,
    }
    assert run.settings["grad_accum"].source.line == 2
    assert run.launches[0].command.startswith("torchrun")


def test_long_pasted_text_is_scanned_as_a_long_log_is(monkeypatch):
    """What is piped in by the megabyte is not parsed line by line, and loses neither the event nor its line number."""
    quiet = "".join(f"node-{i % 8}: nothing of note happens on line {i} here\n" for i in range(60_000))
    parsed = []
    real = reading.lines_of
    monkeypatch.setattr(reading, "lines_of", lambda data, **more: parsed.append(len(data)) or real(data, **more))
    run = load_run(text=quiet + OOM + "\n")
    assert [(event.kind, event.source.line) for event in run.of(Event)] == [("torch.oom", 60_001)]
    assert run.files[0].read_bytes == len(quiet + OOM) + 1 and sum(parsed) < len(quiet) // 4


def test_numbers_of_a_settings_file_cost_their_length(tmp_path):
    """Numbers to base 60, or of ten thousand digits, are words: a megabyte of them is read in a moment."""
    (tmp_path / "run.log").write_text(OOM)
    (tmp_path / "a.yaml").write_text("seq_len: 1" + ":1" * 300_000 + "\nbatch_size: 4\nlr: 0x" + "f" * 9000)
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 1' + "0" * 400 + ', "hidden_size": 8, "num_attention_heads": 1, "attention_dropout": 1' + "0" * 400 + "}")
    run = load_run([tmp_path])
    assert run.settings["micro_batch"].value == 4 and "model" not in run.settings
    assert [event.kind for event in run.of(Event)] == ["torch.oom"]
    assert costs_less(lambda: load_run([tmp_path]), 50)


def test_a_log_that_begins_with_nuls_is_a_log(tmp_path):
    """A log cut off in front while it was written to begins with as many NULs as were cut, few or very many."""
    for count in (9_000, 300_000):
        (tmp_path / "run.log").write_bytes(b"\0" * count + b"step 1\n" * 3000 + OOM.encode() + b"\n")
        assert [event.kind for event in load_run([tmp_path]).of(Event)] == ["torch.oom"]


def test_a_pattern_follows_no_links(tmp_path):
    """A loop is not walked, and a link leads nowhere outside, in a pattern as in a folder."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "a.log").write_text(OOM)
    (tmp_path / "out" / "b.log").write_text(OOM)
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "away").symlink_to(tmp_path / "out")
    os.mkfifo(tmp_path / "in" / "pipe.log")
    assert [file.path for file in load_run([f"{tmp_path}/in/**/*.log"]).files] == [str(tmp_path / "in" / "a.log")]


def test_an_archive_that_gives_nothing_says_why(tmp_path):
    """A file of a few bytes of gzip is not called empty."""
    (tmp_path / "run.log.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00")
    with pytest.raises(EvidenceError, match="ends in the middle"):
        load_run([tmp_path / "run.log.gz"])
