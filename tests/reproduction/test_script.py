"""The script that is written from a failed run: readable, the same each time, harmless whatever the evidence says, and
runnable: its output, laid beside the logs, ticks the checklist.
"""

import ast
import json
import os
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diag_kit.checklist import Checklist
from diag_kit.cli import main
from diag_kit.diagnosis import diagnose
from diag_kit.errors import EvidenceError
from diag_kit.reproduction import _literal, _plain_config, commands, save, script, write
from tests.reproduction.runs import RUNS, beside, sample, state

CONSTANTS = {"VERSION", "SEED", "EXPECTED", "MODEL", "SETTINGS", "STATED", "ASSUMED", "LEFT_OUT", "CONFIG"}


def constants(text):
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and node.targets[0].id in CONSTANTS
    }


def code(text):
    """The program without the values that come from the evidence."""
    kept = [n for n in ast.parse(text).body[1:] if not (isinstance(n, ast.Assign) and n.targets[0].id in CONSTANTS)]
    return [ast.dump(node) for node in kept]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name if run.name != "evidence" else run.parent.name)
def test_every_run_gives_a_script(run):
    """It compiles, is the same each time, imports the standard library and torch alone, and can be read in one sitting."""
    diagnosis = diagnose(run)
    text = write(diagnosis, [run])
    assert text == write(diagnose(run), [run])
    tree = ast.parse(text)
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported <= {"torch", "transformers", "bitsandbytes", *sys.stdlib_module_names} - {"pickle", "socket", "urllib"}
    assert text.isascii() and len(text.splitlines()) <= 400
    told = constants(text)
    assert set(told["ASSUMED"]) | set(told["STATED"]) >= {"model", "micro_batch", "seq_len", "grad_accum", "precision"}
    assert not set(told["ASSUMED"]) & set(told["STATED"])
    assert ("failure" in told["LEFT_OUT"]) == (diagnosis.family != "gpu-oom") == (told["EXPECTED"]["failure"] == "")


def test_scripts_pass_the_linter(tmp_path):
    """What an engineer reads is clean to ruff, each variant of it."""
    for number, run in enumerate(RUNS):
        (tmp_path / f"script{number}.py").write_text(write(diagnose(run), [run]))
    call = ["ruff", "check", "--isolated", "--no-cache", "--line-length", "120", "--select", "E,F,I,B,BLE,SIM", tmp_path]
    done = subprocess.run([sys.executable, "-m", *call], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_longest_batch_comes_first():
    """The failing length, where readings name it, is run before the usual one."""
    run = RUNS[3]
    told = constants(write(diagnose(run), [run]))
    assert told["SETTINGS"]["longest"] == 4096 and told["EXPECTED"]["phase"] == "forward"


def test_what_nothing_states_is_listed(tmp_path):
    """A bare message still gives a script; every setting in it is marked as assumed, with the fact that would tell."""
    log = tmp_path / "run.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of "
                   "47.43 GiB of which 1.25 GiB is free.\n")  # fmt: skip
    told = constants(write(diagnose(log)))
    assert "model" in told["ASSUMED"] and "config.json would tell" in told["ASSUMED"]["model"]
    assert told["STATED"] == {} and told["EXPECTED"]["asked"] == "3.50 GiB"


HOSTILE = '"""\nimport os; os.system("touch owned")\n\'\'\'\\" {} @@NAME@@ %s \u202e \x00 \udcff'


def test_hostile_evidence_stays_data(tmp_path):
    """Quotes, newlines and code in names and values change no statement of the program."""
    plain = sample("accumulation-spike", tmp_path / "plain")
    folder = tmp_path / ("run '''\"\"\"\nimport os\n" + "#: end")
    folder.mkdir()
    hostile = sample("accumulation-spike", folder)
    config = json.loads((hostile / "config.json").read_text())
    config |= {HOSTILE.replace("\udcff", ""): HOSTILE.replace("\udcff", ""), "note": 'llama"""\nimport os\nx = """', "_name_or_path": "/home/alice/x"}
    (hostile / "config.json").write_text(json.dumps(config))
    (hostile / 'a """\nimport os\n.log').write_text("PYTORCH_CUDA_ALLOC_CONF=x\"+__import__('os').name+\"\n")
    text = write(diagnose(hostile), [hostile])
    assert code(text) == code(write(diagnose(plain), [plain]))
    diagnosis = diagnose(hostile)
    where = replace(diagnosis.settings["seq_len"][1], path=HOSTILE)
    settings = {**diagnosis.settings, "seq_len": (1024, where), "alloc_conf": (HOSTILE, where)}
    text = script(replace(diagnosis, settings=settings), [hostile], name=HOSTILE).text
    assert code(text) == code(write(diagnose(plain), [plain]))
    assert constants(text)["STATED"]["seq_len"].startswith('"""\nimport os')


def test_no_secret_and_no_name_enters(tmp_path):
    """Accounts, hosts, paths and keys of the evidence stand as aliases, or not at all."""
    folder = sample("accumulation-spike", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"_name_or_path": "/home/alice/models/x", "auth_token": "abcdef", "api_key": "k-123", "hub": "hf_" + "a1" * 17}
    (folder / "config.json").write_text(json.dumps(config))
    diagnosis = diagnose(folder)
    where = replace(diagnosis.settings["seq_len"][1], path="/home/alice/secret-project/train.json")
    text = write(replace(diagnosis, settings={**diagnosis.settings, "seq_len": (1024, where)}), [folder])
    assert not [word for word in ("alice", "abcdef", "k-123", "hf_a1") if word in text]


def run_in_process(path, monkeypatch, capsys, *options):
    """The script's exit status and what it printed, run as __main__."""
    monkeypatch.setattr(sys, "argv", [str(path), "--small", "--steps", "2", "--host", "node-a", *map(str, options)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    return ended.value.code, capsys.readouterr().out


def ticks(diagnosis):
    return {item.id: item for item in Checklist.from_diagnosis(diagnosis)}


def test_a_small_run_ticks_the_toy_and_nothing_else(tmp_path):
    """End to end, as a user does it: written by the command, run on the CPU, laid beside the logs, diagnosed again. The
    growth that the stated settings cause shows in the toy; nothing is said of the peak, marks stay, and what closed
    forms predict for the small sizes is within 10 % of what was measured.
    """
    folder = state(sample("accumulation-spike", tmp_path), backward="deferred")
    before = diagnose(folder)
    path, _ = save(folder / "reproduce.py", before, [folder])
    call = [sys.executable, str(path), "--small", "--steps", "2", "--host", "node-a", "--out", str(folder / "small.jsonl")]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and 'verdict="not reproduced"' in done.stdout.splitlines()[-1], done.stderr
    after = diagnose(folder)
    item = ticks(after)["gradient-accumulation-memory-spike/check/toy"]
    assert (item.evidence.state, item.sources[0].path) == ("confirmed", "small.jsonl")
    assert "scaled down" in item.evidence.note and "with each micro-step" in item.evidence.note
    held = ticks(after)["universal/reproduce"]
    assert held.evidence is None and "says nothing of the run's peak" in held.how
    assert (after.content_key, after.failure, after.family) == (before.content_key, before.failure, before.family)
    (again,) = after.repeats.runs
    assert again.peak_bytes == pytest.approx(again.predicted_bytes, rel=0.1)
    assert again.growth_bytes == pytest.approx(again.predicted_growth_bytes, rel=0.1)


def test_a_toy_without_the_symptom_refutes_that_settings_cause_it(tmp_path, monkeypatch, capsys):
    """Backward in each micro-batch, as stated: no growth, so the run's own code holds what its settings don't."""
    folder = state(sample("accumulation-spike", tmp_path), backward="each-micro-batch")
    path, _ = save(folder / "reproduce.py", diagnose(folder), [folder])
    status, out = run_in_process(path, monkeypatch, capsys)
    after = beside(folder, out)
    assert status == 0 and ticks(after)["gradient-accumulation-memory-spike/check/toy"].evidence.state == "refuted"
    assert after.repeats.runs[0].growth_bytes == 0


def test_growth_that_the_script_was_made_to_show_proves_nothing(tmp_path, monkeypatch, capsys):
    """Where backward was inferred from the run's growth, the toy's growth ticks nothing."""
    folder = sample("accumulation-spike", tmp_path)
    path, made = save(folder / "reproduce.py", diagnose(folder), [folder])
    assert "backward" in made.assumed
    after = beside(folder, run_in_process(path, monkeypatch, capsys)[1])
    assert after.repeats.runs[0].growth_bytes > 0 and not after.repeats.ticks


def test_small_sizes_and_one_variable_at_a_time(tmp_path, monkeypatch, capsys):
    """Eager attention and its fused rival, measured at small sizes beside the closed forms, within 10 %; the table has
    both, and neither is called a reproduction.
    """
    folder = sample("activation-spike", tmp_path)
    path, _ = save(folder / "reproduce.py", diagnose(folder), [folder])
    outs = [run_in_process(path, monkeypatch, capsys, *more)[1] for more in ((), ("--set", "attention=sdpa"), ("--grad-accum", 1))]
    after = beside(folder, *outs)
    plain, fused, alone = after.repeats.runs
    assert (plain.change, fused.change, alone.change) == ("", "attention=sdpa", "grad_accum=1")
    assert fused.peak_bytes < plain.peak_bytes
    for one in after.repeats.runs:
        assert one.peak_bytes == pytest.approx(one.predicted_bytes, rel=0.1), one
    assert not after.repeats.ticks and ticks(after)["universal/one-variable"].evidence is None


def test_a_cap_reproduces_the_exit_and_not_the_claim(tmp_path, monkeypatch, capsys):
    """Out of memory under a cap on the CPU: exit status 1, the phase, a verdict; and still nothing of the run's GPU."""
    folder = sample("activation-spike", tmp_path)
    before = diagnose(folder)
    path, _ = save(folder / "reproduce.py", before, [folder])
    status, out = run_in_process(path, monkeypatch, capsys, "--cap-gib", 0.006)
    assert status == 1 and out.splitlines()[-1].count('verdict="reproduced"') == 1
    after = beside(folder, out)
    assert after.failure == before.failure and not after.repeats.ticks and "scaled down" in after.repeats.runs[0].says


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--set", "attention=fast"], "one of eager, sdpa"),
        (["--set", "colour=red"], "attention, checkpointing"),
        (["--set", "seq_len=0"], "numbers from 1 on"),
        (["--set", "seq_len=8", "--grad-accum", "2"], "one variable at a time"),
        (["--set", "seq_len=²"], "numbers from 1 on"),
        (["--set", f"seq_len={'9' * 5000}"], "numbers from 1 on"),
        (["--steps", "0"], "numbers above 0"),
        (["--cap-gib", "nan"], "numbers above 0"),
        (["--device", "cuda"], "torch sees no GPU here"),
    ],
)
def test_a_wrong_call_is_told_in_one_line(options, told, tmp_path, monkeypatch, capsys):
    """Exit status 2 and what would be right."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path, _ = save(tmp_path / "reproduce.py", diagnose(RUNS[0]), [RUNS[0]])
    monkeypatch.setattr(sys, "argv", [str(path), *(["--small"] if "--device" not in options else []), *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 2 and told in " ".join(capsys.readouterr().err.split())


def test_the_runs_own_model_is_built_from_its_configuration(tmp_path):
    """Where transformers is there, at the run's size, the run's own architecture is built, with as many parameters."""
    pytest.importorskip("transformers")
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 96, "hidden_act": "silu",
              "tie_word_embeddings": False}  # fmt: skip
    folder = sample("accumulation-spike", tmp_path)
    (folder / "config.json").write_text(json.dumps(config))
    path, made = save(folder / "reproduce.py", diagnose(folder), [folder])
    program = runpy.run_path(str(path), run_name="reproduction")
    own, what = program["build"](program["MODEL"], program["SETTINGS"] | {"n_layers": None}, "cpu", False)
    plain, _ = program["build"](program["MODEL"], program["SETTINGS"], "cpu", True)
    assert "own" in what and sum(p.numel() for p in own.parameters()) == made.settings.model.params
    assert sum(p.numel() for p in plain.parameters()) == made.settings.model.params
    tokens = program["torch"].zeros((1, 4), dtype=program["torch"].int64)
    assert all(model(tokens)[1].shape == (1, 4, 96) for model in (own, plain))


def test_the_machine_is_told_before_anything_is_allocated(tmp_path, monkeypatch):
    """Device, UUID, driver, sizes, and what other processes hold on this device: not its own, not another device's."""
    from types import SimpleNamespace

    path, _ = save(tmp_path / "reproduce.py", diagnose(RUNS[0]), [RUNS[0]])
    program = runpy.run_path(str(path), run_name="reproduction")
    cuda, answers = program["torch"].cuda, {}
    monkeypatch.setattr(cuda, "get_device_properties", lambda _: SimpleNamespace(name="NVIDIA T4", uuid="aa-11"))
    monkeypatch.setattr(cuda, "mem_get_info", lambda: (10 << 30, 15 << 30))
    monkeypatch.setattr(program["subprocess"], "check_output", lambda call, **_: answers[call[-1].split("=")[0]])
    answers |= {"--query-gpu": "550.54\n550.54\n", "--query-compute-apps":
                f"GPU-aa-11, 71, 512\nGPU-aa-11, {program['os'].getpid()}, 300\nGPU-bb-22, 72, 4096\nGPU-aa-11, 73, [N/A]\n"}
    found = program["machine"](True)
    assert found == {"device": "NVIDIA T4", "gpu": "GPU-aa-11", "total_bytes": 15 << 30, "free_bytes": 10 << 30,
                     "driver": "550.54", "others_bytes": 512 << 20}  # fmt: skip
    monkeypatch.setattr(program["subprocess"], "check_output", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    assert program["machine"](True)["others_bytes"] is None


def test_an_exit_that_is_no_reproduction_reads_like_none(tmp_path):
    """Without torch, or with a file that can't be written: one line, and never the status of an out-of-memory."""
    path, _ = save(tmp_path / "reproduce.py", diagnose(RUNS[0]), [RUNS[0]])
    for before, options, status, told in (
        ("sys.modules['torch'] = None", [], 2, "it needs torch"),
        ("", ["--small", "--out", str(tmp_path / "no" / "such.jsonl")], 3, "No such file"),
    ):
        code = f"import runpy, sys; {before}\nsys.argv = {[str(path), *options]!r}\nrunpy.run_path({str(path)!r}, run_name='__main__')"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == status and told in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["a;touch x.py", "two  spaces.py", "-v.py", "$(id)`id`.py", "it's \"so\".py", "plain.py"])
def test_printed_commands_are_one_word_each(tmp_path, monkeypatch, capsys, name):
    """A shell takes the script's name, and the output's that is made of it, as they are."""
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", str(RUNS[0]), f"--out={name}"]) == 0
    said = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("  python ")]
    assert len(said) == 2 and all((tmp_path / words[1]).is_file() and words[1][0] != "-" for words in said)
    assert [words[-1].removeprefix("--out=") for words in said] == [f"{Path(name).stem}{more}.jsonl" for more in ("", "-small")]
    assert [len(words) for words in said] in ([4, 5], [3, 4])


def test_numbers_without_an_end_stay_python():
    """What JSON calls Infinity or NaN is no name in a script, and no part of a configuration."""
    assert ast.literal_eval(_literal([float("inf"), -float("inf"), float("nan")])) == [float("inf"), -float("inf"), None]
    assert _plain_config({"scale": float("nan"), "n": [1, float("inf")]}) == {"n": [1, None]}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_read_to_its_end(tmp_path, capsys):
    """A pipe or a device under the script's name is refused without being read."""
    os.mkfifo(tmp_path / "pipe.py")
    assert main(["reproduce", str(RUNS[0]), "-o", str(tmp_path / "pipe.py")]) == 2
    assert "name another file" in capsys.readouterr().err


def test_the_command_writes_and_says_how_to_run(tmp_path, capsys):
    """``diag-kit reproduce`` names the file, what was assumed and both ways to run it; it overwrites only its own."""
    out = tmp_path / "again.py"
    assert main(["reproduce", str(RUNS[4]), "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert str(out) in said and "one process holds the whole model" in said and all(c in said for c in commands(out))
    assert main(["reproduce", str(RUNS[0]), "-o", str(out)]) == 0 and "@@" not in out.read_text()
    out.write_text("print('mine')\n")
    assert main(["reproduce", str(RUNS[0]), "-o", str(out)]) == 2 and "name another file" in capsys.readouterr().err
    log = tmp_path / "run.log"
    log.write_text("CUDA out of memory\n")
    assert main(["reproduce", str(log), "-o", str(log)]) == 2 and "is evidence" in capsys.readouterr().err
    with pytest.raises(EvidenceError, match="name another file"):
        save(out, diagnose(RUNS[0]))
    assert main(["reproduce", str(RUNS[0]), "-o", str(tmp_path / "no" / "such.py")]) == 2
    assert Path(out).read_text() == "print('mine')\n"
