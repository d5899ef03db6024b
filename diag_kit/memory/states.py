"""What a rank keeps whatever the batch: weights, gradients, optimizer state, and buffers for communication."""

from __future__ import annotations

from dataclasses import dataclass

from .precision import Widths
from .settings import Settings
from .terms import Sizes

NF4_BYTES = 0.5 + 4 / 64
"""bitsandbytes: 4 bits, and one fp32 scale per block of 64 (no double quantisation)."""
ADAM8_BYTES = 2 + 8 / 256
"""bitsandbytes: two 8-bit moments, and one fp32 scale each per block of 256."""
BUCKET_ELEMENTS, LIVE_ELEMENTS = 500_000_000, 1_000_000_000
"""DeepSpeed's reduce_bucket_size and stage3_max_live_parameters by default."""
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True, slots=True)
class Share:
    """Elements on the rank that holds most, before data-parallel sharding.

    ``linear`` and ``rest`` of one layer (matrices; biases and norms), ``outside`` the layers (embedding, head, norms).
    ``trained``: elements with a gradient, by part of the model.
    """

    layers: int
    linear: float
    rest: float
    outside: float
    trained: dict[str, float]

    @property
    def trainable(self) -> float:
        per_layer = self.trained["attention"] + self.trained["feed-forward"]
        return self.layers * per_layer + self.trained["embedding"] + self.trained["head"]


def stage_layers(s: Settings) -> int:
    """Layers on the first pipeline stage."""
    return -(-s.model.n_layers // s.parallelism.pipeline)


def share(s: Settings) -> Share:
    """This rank's part of the model under tensor and pipeline parallelism."""
    m, tp = s.model, s.parallelism.tensor
    linear, rest = m.layer_linear_params / tp, m.layer_params - m.layer_linear_params
    head = m.head_params / tp if s.parallelism.pipeline == 1 else 0
    embedding = m.embedding_params / tp + m.other_params
    attention = sum(a * b for name, (a, b) in m.layer_matrices.items() if name in _ATTENTION) / tp
    trained = {"attention": attention + rest, "feed-forward": linear - attention, "embedding": embedding, "head": head}
    if s.lora:
        adapters = sum(s.lora.rank * sum(m.layer_matrices[name]) for name in s.lora.targets)
        trained = {"attention": adapters, "feed-forward": 0, "embedding": 0, "head": 0}
    return Share(stage_layers(s), linear, rest, embedding + head, trained)


def ranks(s: Settings) -> dict[str, int]:
    """Ranks over which ``params``, ``grads`` and ``state`` are split."""
    shard = {
        "params": ("fsdp", "zero3"),
        "grads": ("fsdp", "zero2", "zero3"),
        "state": ("fsdp", "zero1", "zero2", "zero3"),
    }
    p = s.parallelism
    return {kind: p.data if p.strategy in strategies else 1 for kind, strategies in shard.items()}


def gradients_on_host(s: Settings) -> bool:
    """Whether a rank's gradients leave the device as they are reduced: ZeRO-2 and 3 under offload, FSDP offloading all.

    DeepSpeed stage_1_and_2.py (no averaged_gradients under cpu_offload), stage3.py (grad_partitions_flat_buffer on the
    host); torch FSDP2 foreach_reduce (CPUOffloadPolicy).
    """
    p = s.parallelism
    return p.offload == "all" if p.strategy == "fsdp" else p.offload != "none" and p.strategy in ("zero2", "zero3")


def state_sizes(s: Settings, w: Widths) -> Sizes:
    """Bytes by term that do not depend on batch or length."""
    p, part, of = s.parallelism, share(s), ranks(s)
    layer = part.linear * (NF4_BYTES if s.base_quantization else w.param) + part.rest * w.param
    resident = 0 if p.offload == "all" else 1
    sizes: Sizes = {"parameters": resident * (part.layers * layer + part.outside * w.param) / of["params"]}
    if s.lora:
        sizes["adapters"] = resident * part.trainable * w.adapter / of["params"]
    unsharded = p.no_sync and p.strategy == "fsdp" and s.grad_accum > 1
    grad = 0 if gradients_on_host(s) else w.grad / of["grads"]
    for name, n in part.trained.items():
        if n:
            sizes[f"gradients of {name}"] = n * (w.reduced if unsharded else grad)
    return sizes | _optimizer(s, w, part, of["state"]) | _communication(s, w, part, layer)


def _optimizer(s: Settings, w: Widths, part: Share, ranks: int) -> Sizes:
    m, kind, strategy = s.model, s.optimizer, s.parallelism.strategy
    n = part.trainable / ranks if s.parallelism.offload == "none" else 0
    per_param = {"adamw-8bit": ADAM8_BYTES, "adafactor": 4 / m.hidden + 4 / m.ffn, "sgd": 0, "none": 0}
    sizes: Sizes = {"optimizer moments": n * per_param.get(kind, 2 * w.state)}
    if w.master and kind != "none":
        sizes["fp32 master weights"] = n * w.master
    largest = max(m.vocab, m.ffn) * m.hidden / s.parallelism.tensor / ranks
    if s.lora:
        largest = max(s.lora.rank * max(m.layer_matrices[name]) for name in s.lora.targets)
    if kind == "adamw":
        kind = "adamw-loop" if s.device == "cpu" else "adamw-foreach"
    if w.master:
        # ZeRO casts its gradient partition to fp32 for the step; Megatron's gradients are fp32 already.
        temporaries = 0 if strategy == "megatron" or kind == "none" else 4 * n
    else:
        temporaries = {
            "adamw-foreach": n * w.state,
            "adamw-loop": 2 * largest * w.state,
            "adafactor": largest * 4 * (4 if w.param == 2 else 2),
        }.get(kind, 0)
    return sizes | {"optimizer temporaries": temporaries if n else 0}


def _communication(s: Settings, w: Widths, part: Share, layer_bytes: float) -> Sizes:
    strategy, layer = s.parallelism.strategy, part.linear + part.rest
    if s.parallelism.data == 1:
        return {}
    bucket = {"reduce bucket": min(part.trainable, BUCKET_ELEMENTS) * w.gathered}
    # A full state dict of FSDP holds the optimizer's moments too; ZeRO-3 consolidates the 16-bit weights alone.
    saved = w.param if strategy == "zero3" or s.optimizer == "none" else max(w.param, w.state)
    saving = {"gathered for saving": max(s.model.vocab, s.model.ffn) * s.model.hidden * saved}
    if strategy == "ddp":
        return {"gradient buckets": part.trainable * w.grad}
    if strategy == "fsdp":
        gathered = layer_bytes if s.base_quantization else layer * w.gathered
        sizes = saving | {"gathered layer": gathered, "gathered embedding and head": part.outside * w.gathered}
        return sizes if s.lora else sizes | {"unsharded gradient": layer * (w.gathered + w.reduced)}
    if strategy in ("zero1", "zero2"):
        return bucket
    if strategy == "zero3":
        live = min(layer * part.layers + part.outside, LIVE_ELEMENTS) * w.gathered
        return bucket | saving | {"live parameters": live}
    return {}
