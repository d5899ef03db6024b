"""One name for each setting, whatever a framework calls it, and its value in one form.

``canonical`` turns ``per_device_train_batch_size=4`` into ``("micro_batch", 4)``; a pair that no rule knows gives
nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from ..units import parse_size

_SYNONYMS: dict[str, tuple[str, ...]] = {
    "micro_batch": (
        "per_device_train_batch_size",
        "micro_batch_size",
        "train_micro_batch_size_per_gpu",
        "micro_batch",
        "batch_size",
        "imgs_per_gpu",
        "samples_per_gpu",
        "per_gpu_batch_size",
        "train_batch_size_per_device",
        "local_batch_size",
        "per_device_batch_size",
        "device_train_microbatch_size",
        "batch_size_training",
        "batch_size_per_gpu",
    ),
    "seq_len": (
        "seq_length",
        "max_seq_length",
        "max_seq_len",
        "seq_len",
        "sequence_length",
        "block_size",
        "cutoff_len",
        "context_length",
        "sequence_len",
        "encoder_seq_length",
    ),
    "grad_accum": (
        "gradient_accumulation_steps",
        "accumulate_grad_batches",
        "accum_steps",
        "grad_accum_steps",
        "grad_accum",
        "accumulation_steps",
        "accumulate_gradient_steps",
        "depth_first_micro_batches",
        "update_freq",
        "grad_acc_steps",
        "gradient_accumulation",
        "gradient_accumulate_every",
    ),
    "effective_batch": ("global_batch_size", "global_train_batch_size"),
    "tensor_parallel": ("tensor_model_parallel_size", "tensor_parallel_size"),
    "pipeline_parallel": ("pipeline_model_parallel_size", "pipeline_parallel_size"),
    "optimizer": ("optim", "optimizer", "optimizer_name"),
    "attention": ("attn_implementation", "_attn_implementation", "attention", "attention_implementation"),
    "dropout": ("dropout", "hidden_dropout", "attn_pdrop", "attention_dropout", "attention_probs_dropout_prob"),
    "world_size": ("world_size", "num_processes", "nproc_per_node", "num_gpus", "dist_world_size"),
    "num_workers": ("workers_per_gpu", "num_workers", "dataloader_num_workers"),
    "learning_rate": ("learning_rate", "lr"),
    "vocab": ("vocab_size", "padded_vocab_size", "n_vocab"),
    "gradient_dtype": ("gradient_accumulation_dtype", "grad_accum_dtype", "reduce_dtype"),
    "eval_accumulation_steps": ("eval_accumulation_steps",),
    "eval_batch": ("per_device_eval_batch_size", "eval_batch_size"),
    "alloc_conf": ("pytorch_cuda_alloc_conf", "pytorch_alloc_conf"),
    "backward": ("backward",),
}
_NAMES = {synonym: name for name, synonyms in _SYNONYMS.items() for synonym in synonyms}
_INTEGERS = {
    "micro_batch",
    "seq_len",
    "grad_accum",
    "world_size",
    "num_workers",
    "eval_accumulation_steps",
    "eval_batch",
    "vocab",
    "effective_batch",
    "tensor_parallel",
    "pipeline_parallel",
}
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
_PRECISION = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "torch.float16": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
    "torch.float32": "fp32",
    "16-mixed": "amp-fp16",
    "bf16-mixed": "amp-bf16",
    "amp": "amp-fp16",
    "amp-bf16": "amp-bf16",
    "amp-fp16": "amp-fp16",
    "bf16-true": "bf16",
}


def canonical(key: str, raw: Any) -> Iterator[tuple[str, Any]]:
    """Canonical (name, value) pairs of one stated setting; none where the name or the value is not understood.

    >>> list(canonical("per_device_train_batch_size", "4")), list(canonical("bf16", True)), list(canonical("color",
    "red")) ([('micro_batch', 4)], [('precision', 'amp-bf16')], [])
    """
    name = key.strip().replace("-", "_").rpartition(".")[2].lstrip("_").lower()
    full = key.strip().replace("-", "_").lower()
    value = raw.strip() if isinstance(raw, str) else raw
    truth = _truth(value)
    if full == "_attn_implementation":
        name = "attn_implementation"
    if name in ("bf16", "fp16"):
        if truth:
            yield "precision", f"amp-{name}"
    elif name == "torch_dtype":  # how a model's file was saved, which a training run may override
        if known := _PRECISION.get(str(value).lower()):
            yield "weights_dtype", known
    elif name in ("precision", "dtype", "mixed_precision"):
        if known := _PRECISION.get(str(value).lower()):
            mixed = name == "mixed_precision" and known in ("bf16", "fp16")
            yield "precision", f"amp-{known}" if mixed else known
    elif name in (
        "gradient_checkpointing",
        "activation_checkpointing",
        "use_checkpoint",
        "recompute_activations",
        "grad_checkpoint",
        "fsdp_activation_checkpointing",
        "enable_activation_checkpointing",
    ):
        if truth is not None:
            yield "checkpointing", "full" if truth else "none"
    elif name == "recompute_granularity":
        yield "checkpointing", "full" if value == "full" else "selective"
    elif name in ("use_flash_attn", "use_flash_attention", "use_flash_attention_2", "flash_attn", "flash_attention"):
        if truth is not None:
            yield "attention", "flash" if truth else "eager"
    elif name in ("init_from", "resume_from_checkpoint", "resume", "resume_from", "load_checkpoint"):
        if value and str(value).lower() not in ("false", "none", "null", "no", "scratch", "0"):
            yield "resumed", True
    elif name == "set_requires_gradient_sync":
        yield "no_sync", truth is not True
    elif name == "xformers_attention":
        if truth:
            yield "attention", "efficient"
    elif name == "accumulate_allreduce_grads_in_fp32":
        if truth:
            yield "gradient_dtype", "fp32"
    elif name == "distributed_type":  # of accelerate; DeepSpeed's stage stands under a name of its own
        if kind := {"fsdp": "fsdp", "multi_gpu": "ddp"}.get(str(value).lower()):
            yield "strategy", kind
    elif name == "zero_stage" and str(value).isdigit():
        yield "strategy", f"zero{value}"
    elif name in ("fsdp_offload_params", "offload_optimizer_device", "offload_param_device"):
        if truth or str(value).lower() in ("cpu", "nvme"):
            yield "offload", "cpu" if truth else str(value).lower()
    elif name in (
        "packing",
        "sample_packing",
        "no_sync",
        "use_lora",
        "use_liger_kernel",
        "use_liger",
        "sync_each_batch",
    ):
        if truth is not None:
            known = {
                "use_lora": "lora",
                "sample_packing": "packing",
                "use_liger_kernel": "fused_loss",
                "use_liger": "fused_loss",
                "sync_each_batch": "no_sync",
            }.get(name, name)
            if known != "lora" or truth:
                yield known, not truth if name == "sync_each_batch" else truth
    elif name in ("lora_r", "lora_rank") or full.endswith("lora.rank"):
        if number := _integer(value):
            yield "lora", number
    elif name in ("curriculum", "curriculum_learning", "curriculum_type", "rampup_batch_size", "batch_size_rampup"):
        if value and truth is not False:
            yield (
                ("curriculum" if "curriculum" in name else "batch_ramp"),
                value if not isinstance(value, dict) else True,
            )
    elif name == "gpu_memory_utilization" and value:
        yield name, str(value)
    elif name == "device" and "offload" in full and str(value).lower() in ("cpu", "nvme"):
        yield "offload", str(value).lower()
    elif name == "fsdp" and value and truth is not False:
        yield "strategy", "fsdp"
    elif name == "stage" and "zero" in full and str(value).isdigit():
        yield "strategy", f"zero{value}"
    elif name in ("strategy", "distributed_strategy") and isinstance(value, str):
        stage = re.match(r"deepspeed_stage_([123])(_offload)?$", value.lower())
        yield "strategy", f"zero{stage[1]}" if stage else value.lower()
        if stage and stage[2]:
            yield "offload", "cpu"
    elif name in ("n_params", "num_parameters", "parameters") and (number := _integer(value)):
        yield "n_params", number
    elif name in ("gpu_memory", "capacity", "capacity_bytes") and (size := _bytes(value)):
        yield "capacity_bytes", size
    elif name == "backward" and isinstance(value, str) and re.search(r"after|end|once|accumul|defer", value, re.I):
        yield "backward", "deferred"
    elif found := _NAMES.get(name):
        if found in _INTEGERS:
            if (number := _integer(value)) is not None and number > 0:
                yield found, number
        elif found in ("dropout", "learning_rate"):
            try:
                share = float(value)
            except (TypeError, ValueError, OverflowError):
                return
            if math.isfinite(share):
                yield found, share
        elif isinstance(value, str) and value:
            yield found, value.lower().rpartition("optimizernames.")[2]


def _truth(value: Any) -> bool | None:
    text = str(value).lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(str(value).replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return int(number) if abs(number) < 1e15 and number == int(number) else None


def _bytes(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else parse_size(str(value))


def model_shape(data: dict[str, Any]) -> dict[str, Any] | None:
    """Architecture numbers of a transformers config, or of the same numbers under plain names; None where it is
    neither.

    Keys: n_layers, hidden, heads, kv_heads, ffn, gated_ffn, vocab, tied_embeddings, model_type. Source: field names of
    ``transformers`` configuration classes (llama, mistral, qwen2, gpt2, bert, opt).
    """
    inner = data.get("model")
    data = inner if isinstance(inner, dict) and ("n_layers" in inner or "num_hidden_layers" in inner) else data
    text = data.get("text_config")
    data = {**data, **text} if isinstance(text, dict) else data

    def first(*names: str) -> Any:
        return next(
            (
                data[name]
                for name in names
                if isinstance(data.get(name), int) and not isinstance(data[name], bool) and abs(data[name]) < 1 << 50
            ),
            None,
        )

    layers = first("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
    hidden = first("hidden_size", "n_embd", "hidden", "d_model", "dim")
    heads = first("num_attention_heads", "n_head", "heads", "n_heads", "num_heads")
    if not (layers and hidden and heads):
        return None
    named = data.get("architectures")
    classes = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    kind = str(data.get("model_type") or (classes or [""])[0]).lower()
    ffn = first("intermediate_size", "n_inner", "ffn", "ffn_dim", "ffn_hidden_size") or 4 * hidden
    gated = data.get("gated_ffn")
    if gated is None:
        gated = data.get("hidden_act") in ("silu", "swiglu") or any(
            word in kind for word in ("llama", "mistral", "qwen", "gemma", "phi3")
        )
    tied = data.get("tie_word_embeddings", data.get("tied_embeddings"))
    return {
        "n_layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": first("num_key_value_heads", "kv_heads", "n_kv_heads") or heads,
        "ffn": ffn,
        "gated_ffn": bool(gated),
        "vocab": first("vocab_size", "vocab", "padded_vocab_size") or 0,
        "tied_embeddings": bool(tied if tied is not None else "gpt2" in kind),
        "model_type": kind or None,
        "architectures": classes or None,
    }
