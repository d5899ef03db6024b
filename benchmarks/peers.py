"""What other estimators say of the same settings: each one that is installed runs, the others are restated or left out.

    python benchmarks/peers.py                 # the CPU configurations of trace_cpu.py, then the published peaks
    python benchmarks/peers.py --write         # and keeps what they said in data/measured/peers.json

A peer answers in bytes, or says why it does not: nothing is asked of it that it does not claim to cover. One that is
not installed keeps the answers in the file, which were given by the version named there.

    accelerate     estimate-memory: its functions on the model that it makes (AutoModel, without a head)
    DeepSpeed      estimate_zero2/zero3_model_states_mem_needs, restated from deepspeed 0.19.8, without offload
    Megatron-LM    megatron/training/theoretical_memory_usage.py, restated
    train_memory   closed form of the Hugging Face article "Visualize and understand GPU memory in PyTorch"
    EleutherAI     calc/calc_transformer_mem.py of EleutherAI/cookbook, restated
    fitcheck       the fitcheck-llm package, its estimate without overhead where allocated bytes are compared; its
                   constants were fitted to most of the published T4 rows
    MemTracker     torch.distributed._tools.mem_tracker over the step that is traced, under fake tensors
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from closed_forms import PEAKS

from diag_kit.memory.settings import Settings

DATA = Path(__file__).parents[1] / "data" / "measured"
OUT, CPU = DATA / "peers.json", DATA / "cpu_profiler.json"
RESTATED = "restated"
WIDTH = {"fp32": 4, "amp-bf16": 4, "amp-fp16": 4, "bf16": 2, "fp16": 2}


class Declined(Exception):  # noqa: N818 (an answer, no error)
    """A peer does not cover these settings; the text says why."""


@dataclass(frozen=True)
class Question:
    """Settings as a document, and what is compared: ``allocated`` bytes of the program, or what the ``device`` shows."""

    document: dict[str, Any]
    compared: str = "allocated"

    @property
    def settings(self) -> Settings:
        """The settings."""
        return Settings.from_json(self.document)

    @property
    def digest(self) -> str:
        """Tells documents apart."""
        return hashlib.sha256(json.dumps(self.document, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def decoder(self) -> Settings:
        """The settings, where the model is a decoder that is trained whole; Declined otherwise."""
        if self.numbers.model.encoder:
            raise Declined("covers decoders only")
        return self.trained

    @property
    def trained(self) -> Settings:
        """The settings, where the model is trained whole; Declined otherwise."""
        if self.settings.lora:
            raise Declined("knows no frozen base")
        return self.settings

    @property
    def numbers(self) -> Settings:
        """The settings, where the model's numbers are known; Declined otherwise."""
        if self.settings.exact and self.settings.exact.uncovered:
            raise Declined("takes a decoder's numbers only")
        return self.settings

    def whole(self, auto: bool = False) -> Any:
        """The model on the meta device, with its head or, ``auto``, as AutoModel makes it; Declined without one."""
        config = self.settings.exact and self.settings.exact.config
        if not config:
            raise Declined("its source has a model of its own")
        import torch
        import transformers

        stated = {key: value for key, value in config.items() if key != "architectures"}
        made = transformers.AutoConfig.for_model(**stated)
        with torch.device("meta"):
            if auto:
                return transformers.AutoModel.from_config(made)
            return getattr(transformers, config["architectures"][0])(made)


def accelerate(q: Question) -> int:
    """4 times fp32 weights, or twice them in mixed precision, of the model without its head."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    precision = "float32" if q.trained.precision == "fp32" else "float16"
    size, _ = calculate_maximum_sizes(q.whole(auto=True))
    usage = estimate_training_usage(size, precision)
    return int(max(usage.values()))


def deepspeed(q: Question) -> int:
    """Model states only: 2 bytes a parameter, and 18 shared by the ranks; with sharded weights one layer whole."""
    p = q.trained.parallelism
    if p.tensor * p.pipeline > 1:
        raise Declined("covers data parallel runs only")
    if p.strategy in ("fsdp", "zero3"):
        model = q.whole()
        total = sum(n.numel() for n in model.parameters())
        largest = max(sum(n.numel() for n in m.parameters(recurse=False)) for m in model.modules())
        return 4 * largest + 18 * total // p.world_size
    ranks = p.world_size if p.strategy in ("zero1", "zero2") else 1
    try:
        total = sum(n.numel() for n in q.whole().parameters())
    except Declined:
        total = q.numbers.model.params
    return 2 * total + 18 * total // ranks


def megatron(q: Question) -> int:
    """18 bytes a parameter of the fullest shard, 10 + 24/t bytes a hidden value and layer, 5 % on top."""
    s = q.decoder
    m, p = s.model, s.parallelism
    if p.strategy in ("fsdp", "zero2", "zero3"):
        raise Declined("knows no sharded weights")
    norm = 1 if m.gated_ffn else 2
    ratio = m.heads * m.head_dim / m.hidden
    attention = 2 * m.hidden**2 * (1 + m.kv_heads / m.heads) * ratio
    layer = 2 * m.hidden * (m.ffn * (3 / 2 if m.gated_ffn else 1) + norm) + attention
    embedding = m.hidden * m.vocab
    shard = (m.n_layers * layer + norm * m.hidden) / p.pipeline + embedding
    if not m.tied_embeddings and p.pipeline == 1:
        shard += embedding
    per_param = 6 + 12 / p.data if p.strategy == "zero1" else 18
    tokens = s.seq_len * s.micro_batch
    acts = tokens * m.hidden * (10 + 24 / p.tensor) * m.n_layers + (8 + m.hidden) * tokens * p.pipeline
    if p.pipeline > 1:
        acts *= min(1, s.grad_accum / p.pipeline)
    else:
        acts += 2 * tokens * (m.vocab / p.tensor + m.hidden)
    return int(shard / p.tensor * per_param + 1.05 * acts)


def train_memory(q: Question) -> int:
    """Weights and two states, and the larger of gradients and activations; the latter by a regression on parameters."""
    s = q.decoder
    if s.parallelism.world_size > 1:
        raise Declined("covers one GPU only")
    n, width = s.model.params, WIDTH[s.precision]
    values = 4.6894e-4 * n + 1.8494e6
    return int(3 * n * width + max(n * width, values * s.micro_batch * s.seq_len * width))


def eleuther(q: Question) -> int:
    """Weights, fp32 gradients, 12 bytes of optimizer, and 34·s·b·h with scores or, checkpointed, without them."""
    s = q.decoder
    m, p = s.model, s.parallelism
    kept = m.kv_heads / m.heads
    params = 2 * m.vocab * m.hidden + m.hidden * s.seq_len + 8 * m.hidden * m.n_layers + 2 * m.hidden
    params += m.n_layers * (2 * (1 + kept) * m.hidden**2 + (3 if m.gated_ffn else 2) * m.hidden * m.ffn)
    width = 4 if s.precision == "fp32" else 2
    stage = {"fsdp": 3, "zero3": 3, "zero2": 2}.get(p.strategy, 1)
    weights = params * width / (p.tensor * p.pipeline * (p.world_size if stage == 3 else 1))
    gradients = 4 * params / (p.world_size if stage >= 2 else 1)
    buffers = (5e8 * width + (1e9 * width if stage == 3 else 0)) if p.world_size > 1 else 0
    scores = 0 if s.checkpointing == "full" else 5 * m.heads * s.seq_len / m.hidden
    acts = s.seq_len * s.micro_batch * m.hidden * m.n_layers * (34 + scores)
    return int(weights + gradients + 12 * params / p.world_size + buffers + acts)


def fitcheck(q: Question) -> int:
    """Its package's own estimate."""
    from fitcheck.config_parser import ModelConfig
    from fitcheck.estimator import TrainingConfig, estimate
    from fitcheck.gpu_db import GPU_DB, get_gpu

    s = q.numbers
    m = s.model
    if not m.gated_ffn or m.encoder:
        raise Declined("refuses models without a gated feed-forward")
    if s.parallelism.world_size > 1:
        raise Declined("covers one GPU only")
    optimizer = "adam8bit" if s.optimizer == "adamw-8bit" else s.optimizer.partition("-")[0]
    if optimizer not in ("adamw", "adam8bit", "sgd"):
        raise Declined(f"knows no {s.optimizer}")
    model = ModelConfig(
        "model", m.params, m.hidden, m.n_layers, m.heads, m.kv_heads, m.ffn, m.vocab, m.head_dim, m.tied_embeddings
    )
    training = TrainingConfig(
        # Its precision is the compute type; over a 4-bit base the rows here were computed in fp16.
        precision="fp16" if s.base_quantization else s.precision.removeprefix("amp-"),
        quantization=s.base_quantization or "none",
        optimizer=optimizer,
        optimizer_dtype="fp32" if s.lora or WIDTH[s.precision] == 4 else s.precision,
        batch_size=s.micro_batch,
        seq_len=s.seq_len,
        lora_rank=s.lora.rank if s.lora else None,
        lora_targets=list(s.lora.targets) if s.lora else [],
        grad_checkpoint=s.checkpointing != "none",
        flash_attn=s.attention != "eager",
        grad_accum_steps=s.grad_accum,
    )
    names = {key.partition("-")[0].casefold(): key for key in GPU_DB}
    try:
        report = estimate(model, training, get_gpu(names.get((s.gpu or "A100").casefold(), "a100-80")))
    except ValueError as e:
        raise Declined(str(e)) from None
    return int((report.total_mib - (report.overhead_mib if q.compared == "allocated" else 0)) * 2**20)


def mem_tracker(q: Question) -> int:
    """Its peak over two steps of the traced job; the attention mask is left out, which it can't answer questions on."""
    s = q.settings
    if s.device != "cpu":
        raise Declined("sees a GPU's kernels on a GPU only")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from diag_kit.memory.trace import models, step

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            job = models.build(s)
            optimizer = job.optimizer([p for p in job.model.parameters() if p.requires_grad])
            tracker = MemTracker()
            tracker.track_external(job.model, *([optimizer] if optimizer else []))
            plain, job.batch = job.batch, lambda b, n: (tracker.reset_mod_stats(), _unmasked(plain(b, n)))[1]
            with tracker:
                for _ in range(2):
                    step.optimizer_step(job, s, optimizer, step.Nobody())
    except Exception as e:  # noqa: BLE001 (whatever the peer fails with is its answer)
        raise Declined(f"stops with {type(e).__name__}: {(str(e).splitlines() or [''])[0]:.80}") from None
    return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())


def _unmasked(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: None if name == "attention_mask" else tensor for name, tensor in batch.items()}


PEERS: dict[str, tuple[Callable[[Question], int], str]] = {
    # name in the table: (what answers, the package whose version is told; empty where the formula is restated)
    "accelerate": (accelerate, "accelerate"),
    "DeepSpeed": (deepspeed, ""),
    "Megatron-LM": (megatron, ""),
    "train_memory": (train_memory, ""),
    "EleutherAI": (eleuther, ""),
    "fitcheck": (fitcheck, "fitcheck-llm"),
    "MemTracker": (mem_tracker, "torch"),
}


def installed(name: str) -> str | None:
    """Version of what a peer needs; ``RESTATED`` where it needs nothing; None where it is not installed."""
    package = PEERS[name][1]
    try:
        return version(package) if package else RESTATED
    except PackageNotFoundError:
        return None


def answer(name: str, q: Question) -> int | str:
    """A peer's bytes, or why it gives none."""
    try:
        return PEERS[name][0](q)
    except Declined as e:
        return str(e)


def questions() -> Iterator[tuple[str, str, Question, int]]:
    """(kind, id, question, true bytes) of every row: the CPU configurations, then the published peaks."""
    for name, case in json.loads(CPU.read_text(encoding="utf-8"))["cases"].items():
        yield "cpu", name, Question(case["settings"]), case["peak_bytes"]
    with PEAKS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            compared = "allocated" if row["metric"] == "max_allocated" else "device"
            yield "published", row["id"], Question(json.loads(row["settings"]), compared), int(row["value_bytes"])


def held() -> dict[str, Any]:
    """What the file keeps: ``versions`` by peer; ``rows`` by id, each with a digest of its settings and the answers by
    peer (bytes, or why there are none)."""
    return json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {"versions": {}, "rows": {}}


def asked(again: bool) -> Iterator[tuple[str, str, int, dict[str, int | str | None]]]:
    """(kind, id, true bytes, answers by peer) of every row; what the file holds of the same version is not asked again."""
    kept = held()
    ready = {name: installed(name) for name in PEERS}
    for kind, id_, q, true in questions():
        old = kept["rows"].get(id_, {})
        same = old.get("settings") == q.digest
        answers: dict[str, int | str | None] = {}
        for name in PEERS:
            known = old.get("answers", {}).get(name) if same else None
            stale = ready[name] == RESTATED or kept["versions"].get(name) != ready[name]
            if ready[name] and (known is None or again or stale):
                known = answer(name, q)
            answers[name] = known
        yield kind, id_, true, answers


def off(value: int | str | None, true: int) -> float | None:
    """Error of an answer; None where there is none."""
    return value / true - 1 if isinstance(value, int) else None


def main() -> None:
    """Print the table; keep the answers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {OUT.name}")
    parser.add_argument("--again", action="store_true", help="ask again what the file holds already; some minutes")
    arguments = parser.parse_args()
    kept = held()["versions"]
    versions = {name: installed(name) or kept.get(name) for name in PEERS}
    for name in PEERS:
        print(f"{name:13} {installed(name) or f'not installed; what {versions[name]} said is in {OUT.name}'}")
    digests = {id_: q.digest for _, id_, q, _ in questions()}
    errors: dict[tuple[str, str], list[float]] = {}
    reasons: dict[str, set[str]] = {name: set() for name in PEERS}
    rows = {}
    print(f"\n{'error of the peak':42}" + "".join(f"{name:>14}" for name in PEERS))
    for kind, id_, true, answers in asked(arguments.again):
        rows[id_] = {"settings": digests[id_], "answers": answers}
        told = {name: off(value, true) for name, value in answers.items()}
        for name, error in told.items():
            if error is not None:
                errors.setdefault((kind, name), []).append(abs(error))
            elif answers[name]:
                reasons[name].add(str(answers[name]))
        print(f"{id_:42}" + "".join(f"{'n/a' if e is None else f'{e:+.1%}':>14}" for e in told.values()), flush=True)
    for kind in ("cpu", "published"):
        found = [errors.get((kind, name), []) for name in PEERS]
        print(
            f"{f'median error, {kind}':42}"
            + "".join(f"{statistics.median(e):14.1%}" if e else f"{'n/a':>14}" for e in found)
        )
        print(f"{'rows answered':42}" + "".join(f"{len(e):14}" for e in found))
    for name, why in reasons.items():
        print(f"n/a of {name}: {'; '.join(sorted(why)) or 'none'}")
    if arguments.write:
        OUT.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
