"""Code for programs that are not installed here: their flags and keys, against the names that the programs take.

Which kind of check each framework gets: PyTorch, the Trainer, accelerate and Lightning are run (`test_code`). DeepSpeed's
JSON is held against its own configuration models' keys, Megatron-LM's flags against its own parser's, those of inference
servers against theirs; the lists in ``names/`` say of which release, and from which source. Where DeepSpeed is installed
its reader takes the JSON too. Python for DeepSpeed, Megatron-LM and the servers is parsed, and its calls of
``deepspeed`` and ``engine`` are held against the names that these have.
"""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest

from diag_kit.failures import load_entries

LISTS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (Path(__file__).parent / "names").glob("*.json")
}
BLOCKS = {
    framework: [
        pytest.param(fix.code[framework], id=f"{entry.id}/{fix.id}")
        for entry in load_entries() for fix in entry.fixes if framework in fix.code
    ]
    for framework in ("deepspeed", "megatron", "inference")
}  # fmt: skip
PROGRAMS = {
    ("vllm", "serve"): "vllm-serve", ("vllm", "bench", "latency"): "vllm-bench-latency",
    ("python", "-m", "sglang.launch_server"): "sglang", ("text-generation-launcher",): "tgi",
}  # fmt: skip
"""How a server's command begins -> the list of its flags."""
CHECKED = {start[0] for start in PROGRAMS}
"""Programs whose every command must be one of these; other commands (curl, nvidia-smi, scontrol) stand as they are."""


def is_python(code):
    """Whether a block is Python rather than flags, JSON or commands."""
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return not code.lstrip().startswith(("-", "{", "vllm", "curl"))


def strange_keys(config, section="", known=None):
    """Keys of a DeepSpeed configuration that its reader does not know, with their section."""
    known = known or LISTS["deepspeed"]["keys"]
    found = [f"{section}.{key}".lstrip(".") for key in config if key not in known[section]]
    for key, value in config.items():
        if isinstance(value, dict) and key in known:
            found += strange_keys(value, key, known)
    return found


def commands(code):
    """Commands of a block, each as words; comments and continued lines are taken as a shell takes them."""
    joined = code.replace("\\\n", " ")
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def strange_flags(words, flags):
    """Flags among the words that the program does not take."""
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    return sorted(given - set(flags))


@pytest.mark.parametrize("code", BLOCKS["deepspeed"])
def test_deepspeed_takes_the_configuration(code):
    """JSON has only keys that DeepSpeed's reader and configuration models know; Python parses."""
    if code.lstrip().startswith("{"):
        config = json.loads(code)
        assert not strange_keys(config)
    elif is_python(code):
        assert not strange_calls(code)
    else:
        assert not CHECKED & {words[0] for words in commands(code)}, code


ENGINE = {"backward", "step", "train", "eval", "no_sync", "save_checkpoint", "load_checkpoint", "global_steps", "module",
          "is_gradient_accumulation_boundary", "gradient_accumulation_steps", "local_rank", "device", "zero_grad",
          "train_micro_batch_size_per_gpu", "empty_partition_cache", "destroy", "parameters", "optimizer"}  # fmt: skip
"""Names of DeepSpeed 0.19.8's engine that a block may use: https://deepspeed.readthedocs.io/en/latest/training.html"""


def strange_calls(code):
    """Attributes of ``engine`` that DeepSpeed's engine has not."""
    nodes = ast.walk(ast.parse(code))
    used = {
        n.attr
        for n in nodes
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "engine"
    }
    return sorted(used - ENGINE)


@pytest.mark.parametrize("code", BLOCKS["deepspeed"])
def test_deepspeed_itself_reads_the_configuration(code, tmp_path, monkeypatch):
    """Where DeepSpeed is installed, its configuration reader takes the JSON."""
    runtime = pytest.importorskip(
        "deepspeed.runtime.config", reason="DeepSpeed is not installed: names alone are checked"
    )
    if code.lstrip().startswith("{"):
        config = {"train_micro_batch_size_per_gpu": 1} | json.loads(code)
        if "optimizer" not in config and config.get("zero_optimization"):
            config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
        runtime.DeepSpeedConfig(config)


@pytest.mark.parametrize("code", BLOCKS["megatron"])
def test_megatron_has_the_flags(code):
    """Each flag is one of Megatron-LM's own parser; what is no flag is Python."""
    if code.lstrip().startswith("-"):
        words = [word for line in commands(code) for word in line]
        assert any(word.startswith("--") for word in words)
        assert not strange_flags(words, LISTS["megatron"]["flags"])
    else:
        assert is_python(code), code


@pytest.mark.parametrize("code", BLOCKS["inference"])
def test_servers_have_the_flags(code):
    """A server's command has only flags that the server takes; what is no command is Python."""
    if is_python(code) and not re.match(r"\w+$", code.strip()):
        return
    for words in commands(code):
        name = next((name for start, name in PROGRAMS.items() if tuple(words[: len(start)]) == start), None)
        assert name or words[0] not in CHECKED, words
        if name:
            assert not strange_flags(words, LISTS[name]["flags"]), LISTS[name]["release"]


def test_the_lists_say_where_they_are_from():
    """Each list names program, release, source and how it was taken."""
    assert {*PROGRAMS.values(), "megatron", "deepspeed"} == set(LISTS)
    for listed in LISTS.values():
        assert listed["source"].startswith("https://github.com/")
        assert listed["release"] and listed["program"] and listed["how"]
        assert len(listed.get("flags", listed.get("keys"))) > 10


def test_a_wrong_name_is_found():
    """A misspelt flag, key, nested key or call of the engine does not pass."""
    assert strange_flags(["--micro-batch-sise", "4"], LISTS["megatron"]["flags"]) == ["--micro-batch-sise"]
    assert strange_flags(["vllm", "serve", "M", "--max-num-seq=4"], LISTS["vllm-serve"]["flags"]) == ["--max-num-seq"]
    assert strange_keys({"zero_optimisation": {}}) == ["zero_optimisation"]
    assert strange_keys({"zero_optimization": {"stage": 2, "reduce_bucket": 1}}) == ["zero_optimization.reduce_bucket"]
    assert strange_calls("engine.backwards(loss)") == ["backwards"]
    assert not strange_keys({"bf16": {"enabled": True}, "gradient_accumulation_steps": 4})
