"""Gradients of two ranks with and without ``no_sync``: DDP, DDP with bucket views, FSDP2. On the CPU, over gloo."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ...memory.settings import Settings
from ..carrying import category_bytes
from ..fitting import shown, truth
from ..records import Carried, Experiment, Judged, LabError, Line, Measured, Row

ABOUT = Experiment(
    id="no-sync",
    title="no_sync()",
    entry="gradient-accumulation-memory-spike",
    cause="grad-accumulation-buffer",
    claim="`no_sync()` for the steps that do not synchronise saves memory.",
    expect=(
        "Live bytes on rank 0 after each micro-step: never lower without synchronisation, higher for FSDP2 "
        "and bucket views."
    ),
    processes=2,
)
STEPS = 4
WAYS = ("DDP", "DDP, bucket views", "FSDP2")
LIMIT_S = 240


def measure(bench: Any) -> Measured:
    """Live bytes after each micro-step, on rank 0 of two, the wrapped model counted."""
    lines = []
    found, bench.importing = two_ranks()
    for way, synced, live in found:
        steps = "every micro-step" if synced else "the last"
        lines.append(Line(f"{way}, synchronised in {steps}", tuple(range(1, STEPS + 1)), tuple(live)))
    return Measured("micro-steps", tuple(lines))


def two_ranks() -> tuple[list[Any], float]:
    """What rank 0 measured; both are processes of their own, which meet over a file and end with this call.

    Beside it the processor seconds that both took to import torch.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", __name__, str(Path(folder) / "store")]
        ranks = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for n in (0, 1)]
        try:
            (said, complaint), _ = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        except subprocess.TimeoutExpired:
            raise LabError(f"two ranks did not meet over gloo within {LIMIT_S} s") from None
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    if ranks[0].returncode:
        raise LabError(f"rank 0 ended with status {ranks[0].returncode}: {complaint.decode(errors='replace')[-200:]}")
    found, importing = json.loads(said)
    return found, 2 * importing


def rank_of_two(store: str, rank: int) -> tuple[list[Any], float]:
    """Each way to spread the model, each with and without synchronisation in every micro-step."""
    import torch
    import torch._dynamo  # DDP loads it at its first use
    import torch.distributed as dist
    import torch.distributed.fsdp

    gc.collect()
    gc.freeze()  # as in the lab's own process
    importing = time.process_time()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    try:
        window(WAYS[0], True)  # libraries take what they need at their first use
        return [(way, synced, window(way, synced)) for way in WAYS for synced in (True, False)], importing
    finally:
        dist.destroy_process_group()


def window(way: str, synced: bool) -> list[int]:
    """Bytes alive after each micro-step of one window; the last micro-step is always synchronised.

    The C library's heap says so where it can: gloo's own threads free tensors too, and the profiler follows one thread.
    """
    from contextlib import nullcontext

    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from ..tape import Tape, heap_bytes
    from ..toys import Blocks

    gc.collect()
    before, heap = heap_bytes(), []
    with Tape("cpu") if before is None else nullcontext() as tape:
        model: Any = Blocks(width=256, depth=4, classes=256)
        if way == "FSDP2":
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        else:
            model = DistributedDataParallel(model, gradient_as_bucket_view="views" in way)
        for step in range(STEPS):
            now = synced or step == STEPS - 1
            if way == "FSDP2":
                model.set_requires_gradient_sync(now)
            with nullcontext() if now or way == "FSDP2" else model.no_sync():
                model(torch.randn(16, 256)).square().mean().backward()
            if tape:
                tape.mark()
            else:
                time.sleep(0.02)  # a thread of gloo's lets go of its tensors a moment later
                heap.append((heap_bytes() or 0) - (before or 0))
    return tape.live if tape else heap


def judge(measured: Measured) -> Judged:
    """Saves: what is alive between micro-steps is over a tenth lower without synchronisation."""
    saves, parts, rows = [], [], []
    for way in WAYS:
        synced, rarely = (
            measured.line(f"{way}, synchronised in {steps}") for steps in ("every micro-step", "the last")
        )
        live, other = synced.bytes[-2], rarely.bytes[-2]  # the last micro-step is synchronised in both
        saves.append(other < 0.9 * live)
        parts.append(f"{way} {shown(live)} with synchronisation in each, {shown(other)} without")
        rows += [
            Row(synced.label, live, "alive between micro-steps"),
            Row(rarely.label, other, "alive between micro-steps"),
        ]
    return Judged(truth(saves), f"Alive between micro-steps: {'; '.join(parts)}.", tuple(rows))


def carry(s: Settings) -> tuple[Carried, ...]:
    """The gradients on one of the run's ranks under FSDP, with and without synchronisation in each micro-step."""
    world = max(s.parallelism.world_size, 2)
    return tuple(
        Carried(
            f"gradients under FSDP on {world} ranks, {words}",
            category_bytes(
                s.with_(
                    grad_accum=max(s.grad_accum, 2),
                    parallelism={"strategy": "fsdp", "world_size": world, "no_sync": off, "tensor": 1, "pipeline": 1},
                ),
                "gradients",
            ),
            "on each rank, between micro-steps",
        )
        for words, off in (("synchronised in each micro-step", False), ("synchronised in the last", True))
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(rank_of_two(sys.argv[1], int(sys.argv[2]))))
