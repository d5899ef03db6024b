"""The lab's own process: runs experiments one after another and prints each outcome as a line of JSON.

    python -m diag_kit.lab PARENT DEVICE ID...

Lines: ``{"ready": torch's version, "device": ...}``, then for each experiment ``{"start": id}`` and
``{"outcome": {...}}``; or ``{"problem": "..."}`` where none can be run. What else is printed goes to standard error.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import replace
from typing import Any, TextIO

from .catalog import module
from .records import Outcome
from .running import end_with


def main(parent: str, device: str, *ids: str) -> int:
    """Run these; 0 also where an experiment failed, which its outcome says. ``parent``: ends when that process does."""
    end_with(int(parent))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        import torch
    except Exception as error:  # noqa: BLE001 (a broken install raises anything)
        _tell(answers, {"problem": _line(error)})
        return 2
    if device == "cuda" and not torch.cuda.is_available():
        _tell(answers, {"problem": f"torch {torch.__version__} finds no CUDA device; use --device cpu"})
        return 2
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    from .tape import Bench

    torch.set_num_threads(1)
    bench = Bench(device)
    with bench.tape():  # the profiler, matrix libraries and optimizers load themselves at their first use
        layer = torch.nn.Linear(8, 8, device=device)
        layer(torch.ones(2, 8, device=device)).sum().backward()
        torch.optim.AdamW(layer.parameters()).step()
    gc.collect()
    gc.freeze()  # what torch's modules hold need not be looked through at each tape's start
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    _tell(answers, {"ready": torch.__version__, "device": name})
    importing = round(_processor(), 2)
    for id in ids:
        _tell(answers, {"start": id})
        _tell(answers, {"outcome": replace(_outcome(id, bench, name, torch), importing_seconds=importing).to_json()})
    return 0


def _outcome(id: str, bench: Any, device: str, torch: Any) -> Outcome:
    start, processor, bench.importing = time.perf_counter(), _processor(), 0.0
    torch.manual_seed(0)
    try:
        measured = module(id).measure(bench)
        judged = module(id).judge(measured)
    except Exception as error:  # noqa: BLE001 (whatever torch raises here is this experiment's problem)
        return Outcome(id, None, "", device=device, torch=torch.__version__, problem=_line(error))
    seconds, used = time.perf_counter() - start, _processor() - processor - bench.importing
    return Outcome(
        id, judged.verdict, judged.says, measured.x_title, measured.lines, judged.rows, device, torch.__version__,
        round(seconds, 3), round(used, 3), figures=measured.figures,
    )  # fmt: skip


def _processor() -> float:
    """Processor seconds of this process and of those it started and awaited."""
    return sum(os.times()[:4])


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _tell(answers: TextIO, document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
