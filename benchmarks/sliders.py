"""What a slider's step costs and how exact it is: a traced program at points far from those it was made of.

    python benchmarks/sliders.py            # each model: traces made, bytes off at held-out points, time of a step
    python benchmarks/sliders.py --write    # and writes data/measured/held_out.json

Beside the time of a step stands what one would do without polynomials: trace the step anew at the new point.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["DIAG_KIT_CACHE"] = tempfile.mkdtemp()

from diag_kit.memory.exact import Exact
from diag_kit.memory.settings import Settings
from diag_kit.memory.trace.step import Session
from diag_kit.units import format_bytes

OUT = Path(__file__).parents[1] / "data" / "measured" / "held_out.json"
LLAMA_1B = {"n_layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256, "tied_embeddings": True}
LLAMA_7B = {"n_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008, "vocab": 32000}
GPT2 = {"n_layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 50257, "gated_ffn": False, "positions": 8192,
        "tied_embeddings": True, "activation": "gelu_new"}  # fmt: skip
GEMMA2 = {"hf_config": {
    "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_size": 2304, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216,
    "vocab_size": 256000, "sliding_window": 4096, "max_position_embeddings": 8192,
}}  # fmt: skip
BERT = {"hf_config": {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 1024,
    "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096, "vocab_size": 30522,
    "max_position_embeddings": 512,
}}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], list[tuple[int, int, int, int]]]] = {
    # settings, and held-out points: micro-batch, length, layers, micro-steps
    "llama 1B bf16": ({"model": LLAMA_1B, "precision": "bf16"}, [(1, 33, 6, 1), (1, 4096, 5, 1), (1, 8191, 4, 1)]),
    "llama 7B bf16 eager": (
        {"model": LLAMA_7B, "precision": "bf16", "attention": "eager", "micro_batch": 2},
        [(2, 4096, 5, 1), (5, 777, 6, 1), (7, 100, 4, 1)],
    ),
    "llama 1B amp, checkpointing, accumulation": (
        {"model": LLAMA_1B, "precision": "amp-bf16", "checkpointing": "full", "micro_batch": 4, "grad_accum": 4},
        [(4, 2048, 5, 7), (2, 1001, 6, 2), (9, 64, 4, 4)],
    ),
    "gpt-2 deferred backward": (
        {"model": GPT2, "micro_batch": 2, "grad_accum": 3, "backward": "deferred", "attention": "eager"},
        [(3, 1000, 5, 6), (2, 77, 7, 2), (5, 2048, 4, 4)],
    ),
    "gemma-2 2B lora": (
        {"model": GEMMA2, "precision": "bf16", "micro_batch": 2, "lora": {"rank": 16}, "checkpointing": "full"},
        [(3, 1000, 10, 1), (2, 3000, 8, 1)],
    ),
    "bert-large amp-fp16 on a T4": (
        {"model": BERT, "precision": "amp-fp16", "micro_batch": 8, "seq_len": 384, "gpu": "T4"},
        [(16, 512, 6, 1), (3, 99, 5, 1)],
    ),
}


def held_out(document: dict[str, Any], points: list[tuple[int, int, int, int]]) -> dict[str, Any]:
    """One model: traces it, then compares program and trace at each point."""
    s = Settings.from_json(document)
    exact = Exact(s)
    start = time.process_time()
    traced, here = exact.at(s)
    made = time.process_time() - start
    off, retraced = [], []
    for b, n, layers, k in points:
        found, p = exact.at(s.with_(micro_batch=b, seq_len=n, grad_accum=k))
        recording = Session(s, layers)
        start = time.perf_counter()
        real = recording.record(b, n, k)
        retraced.append(time.perf_counter() - start)
        rounding = found.program.rounding
        for own in real.allocations:
            own.bytes = -(-own.bytes // rounding) * rounding
        off.append(found.program.peak_bytes(p._replace(layers=layers)) - real.peak_bytes())
    times = []
    for n in range(200):
        start = time.perf_counter()
        traced.program.totals(here._replace(seq_len=here.seq_len + 8 * n))
        times.append(time.perf_counter() - start)
    return {
        "settings": document,
        "peak_bytes": traced.program.peak_bytes(here),
        "self_check_off_bytes": traced.off_bytes,
        "points": points,
        "off_bytes": off,
        "trace_cpu_seconds": round(made, 1),
        "step_ms": round(statistics.median(times) * 1e3, 3),
        "retrace_ms": round(statistics.median(retraced) * 1e3),
    }


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {OUT.name}")
    arguments = parser.parse_args()
    records = {}
    for name, (document, points) in CASES.items():
        found = records[name] = held_out(document, points)
        ratio = found["retrace_ms"] / found["step_ms"]
        print(
            f"{name:44} {format_bytes(found['peak_bytes']):>10}  off at held-out points {found['off_bytes']} bytes  "
            f"traced in {found['trace_cpu_seconds']} s of CPU; a step {found['step_ms']} ms, ×{ratio:,.0f} a new trace"
            " of a few layers",
            flush=True,
        )
    if arguments.write:
        OUT.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
