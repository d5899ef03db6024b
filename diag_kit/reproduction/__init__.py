"""From a diagnosis to a script that runs the failed run's step alone: its shape, its longest batch, not its code.

The script needs torch and no diag-kit. What it prints is a log format (``evidence.parsers.reproduction``): laid beside
the run's logs it is evidence, which ``reproduced`` judges. Nothing of the evidence enters the script but as a literal,
redacted as a report is; the same evidence gives the same text.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import DiagKitError, EvidenceError
from ..findings import Diagnosis
from ..memory.settings import Settings
from ..prefill import ASSUMED_MODEL, failing_point, prefill
from ..redact import Redactor
from ..reproduced import failure_key
from ..units import format_bytes

VERSION = 1
SEED = 20240229
NAME = "reproduce.py"
_TEMPLATE = Path(__file__).with_name("script.txt")
_WIDTH = 120
_ASSUMED = {
    "model": f"no line names the model's shape: {ASSUMED_MODEL} stands for it; its config.json would tell",
    "micro_batch": "no line states sequences per device and micro-step; the launch command would tell",
    "seq_len": "no line states tokens per sequence; the failing batch's shape would tell",
    "grad_accum": "no line states micro-steps per optimizer step; the launch command would tell",
    "precision": "no line states the weights' dtype or autocast; the training settings would tell",
    "optimizer": "no line names the optimizer; the training settings would tell",
    "attention": "no line names the attention kernel; the model's config or the launch command would tell",
    "checkpointing": "no line says whether activations are checkpointed; the training settings would tell",
}
"""Settings that a step's memory hangs on -> what to say where the evidence doesn't state them."""
_RUN = ("micro_batch", "seq_len", "grad_accum", "backward", "precision", "optimizer", "attention", "dropout")
_SECRET = re.compile(r"secret|passw|api_?key|auth|credential|_name_or_path|_commit_hash|url", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,60}")
_ALLOCATOR = re.compile(r"[\w:,.\[\]>-]{1,200}")
_MARK = re.compile(r"^\s*#: (if \w+|else|end)$")


@dataclass(frozen=True, slots=True)
class Script:
    """A script and what stands behind it.

    Attributes:
        text: Python source.
        settings: that it runs with.
        stated: setting -> where the evidence states it. assumed: setting -> why it is a guess.
        left_out: what of the run it does not do.
    """

    text: str
    settings: Settings
    stated: Mapping[str, str]
    assumed: Mapping[str, str]
    left_out: Mapping[str, str]


def script(
    diagnosis: Diagnosis, roots: Sequence[Path] = (), *, settings: Settings | None = None, name: str = NAME
) -> Script:
    """The reproduction of a diagnosed run.

    Args:
        diagnosis: of the run; what it does not state is assumed, and listed.
        roots: what was read, where the model's ``config.json`` is looked for.
        settings: to run instead of those that the evidence states.
        name: the file that the script will be, for the commands in its head.
    """
    found, origins, _ = prefill(diagnosis, roots)
    s, named = settings or found, (*_ASSUMED, "dropout", "backward")
    stated = {} if settings else {key: where for key, where in origins.items() if key in named}
    assumed = {} if settings else {key: why for key, why in _ASSUMED.items() if key not in stated}
    if "growth" in stated.get("backward", ""):
        del stated["backward"]
        assumed["backward"] = "memory grew per micro-step: graphs kept to the window's end stand for what keeps them"
    hosts = {moment.host for moment in diagnosis.timeline} | {diagnosis.failure.host if diagnosis.failure else None}
    redactor = Redactor(hosts=sorted(host for host in hosts if host))
    redactor.learn([stated, [str(file.path) for file in diagnosis.files]])
    own = s.exact.config if s.exact and not s.exact.uncovered and s.model.lm_head and not s.model.encoder else None
    config = _plain_config(redactor.walk(own)) if own else None
    left_out = dict(_left_out(s, diagnosis, config))
    alloc = diagnosis.settings.get("alloc_conf", ("",))[0]
    alloc = alloc if isinstance(alloc, str) and _ALLOCATOR.fullmatch(alloc) else ""
    m = s.model
    constants: dict[str, Any] = {
        "VERSION": VERSION, "SEED": SEED, "EXPECTED": _expected(diagnosis), "MODEL": asdict(m),
        "SETTINGS": {"longest": max(s.seq_len, 0 if settings else _longest(diagnosis)), "vocab": m.vocab}
        | {key: getattr(s, key) for key in _RUN}
        | {"checkpointing": "none" if s.checkpointing == "none" else "full"},
        "STATED": stated, "ASSUMED": assumed, "LEFT_OUT": left_out, **({"CONFIG": config} if config else {}),
    }  # fmt: skip
    text = "\n".join(f"{key} = {_literal(redactor.walk(value), len(key) + 3)}" for key, value in constants.items())
    parts = {"rms": m.norm == "rms", "fused_qkv": m.fused_qkv, "gated_ffn": m.gated_ffn, "learned": m.positions > 0,
             "rotary": m.positions == 0, "tied": m.tied_embeddings and m.lm_head, "causal": not m.encoder,
             "lm_head": m.lm_head, "config": config is not None, "alloc_conf": alloc}  # fmt: skip
    words = {
        "NAME": name if _WORD.fullmatch(name) else NAME,
        "CONSTANTS": text,
        "ALLOC_CONF": _literal(alloc),
        "NORM": "RMSNorm" if m.norm == "rms" else "nn.LayerNorm",
        "ACT": "silu" if m.activation == "silu" else "gelu",
        "ACT_MORE": ', approximate="tanh"' if m.activation == "gelu_new" else "",
        "SOFTMAX": ", dtype=torch.float32" if m.norm == "rms" else "",
        "CAUSAL": str(not m.encoder),
        "CLASSES": 'm["vocab"]' if m.lm_head else "2",
    }
    body = "".join(_chosen(_TEMPLATE.read_text(encoding="utf-8").splitlines(keepends=True), parts))
    return Script(re.sub(r"@@(\w+?)@@", lambda mark: words[mark[1]], body), s, stated, assumed, left_out)


def write(diagnosis: Diagnosis, roots: Sequence[Path] = (), *, settings: Settings | None = None) -> str:
    """The text of ``script``."""
    return script(diagnosis, roots, settings=settings).text


def save(path: str | Path, diagnosis: Diagnosis, roots: Sequence[Path] = ()) -> tuple[Path, Script]:
    """Write the script to a file; an existing one is overwritten only where it is such a script.

    Raises:
        EvidenceError: the file is something else. DiagKitError: it can't be written. One line.
    """
    path = Path(path).expanduser()
    made = script(diagnosis, roots, name=path.name)
    try:
        if path.exists() and not _is_ours(path):
            raise EvidenceError(f"{path}: is there already, and no reproduction of diag-kit's; name another file")
        path.write_text(made.text, encoding="utf-8")
    except OSError as error:
        raise DiagKitError(f"{path}: can't be written ({error.strerror}); choose another file") from error
    return path, made


def _is_ours(path: Path) -> bool:
    """Whether a file is such a script, by its head alone; a pipe or a device, which may have no end, is none."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return "Written by diag-kit" in file.read(1000)


def commands(path: Path) -> tuple[str, str]:
    """The two ways to run a script that was saved: at the run's size, and scaled down."""
    given = str(path)
    name = shlex.quote(given if not given.startswith("-") else f"./{given}")
    out, small = (shlex.quote(f"--out={path.stem}{more}.jsonl") for more in ("", "-small"))
    if path.stem[:1] != "-" and out == f"--out={path.stem}.jsonl":  # nothing to quote
        out, small = out.replace("=", " "), small.replace("=", " ")
    return f"python {name} {out}", f"python {name} --small {small}"


def _expected(diagnosis: Diagnosis) -> dict[str, Any]:
    """What the run failed with, to compare with."""
    failure = diagnosis.failure if diagnosis.family == "gpu-oom" else None
    asked = failure.facts.get("tried_to_allocate_bytes") if failure else None
    return {
        "failure": failure_key(failure),
        "phase": failure.phase if failure and failure.phase != "unknown" else None,
        "asked": asked and format_bytes(asked),
        "capacity_bytes": failure.facts.get("total_bytes") if failure else None,
    }


def _longest(diagnosis: Diagnosis) -> int:
    failing = diagnosis.figures.get("failing_length")
    point = failing_point(diagnosis)
    return int(failing or (point.seq_len if point and point.seq_len else 0))


def _left_out(s: Settings, diagnosis: Diagnosis, config: Any) -> Iterator[tuple[str, str]]:
    """What the run does and the script does not."""
    p = s.parallelism
    strategy, ranks = diagnosis.settings.get("strategy", (None,))[0], diagnosis.settings.get("world_size", (None,))[0]
    if diagnosis.family != "gpu-oom":
        yield "failure", "the evidence shows no failure on GPU memory; this measures what a step of the settings takes"
    if p.strategy != "none" or p.world_size > 1 or strategy or (isinstance(ranks, int) and ranks > 1):
        yield "parallelism", "one process holds the whole model; what ranks share or exchange is not here"
    if s.lora or "lora" in diagnosis.settings:
        yield "lora", "every parameter is trained; the run trained adapters alone"
    if s.base_quantization:
        yield "base_quantization", "weights are held in full width"
    if s.fused_loss:
        yield "fused_loss", "all logits are made"
    if s.checkpointing == "selective":
        yield "checkpointing", "full checkpointing stands for selective: less is kept than in the run"
    if s.gradient_dtype or s.optimizer_state_dtype:
        yield "dtypes", "gradients and optimizer state have the parameters' dtype"
    if "model" in diagnosis.settings and config is None:
        yield "modelling code", "a plain transformer of the stated shape stands for the run's own model code"


def _plain_config(config: Any) -> Any:
    """A configuration's numbers, switches and names; nothing that is a path, an address or a key."""
    if isinstance(config, Mapping):
        kept = {str(k): _plain_config(v) for k, v in config.items() if not _SECRET.search(str(k))}
        return {k: v for k, v in kept.items() if v is not None}
    if isinstance(config, list | tuple):
        return [_plain_config(one) for one in config]
    if isinstance(config, str):
        return config if _WORD.fullmatch(config) else None
    return config if isinstance(config, bool | int) or (isinstance(config, float) and math.isfinite(config)) else None


def _chosen(lines: Sequence[str], parts: Mapping[str, Any]) -> Iterator[str]:
    """The template's lines whose conditions hold; conditions do not nest."""
    keep, condition = True, ""
    for line in lines:
        if mark := _MARK.match(line):
            word, _, condition = mark[1].partition(" ") if mark[1].startswith("if") else (mark[1], "", condition)
            keep = True if word == "end" else bool(parts[condition]) == (word == "if")
        elif keep:
            yield line


def _inside(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()


def _literal(value: Any, used: int = 0, indent: int = 0) -> str:
    """A value as Python source, in ASCII, one line where it fits: nothing in it can end the literal."""
    if isinstance(value, str):
        return '"' + value.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
    if isinstance(value, float) and not math.isfinite(value):
        return "None" if math.isnan(value) else "-1e999" if value < 0 else "1e999"  # literals still
    if not isinstance(value, Mapping | list | tuple):
        return repr(value)
    pairs: list[tuple[Any, Any]] = list(value.items()) if isinstance(value, Mapping) else [(None, one) for one in value]
    open_, close = "{}" if isinstance(value, Mapping) else "[]"

    def item(key: Any, one: Any, deeper: int) -> str:
        head = "" if key is None else f"{_literal(str(key))}: "
        return head + _literal(one, len(head) + 1, deeper)

    pad, most = " " * (indent + 4), _WIDTH - 1
    if len(pairs) > 6 and not any(isinstance(inner, Mapping | list) for _, one in pairs for inner in _inside(one)):
        rows = [pad]
        for key, one in pairs:  # as many on a line as it takes
            text = item(key, one, indent + 4)
            fits = len(rows[-1]) + len(text) + 2 <= most and "\n" not in text
            rows = [*rows[:-1], f"{rows[-1]}{text}, "] if fits else [*rows, f"{pad}{text}, "]
        return "\n".join([open_, *(row.rstrip() for row in rows if row.strip()), " " * indent + close])
    line = open_ + ", ".join(item(key, one, indent) for key, one in pairs) + close
    if "\n" not in line and indent + used + len(line) <= _WIDTH:
        return line
    return f"{open_}\n" + "".join(f"{pad}{item(key, one, indent + 4)},\n" for key, one in pairs) + " " * indent + close
