"""Run FSDP2 for real on this machine's CPU, two processes over gloo, and hold what they allocate against the trace.

    python benchmarks/measure_sharded.py

Each process steps twice with real tensors; torch's profiler tells every allocation of its CPU allocator in the second
step, those within kernels included. What gloo allocates while it communicates is left out: it reduces a copy of its
input, in threads of its own, which NCCL does not. The trace pretends that the other rank exists.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from typing import Any

from diag_kit.memory.settings import Settings

LLAMA = {"n_layers": 3, "hidden": 128, "heads": 4, "kv_heads": 4, "ffn": 352, "vocab": 1000}
CASES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp32, accumulation": {"grad_accum": 3},
    "fp32, no_sync": {"grad_accum": 3, "parallelism": {"no_sync": True}},
    "bf16": {"precision": "bf16"},
    "amp-bf16, accumulation": {"precision": "amp-bf16", "grad_accum": 2},
    "amp-bf16, no_sync": {"precision": "amp-bf16", "grad_accum": 3, "parallelism": {"no_sync": True}},
    "checkpointed": {"checkpointing": "full", "precision": "bf16"},
    "short, foreach": {"optimizer": "adamw-foreach", "seq_len": 8, "micro_batch": 1},
    "LoRA": {"lora": {"rank": 4}, "precision": "bf16"},
}


def document(changes: dict[str, Any], ranks: int = 2) -> dict[str, Any]:
    """Settings of a small run on the CPU."""
    shared = {"strategy": "fsdp", "world_size": ranks} | changes.get("parallelism", {})
    base = {"model": LLAMA, "micro_batch": 2, "seq_len": 192, "device": "cpu", "attention": "eager"}
    return base | changes | {"parallelism": shared}


def real_peak(s: Settings, rank: int, meeting: str) -> int:
    """Most bytes that this rank holds in its second step, by the profiler. ``meeting``: a file that the ranks share."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
    from torch.profiler import ProfilerActivity, profile, record_function

    from diag_kit.memory.sharing import local
    from diag_kit.memory.trace.ledger import _local
    from diag_kit.memory.trace.models import build
    from diag_kit.memory.trace.sharded import shard
    from diag_kit.memory.trace.step import Nobody, _tensors, optimizer_step

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=s.parallelism.data)
    for collective in (DefaultAllGather, DefaultReduceScatter):
        collective.__call__ = record_function("collective")(collective.__call__)
    try:
        job = build(local(s))
        shard(job, s)
        optimizer = job.optimizer(job.model.parameters())
        optimizer_step(job, s, optimizer, Nobody())
        state = _tensors(list(optimizer.state.values())) if optimizer else []
        held = {}
        for tensor in (*job.model.parameters(), *job.model.buffers(), *state):
            for part in _local(tensor):
                held[part.untyped_storage()._cdata] = part.untyped_storage().nbytes()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            optimizer_step(job, s, optimizer, Nobody())
        dist.barrier()
        return _most(sum(held.values()), list(seen.profiler.kineto_results.events()))
    finally:
        dist.destroy_process_group()


def _most(live: int, events: list[Any]) -> int:
    """The most bytes alive, from those before: what is made on the thread that steps, outside collectives.

    A death counts wherever it happens, unless it is of what gloo made.
    """
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == "collective")
    thread = next(e.start_thread_id() for e in events if e.name() == "collective")
    starts, most, own = [start for start, _ in spans], live, Counter[int]()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        before = bisect_right(starts, event.start_ns()) - 1
        theirs = event.start_thread_id() != thread or (before >= 0 and event.start_ns() <= spans[before][1])
        size = event.nbytes()
        if theirs and (size > 0 or own[-size]):
            own[abs(size)] += 1 if size > 0 else -1
            continue
        live += size
        most = max(most, live)
    return most


def real_peaks(settings: dict[str, Any]) -> list[int]:
    """The peak of each rank, all run at once in processes of their own."""
    ranks = settings["parallelism"]["world_size"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--settings", json.dumps(settings), "--meeting", f"{folder}/meeting"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        started = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL, env=environment)
            for rank in range(ranks)
        ]
        told = [process.communicate(timeout=300)[0] for process in started]
    return [int(text.strip().splitlines()[-1]) for text in told]


def traced_peak(s: Settings) -> int:
    """What the trace says of rank 0."""
    from diag_kit.memory.trace.sharded import pretended_group
    from diag_kit.memory.trace.step import Session

    with pretended_group(s.parallelism.data):
        return Session(s).record(s.micro_batch, s.seq_len, s.grad_accum).peak_bytes()


def main() -> None:
    """Compare, case by case; or, as one rank, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--settings", help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.settings:
        print(real_peak(Settings.from_json(json.loads(arguments.settings)), arguments.rank, arguments.meeting))
        return
    for name, changes in CASES.items():
        if arguments.only in name:
            settings = document(changes)
            real, traced = real_peaks(settings), traced_peak(Settings.from_json(settings))
            print(f"{name:24} real {real[0]:>12,} traced {traced:>12,} {traced / real[0] - 1:+9.4%}  others {real[1:]}")


if __name__ == "__main__":
    sys.exit(main())
