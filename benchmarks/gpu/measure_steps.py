"""Steps of a training run on a real GPU beside the trace: allocated and reserved bytes by phase, a dozen settings.

    python benchmarks/gpu/measure_steps.py            # needs a CUDA GPU; prints measured and traced
    python benchmarks/gpu/measure_steps.py --write    # and adds them to data/measured/gpu_steps.json

The step is the one that is traced, by the same code (``memory/trace/step.py``); measured is the second optimizer step.
tests/memory/test_gpu_steps.py holds the trace against every measurement in the file.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from diag_kit.memory.engine import estimate
from diag_kit.memory.settings import Settings
from diag_kit.memory.trace import models, step
from diag_kit.units import format_bytes

OUT = Path(__file__).parents[2] / "data" / "measured" / "gpu_steps.json"
LLAMA = {"n_layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256, "tied_embeddings": True}
SMALL = {"n_layers": 12, "hidden": 1024, "heads": 16, "kv_heads": 16, "ffn": 2816, "vocab": 32000}
GPT2 = {"n_layers": 12, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 50257, "gated_ffn": False, "positions": 1024,
        "tied_embeddings": True, "activation": "gelu_new"}  # fmt: skip
LORA = {"rank": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
CASES: dict[str, dict[str, Any]] = {
    "llama-1b-bf16": {"model": LLAMA, "precision": "bf16", "seq_len": 4096},
    "llama-1b-bf16-logits-let-go": {"model": LLAMA, "precision": "bf16", "seq_len": 4096, "keep_logits": False},
    "llama-1b-amp": {"model": LLAMA, "precision": "amp-bf16", "seq_len": 2048},
    "llama-1b-amp-checkpointing": {"model": LLAMA, "precision": "amp-bf16", "seq_len": 4096, "checkpointing": "full"},
    "llama-1b-bf16-selective": {"model": LLAMA, "precision": "bf16", "seq_len": 4096, "checkpointing": "selective"},
    "llama-1b-bf16-fused-loss": {"model": LLAMA, "precision": "bf16", "seq_len": 4096, "fused_loss": True},
    "llama-1b-lora": {"model": LLAMA, "precision": "bf16", "seq_len": 4096, "lora": LORA, "checkpointing": "full"},
    "llama-small-eager": {"model": SMALL, "precision": "bf16", "seq_len": 2048, "micro_batch": 2, "attention": "eager"},
    "llama-small-fp32": {"model": SMALL, "seq_len": 2048, "micro_batch": 2},
    "llama-small-accumulation": {"model": SMALL, "precision": "bf16", "seq_len": 1024, "micro_batch": 4, "grad_accum": 4},
    "llama-small-deferred": {"model": SMALL, "precision": "bf16", "seq_len": 1024, "micro_batch": 4, "grad_accum": 3,
                             "backward": "deferred"},
    "gpt2-amp-fp16": {"model": GPT2, "precision": "amp-fp16", "micro_batch": 8},
    "gpt2-eager-dropout": {"model": GPT2, "precision": "bf16", "micro_batch": 8, "attention": "eager", "dropout": 0.1},
    "llama-small-fused-optimizer": {"model": SMALL, "precision": "bf16", "seq_len": 64, "optimizer": "adamw-fused"},
}  # fmt: skip


class Meter:
    """Highest allocated and reserved bytes of each phase."""

    def __init__(self) -> None:
        self.phase = ""
        self.allocated: dict[str, int] = {}
        self.reserved: dict[str, int] = {}

    def mark(self, phase: str, micro_step: int = 0) -> None:
        """A phase begins: the one before it is read."""
        self.read()
        self.phase = phase

    def book(self, tensors: Any, category: str) -> None:
        """Nothing: the allocator counts."""

    def read(self) -> None:
        """Keep the peaks since the last reading."""
        torch.cuda.synchronize()
        if self.phase:
            self.allocated[self.phase] = max(self.allocated.get(self.phase, 0), torch.cuda.max_memory_allocated())
            self.reserved[self.phase] = max(self.reserved.get(self.phase, 0), torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()


def measure(s: Settings) -> dict[str, Any]:
    """The second optimizer step on the GPU."""
    with torch.device("cuda"):
        job = models.build(s)
        optimizer = job.optimizer([p for p in job.model.parameters() if p.requires_grad])
        step.optimizer_step(job, s, optimizer, step.Nobody())
        meter = Meter()
        meter.read()
        step.optimizer_step(job, s, optimizer, meter)
        meter.read()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated_bytes": meter.allocated,
        "reserved_bytes": meter.reserved,
        "device_bytes": total - free,
        "context_bytes": total - free - torch.cuda.memory_reserved(),
    }


def main() -> int:
    """Measure, print beside the trace, write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"add to {OUT.name}")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("measure_steps: needs a CUDA GPU and a torch built for it; none is here", file=sys.stderr)
        return 2
    gpu = torch.cuda.get_device_name().removeprefix("NVIDIA ")
    records = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else []
    for name, document in CASES.items():
        if arguments.only not in name:
            continue
        document = {**document, "gpu": gpu}
        s = Settings.from_json(document)
        try:
            measured = measure(s)
        except torch.cuda.OutOfMemoryError:
            print(f"{name:32} does not fit here")
            continue
        finally:
            gc.collect()
            torch.cuda.empty_cache()
        traced = estimate(s.with_(method="trace"))
        most = max(measured["allocated_bytes"].values())
        print(f"{name:32} measured {format_bytes(most):>10}, traced {format_bytes(traced.peak_allocated_bytes):>10}, "
              f"{traced.peak_allocated_bytes / most - 1:+.2%}; reserved {format_bytes(max(measured['reserved_bytes'].values()))}, "
              f"replayed {format_bytes(traced.peak_reserved_bytes)}", flush=True)  # fmt: skip
        key = (name, gpu, torch.__version__)
        records = [r for r in records if (r["name"], r["gpu"], r["torch"]) != key]
        records.append({"name": name, "gpu": gpu, "torch": torch.__version__, "settings": document, **measured})
    if arguments.write:
        OUT.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
