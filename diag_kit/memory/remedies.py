"""Changes of settings that lower memory, cheapest first in each class of cost, with the line that makes each.

Options are those of transformers 5.24 (TrainingArguments), TRL's SFTConfig, DeepSpeed's JSON, Megatron-LM's parser of
August 2026 and PyTorch 2.13, checked against their sources; where a framework has none, no line stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from .activations import FUSED
from .device import attention_kernel
from .settings import Settings

LORA = {"rank": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
FREE, SLOWER, NUMERICS, TRAINING = range(4)
"""``cost_rank``: the same numbers and speed; slower; other numerics; another training."""
OFFLOAD = 4
"""Effort from which on a change crosses the bus in every step."""
_TORCH_STEPS = ("none", "ddp", "fsdp")
"""Strategies under which the optimizer is the script's own."""


class Change(NamedTuple):
    """One entry of the catalogue.

    Attributes:
        change: settings to change; values may be the words ``half``, ``one``, ``double``, and ``largest``: the most
            that the device holds, solved.
        when: whether these settings can be changed so. ``after``: entry that makes it possible where they can't be.
        code: framework -> line, ``<name>`` being a setting after the change.
        combines: whether combinations try it; those with a solved form don't.
        effort: weight within the class of cost; combinations with a smaller sum come first.
    """

    id: str
    action: str
    change: Mapping[str, Any]
    cost: str
    rank: int
    when: Callable[[Settings], bool]
    code: Mapping[str, str]
    after: str = ""
    combines: bool = True
    effort: int = 1


def _attends(s: Settings) -> bool:
    """Whether scores are kept now and would not be under ``sdpa``."""
    return attention_kernel(s) not in FUSED and attention_kernel(replace(s, attention="sdpa")) in FUSED


def _ampere(s: Settings) -> bool:
    return attention_kernel(replace(s, attention="sdpa", precision="bf16", device="cuda")) == "flash"


def _adam(s: Settings, *kinds: str) -> bool:
    known = kinds or ("adamw", "adamw-foreach", "adamw-loop", "adamw-fused")
    return s.optimizer in known and s.lora is None and s.parallelism.strategy in _TORCH_STEPS


def _megatron(s: Settings) -> bool:
    return s.parallelism.strategy == "megatron" and s.precision != "fp32" and s.lora is None


def _head(s: Settings) -> bool:
    p = s.parallelism
    return s.model.lm_head and not s.fused_loss and p.strategy != "megatron" and p.pipeline == 1


_SDPA = 'AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa")'
_BATCHES = "DataLoader(dataset, batch_sampler=batches)  # batches whose longest × count ≤ <tokens> tokens"
_TRUNCATE = "tokenizer(text, truncation=True, max_length=<seq_len>)"
_PEFT = "get_peft_model(model, LoraConfig(r=16))"
_NF4 = 'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")'

CATALOG: tuple[Change, ...] = (
    Change(
        "backward-each", "Call backward in every micro-step instead of once at the end",
        {"backward": "each-micro-batch"}, "none: the summed gradients are the same", FREE,
        lambda s: s.backward == "deferred",
        {"pytorch": "(loss / accumulation_steps).backward()  # inside the loop over micro-batches",
         "trainer": "gradient_accumulation_steps=<grad_accum>  # the Trainer calls backward in each micro-step",
         "deepspeed": "model_engine.backward(loss)  # in each micro-step",
         "megatron": "backward runs in each micro-step by design"},
    ),
    Change(
        "drop-outputs", "Let go of the model's outputs before backward", {"keep_logits": False}, "none", FREE,
        lambda s: s.keep_logits and _head(s),
        {"pytorch": "loss = model(**batch).loss; loss.backward()  # keep no reference to the outputs",
         "trainer": "the Trainer drops them already", "deepspeed": "loss = model_engine(**batch).loss"},
    ),
    Change(
        "flash", "Use a fused attention kernel", {"attention": "sdpa"},
        "none: usually faster; results differ by rounding", FREE, _attends,
        {"pytorch": "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
         "trainer": _SDPA, "deepspeed": _SDPA, "megatron": "--attention-backend flash"},
    ),
    Change(
        "fused-loss", "Compute the loss chunk by chunk, never holding all logits", {"fused_loss": True},
        "about the same time; evaluation still makes all logits", FREE, _head,
        {"pytorch": "loss = LigerFusedLinearCrossEntropyLoss()(head.weight, hidden, labels)",
         "trainer": "use_liger_kernel=True", "deepspeed": "apply_liger_kernel_to_llama()"},
    ),
    Change(
        "fused-optimizer", "Use the fused optimizer, which makes no temporary list", {"optimizer": "adamw-fused"},
        "none: usually faster", FREE, lambda s: _adam(s, "adamw", "adamw-foreach", "adamw-loop"),
        {"pytorch": "torch.optim.AdamW(model.parameters(), fused=True)", "trainer": 'optim="adamw_torch_fused"'},
    ),
    Change(
        "sync-gradients", "Let FSDP reduce gradients in every micro-step (no no_sync)",
        {"parallelism": {"no_sync": False}}, "one reduce-scatter per micro-step", SLOWER,
        lambda s: s.parallelism.no_sync,
        {"pytorch": "model.set_requires_gradient_sync(True)",
         "trainer": 'accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}}'},
    ),
    Change(
        "selective-checkpointing", "Recompute attention scores, or every second product, instead of keeping them",
        {"checkpointing": "selective"}, "a few percent more compute", SLOWER, lambda s: s.checkpointing == "none",
        {"pytorch": "checkpoint(layer, hidden, use_reentrant=False, context_fn=contexts)  "
                    "# contexts = partial(create_selective_checkpoint_contexts, policy)",
         "megatron": "--recompute-granularity selective --recompute-modules core_attn"},
    ),
    Change(
        "micro-batch-half", "Halve the micro-batch and double the accumulation",
        {"micro_batch": "half", "grad_accum": "double"},
        "same effective batch; smaller products run less efficiently", SLOWER, lambda s: s.micro_batch > 1,
        {"pytorch": "DataLoader(dataset, batch_size=<micro_batch>)  # and <grad_accum> accumulation steps",
         "trainer": "per_device_train_batch_size=<micro_batch>, gradient_accumulation_steps=<grad_accum>",
         "deepspeed": '"train_micro_batch_size_per_gpu": <micro_batch>, "gradient_accumulation_steps": <grad_accum>',
         "megatron": "--micro-batch-size <micro_batch>"},
        combines=False,
    ),
    Change(
        "micro-batch-fit", "Lower the micro-batch to <micro_batch>, or hold batches to <tokens> tokens with padding",
        {"micro_batch": "largest", "grad_accum": "accordingly"},
        "same effective batch; smaller products run less efficiently", SLOWER, lambda s: s.micro_batch > 1,
        {"pytorch": _BATCHES,
         "trainer": "per_device_train_batch_size=<micro_batch>, gradient_accumulation_steps=<grad_accum>",
         "deepspeed": '"train_micro_batch_size_per_gpu": <micro_batch>, "gradient_accumulation_steps": <grad_accum>',
         "megatron": "--micro-batch-size <micro_batch>"},
    ),
    Change(
        "checkpointing", "Recompute each layer in backward instead of keeping its activations",
        {"checkpointing": "full"}, "about a third more compute", SLOWER, lambda s: s.checkpointing != "full",
        {"pytorch": "hidden = checkpoint(layer, hidden, use_reentrant=False)",
         "trainer": "gradient_checkpointing=True", "deepspeed": "deepspeed.checkpointing.checkpoint(layer, hidden)",
         "megatron": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"},
        effort=2,
    ),
    Change(
        "micro-batch-one", "One sequence per micro-step", {"micro_batch": "one", "grad_accum": "accordingly"},
        "same effective batch; slower", SLOWER, lambda s: s.micro_batch > 1,
        {"pytorch": "DataLoader(dataset, batch_size=1)  # and <grad_accum> accumulation steps",
         "trainer": "per_device_train_batch_size=1, gradient_accumulation_steps=<grad_accum>",
         "deepspeed": '"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": <grad_accum>',
         "megatron": "--micro-batch-size 1"},
        combines=False,
    ),
    Change(
        "loop-optimizer", "Step one parameter after the other, without the temporary list", {"optimizer": "adamw-loop"},
        "a slower optimizer step", SLOWER,
        lambda s: _adam(s, "adamw", "adamw-foreach") and (s.device == "cuda" or s.optimizer == "adamw-foreach"),
        {"pytorch": "torch.optim.AdamW(model.parameters(), foreach=False)"},
        combines=False,
    ),
    Change(
        "shard", "Shard weights, gradients and optimizer state over the ranks",
        {"parallelism": {"strategy": "fsdp", "no_sync": False}},
        "weights are gathered layer by layer: more communication", SLOWER,
        lambda s: s.parallelism.data > 1 and s.parallelism.strategy in ("none", "ddp"),
        {"pytorch": "[fully_shard(layer) for layer in model.layers]; fully_shard(model)", "trainer": "fsdp=True",
         "deepspeed": '"zero_optimization": {"stage": 3}',
         "megatron": "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"},
        effort=2,
    ),
    Change(
        "zero-3", "Shard the weights too, not gradients and optimizer state alone",
        {"parallelism": {"strategy": "zero3", "no_sync": False}},
        "weights are gathered layer by layer: more communication", SLOWER,
        lambda s: s.parallelism.data > 1 and s.parallelism.strategy in ("zero1", "zero2"),
        {"deepspeed": '"zero_optimization": {"stage": 3}'},
    ),
    Change(
        "offload-optimizer", "Keep the optimizer's state in host memory", {"parallelism": {"offload": "optimizer"}},
        "gradients and weights cross the bus in every step; needs host memory", SLOWER,
        lambda s: s.parallelism.offload == "none" and s.parallelism.strategy != "fsdp" and s.lora is None
        and s.optimizer != "none" and s.device == "cuda",
        {"pytorch": "torchao.optim.CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, fused=True)",
         "deepspeed": '"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}',
         "trainer": 'deepspeed="zero_offload.json"  # a configuration with offload_optimizer',
         "megatron": "--optimizer-cpu-offload --use-precision-aware-optimizer"},
        effort=OFFLOAD,
    ),
    Change(
        "offload-all", "Keep weights and optimizer state in host memory", {"parallelism": {"offload": "all"}},
        "every layer crosses the bus in forward and backward: much slower", SLOWER,
        lambda s: s.parallelism.strategy in ("fsdp", "zero3") and s.parallelism.data > 1
        and s.parallelism.offload != "all",
        {"pytorch": "fully_shard(model, offload_policy=CPUOffloadPolicy())",
         "trainer": 'fsdp=True, fsdp_config={"cpu_offload": True}',
         "deepspeed": '"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, '
                      '"offload_optimizer": {"device": "cpu"}}'},
        after="shard", effort=2 * OFFLOAD,
    ),
    Change(
        "16-bit", "Train under bfloat16 autocast", {"precision": "amp-bf16"},
        "activations in 16 bits", NUMERICS, lambda s: s.precision == "fp32" and _ampere(s),
        {"pytorch": 'with torch.autocast("cuda", torch.bfloat16): loss = model(**batch).loss',
         "trainer": "bf16=True", "deepspeed": '"bf16": {"enabled": true}', "megatron": "--bf16"},
    ),
    Change(
        "8bit-optimizer", "Keep the optimizer's moments in 8 bits", {"optimizer": "adamw-8bit"},
        "small loss of precision in the moments", NUMERICS, _adam,
        {"pytorch": "bitsandbytes.optim.AdamW8bit(model.parameters())", "trainer": 'optim="adamw_bnb_8bit"'},
    ),
    Change(
        "16-bit-gradients", "Accumulate and reduce gradients in bfloat16", {"gradient_dtype": "bf16"},
        "small micro-batches' gradients are rounded", NUMERICS,
        lambda s: _megatron(s) and s.gradient_dtype in (None, "fp32"), {"megatron": "--grad-reduce-in-bf16"},
    ),
    Change(
        "16-bit-moments", "Keep the optimizer's moments in bfloat16", {"optimizer_state_dtype": "bf16"},
        "loss of precision in the moments", NUMERICS,
        lambda s: _megatron(s) and s.optimizer.startswith("adamw") and s.optimizer_state_dtype in (None, "fp32"),
        {"megatron": "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"},
    ),
    Change(
        "16-bit-weights", "Hold weights, gradients and moments in bfloat16", {"precision": "bf16"},
        "small updates are lost to rounding", NUMERICS,
        lambda s: s.precision in ("fp32", "amp-bf16") and _ampere(s) and s.parallelism.strategy in _TORCH_STEPS,
        {"pytorch": "model.to(torch.bfloat16)",
         "trainer": "AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16)"},
    ),
    Change(
        "adafactor", "Use Adafactor, which keeps sums of rows and columns instead of moments",
        {"optimizer": "adafactor"}, "another optimizer: its learning rate must be found anew", TRAINING, _adam,
        {"pytorch": "torch.optim.Adafactor(model.parameters())", "trainer": 'optim="adafactor"'},
    ),
    Change(
        "length-cap", "Cap sequences at <seq_len> tokens", {"seq_len": "largest"},
        "changes the data: long samples are cut, split or left out", TRAINING, lambda s: s.seq_len > 1,
        {"pytorch": _TRUNCATE, "trainer": "max_length=<seq_len>  # SFTConfig", "deepspeed": _TRUNCATE,
         "megatron": "--seq-length <seq_len>"},
    ),
    Change(
        "half-length", "Halve the longest sequence", {"seq_len": "half"},
        "changes the data: cap, split or bucket long samples", TRAINING, lambda s: s.seq_len > 1,
        {"pytorch": _TRUNCATE, "trainer": "max_length=<seq_len>  # SFTConfig", "deepspeed": _TRUNCATE,
         "megatron": "--seq-length <seq_len>"},
        combines=False,
    ),
    Change(
        "lora", "Train low-rank adapters over frozen weights", {"lora": LORA},
        "trains a different, smaller set of parameters", TRAINING, lambda s: s.lora is None,
        {"pytorch": _PEFT, "trainer": "peft_config=LoraConfig(r=16)  # SFTTrainer"},
    ),
    Change(
        "qlora", "Train low-rank adapters over frozen weights in 4 bits", {"lora": LORA, "base_quantization": "nf4"},
        "as adapters, over a quantised model; weights are unpacked for each product", TRAINING,
        lambda s: s.lora is None and s.device == "cuda" and s.parallelism.strategy in _TORCH_STEPS,
        {"pytorch": f"{_PEFT}  # of a model loaded with quantization_config={_NF4}",
         "trainer": "peft_config=LoraConfig(r=16)  # SFTTrainer, with a model loaded in 4 bits"},
    ),
    Change(
        "4-bit-base", "Hold the frozen weights in 4 bits", {"base_quantization": "nf4"},
        "adapters over a quantised model; weights are unpacked for each product", TRAINING,
        lambda s: s.lora is not None and not s.base_quantization and s.device == "cuda",
        {"pytorch": f"AutoModelForCausalLM.from_pretrained(name, quantization_config={_NF4})",
         "trainer": f"AutoModelForCausalLM.from_pretrained(name, quantization_config={_NF4})"},
    ),
)  # fmt: skip

SEGMENTS = Change(
    "expandable-segments", "Let the allocator grow its segments instead of taking new ones", {},
    "none; acts on reserved memory alone, never on what tensors need", FREE,
    lambda s: s.device == "cuda",
    dict.fromkeys(("pytorch", "trainer", "deepspeed", "megatron"), "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
)  # fmt: skip
"""Changes no setting: between what tensors need and what the allocator holds for them."""
