"""Settings that a log prints: launch commands, banners, dumps of arguments.

* Hugging Face Trainer: ``Instantaneous batch size per device = 8``, ``Gradient Accumulation steps = 4``, ``Number of
  trainable parameters = 124,439,808``, ``Total optimization steps = 4675``.
* a command line (``torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 4``), DeepSpeed's quoted argv.
* argument dumps, one a line: ``  micro_batch_size ................ 2`` (Megatron), ``batch_size: 4`` (hydra, YAML),
  ``seq_length=4096,`` (TrainingArguments), ``"hidden_size": 4096,`` (a model's config), ``# --seq-length 4096``; all in one
  line: ``TrainingArguments(bf16=True, ...)``, ``Namespace(...)``, fairseq's ``{'_name': None, 'common': {...}}``.
* ``using world size: 64, ... tensor-model-parallel size: 4, pipeline-model-parallel size: 2`` (Megatron).
* ``trainable params: 4,194,304 || all params: 6,742,609,920`` (PEFT), ``Using bfloat16 Automatic Mixed Precision``.
* ``vocabulary lookup table of size 50000``, ``vocab size: 32,000``, fairseq's ``dictionary: 32768 types``.
* ``Resuming training from out``, ``number of parameters: 353.77M``, ``CUDA capacity: ... with 79.15GiB memory``.

Numbers of layers, heads and widths that stand together become the setting ``model``. Names are made canonical by
``names.canonical``. Lines of a dump are read wherever something else is near, which at a run's start is so. Empty: the
log states none of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ...units import parse_size
from ..facts import Launch, Setting
from ..names import canonical, model_shape
from ..text import Window

LITERALS = (
    "batch size per device",
    "estor",
    "ing checkpoint",
    "ed checkpoint",
    "optimizer state",
    "Accumulation steps",
    "accumulation steps",
    " --",
    "'--",
    "Resum",
    "resum",
    "arameters",
    "CUDA capacity",
    "micro_batch_size",
    "seq_length",
    "batch_size",
    "optimization steps",
    "torchrun",
    "accelerate launch",
    "deepspeed ",
    "world_size",
    "GRADIENT",
    "gradient_checkpointing",
    "Max memory",
    "Namespace(",
    "Arguments(",
    "'_name': ",
    "using world size: ",
    "|| all params: ",
    "Automatic Mixed Precision",
    "ALLOC_CONF",
    "accumulation_steps",
    "accumulate_grad",
    "grad_accum",
    "seq_len",
    "sequence_len",
    "block_size",
    "hidden_size",
    "attention_heads",
    "ocabulary",
    "ocab size",
    "ictionary",
)
READS_ALL = True

_BANNER = (
    (
        "micro_batch",
        re.compile(r"[Ii]nstantaneous batch size per device = ([\d,]+)|Batch size per device = (\d{1,15})"),
    ),
    (
        "vocab",
        re.compile(
            r"[Vv]ocab(?:ulary)?(?: lookup table)?(?: of)? size(?: of| is)? ?[:=]? ?(\d[\d,]{2,12})\b|"
            r"\b[Dd]ictionary: (\d[\d,]{2,12}) types"
        ),
    ),
    ("grad_accum", re.compile(r"[Gg]radient [Aa]ccumulation steps = (\d{1,15})")),
    ("effective_batch", re.compile(r"Total train batch size[^=]*= ([\d,]+)")),
    ("total_steps", re.compile(r"Total optimization steps = ([\d,]+)")),
    ("world_size", re.compile(r"using world size: (\d{1,9})")),
    ("tensor_parallel", re.compile(r"using world size: .{0,120}tensor-model-parallel size: (\d{1,9})")),
    ("pipeline_parallel", re.compile(r"using world size: .{0,160}pipeline-model-parallel size: (\d{1,9})")),
    ("n_params_trainable", re.compile(r"trainable params: ([\d,]{1,20}) \|\| all params")),
    ("n_params", re.compile(r"\|\| all params: ([\d,]{1,20})")),
    ("n_params", re.compile(r"[Nn]umber of (?:trainable )?parameters ?[=:] ?([\d,.]+ ?[KMB]?)\b")),
    (
        "resumed",
        re.compile(
            r"\b([Rr]esum(?:ing|ed)\b[^.:=]{0,24}\b(?:from|at))\b|([Rr]estor(?:ing|ed) (?:from )?checkpoint)|(?:[Ll]oad(?:ing|ed)) (?:checkpoint|optimizer state)(?! shards)\b"
        ),
    ),
    # The advice inside an out-of-memory message names the same variable; it is no setting of the run.
    ("alloc_conf", re.compile(r"(?:^|export |env |[$#] ?|: )PYTORCH(?:_CUDA|_HIP)?_ALLOC_CONF=(\S+)(?! to\b)")),
    ("capacity_bytes", re.compile(r"CUDA capacity: .* with ([\d.]+GiB) memory|Max memory: ([\d.]+ GB)")),
)
_COMMAND = re.compile(
    r"(?:^|[$>#] ?|\b)((?:\w+=\S+ )*(?:torchrun|accelerate launch|deepspeed|srun|python3?|(?<!\S)\S{0,200}/python3?)\b(?: \S{1,300}){0,40}? \S{0,300}\.py\b.*|(?<!\S)(?:\S{0,200}/)?python3? -m [\w.]+ .*)"
)
_ARGV = re.compile(r"\[('[^']*'(?:, '[^']*')+)\]")
_CALL = re.compile(r"\b(?:Namespace|\w{0,40}Arguments)\(|'_name': ")
_PAIR = re.compile(
    r"(?:\b|')(?P<key>[A-Za-z_]\w{1,40})(?:=|': )(?:\[(?P<listed>[\d.]{1,12})\]|'(?P<quoted>[^']{0,60})'|(?P<bare>[\w.+:-]{1,60}))"
)
_MOST_PAIRS = 600
_MIXED = re.compile(r"Using (16bit|bfloat16|bf16|float16)(?: native)? Automatic Mixed Precision")
_SHAPE_KEYS = frozenset((
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "hidden_size", "n_embd", "d_model", "num_attention_heads",
    "n_head", "n_heads", "num_key_value_heads", "num_query_groups", "intermediate_size", "n_inner", "ffn_dim",
    "ffn_hidden_size", "vocab_size", "padded_vocab_size", "tie_word_embeddings", "model_type", "hidden_act", "swiglu",
))  # fmt: skip
_NEAR = 400
_FLAGS = {"model_max_length": "seq_length"}
"""Names that mean the run's own setting on a command line, and something else in a tokenizer's file."""
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:[= ]+(?!--)(\"[^\"]*\"|'[^']*'|[^\s'\"]+))?")
_DUMP = re.compile(r"^\s*[\"']?([A-Za-z][\w.]{3,40})[\"']?\s*(?:\.{3,}|[:=])\s*[\"']?([\w.+-]{1,40})[\"']?,?\s*$")


def parse(window: Window) -> Iterator[Setting | Launch]:
    """Settings under canonical names, the model's shape, and launch commands."""
    shape: dict[str, Any] = {}
    shaped, mixed_shapes = -1, False
    for index, line in enumerate(window.lines):
        text = line.text
        if not any(literal in text for literal in LITERALS) and not _DUMP.match(text):
            continue
        source = window.source(index, around=0)
        for name, pattern in _BANNER:
            if found := pattern.search(text):
                value = next((group for group in found.groups() if group), found.group())
                if (
                    read := True if name == "resumed" else value if name == "alloc_conf" else _number(value)
                ) is not None:
                    yield Setting(source=source, rank=line.rank, name=name, value=read, raw=text.strip()[:200])
        command = _ARGV.search(text)
        flags = " ".join(re.findall(r"'([^']*)'", command[1])) if command else text if "--" in text else ""
        if (launched := _COMMAND.search(text, 0, 4000)) and "--" in text and 'File "' not in text:
            yield Launch(source=source, rank=line.rank, command=launched[1].strip()[:4000])
        elif command and ".py" in flags:
            yield Launch(source=source, rank=line.rank, command=flags[:4000])
        for flag in _FLAG.finditer(flags):
            raw = (flag[2] or "true").strip("\"'")
            for name, value in canonical(_FLAGS.get(flag[1].replace("-", "_"), flag[1]), raw):
                yield Setting(source=source, rank=line.rank, name=name, value=value, raw=flag.group()[:200])
        if mixed := _MIXED.search(text):
            value = "amp-bf16" if mixed[1].startswith("b") else "amp-fp16"
            yield Setting(source=source, rank=line.rank, name="precision", value=value, raw=text.strip()[:200])
        if _CALL.search(text):
            for pair in islice(_PAIR.finditer(text), _MOST_PAIRS):
                raw = pair["listed"] or pair["quoted"] or pair["bare"] or ""
                for name, value in canonical(pair["key"], raw):
                    yield Setting(source=source, rank=line.rank, name=name, value=value, raw=pair.group()[:200])
        elif not flags and (dump := _DUMP.match(text)):
            if dump[1] in _SHAPE_KEYS:
                if index - shaped > _NEAR:
                    shape, mixed_shapes = {}, False
                value, shaped = _plain(dump[2]), index
                mixed_shapes |= shape.setdefault(dump[1], value) != value  # a model of several parts, or two models
                if not mixed_shapes and (model := _model(shape)):
                    yield Setting(source=source, rank=line.rank, name="model", value=model, raw=text.strip()[:200])
            for name, value in canonical(dump[1], dump[2]):
                yield Setting(source=source, rank=line.rank, name=name, value=value, raw=text.strip()[:200])


def _plain(text: str) -> Any:
    """A value of a dump as JSON would have it: whole numbers and truths; the rest stays text."""
    return int(text) if text.isdecimal() and len(text) < 16 else {"true": True, "false": False}.get(text.lower(), text)


def _model(shape: dict[str, Any]) -> dict[str, Any] | None:
    """The model's shape where enough of it is known; Megatron's words for grouped queries and gates are put in."""
    gates = {"gated_ffn": shape["swiglu"]} if isinstance(shape.get("swiglu"), bool) else {}
    groups = {"kv_heads": shape["num_query_groups"]} if isinstance(shape.get("num_query_groups"), int) else {}
    model = model_shape({**shape, **gates, **groups})
    return model if model and model["vocab"] else None


def _number(text: str) -> int | None:
    text = text.strip()
    if text[-2:] in ("iB", "GB", "MB"):
        return parse_size(text)
    scale = {"K": 10**3, "M": 10**6, "B": 10**9}.get(text[-1:], 1)
    try:
        return round(float(text.rstrip("KMB").replace(",", "")) * scale)
    except (ValueError, OverflowError):
        return None
