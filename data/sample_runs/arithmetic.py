"""A model's bytes, the allocator's rounding, and an out-of-memory message that adds up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

KIB, MIB, GIB = 1024, 1024**2, 1024**3


@dataclass(frozen=True)
class Decoder:
    """A Llama-style decoder: grouped attention, gated feed-forward, RMSNorm, no biases."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    positions: int
    head_dim: int

    @property
    def layer_params(self) -> int:
        """Parameters of one layer: four projections, three feed-forward matrices, two norms."""
        attention = 2 * self.hidden * self.heads * self.head_dim + 2 * self.hidden * self.kv_heads * self.head_dim
        return attention + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def params(self) -> int:
        """All parameters; input and output embeddings are not tied."""
        return self.layers * self.layer_params + 2 * self.vocab * self.hidden + self.hidden

    def config(self, dtype: str, **more: object) -> str:
        """config.json as transformers writes it."""
        keys = {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.02,
            "intermediate_size": self.ffn,
            "max_position_embeddings": self.positions,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": dtype,
            "transformers_version": "4.51.3",
            "use_cache": False,
            "vocab_size": self.vocab,
        } | more
        return json.dumps(dict(sorted(keys.items())), indent=2) + "\n"

    def saved(self, tokens: int, *, mixed: bool, eager_scores: int = 0, through_mlp: bool = True) -> int:
        """Bytes that one layer keeps for backward.

        Per token, pure 16-bit: two norms at 8·h (fp32 copy, normalised, weighted output); queries, repeated keys and
        values, attention output at 2·h each; four feed-forward tensors at 2·ffn; the kernel's log-sum-exp at 4 a head.
        Under autocast the residual stream is fp32 and each linear layer keeps its own 16-bit copy of its input: 14·h and
        12·h for the norms. ``eager_scores`` is the size of the fp32 softmax output, kept with its 16-bit copy.
        """
        h, before, after = self.hidden, (14 if mixed else 8), (12 if mixed else 8)
        attention = 8 * h + (0 if eager_scores else 4 * self.heads)
        rest = after * h + 8 * self.ffn if through_mlp else after * h - (2 * h if mixed else 0)
        return tokens * (before * h + attention + rest) + eager_scores * 3 // 2


SMALL = Decoder(layers=22, hidden=2048, heads=32, kv_heads=4, ffn=5632, vocab=32000, positions=4096, head_dim=64)
TINY = Decoder(layers=24, hidden=1024, heads=16, kv_heads=16, ffn=2816, vocab=32000, positions=8192, head_dim=64)
EIGHT_B = Decoder(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, positions=131072, head_dim=128)


def size(n: int) -> str:
    """Bytes as the CUDA caching allocator prints them."""
    if n <= KIB:
        return f"{n} bytes"
    unit, scale = ("KiB", KIB) if n <= MIB else ("MiB", MIB) if n <= GIB else ("GiB", GIB)
    return f"{n / scale:.2f} {unit}"


def segment(n: int) -> int:
    """What the allocator asks of CUDA for a request: 2 MiB, 20 MiB, or the next multiple of 2 MiB."""
    return 2 * MIB if n <= MIB else 20 * MIB if n < 10 * MIB else -(-n // (2 * MIB)) * 2 * MIB


def out_of_memory(
    request: int,
    *,
    total: int,
    allocated: int,
    idle: int,
    outside: int,
    device: int = 0,
    others: Sequence[tuple[int, int]] = (),
) -> str:
    """torch's message (2.5). ``idle`` is reserved but unallocated, ``outside`` the context and libraries of this process."""
    used = allocated + idle + outside
    free = total - used - sum(held for _, held in others)
    if not 0 <= free < segment(request):
        raise ValueError(f"no out-of-memory here: {size(free)} free for {size(segment(request))}")
    held = "".join(f"Process {pid} has {size(n)} memory in use. " for pid, n in others)
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size(segment(request))}. GPU {device} has a total capacity "
        f"of {size(total)} of which {size(free)} is free. {held}Including non-PyTorch memory, this process has {size(used)} memory "
        f"in use. Of the allocated memory {size(allocated)} is allocated by PyTorch, and {size(idle)} is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        "avoid fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
