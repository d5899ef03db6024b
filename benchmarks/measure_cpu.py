"""Measure what a training step holds, on this machine's CPU, and keep it for the tests of the closed forms.

    python benchmarks/measure_cpu.py            # prints each case beside the formula
    python benchmarks/measure_cpu.py --write    # and writes data/measured/cpu_steps.json

Small models in plain torch with real tensors: a llama-like and a GPT-like decoder that use the same operations as the
modelling code of Hugging Face transformers. Every tensor storage that any operation makes is counted until it dies, so
the figures are bytes that the program asked for; memory inside a kernel is not seen.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint

from diag_kit.memory.formulas import estimate
from diag_kit.memory.settings import Settings

OUT = Path(__file__).parents[1] / "data" / "measured" / "cpu_steps.json"
DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "amp-bf16": torch.float32}
LLAMA = {"n_layers": 3, "hidden": 192, "heads": 6, "kv_heads": 6, "ffn": 512, "vocab": 1000}
GPT = {
    "n_layers": 3,
    "hidden": 192,
    "heads": 6,
    "ffn": 768,
    "vocab": 1000,
    "gated_ffn": False,
    "tied_embeddings": True,
    "activation": "gelu_new",
    "positions": 1024,
}


class Ledger(TorchDispatchMode):
    """Bytes of all live storages, and the most in each phase."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.phase, self.highest, self.held = 0, "", {}, {}

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.highest[phase] = max(self.highest.get(phase, 0), self.live)

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.held:
            size = storage.nbytes()
            self.held[key] = weakref.ref(storage, lambda _: self._free(key, size))
            self.live += size
            self.highest[self.phase] = max(self.highest.get(self.phase, 0), self.live)

    def _free(self, key: int, size: int) -> None:
        self.live -= size
        del self.held[key]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_iter(out):
            if isinstance(leaf, torch.Tensor):
                self.see(leaf)
        return out


class RMSNorm(nn.Module):
    """As LlamaRMSNorm: normalises an fp32 copy."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def repeat(x: torch.Tensor, times: int) -> torch.Tensor:
    """Key or value heads repeated for the query heads of their group."""
    b, h, s, d = x.shape
    return x if times == 1 else x[:, :, None].expand(b, h, times, s, d).reshape(b, h * times, s, d)


def gelu_new(x: torch.Tensor) -> torch.Tensor:
    """GPT-2's gelu, in elementary operations."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Attention(nn.Module):
    """Self-attention, eager or by torch's kernel."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        m = s.model
        self.s, self.gated, self.d = s, m.gated_ffn, m.head_dim
        if self.gated:
            self.q = nn.Linear(m.hidden, m.q_width, bias=False)
            self.k = nn.Linear(m.hidden, m.kv_width, bias=False)
            self.v = nn.Linear(m.hidden, m.kv_width, bias=False)
        else:
            self.qkv = nn.Linear(m.hidden, 3 * m.hidden)
        self.o = nn.Linear(m.q_width, m.hidden, bias=not self.gated)

    def forward(self, x, mask, cos, sin):
        b, n, _ = x.shape
        if self.gated:
            q, k, v = (f(x).view(b, n, -1, self.d).transpose(1, 2) for f in (self.q, self.k, self.v))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        else:
            q, k, v = (part.view(b, n, -1, self.d).transpose(1, 2) for part in self.qkv(x).split(x.shape[-1], dim=2))
        p = self.s.dropout
        groups = q.shape[1] // k.shape[1]
        if self.s.attention == "eager":
            k, v = repeat(k, groups), repeat(v, groups)
            weights = torch.matmul(q, k.transpose(2, 3)) * self.d**-0.5
            weights = weights + mask
            if self.gated:
                weights = functional.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
            else:
                weights = functional.softmax(weights, dim=-1).type(v.dtype)
            weights = functional.dropout(weights, p=p, training=True)
            out = torch.matmul(weights, v).transpose(1, 2).contiguous()
        else:
            out = functional.scaled_dot_product_attention(
                q, k, v, dropout_p=p, is_causal=True, enable_gqa=groups > 1
            ).transpose(1, 2)
        return self.o(out.reshape(b, n, -1))


class Block(nn.Module):
    """One layer."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        m = s.model
        self.gated, self.p = m.gated_ffn, s.dropout
        norm = RMSNorm if self.gated else nn.LayerNorm
        self.norm1, self.norm2, self.attention = norm(m.hidden), norm(m.hidden), Attention(s)
        if self.gated:
            self.gate = nn.Linear(m.hidden, m.ffn, bias=False)
        self.up, self.down = (
            nn.Linear(m.hidden, m.ffn, bias=not self.gated),
            nn.Linear(m.ffn, m.hidden, bias=not self.gated),
        )

    def forward(self, x, mask, cos, sin):
        out = self.attention(self.norm1(x), mask, cos, sin)
        x = x + (out if self.gated else functional.dropout(out, self.p))
        hidden = self.norm2(x)
        if self.gated:
            return x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return x + functional.dropout(self.down(gelu_new(self.up(hidden))), self.p)


class Decoder(nn.Module):
    """A decoder of the settings' shape; checkpointing and attention as they say."""

    def __init__(self, s: Settings) -> None:
        super().__init__()
        m = s.model
        self.s = s
        self.embed = nn.Embedding(m.vocab, m.hidden)
        self.positions = nn.Embedding(m.positions, m.hidden) if m.positions else None
        self.blocks = nn.ModuleList(Block(s) for _ in range(m.n_layers))
        self.norm = (RMSNorm if m.gated_ffn else nn.LayerNorm)(m.hidden)
        self.head = nn.Linear(m.hidden, m.vocab, bias=False)
        if m.tied_embeddings:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        n = ids.shape[1]
        x = self.embed(ids)
        mask = cos = sin = None
        if self.positions is not None:
            x = x + self.positions(torch.arange(n))
        else:
            angle = torch.arange(n)[:, None] / 1e4 ** (
                torch.arange(0, self.s.model.head_dim, 2) / self.s.model.head_dim
            )
            angle = torch.cat((angle, angle), dim=-1)
            cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        if self.s.attention == "eager":
            mask = (
                torch.full((n, n), torch.finfo(x.dtype).min, dtype=x.dtype)
                .triu(1)
                .expand(ids.shape[0], 1, n, n)
                .contiguous()
            )
        for block in self.blocks:
            if self.s.checkpointing == "full":
                x = checkpoint(block, x, mask, cos, sin, use_reentrant=False)
            else:
                x = block(x, mask, cos, sin)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in fp32, as the modelling code computes it."""
    return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1))


def measure(s: Settings) -> dict[str, int]:
    """Highest live bytes by phase in the second optimizer step, so that optimizer state exists."""
    torch.manual_seed(0)
    ledger = Ledger()
    with ledger:
        ledger.enter("load")
        model = Decoder(s).to(DTYPE[s.precision])
        optimizer = OPTIMIZERS[s.optimizer](model.parameters())
        batches = [
            torch.randint(s.model.vocab, (s.micro_batch, s.seq_len)) for _ in range(4)
        ]  # 32·b·s as a trainer's batch
        cast = torch.autocast("cpu", torch.bfloat16, enabled=s.precision.startswith("amp"))
        for _ in range(2):
            ledger.highest.clear()
            losses = []
            for micro_step in range(s.grad_accum):
                ledger.enter("forward")
                with cast:
                    logits = model(batches[0])
                    ledger.enter("loss")
                    loss = loss_of(logits, batches[1])
                if s.backward == "deferred":
                    losses.append(loss)
                    del loss
                    if micro_step < s.grad_accum - 1:
                        del logits
                    continue
                if not s.keep_logits:
                    del logits
                ledger.enter("backward")
                loss.backward()
                logits = None
            if losses:
                ledger.enter("backward")
                torch.stack(losses).sum().backward()
                losses.clear()
                logits = None
            ledger.enter("optimizer")
            optimizer.step()
            optimizer.zero_grad()
    return {phase: ledger.highest[phase] for phase in ("forward", "loss", "backward", "optimizer")}


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adamw-foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
}


def cases() -> dict[str, dict[str, Any]]:
    """Settings documents by name."""
    base = {"micro_batch": 4, "seq_len": 256, "device": "cpu"}
    grouped = {**LLAMA, "kv_heads": 2}
    wide = {**LLAMA, "vocab": 16000}
    return {
        name: {**base, **document}
        for name, document in {
            "llama fp32 sdpa": {"model": LLAMA},
            "llama fp32 eager": {"model": LLAMA, "attention": "eager"},
            "llama bf16 sdpa": {"model": LLAMA, "precision": "bf16"},
            "llama bf16 eager": {"model": LLAMA, "precision": "bf16", "attention": "eager"},
            "llama bf16 eager grouped": {"model": grouped, "precision": "bf16", "attention": "eager"},
            "llama bf16 sdpa long": {"model": LLAMA, "precision": "bf16", "seq_len": 1024},
            "llama bf16 eager long": {
                "model": LLAMA,
                "precision": "bf16",
                "attention": "eager",
                "seq_len": 1024,
                "micro_batch": 2,
            },
            "llama amp sdpa": {"model": LLAMA, "precision": "amp-bf16"},
            "llama fp32 checkpointed": {"model": LLAMA, "checkpointing": "full"},
            "llama bf16 eager checkpointed": {
                "model": LLAMA,
                "precision": "bf16",
                "attention": "eager",
                "checkpointing": "full",
                "seq_len": 512,
            },
            "llama large vocabulary": {"model": wide, "precision": "bf16"},
            "llama large vocabulary, outputs dropped": {"model": wide, "precision": "bf16", "keep_logits": False},
            "llama accumulation 3": {"model": LLAMA, "grad_accum": 3},
            "llama deferred 1": {"model": LLAMA, "backward": "deferred"},
            "llama deferred 2": {"model": LLAMA, "grad_accum": 2, "backward": "deferred"},
            "llama deferred 4": {"model": LLAMA, "grad_accum": 4, "backward": "deferred"},
            "llama short, loop": {"model": wide, "seq_len": 8, "micro_batch": 1},
            "llama short, foreach": {"model": wide, "seq_len": 8, "micro_batch": 1, "optimizer": "adamw-foreach"},
            "llama short, fused": {"model": wide, "seq_len": 8, "micro_batch": 1, "optimizer": "adamw-fused"},
            "llama short, sgd": {"model": wide, "seq_len": 8, "micro_batch": 1, "optimizer": "sgd"},
            "gpt fp32 sdpa": {"model": GPT},
            "gpt fp32 eager": {"model": GPT, "attention": "eager"},
            "gpt fp32 eager dropout": {"model": GPT, "attention": "eager", "dropout": 0.1},
            "gpt bf16 eager dropout": {"model": GPT, "attention": "eager", "dropout": 0.1, "precision": "bf16"},
            "gpt fp32 sdpa dropout (math path)": {"model": GPT, "dropout": 0.1},
            "gpt bf16 checkpointed": {"model": GPT, "precision": "bf16", "checkpointing": "full"},
        }.items()
    }


def main() -> None:
    """Measure, print beside the formula, write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {OUT.name}")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    records = []
    for name, document in cases().items():
        if arguments.only not in name:
            continue
        s = Settings.from_json(document)
        measured = measure(s)
        peaks = estimate(s).peak_by_phase
        records.append({"name": name, "settings": document, "highest_bytes": measured})
        errors = " ".join(
            f"{phase} {measured[phase]:>11,} {(peaks[phase] or 0) / measured[phase] - 1:+7.1%}" for phase in measured
        )
        print(f"{name:42} {errors}")
    if arguments.write:
        document = {
            "what": "highest live bytes of tensor storages by phase, second optimizer step, CPU",
            "command": "python benchmarks/measure_cpu.py --write",
            "versions": {
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            "cases": records,
        }
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
