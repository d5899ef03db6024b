"""Settings that a log prints: launch commands, banners, dumps of arguments.

* Hugging Face Trainer: ``Instantaneous batch size per device = 8``, ``Gradient Accumulation steps = 4``, ``Number of
  trainable parameters = 124,439,808``, ``Total optimization steps = 4675``.
* a command line (``torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 4``), DeepSpeed's quoted argv.
* argument dumps: ``  micro_batch_size ................ 2`` (Megatron), ``batch_size: 4``, ``seq_length=4096``, ``#
  --seq-length 4096``.
* ``Resuming training from out``, ``number of parameters: 353.77M``, ``CUDA capacity: ... with 79.15GiB memory``.

Names are made canonical by ``names.CANONICAL``. Empty: the log states none of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...units import parse_size
from ..facts import Launch, Setting
from ..names import canonical
from ..text import Window

LITERALS = (
    "batch size per device",
    "estor",
    "checkpoint",
    "Accumulation steps",
    "accumulation steps",
    "--",
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
    "attention",
    "checkpointing",
    "Max memory",
    "ALLOC_CONF",
)

_BANNER = (
    (
        "micro_batch",
        re.compile(r"[Ii]nstantaneous batch size per device = ([\d,]+)|Batch size per device = (\d{1,15})"),
    ),
    ("grad_accum", re.compile(r"[Gg]radient [Aa]ccumulation steps = (\d{1,15})")),
    ("effective_batch", re.compile(r"Total train batch size[^=]*= ([\d,]+)")),
    ("total_steps", re.compile(r"Total optimization steps = ([\d,]+)")),
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
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:[= ]+(?!--)(\"[^\"]*\"|'[^']*'|[^\s'\"]+))?")
_DUMP = re.compile(r"^\s*[\"']?([A-Za-z][\w.]{3,40})[\"']?\s*(?:\.{3,}|[:=])\s*[\"']?([\w.+-]{1,40})[\"']?,?\s*$")


def parse(window: Window) -> Iterator[Setting | Launch]:
    """Settings under canonical names, and launch commands."""
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
            for name, value in canonical(flag[1], raw):
                yield Setting(source=source, rank=line.rank, name=name, value=value, raw=flag.group()[:200])
        if not flags and (dump := _DUMP.match(text)):
            for name, value in canonical(dump[1], dump[2]):
                yield Setting(source=source, rank=line.rank, name=name, value=value, raw=text.strip()[:200])


def _number(text: str) -> int | None:
    text = text.strip()
    if text[-1:] in "KMB" and "iB" not in text and "GB" not in text:
        scale = {"K": 10**3, "M": 10**6, "B": 10**9}[text[-1]]
        return round(float(text[:-1].replace(",", "")) * scale)
    if text[-2:] in ("iB", "GB", "MB"):
        return parse_size(text)
    try:
        return int(float(text.replace(",", "")))
    except ValueError:
        return None
