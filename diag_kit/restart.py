"""The run's own launch line with half the micro-batch and twice the accumulation: the same effective batch, less
memory.
"""

from __future__ import annotations

import re
from typing import Any

from .evidence.names import canonical
from .evidence.run import Run
from .units import format_bytes

_FLAG = re.compile(
    r"(?P<lead>(?:--|(?<=\s))(?P<key>[A-Za-z][\w.-]*))(?P<gap>=|\s+)(?P<quote>[\"']?)(?P<value>\d+)(?P=quote)(?=\s|$)"
)

_SECRET = re.compile(
    r"(?P<name>(?<!\S)(?!-{0,2}(?:pad|eos|bos|unk|sep|cls|mask)_)[\w-]*(?:(?<![a-z])token(?!iz|s)|secret|passw(?:or)?d|"
    r"api[_-]?key|access[_-]?key|credential)[\w-]*)(?P<gap>=|\s+)(?!--)(?:\"[^\"]*\"|'[^']*'|\S+)",
    re.I,
)
_COMPANION = {"per_device_train_batch_size": "gradient_accumulation_steps"}
"""Flag of the micro-batch -> flag of the accumulation steps in the same syntax, where the command leaves it at one."""


def line(run: Run, known: Any) -> str | None:
    """The restart line, with the predicted peak as a comment where the model is known; None where no launch line is.

    Args:
        run: its last launch command and its settings are read.
        known: memory settings of the run, or None.
    """
    settings = run.settings
    batch = settings["micro_batch"].value if "micro_batch" in settings else None
    if not run.launches or not isinstance(batch, int) or batch < 2:
        return None
    command = without_secrets(run.launches[-1].command)
    accumulation = settings["grad_accum"].value if "grad_accum" in settings else 1
    changed, flags = _with(command, {"micro_batch": batch // 2, "grad_accum": accumulation * 2})
    batch_flag = changed.get("micro_batch")
    if batch_flag is None or batch % 2:
        return None
    if "grad_accum" not in changed:
        if batch_flag in _COMPANION:
            flags = f"{flags} --{_COMPANION[batch_flag]} {accumulation * 2}"
        elif "global-batch-size" not in flags:  # Megatron derives the accumulation from the global batch
            return None
    if known is None:
        return flags
    from .memory.formulas import estimate

    smaller = known.with_(micro_batch=batch // 2, grad_accum=accumulation * 2)
    before, after = (format_bytes(estimate(one).peak_allocated_bytes) for one in (known, smaller))
    return f"{flags}   # predicted peak {after}, was {before}"


def without_secrets(command: str) -> str:
    """The command with values of secret settings replaced by the shell variable that should hold them.

    >>> without_secrets("HF_TOKEN=hf_abc python t.py --api-key sk-1 --max_tokens 512")
    'HF_TOKEN=$HF_TOKEN python t.py --api-key $API_KEY --max_tokens 512'
    """

    def variable(found: re.Match[str]) -> str:
        name = found["name"].lstrip("-").replace("-", "_").upper()
        return f"{found['name']}{found['gap']}${name}"

    return _SECRET.sub(variable, command)


def _with(command: str, values: dict[str, int]) -> tuple[dict[str, str], str]:
    """The command with settings replaced in its own syntax, and the flag that each was found under."""
    changed: dict[str, str] = {}

    def put(found: re.Match[str]) -> str:
        for name, _ in canonical(found["key"], found["value"]):
            if name in values:
                changed[name] = found["key"]
                return f"{found['lead']}{found['gap']}{found['quote']}{values[name]}{found['quote']}"
        return found.group()

    return changed, _FLAG.sub(put, command)
