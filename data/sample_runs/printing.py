"""How programs print: tracebacks of Python 3.11, progress bars, settings files."""

from __future__ import annotations

import json
from collections.abc import Iterable

from .arithmetic import MIB

SITE = "/opt/conda/envs/llm/lib/python3.11/site-packages"
TF, TORCH = f"{SITE}/transformers", f"{SITE}/torch"
Files = dict[str, str]
"""A run's folder: file name -> text."""
Frame = tuple[str, int, str, str]
"""Path, line, function, source line; ``«...»`` in the source line is what Python underlines."""


def traceback(frames: Iterable[Frame], last: str) -> list[str]:
    """A traceback of Python 3.11."""
    lines = ["Traceback (most recent call last):"]
    for path, number, function, code in frames:
        lines += [f'  File "{path}", line {number}, in {function}', "    " + code.replace("«", "").replace("»", "")]
        if "«" in code:
            start, end = code.index("«"), code.index("»") - 1
            lines.append("    " + " " * start + "^" * (end - start))
    return [*lines, last]


CALL: tuple[Frame, ...] = (
    (f"{TORCH}/nn/modules/module.py", 1736, "_wrapped_call_impl", "return «self._call_impl(*args, **kwargs)»"),
    (f"{TORCH}/nn/modules/module.py", 1747, "_call_impl", "return «forward_call(*args, **kwargs)»"),
)
AUTOCAST: tuple[Frame, ...] = (
    (f"{SITE}/accelerate/utils/operations.py", 814, "forward", "return «model_forward(*args, **kwargs)»"),
    (
        f"{SITE}/accelerate/utils/operations.py",
        802,
        "__call__",
        "return convert_to_fp32(«self.model_forward(*args, **kwargs)»)",
    ),
    (f"{TORCH}/amp/autocast_mode.py", 44, "decorate_autocast", "return «func(*args, **kwargs)»"),
)
WRAPPERS: tuple[Frame, ...] = (
    (f"{TF}/utils/generic.py", 965, "wrapper", "output = «func(self, *args, **kwargs)»"),
    (f"{TF}/utils/deprecation.py", 172, "wrapped_func", "return «func(*args, **kwargs)»"),
)
LLAMA = f"{TF}/models/llama/modeling_llama.py"
LLAMA_MODEL: tuple[Frame, ...] = (
    *WRAPPERS,
    (LLAMA, 821, "forward", "outputs: BaseModelOutputWithPast = «self.model(»"),
    *CALL,
    WRAPPERS[0],
    (LLAMA, 571, "forward", "layer_outputs = «decoder_layer(»"),
    *CALL,
)
LLAMA_MLP: tuple[Frame, ...] = (
    (LLAMA, 334, "forward", "hidden_states = «self.mlp(hidden_states)»"),
    *CALL,
    (LLAMA, 172, "forward", "down_proj = self.down_proj(self.act_fn(«self.gate_proj(x)») * self.up_proj(x))"),
    *CALL,
    (f"{TORCH}/nn/modules/linear.py", 125, "forward", "return «F.linear(input, self.weight, self.bias)»"),
)
LLAMA_SOFTMAX: tuple[Frame, ...] = (
    (LLAMA, 318, "forward", "hidden_states, self_attn_weights = «self.self_attn(»"),
    *CALL,
    (LLAMA, 274, "forward", "attn_output, attn_weights = «attention_interface(»"),
    (
        LLAMA,
        206,
        "eager_attention_forward",
        "attn_weights = «nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32)».to(query.dtype)",
    ),
    (f"{TORCH}/nn/functional.py", 2142, "softmax", "ret = «input.softmax(dim, dtype=dtype)»"),
)


def trainer(script: str, line: int, function_line: int) -> tuple[Frame, ...]:
    """Frames from a script through Trainer.train to the model's forward."""
    return (
        (script, line, "<module>", "main()"),
        (script, function_line, "main", "trainer.train()"),
        (f"{TF}/trainer.py", 2245, "train", "return «inner_training_loop(»"),
        (
            f"{TF}/trainer.py",
            2560,
            "_inner_training_loop",
            "tr_loss_step = «self.training_step(model, inputs, num_items_in_batch)»",
        ),
        (
            f"{TF}/trainer.py",
            3736,
            "training_step",
            "loss = «self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)»",
        ),
        (f"{TF}/trainer.py", 3801, "compute_loss", "outputs = «model(**inputs)»"),
        *CALL,
        *AUTOCAST,
    )


def bar(done: int, total: int, seconds: float) -> str:
    """A tqdm progress bar, ten cells wide."""
    cells, rest = divmod(done * 80 // total, 8)
    drawn = ("█" * cells + (" ▏▎▍▌▋▊▉"[rest] if cells < 10 else "")).ljust(10)
    if not done:
        return f"  0%|{drawn}| 0/{total} [{clock(seconds)}<?, ?it/s]"
    each = seconds / done
    rate = f"{each:5.2f}s/it" if each > 1 else f"{1 / each:5.2f}it/s"
    return (
        f"{100 * done // total:3d}%|{drawn}| {done}/{total} [{clock(seconds)}<{clock(each * (total - done))}, {rate}]"
    )


def clock(seconds: float) -> str:
    """mm:ss, as tqdm writes a duration."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:02d}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def above_bar(line: str, drawn: str) -> str:
    """What tqdm.write leaves in a file: the bar wiped, the line, and the caller draws the bar again."""
    return f"\r{' ' * len(drawn)}\r{line}\n"


def jsonl(rows: Iterable[dict[str, object]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def document(data: object) -> str:
    """A settings file."""
    return json.dumps(data, indent=2) + "\n"


def mib(n: float) -> float:
    """Bytes as MiB with one decimal, as a logging callback writes them."""
    return round(n / MIB, 1)
