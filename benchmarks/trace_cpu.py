"""Real execution on this machine's CPU beside the trace and the closed forms, configuration by configuration.

    python benchmarks/trace_cpu.py                # runs each for real, traces it, prints bytes and errors
    python benchmarks/trace_cpu.py --recorded     # takes the real figures from data/measured/cpu_profiler.json
    python benchmarks/trace_cpu.py --write        # and writes them there
    python benchmarks/trace_cpu.py --only t5      # configurations whose name holds "t5"

What is real: torch's profiler reports every allocation of the CPU allocator, those inside kernels included, from before
the model is built. The step is the one that the trace takes, by the same code on tensors that hold memory. Compared is
the second optimizer step, which begins with the optimizer's state alive; so does the traced figure.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread: kernels of several allocate by their number

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from diag_kit.errors import DiagKitError
from diag_kit.memory import formulas
from diag_kit.memory.settings import Settings
from diag_kit.memory.trace import models, step
from diag_kit.units import MIB

OUT = Path(__file__).parents[1] / "data" / "measured" / "cpu_profiler.json"
TOLERANCE = 5e-4
"""Of the real peak."""

_DECODER = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "max_position_embeddings": 2048}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    **_DECODER,
    "num_key_value_heads": 2,
    "intermediate_size": 688,
    "vocab_size": 8000,
    "tie_word_embeddings": False,
}
WIDE_HEAD = {**LLAMA, "num_hidden_layers": 2, "vocab_size": 32000, "tie_word_embeddings": True}
UNTIED = {**WIDE_HEAD, "tie_word_embeddings": False}
# 16-bit products are slow on a CPU: these are smaller.
SLIM = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
SLIM_LLAMA = {**LLAMA, **SLIM, "intermediate_size": 344}
QWEN2 = {**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
SLIM_QWEN2 = {**QWEN2, **SLIM, "intermediate_size": 344}
WINDOWS = {**QWEN2, "use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2}
GEMMA2 = {
    **LLAMA,
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    "head_dim": 48,
    "num_key_value_heads": 4,
    "sliding_window": 96,
    "tie_word_embeddings": True,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 256,
    "n_layer": 4,
    "n_head": 8,
    "n_positions": 1024,
    "vocab_size": 8000,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
SLIM_GPT2 = {**GPT2, "n_embd": 128, "n_layer": 3, "n_head": 4}
OPT = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    **_DECODER,
    "word_embed_proj_dim": 256,
    "ffn_dim": 1024,
    "vocab_size": 8000,
    "dropout": 0.0,
}
SLIM_OPT = {**OPT, **SLIM, "word_embed_proj_dim": 128, "ffn_dim": 512}
BERT = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    **_DECODER,
    "intermediate_size": 1024,
    "vocab_size": 8000,
    "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
ROBERTA = {**BERT, "model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "max_position_embeddings": 514}
VIT = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "image_size": 224,
    "patch_size": 16,
    "num_labels": 1000,
}
SLIM_VIT = {**VIT, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 256,
    "d_kv": 32,
    "d_ff": 1024,
    "num_layers": 3,
    "num_decoder_layers": 3,
    "num_heads": 8,
    "vocab_size": 8000,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]

CASES: dict[str, dict[str, Any]] = {
    # name: (configuration under "config"), settings
    "llama-eager": {"config": LLAMA, "micro_batch": 2, "seq_len": 512, "attention": "eager"},
    "llama-sdpa": {"config": LLAMA, "micro_batch": 2, "seq_len": 512},
    "llama-sdpa-one": {"config": LLAMA, "micro_batch": 1, "seq_len": 768},
    "llama-eager-one-ckpt": {
        "config": LLAMA,
        "micro_batch": 1,
        "seq_len": 768,
        "attention": "eager",
        "checkpointing": "full",
    },
    "llama-sdpa-ckpt": {"config": LLAMA, "micro_batch": 3, "seq_len": 384, "checkpointing": "full"},
    "llama-sdpa-selective": {"config": LLAMA, "micro_batch": 2, "seq_len": 512, "checkpointing": "selective"},
    "llama-sdpa-bf16": {"config": SLIM_LLAMA, "micro_batch": 3, "seq_len": 384, "precision": "bf16"},
    "llama-sdpa-amp": {"config": SLIM_LLAMA, "micro_batch": 2, "seq_len": 512, "precision": "amp-bf16"},
    "llama-eager-amp-ckpt-accum2": {
        "config": SLIM_LLAMA,
        "micro_batch": 1,
        "seq_len": 512,
        "attention": "eager",
        "precision": "amp-bf16",
        "checkpointing": "full",
        "grad_accum": 2,
    },
    "llama-sdpa-accum4": {"config": LLAMA, "micro_batch": 2, "seq_len": 256, "grad_accum": 4},
    "llama-eager-deferred3": {
        "config": LLAMA,
        "micro_batch": 1,
        "seq_len": 384,
        "attention": "eager",
        "grad_accum": 3,
        "backward": "deferred",
    },
    "llama-sdpa-deferred3-ckpt": {
        "config": LLAMA,
        "micro_batch": 2,
        "seq_len": 384,
        "grad_accum": 3,
        "backward": "deferred",
        "checkpointing": "full",
    },
    "llama-sdpa-logits-let-go": {"config": LLAMA, "micro_batch": 2, "seq_len": 768, "keep_logits": False},
    "llama-foreach": {"config": UNTIED, "micro_batch": 1, "seq_len": 64, "optimizer": "adamw-foreach"},
    "llama-loop": {"config": UNTIED, "micro_batch": 1, "seq_len": 32, "optimizer": "adamw-loop"},
    "llama-fused": {"config": UNTIED, "micro_batch": 1, "seq_len": 128, "optimizer": "adamw-fused"},
    "llama-sgd": {"config": WIDE_HEAD, "micro_batch": 2, "seq_len": 192, "optimizer": "sgd"},
    "llama-fused-loss": {"config": WIDE_HEAD, "micro_batch": 2, "seq_len": 512, "fused_loss": True},
    "llama-lora-ckpt": {
        "config": LLAMA,
        "micro_batch": 2,
        "seq_len": 512,
        "checkpointing": "full",
        "lora": {"rank": 8, "targets": QKVO},
    },
    "qwen2-lora-bf16": {
        "config": SLIM_QWEN2,
        "micro_batch": 2,
        "seq_len": 384,
        "precision": "bf16",
        "lora": {"rank": 16, "targets": [*QKVO, "up_proj", "down_proj"]},
    },
    "qwen2-sdpa-accum2": {"config": QWEN2, "micro_batch": 2, "seq_len": 384, "grad_accum": 2},
    "gemma2-eager": {"config": GEMMA2, "micro_batch": 2, "seq_len": 384, "attention": "eager"},
    "gemma2-eager-ckpt": {
        "config": GEMMA2,
        "micro_batch": 1,
        "seq_len": 640,
        "attention": "eager",
        "checkpointing": "full",
    },
    "qwen2-windows-sdpa": {"config": WINDOWS, "micro_batch": 2, "seq_len": 384},
    "gpt2-eager": {"config": GPT2, "micro_batch": 2, "seq_len": 512, "attention": "eager"},
    "gpt2-eager-dropout": {"config": GPT2, "micro_batch": 2, "seq_len": 384, "attention": "eager", "dropout": 0.1},
    "gpt2-sdpa-dropout-ckpt": {
        "config": GPT2,
        "micro_batch": 2,
        "seq_len": 384,
        "dropout": 0.1,
        "checkpointing": "full",
    },
    "gpt2-sdpa-bf16-foreach": {
        "config": SLIM_GPT2,
        "micro_batch": 2,
        "seq_len": 384,
        "precision": "bf16",
        "optimizer": "adamw-foreach",
    },
    "opt-sdpa": {"config": OPT, "micro_batch": 2, "seq_len": 512},
    "opt-eager-amp": {
        "config": SLIM_OPT,
        "micro_batch": 2,
        "seq_len": 384,
        "attention": "eager",
        "precision": "amp-bf16",
        "dropout": 0.1,
    },
    "bert-eager": {"config": BERT, "micro_batch": 4, "seq_len": 384, "attention": "eager", "dropout": 0.1},
    "bert-sdpa-accum4-ckpt": {
        "config": BERT,
        "micro_batch": 4,
        "seq_len": 256,
        "grad_accum": 4,
        "checkpointing": "full",
    },
    "roberta-mlm-sdpa": {"config": ROBERTA, "micro_batch": 3, "seq_len": 384},
    "vit-sdpa": {"config": VIT, "micro_batch": 8, "seq_len": 197},
    "vit-eager-amp": {
        "config": SLIM_VIT,
        "micro_batch": 4,
        "seq_len": 197,
        "attention": "eager",
        "precision": "amp-bf16",
    },
    "t5-sdpa-ckpt": {"config": T5, "dropout": 0.1, "micro_batch": 2, "seq_len": 256, "checkpointing": "full"},
    "t5-eager": {"config": T5, "dropout": 0.1, "micro_batch": 2, "seq_len": 384, "attention": "eager"},
}
"""Settings by name; ``config`` is a transformers configuration of a small model."""


def document(name: str) -> dict[str, Any]:
    """The settings document of a case."""
    case = dict(CASES[name])
    return {"model": {"hf_config": case.pop("config")}, **case, "device": "cpu"}


class Marks(step.Nobody):
    """A watcher that only marks where phases begin, so that the profiler's events can be told apart."""

    def mark(self, phase: str, micro_step: int = 0) -> None:
        """A phase begins."""
        with record_function(f"phase {phase}"):
            pass


def measure(settings: Settings) -> dict[str, Any]:
    """A real run of two optimizer steps: ``peak_bytes`` of the second, ``highest_bytes`` in each phase of it, ``end_bytes``
    alive at its end, and how many ``events`` the profiler saw."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job = models.build(settings)
        optimizer = job.optimizer([p for p in job.model.parameters() if p.requires_grad])
        step.optimizer_step(job, settings, optimizer, step.Nobody())
        step.optimizer_step(job, settings, optimizer, Marks())
    told = [(e.start_ns(), e.name(), e.nbytes()) for e in profiler.profiler.kineto_results.events() if _told(e)]
    live, phase, highest = 0, "", {}
    for _, name, size in sorted(told, key=itemgetter(0)):
        if name == "[memory]":
            live += size
        else:
            phase = name.removeprefix("phase ")
        if phase:
            highest[phase] = max(highest.get(phase, 0), live)
    return {"peak_bytes": max(highest.values()), "highest_bytes": highest, "end_bytes": live, "events": len(told)}


def _told(event: Any) -> bool:
    return event.name() == "[memory]" or event.name().startswith("phase ")


def trace(s: Settings) -> int:
    """Peak of the second optimizer step, traced without memory."""
    return step.Session(s).record(s.micro_batch, s.seq_len, s.grad_accum).peak_bytes()


def versions() -> dict[str, str]:
    """What the figures were measured with."""
    names = ("torch", "transformers", "peft")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def rows(names: list[str], recorded: bool) -> Iterator[tuple[str, dict[str, Any], int | None, int | None, str]]:
    """Case by case: its name, the real figures, the traced peak and the closed form's, and seconds or what is wrong."""
    held = json.loads(OUT.read_text(encoding="utf-8"))["cases"] if recorded else {}
    for name in names:
        s = Settings.from_json(document(name))
        start = time.perf_counter()
        real = held[name] if recorded else measure(s)
        middle, traced, formula, words = time.perf_counter(), None, None, ""
        try:
            traced = trace(s)
        except DiagKitError as e:
            words = str(e)
        end = time.perf_counter()
        with contextlib.suppress(DiagKitError):
            formula = formulas.estimate(s).peak_allocated_bytes
        yield name, real, traced, formula, words or f"{middle - start:.1f} s, {end - middle:.1f} s"


def main() -> int:
    """Print the table; write the real figures where asked. Exit status 1 where a trace is off by more than promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {OUT.name}")
    parser.add_argument("--recorded", action="store_true", help="take the real figures from the file")
    parser.add_argument("--only", default="", metavar="PART", help="configurations whose name holds this")
    arguments = parser.parse_args()
    names = [name for name in CASES if arguments.only in name]
    measured, worst = {}, 0.0
    print(
        f"{'':30} {'real MiB':>9} {'traced':>9} {'error':>9} {'formula':>9} {'error':>7}   peak in; seconds real, traced"
    )
    for name, real, traced, formula, words in rows(names, arguments.recorded):
        peak = real["peak_bytes"]
        measured[name] = {"settings": document(name), **real}
        error = traced / peak - 1 if traced else None
        worst = max(worst, 1.0 if error is None else abs(error))
        told = [f"{x / MIB:9.2f}" if x else f"{'-':>9}" for x in (peak, traced, formula)]
        off = f"{error:+9.3%}" if error is not None else f"{'-':>9}"
        rough = f"{formula / peak - 1:+7.1%}" if formula else f"{'-':>7}"
        where = max(real["highest_bytes"], key=real["highest_bytes"].get)
        print(f"{name:30} {told[0]} {told[1]} {off} {told[2]} {rough}   {where}; {words}", flush=True)
    print(f"\n{len(measured)} configurations, largest error of the trace {worst:.3%}, promised {TOLERANCE:.2%}")
    if arguments.write and not arguments.only:
        text = json.dumps({"versions": versions(), "machine": platform.machine(), "cases": measured}, indent=1)
        OUT.write_text(text + "\n", encoding="utf-8")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
