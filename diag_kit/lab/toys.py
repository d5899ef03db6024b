"""Small models for the experiments; imports torch, so it is loaded when one runs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (as everywhere)
from torch import nn
from torch.utils.checkpoint import checkpoint


class Blocks(nn.Module):
    """Residual feed-forward blocks and a head: ``[batch, width]`` to ``[batch, classes]``. Holds no attention."""

    def __init__(self, width: int = 64, depth: int = 3, classes: int = 500) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        """Logits."""
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Layer(nn.Module):
    """A pre-norm transformer layer; ``attention`` is ``eager`` or ``sdpa``; ``gated``: RMS norms, SwiGLU."""

    def __init__(self, width: int, heads: int, attention: str, dropout: float, gated: bool = False) -> None:
        super().__init__()
        self.heads, self.attention, self.dropout, self.gated = heads, attention, dropout, gated
        self.norm, self.norm2 = (nn.RMSNorm(width) if gated else nn.LayerNorm(width) for _ in range(2))
        if gated:
            self.gate = nn.Linear(width, 4 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """The residual stream after this layer."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.attention == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        else:
            mixed = eager_attention(q, k, v, self.dropout)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        normed = self.norm2(x)
        inner = F.silu(self.gate(normed)) * self.up(normed) if self.gated else F.gelu(self.up(normed))
        return x + self.down(inner)


class Decoder(nn.Module):
    """A decoder language model: token ids ``[batch, length]`` to logits ``[batch, length, vocab]``."""

    def __init__(
        self, vocab: int = 512, width: int = 64, depth: int = 2, heads: int = 4, attention: str = "sdpa",
        dropout: float = 0.0, checkpointing: bool = False, gated: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads, attention, dropout, gated) for _ in range(depth))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Any) -> Any:
        """Logits."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        return self.head(x)


def eager_attention(q: Any, k: Any, v: Any, dropout: float = 0.0) -> Any:
    """Attention as one writes it down, causal; ``[batch, heads, length, head width]`` in and out."""
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    weights = torch.softmax(scores.masked_fill(future, float("-inf")), -1)
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ v


def language_loss(model: Any, ids: Any) -> Any:
    """Mean cross-entropy of each token given those before it."""
    logits = model(ids)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def parameter_bytes(model: Any) -> int:
    """Bytes of all parameters."""
    return sum(p.numel() * p.element_size() for p in model.parameters())
