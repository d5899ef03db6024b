"""The commands keep the contract: one JSON document, exit status, one line for what can't be used, never a
traceback.
"""

import gzip
import json
import os
import subprocess
import sys

import pytest

from diag_kit.cli import _nothing_printed, main
from tests.evidence.samples import SAMPLES

OOM = SAMPLES["torch_oom"][0]


def test_json_is_one_document_with_the_contracts_keys(tmp_path, capsys):
    """--json prints the diagnosis and nothing else."""
    (tmp_path / "run.log").write_text(OOM)
    assert main(["diagnose", "--json", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    keys = {
        "schema",
        "family",
        "summary",
        "failure",
        "initiating_rank",
        "collateral",
        "findings",
        "missing",
        "next_action",
        "coverage",
    }
    assert keys <= document.keys() and document["schema"] == "diag_kit.diagnosis/1"
    facts = document["failure"]["facts"]
    assert (
        facts["other_process_in_use_bytes"] == [512 << 20]
        and facts["reserved_bytes"] is None
        and facts["private_pools_bytes"] == 96 << 20
    )
    assert document["failure"]["source"] == {"path": "run.log", "line": 1}


def test_text_is_about_a_dozen_lines_and_ends_in_what_to_do(tmp_path, capsys):
    """Over ssh: short, plain, with the next step."""
    (tmp_path / "run.log").write_text(OOM)
    assert main(["diagnose", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert 6 <= len(out.strip().splitlines()) <= 30 and "\x1b" not in out and "next" in out.lower()


@pytest.mark.parametrize(
    "argv",
    [
        ["diagnose", "/nowhere/run.log"],
        ["diagnose"],
        ["diagnose", "--nope", "x"],
        ["estimate", "--settings", "/nowhere.json"],
        ["entries", "no-such-entry"],
        ["frobnicate"],
    ],
)
def test_what_cannot_be_used_exits_2_with_one_line(argv):
    """A wrong path, flag, id or command: status 2, one line, no traceback."""
    done = subprocess.run([sys.executable, "-m", "diag_kit.cli", *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr, done.stderr


def test_wrong_settings_name_the_key_and_the_known_ones(tmp_path, capsys):
    """A wrong key in settings is told with those that exist."""
    (tmp_path / "s.json").write_text(
        json.dumps({"model": {"n_layers": 2, "hidden": 64, "heads": 4, "vocab": 100}, "micro_bacth": 4})
    )
    assert main(["estimate", "--settings", str(tmp_path / "s.json")]) == 2
    assert "micro_bacth" in (line := capsys.readouterr().err) and "micro_batch" in line


def test_standard_input_is_a_run():
    """``-`` reads a log from a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "diag_kit.cli", "diagnose", "-", "--json"],
        input=OOM,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and json.loads(done.stdout)["family"] == "gpu-oom"


def test_a_report_that_cannot_be_written_is_one_line(tmp_path, capsys):
    """An unwritable target is told; the diagnosis is not lost in a traceback."""
    (tmp_path / "run.log").write_text(OOM)
    assert main(["diagnose", str(tmp_path / "run.log"), "--report", str(tmp_path / "no" / "such" / "r.html")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_diagnosis_imports_neither_torch_nor_pandas_nor_jupyter(tmp_path):
    """On a login node without them a diagnosis still starts, and where they are it does not pay for them."""
    (tmp_path / "run.log").write_text(OOM)
    code = (
        "import sys; from diag_kit.cli import main; main(['diagnose', sys.argv[1]]);"
        "heavy = {'torch', 'pandas', 'numpy', 'plotly', 'IPython', 'ipywidgets', 'jinja2', 'jupyterlab'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_restart_line_keeps_secrets_out():
    """The line that people paste into a chat names the variable, not the secret; its own settings stay."""
    import doctest

    from diag_kit import restart

    assert doctest.testmod(restart).failed == 0
    kept = "torchrun t.py --tokenizer_name x --pad_token y --max_tokens 5"
    assert restart.without_secrets(kept) == kept


def test_an_entry_can_be_read_in_a_terminal(capsys):
    """An entry says what is so of each claim, how to confirm it and what to do, in lines that fit."""
    assert main(["entries", "activation-memory-spike"]) == 0
    out = capsys.readouterr().out
    assert all(heading in out for heading in ("Claims, and what is so", "To confirm", "To mend", "Sources"))
    code = [line for line in out.splitlines() if line.startswith("       ")]
    assert max(len(line) for line in out.splitlines() if "http" not in line and line not in code) <= 100
    assert "\x1b" not in out


def test_an_entrys_code_is_that_of_the_framework_asked_for(capsys):
    """--framework chooses whose lines stand under a fix; one that is not known is refused with the list."""
    assert main(["entries", "activation-memory-spike", "--framework", "trainer"]) == 0
    assert "TrainingArguments(" in capsys.readouterr().out
    assert main(["entries", "activation-memory-spike"]) == 0
    assert "TrainingArguments(" not in capsys.readouterr().out
    assert main(["entries", "activation-memory-spike", "--framework", "keras"]) == 2
    assert "pytorch, trainer" in capsys.readouterr().err


def test_entries_are_listed_and_found(capsys):
    """All with a line each; words lead to a list with the sentence that answers, one match or a cause to the entry."""
    from diag_kit.failures import load_entries

    assert main(["entries"]) == 0
    listed = capsys.readouterr().out
    assert all(one.id in listed and one.title in listed for one in load_entries())
    assert main(["entries", "out-of-memory", "checkpoint"]) == 0
    several = capsys.readouterr().out
    assert "entries for 'out-of-memory checkpoint'" in several
    assert max(map(len, several.splitlines())) <= 100
    assert main(["entries", "graph-retention"]) == 0
    assert "Claims, and what is so" in capsys.readouterr().out
    assert main(["entries", "out-of-memory", "checkpoint", "--json"]) == 0
    ids = [one["id"] for one in json.loads(capsys.readouterr().out)["entries"]]
    assert 1 < len(ids) < len(load_entries())
    assert main(["entries", "gradent", "acumulation"]) == 2
    assert capsys.readouterr().err.strip().endswith("did you mean: diag-kit entries gradient accumulation")
    assert main(["entries", "\x1b[31mzebra"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_an_estimate_is_a_dozen_lines_or_one_document(tmp_path, capsys):
    """The components of the JSON sum to the peak, and the text says whether it fits."""
    model = {"n_layers": 4, "hidden": 256, "heads": 8, "vocab": 1000}
    (tmp_path / "s.json").write_text(json.dumps({"model": model, "capacity_bytes": 8 << 30}))
    assert main(["estimate", "--settings", str(tmp_path / "s.json")]) == 0
    assert "fits" in capsys.readouterr().out
    assert main(["estimate", "--settings", str(tmp_path / "s.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(document["components_at_peak"].values()) == document["peak_allocated_bytes"]
    assert document["schema"] == "diag_kit.estimate/1"


def test_what_a_configuration_holds_without_end_is_still_json(tmp_path, capsys):
    """A configuration may hold Infinity, which JSON has no number for; the settings that are repeated stay JSON."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    config |= {"vocab_size": 99, "limit": [0.0, float("inf")]}
    (tmp_path / "s.json").write_text(json.dumps({"model": {"hf_config": config}, "method": "formula"}))
    assert main(["estimate", "--settings", str(tmp_path / "s.json"), "--json"]) == 0
    strict = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert strict["settings"]["model"]["hf_config"]["limit"] == [0.0, {"__float__": "Infinity"}]


def test_a_layer_that_only_the_model_knows_is_told(tmp_path, capsys):
    """A target that is a layer's name in the model's own code has no closed form: one line, no fault."""
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 99, "n_positions": 64}
    document = {"model": {"hf_config": config}, "lora": {"targets": ["c_attn"]}, "method": "formula"}
    (tmp_path / "s.json").write_text(json.dumps(document))
    assert main(["estimate", "--settings", str(tmp_path / "s.json")]) == 2
    err = capsys.readouterr().err
    assert "no closed form knows 'c_attn'" in err and "q_proj" in err and err.count("\n") == 1


def test_what_a_child_prints_stays_off_standard_output(capfd):
    """The one document on standard output is not spoilt by what a user's code starts."""
    with _nothing_printed():
        os.write(1, b"loud")
        subprocess.run(["echo", "louder"], check=True)
    os.write(1, b"answer")
    out, err = capfd.readouterr()
    assert out == "answer" and "loud" in err and "louder" in err


def settings_of(tmp_path, **more):
    model = {"n_layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256}
    document = {"model": model, "precision": "bf16", "seq_len": 4096, "micro_batch": 4, "capacity_bytes": 40 << 30, **more}
    (tmp_path / "s.json").write_text(json.dumps(document))
    return ["estimate", "--settings", str(tmp_path / "s.json")]


def test_an_estimate_that_does_not_fit_says_what_would(tmp_path, capsys):
    """Changes that fit with what they cost, and the largest shapes; in JSON with the lines of code, in text a screen."""
    asked = settings_of(tmp_path, attention="eager")
    assert main([*asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fits"] is False and document["combinations"][0]["fits"] and document["combinations"][0]["code"]
    assert document["largest"]["seq_len"] < 4096 and document["searched"]["complete"]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "would fit" in out and "Cost:" in out and "largest" in out and len(out.splitlines()) <= 36
    assert max(map(len, out.splitlines())) <= 110


@pytest.mark.parametrize("packed", [False, True])
def test_lengths_are_held_against_the_peak(tmp_path, capsys, packed):
    """A column of a CSV, packed or not: which samples are too long, how likely a batch holds one, what removes them."""
    rows = "id,n\n" + "".join(f"{i},{60000 if i % 100 == 0 else 500}\n" for i in range(1000))
    path = tmp_path / ("l.csv.gz" if packed else "l.csv")
    path.write_bytes(gzip.compress(rows.encode()) if packed else rows.encode())
    asked = [*settings_of(tmp_path), "--lengths", str(path), "--column", "n"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["lengths"]
    assert (found["samples"], found["too_long"], found["batches"], found["chance_per_epoch"]) == (1000, 10, 250, 1)
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "10 samples are longer than" in out and "length cap" in out
    assert main([*asked[:-2], "--column", "n", "--batching", "grouped"]) == 0
    assert "the longest first" in capsys.readouterr().out


def test_a_size_is_named(tmp_path, capsys):
    """The tensor that has the printed size, in a sentence."""
    asked = [*settings_of(tmp_path, seq_len=8192), "--size", "16.00 GiB"]
    assert main(asked) == 0
    assert "4 × 32 heads × 8,192² × 2 bytes: attention scores" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size"]["matches"][0]["tensor"] == "attention-scores"


@pytest.mark.parametrize(
    "more",
    [
        ["--size", "many"],
        ["--lengths", "/nowhere.csv"],
        ["--lengths", "BAD"],
        ["--lengths", "BAD", "--batching", "whatever"],
        ["--lengths", "CUT"],
        ["--lengths", "."],
    ],
)
def test_lengths_and_sizes_that_are_none_end_in_one_line(tmp_path, capsys, more):
    """Exit status 2, nothing on standard output, one line."""
    (tmp_path / "bad").write_text("12\nx\n")
    (tmp_path / "cut").write_bytes(gzip.compress(b"12\n" * 100_000)[:-20])
    names = {"BAD": str(tmp_path / "bad"), "CUT": str(tmp_path / "cut")}
    assert main([*settings_of(tmp_path), *(names.get(word, word) for word in more)]) == 2
    out = capsys.readouterr()
    assert out.out == "" and len(out.err.strip().splitlines()) == 1 and "fault" not in out.err


def test_a_report_never_overwrites_evidence(tmp_path, capsys):
    """A file that is read, named itself, inside a folder or matched by a pattern, is refused as the report's place."""
    (tmp_path / "run.log").write_text(OOM)
    (tmp_path / "config.json").write_text("{}")
    for given in (str(tmp_path), str(tmp_path / "*.json"), str(tmp_path / "config.json")):
        assert main(["diagnose", str(tmp_path / "run.log"), given, "--report", str(tmp_path / "config.json")]) == 2
        assert "is evidence" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_text() == "{}"


def test_nothing_raw_reaches_a_terminal_on_standard_error(tmp_path, capsys):
    """Escapes and newlines in names and arguments are shown as question marks and blanks."""
    (tmp_path / "run.log").write_text(OOM)
    out = tmp_path / "r\n\x1b[31mx.md"
    assert main(["diagnose", str(tmp_path / "run.log"), "--report", str(out)]) == 0
    with pytest.raises(SystemExit):
        main(["diagnose", "x", "--foo\n\x1b[31mbar"])
    assert "\x1b" not in (told := capsys.readouterr().err) and told.count("\n") == 2


def test_standard_input_is_unpacked_or_refused(tmp_path):
    """A packed log is read from a pipe as from a file; what is no text is one line and status 2."""
    import gzip

    def piped(data):
        command = [sys.executable, "-m", "diag_kit.cli", "diagnose", "-", "--json"]
        return subprocess.run(command, input=data, capture_output=True, check=False)

    packed = piped(gzip.compress(OOM.encode()))
    assert packed.returncode == 0 and json.loads(packed.stdout)["family"] == "gpu-oom"
    refused = piped(bytes(range(256)) * 64)
    assert refused.returncode == 2 and b"binary" in refused.stderr and refused.stderr.count(b"\n") == 1
