"""The named parts of a run's memory: what each is, its formula in symbols, what it assumes, where that is known from.

Symbols: b sequences of s tokens, h hidden, a heads, q query width (a × head width), k key/value width, f feed-forward
width, V vocabulary, L layers, N trainable parameters, r adapter rank, w ranks that share the work. Bytes per element: c
of a matrix product's operands, e of the residual stream, p of parameters, g of gradients, o of one optimizer moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

CATEGORIES = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer_state",
    "activations",
    "attention_scores",
    "logits",
    "retained_graphs",
    "temporaries",
    "communication",
)

Sizes = dict[str, float]
"""Bytes of one unit of each term, by the term's name."""


@dataclass(frozen=True, slots=True)
class Term:
    """One named part of the memory of given settings.

    Attributes:
        unit: what ``unit_bytes`` are bytes of (model, layer, micro-batch); ``count`` units are alive at most at once.
        formula: of one unit, in the symbols of this module; divided by the tensor-parallel size where that splits it.
        live_in: phases in which some of it is alive.
    """

    name: str
    category: str
    unit_bytes: int
    unit: str
    count: int
    formula: str
    assumption: str
    source: str
    live_in: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """All units together."""
        return self.unit_bytes * self.count


class Entry(NamedTuple):
    """What is known of a term whatever the settings."""

    category: str
    unit: str
    formula: str
    assumption: str
    source: str


_TORCH = "tensors that torch's autograd saves (derivatives.yaml)"
_HF = "transformers 5 modelling code and the tensors that torch saves for it"
_OPTIM = "torch.optim sources"
_FSDP = "torch FSDP sources"
_DEEPSPEED = "DeepSpeed defaults: reduce_bucket_size 5e8, stage3_max_live_parameters 1e9"
_LIGER = "Liger-Kernel fused_linear_cross_entropy"
_AUTOCAST = "torch autocast's weight cache"
_CHECKPOINT = "torch.utils.checkpoint"
_NO_INPUT = "a frozen linear layer saves no input; an adapter saves it in its own dtype"
_SET_TO_NONE = "absent in the first forward pass, held from the second micro-step on (set to None after the step)"

CATALOG: dict[str, Entry] = {
    "parameters": Entry(
        "parameters",
        "model",
        "N·p / w",
        "4-bit bases: linear layers at 0.5 + 4/64 bytes, the rest at p",
        "parameter count",
    ),
    "adapters": Entry("parameters", "model", "Σ r·(in + out)·L", "LoRA weights in their own dtype", "PEFT"),
    "batch": Entry("buffers", "micro-batch", "32·b·s", "token ids, labels, mask and positions as int64", _HF),
    "gradients of attention": Entry("gradients", "layer", "N·g / w", _SET_TO_NONE, _OPTIM),
    "gradients of feed-forward": Entry("gradients", "layer", "N·g / w", _SET_TO_NONE, _OPTIM),
    "gradients of embedding": Entry("gradients", "model", "V·h·g / w", _SET_TO_NONE, _OPTIM),
    "gradients of head": Entry("gradients", "model", "V·h·g / w", _SET_TO_NONE, _OPTIM),
    "optimizer moments": Entry(
        "optimizer_state",
        "model",
        "N·2·o / w",
        "there from the first step on, whatever the batch or accumulation",
        _OPTIM,
    ),
    "fp32 master weights": Entry(
        "optimizer_state",
        "model",
        "4·N / w",
        "the engine holds 16-bit weights and steps on fp32",
        "DeepSpeed, Megatron-LM",
    ),
    "optimizer temporaries": Entry(
        "temporaries",
        "model",
        "N·o",
        "foreach: one extra list of moments; loop: two copies of the largest parameter",
        _OPTIM,
    ),
    "gradient buckets": Entry(
        "communication",
        "model",
        "N·g",
        "DDP without gradient_as_bucket_view: a second copy, with or without no_sync",
        "torch DDP reducer",
    ),
    "gathered layer": Entry("communication", "layer", "N/L·c", "the running layer and the one prefetched", _FSDP),
    "gathered embedding and head": Entry(
        "communication", "model", "V·h·c", "the root unit stays gathered from forward to backward", _FSDP
    ),
    "gathered for saving": Entry(
        "communication",
        "model",
        "max(V, f)·h·max(p, o)",
        "a full state dict is gathered tensor by tensor and moved to the host",
        "torch.distributed.checkpoint.state_dict, DeepSpeed's consolidated 16-bit weights",
    ),
    "unsharded gradient": Entry(
        "communication",
        "layer",
        "N/L·(c + g)",
        "of a layer, and the copy of the layer before it that is reduced and scattered",
        _FSDP,
    ),
    "reduce bucket": Entry("communication", "model", "min(N, 5e8)·c", "overlap_comm would double it", _DEEPSPEED),
    "live parameters": Entry("communication", "model", "min(N, 1e9)·c", "gathered weights up to the limit", _DEEPSPEED),
    "norm inputs": Entry("activations", "norm", "b·s·(e·h + 8)", "layer norm saves input, mean and deviation", _TORCH),
    "norm inputs in fp32": Entry(
        "activations",
        "norm",
        "b·s·(4·h + 4)",
        "the RMS norm upcasts and saves the copy; in fp32 it is the stream itself",
        _HF,
    ),
    "normalised values": Entry("activations", "norm", "b·s·e·h", "for the gradient of the norm's weight", _HF),
    "attention input": Entry(
        "activations",
        "layer",
        "b·s·c·h",
        "shared by query, key and value; autocast casts it once for each. " + _NO_INPUT,
        _HF,
    ),
    "query, key and value": Entry(
        "activations",
        "layer",
        "b·s·c·(q + 2·k)",
        "repeated for every query head where the kernel has no grouped form",
        _HF,
    ),
    "attention result": Entry("activations", "layer", "b·s·(c·q + 4·a)", "no scores: linear in length", _TORCH),
    "attention probabilities": Entry(
        "attention_scores",
        "layer",
        "b·a·s²·(4 or c)",
        "softmax saves its result, in fp32 where model or autocast ask",
        _HF,
    ),
    "attention probabilities, cast": Entry(
        "attention_scores", "layer", "b·a·s²·c", "operand of the product with values", _HF
    ),
    "attention dropout": Entry(
        "attention_scores",
        "layer",
        "b·a·s²·(1 + c)",
        "the mask (as wide as c on a CPU) and the copy with dropout",
        _TORCH,
    ),
    "attention mask": Entry("temporaries", "micro-batch", "b·s²·e", "one additive mask for all layers and heads", _HF),
    "attention output": Entry("activations", "layer", "b·s·c·q", "input of the output projection. " + _NO_INPUT, _HF),
    "feed-forward input": Entry(
        "activations", "layer", "b·s·c·h", "shared by gate and up; autocast casts it once for each. " + _NO_INPUT, _HF
    ),
    "gate and up": Entry(
        "activations", "layer", "3·b·s·c·f", "the activation saves its input, the product both factors", _HF
    ),
    "activation input": Entry(
        "activations", "layer", "b·s·c·f", "four copies where gelu is written in elementary operations (gelu_new)", _HF
    ),
    "down-projection input": Entry("activations", "layer", "b·s·c·f", _NO_INPUT, _HF),
    "residual dropout": Entry("activations", "layer", "2·b·s·h", "masks after attention and feed-forward", _TORCH),
    "layer input": Entry("activations", "layer", "b·s·e·h", "all that a checkpointed layer keeps", _CHECKPOINT),
    "selectively kept": Entry(
        "activations",
        "layer",
        "b·s·(e·h + c·(2·q + k + h + f) + 4·a)",
        "results of every second product (query, value, gate, down) and of fused attention",
        "torchtitan's policy by operation",
    ),
    "autocast weights": Entry(
        "temporaries", "layer", "N/L·c", "each fp32 weight is cast once; backward needs the copy", _AUTOCAST
    ),
    "autocast head": Entry("temporaries", "model", "V·h·c", "as for the layers", _AUTOCAST),
    "final norm and head input": Entry("activations", "micro-batch", "b·s·h·(4 + e + c)", "as in a block", _HF),
    "logits": Entry(
        "logits", "micro-batch", "b·s·V·c", "held by the loop's outputs until backward has run (keep_logits)", _HF
    ),
    "logits in fp32": Entry("logits", "micro-batch", "4·b·s·V", "the loss function upcasts before cross-entropy", _HF),
    "log-probabilities": Entry("logits", "micro-batch", "4·b·s·V", "cross-entropy saves log-softmax in fp32", _TORCH),
    "gradients of the loss": Entry(
        "logits",
        "micro-batch",
        "8·b·s·V",
        "of the likelihood and of log-softmax, alive together; Megatron works in place: c·b·s·V",
        _TORCH,
    ),
    "gradient of the logits": Entry("logits", "micro-batch", "b·s·V·c", "what the head's backward receives", _TORCH),
    "logits of one chunk": Entry("logits", "micro-batch", "b·s·h·(c + 4)", "chunks of about b·s·h elements", _LIGER),
    "gradient of the head's input": Entry("logits", "micro-batch", "b·s·h·c", "made in the forward pass", _LIGER),
    "gradient of a fused head": Entry("gradients", "model", "V·h·c", "made in the forward pass", _LIGER),
    "forward temporaries of attention": Entry(
        "temporaries", "layer", "b·a·s²·(2·c + 4) or b·s·c·q, + b·s·c·(h + q + 2·k)", "without a graph", _HF
    ),
    "forward temporaries of feed-forward": Entry("temporaries", "layer", "b·s·c·(3·f + h)", "without a graph", _HF),
    "backward temporaries of attention": Entry(
        "temporaries",
        "layer",
        "3·b·a·s²·(4 or c) or b·s·q·(4·c + 4), + b·s·h·e",
        "gradients of the values just used",
        _TORCH,
    ),
    "backward temporaries of feed-forward": Entry(
        "temporaries", "layer", "(2 or 3)·b·s·c·f + b·s·h·e + h·f·g", "gradients of the values just used", _TORCH
    ),
    "masked scores": Entry("temporaries", "layer", "b·a·s²·c", "alive while the softmax runs", _HF),
    "library workspace": Entry(
        "temporaries",
        "model",
        "8.1 MiB, 32 MiB on Hopper",
        "of the matrix library, in the caching allocator",
        "pytorch#95668",
    ),
    "dequantised weight": Entry(
        "temporaries", "layer", "h·f·2", "one 4-bit weight at a time", "bitsandbytes MatMul4Bit"
    ),
    "retained graph": Entry(
        "retained_graphs",
        "micro-batch",
        "saved tensors of all layers + head input + log-probabilities",
        "one for each earlier micro-batch whose backward has not run",
        _TORCH,
    ),
}
