"""What one micro-batch keeps alive: tensors that autograd saves in each block, logits and loss, passing temporaries.

Derived operation by operation from the modelling code and from what torch saves for each operation, not fitted.
"""

from __future__ import annotations

from .device import attention_kernel
from .precision import Widths
from .settings import Settings
from .terms import Sizes

FUSED = ("flash", "efficient")
NORMS = ("norm inputs", "norm inputs in fp32", "normalised values")
"""Terms of a block that stand for one norm, of which a block has two."""
SCORES = ("attention probabilities", "attention probabilities, cast", "attention dropout")
FEED_FORWARD = ("feed-forward input", "gate and up", "activation input", "down-projection input")


def block_sizes(s: Settings, w: Widths) -> Sizes:
    """Bytes that one block saves for its backward, by term."""
    return {**_norms(s, w), **_linear_inputs(s, w), **_attention(s, w), **_feed_forward(s, w)}


def model_sizes(s: Settings, w: Widths) -> Sizes:
    """Bytes that a micro-batch keeps outside the blocks' saved tensors, by term."""
    m, p = s.model, s.parallelism
    tokens, kernel = s.micro_batch * s.seq_len, attention_kernel(s)
    stream = tokens * w.stream * m.hidden
    head_input = 0 if s.lora else w.compute
    sizes: Sizes = {"batch": 4 * 8 * tokens}
    if s.checkpointing == "full":
        sizes["layer input"] = stream
    if s.checkpointing == "selective" and kernel in FUSED and p.strategy != "megatron":
        inner = (2 * m.q_width + m.kv_width + m.ffn) / p.tensor
        sizes["selectively kept"] = stream + tokens * (w.compute * (inner + m.hidden) + 4 * m.heads / p.tensor)
    norm = w.stream if m.norm == "layer" else 4 + (0 if s.lora else w.stream)
    sizes["final norm and head input"] = tokens * m.hidden * (norm + head_input)
    if kernel not in FUSED:
        sizes["attention mask"] = s.micro_batch * s.seq_len**2 * w.stream
    if m.lm_head and p.pipeline == 1:
        sizes |= _loss(s, w)
    return sizes


def _norms(s: Settings, w: Widths) -> Sizes:
    tokens, h = s.micro_batch * s.seq_len, s.model.hidden
    if s.model.norm == "layer":
        return {"norm inputs": tokens * (w.stream * h + 8)}
    frozen = s.lora is not None
    sizes: Sizes = {"norm inputs in fp32": tokens * (4 * h + 4)}
    return sizes if frozen else sizes | {"normalised values": tokens * w.stream * h}


def _linear_inputs(s: Settings, w: Widths) -> Sizes:
    """Inputs that linear layers save for the gradient of their weight."""
    m, tokens, tp = s.model, s.micro_batch * s.seq_len, s.parallelism.tensor
    autocast, fused = w.copy > 0, attention_kernel(s) in FUSED
    into = ("gate_proj", "up_proj") if m.gated_ffn else ("up_proj",)
    groups = (
        ("attention input", m.hidden, ("q_proj", "k_proj", "v_proj"), 1 if m.fused_qkv else 3, False),
        ("attention output", m.q_width / tp, ("o_proj",), 1, fused),
        ("feed-forward input", m.hidden, into, len(into), False),
        ("down-projection input", m.ffn / tp, ("down_proj",), 1, False),
    )
    sizes: Sizes = {}
    for name, width, layers, casts, saved_anyway in groups:
        if not s.lora:
            copies = 0 if saved_anyway else casts if autocast else 1
            if copies:
                sizes[name] = tokens * copies * w.compute * width
            continue
        targets = sum(layer in s.lora.targets for layer in layers)
        shared = w.adapter == w.stream and not autocast
        copies = min(targets, 0 if saved_anyway else 1) if shared else targets
        each = w.compute if autocast else w.adapter
        if targets:
            sizes[name] = tokens * (copies * each * width + targets * s.lora.rank * w.adapter)
    return sizes


def _attention(s: Settings, w: Widths) -> Sizes:
    m, tokens, tp = s.model, s.micro_batch * s.seq_len, s.parallelism.tensor
    kernel = attention_kernel(s)
    kv = m.kv_width if kernel == "flash" else m.q_width
    sizes: Sizes = {"query, key and value": tokens * w.compute * (m.q_width + 2 * kv) / tp}
    if kernel in FUSED:
        return sizes | {"attention result": tokens * (w.compute * m.q_width + 4 * m.heads) / tp}
    scores = s.micro_batch * m.heads * s.seq_len**2 / tp
    soft = softmax_width(s, w)
    sizes["attention probabilities"] = scores * soft
    if s.dropout:
        sizes["attention dropout"] = scores * ((w.compute if s.device == "cpu" else 1) + w.compute)
    elif soft > w.compute:
        sizes["attention probabilities, cast"] = scores * w.compute
    return sizes


def softmax_width(s: Settings, w: Widths) -> int:
    """Bytes per element of the softmax's result: fp32 in llama-like code and under autocast."""
    return 4 if s.model.norm == "rms" or w.stream > w.compute or attention_kernel(s) == "math" else w.compute


def _feed_forward(s: Settings, w: Widths) -> Sizes:
    m, tokens, tp = s.model, s.micro_batch * s.seq_len, s.parallelism.tensor
    inner = tokens * m.ffn / tp
    if m.gated_ffn:
        return {"gate and up": 3 * w.compute * inner}
    # gelu_new saves its input (to the power), tanh, 1 + tanh and half the input; autocast runs the power in fp32.
    wide = w.stream if w.copy else w.compute
    sizes: Sizes = {"activation input": (3 * wide + w.compute if m.activation == "gelu_new" else w.compute) * inner}
    if s.dropout:
        sizes["residual dropout"] = 2 * tokens * m.hidden * (w.stream if s.device == "cpu" else 1)
    return sizes


def _loss(s: Settings, w: Widths) -> Sizes:
    m, tokens = s.model, s.micro_batch * s.seq_len
    sizes: Sizes
    if s.fused_loss:
        sizes = {
            "logits of one chunk": tokens * m.hidden * (w.compute + 4),
            "gradient of the head's input": tokens * m.hidden * w.compute,
        }
        return sizes if s.lora else sizes | {"gradient of a fused head": m.vocab * m.hidden * w.gathered}
    logits = tokens * m.vocab / s.parallelism.tensor
    in_place = s.parallelism.strategy == "megatron"
    sizes = {
        "logits": logits * w.compute,
        "log-probabilities": logits * 4,
        "gradient of the logits": logits * w.compute,
        "gradients of the loss": logits * (w.compute if in_place else 8),
    }
    if in_place:
        return sizes
    return sizes | ({"logits in fp32": logits * 4} if w.compute == 2 else {})


def passing_sizes(s: Settings, w: Widths) -> Sizes:
    """Bytes of temporaries in one block's forward (without a graph) and backward, by term.

    Each is the most that is alive at once beside the block's saved tensors: forward at the softmax or the fused kernel
    and at the product of gate and up; backward at the gradient of the softmax or fused kernel, and at the activation's.
    """
    m, tokens, tp = s.model, s.micro_batch * s.seq_len, s.parallelism.tensor
    kernel, soft = attention_kernel(s), softmax_width(s, w)
    inner, heads, stream = tokens * m.ffn / tp * w.compute, tokens * m.q_width / tp, tokens * w.stream * m.hidden
    normed = tokens * w.compute * m.hidden
    qkv = _attention(s, w)["query, key and value"]
    down_gradient = 0 if s.lora else m.hidden * m.ffn / tp * w.grad
    if kernel in FUSED:
        attention = qkv + heads * w.compute
        # d(out), and dq, dk, dv of full width; the CUDA flash kernel accumulates dq in fp32.
        attention_back = heads * (4 * w.compute + (4 if kernel == "flash" and s.device == "cuda" else 0))
    else:
        scores = s.micro_batch * m.heads * s.seq_len**2 / tp
        masked = w.stream if w.copy else w.compute
        # softmax(dtype=fp32) converts its input first, but for fp16 on a GPU; the cast back comes after that is freed.
        converted = soft if soft > masked and s.precision != "fp16" else 0
        cast = w.compute if soft > w.compute else 0
        running = masked + soft + max(converted, cast if not w.copy else 0)
        attention = qkv + scores * running
        # d(softmax) in and out; CUDA's kernel also makes a product of them (SoftMax.cu); fp16 in, fp16 out.
        out = w.compute if s.precision == "fp16" else soft
        attention_back = scores * (2 * soft if s.device == "cpu" else 2 * soft + out) + heads * w.compute
        extra = scores * (running - soft - cast)
    plain = 4 if m.activation == "gelu_new" else 2
    sizes = {
        "forward temporaries of attention": attention + normed,
        "forward temporaries of feed-forward": inner * (3 if m.gated_ffn else plain) + normed,
        "backward temporaries of attention": attention_back + stream,
        "backward temporaries of feed-forward": inner * (2 if m.activation == "gelu" else 3) + stream + down_gradient,
    }
    if kernel not in FUSED:
        sizes["masked scores"] = extra
    return sizes | ({"dequantised weight": m.hidden * m.ffn * 2} if s.base_quantization else {})
