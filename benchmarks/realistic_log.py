"""Writes a log as a large training job leaves it: 64 ranks, most of it healthy, one failure near the end.

Progress bars with carriage returns, JSON metrics, Megatron's iteration lines, NCCL's chatter, Python logging with words
that look like trouble and are none, faults that were survived; then one rank runs out of memory, the others time out,
the launcher cleans up. The healthy part repeats itself after 48 MiB. All of it is made up.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

RANKS, ORIGIN = 64, 13
_BLOCK = 48 << 20


def write(path: Path, size: int) -> None:
    """A log of ``size`` bytes, give or take a line; the failure begins about 3 MiB before its end."""
    failure = "".join(_failure()).encode()
    tail = "".join(_nccl(random.Random(9), i) for i in range(12_000)).encode()
    block = _healthy(min(_BLOCK, size))
    with path.open("wb") as out:
        left = size - len(failure) - len(tail)
        while left > 0:
            out.write(block[:left] if left < len(block) else block)
            left -= len(block)
        out.write(b"\n" + failure + tail)


def _healthy(size: int) -> bytes:
    draw = random.Random(4)
    kinds = (_bar, _bar, _bar, _metrics, _metrics, _megatron, _nccl, _nccl, _logging, _logging)
    parts: list[str] = []
    length = step = 0
    while length < size:
        kind = draw.choice(kinds)
        burst = "".join(kind(draw, step + i) for i in range(draw.randrange(30, 600)))
        step += 200
        if kind is _bar:
            burst += "\n"
        parts.append(burst)
        length += len(burst)
    return "".join(parts).encode()


def _bar(draw: random.Random, step: int) -> str:
    done = step % 40_000
    filled = "█" * (done // 4_000)
    left = f"{(40_000 - done) // 3600}:{done // 60 % 60:02}:{done % 60:02}"
    loss = 1.5 + draw.random()
    return f"\rEpoch 3: {done // 400:3d}%|{filled:<10}| {done}/40000 [{done // 60:02}:{done % 60:02}<{left}, 1.31it/s, v_num=7, train_loss={loss:.4f}]"


def _metrics(draw: random.Random, step: int) -> str:
    rank = draw.randrange(RANKS)
    row = {"step": step, "rank": rank, "loss": round(1.5 + draw.random(), 5), "grad_norm": round(draw.random(), 5),
           "lr": 0.00029, "tokens_per_s": round(11_000 + 900 * draw.random(), 1), "mem_alloc_gib": round(60 + 9 * draw.random(), 2),
           "data_wait_ms": draw.randrange(40), "timeout_s": 1800, "error_rate": 0.0}  # fmt: skip
    return f"[rank{rank}]: {json.dumps(row)}\n"


def _megatron(draw: random.Random, step: int) -> str:
    return (
        f"[default{step % 8}]: [2026-03-{1 + step // 90_000 % 28:02} {step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}] iteration {step:8d}/  500000 | "
        f"consumed samples: {step * 1024:12d} | elapsed time per iteration (ms): {9000 + 900 * draw.random():.1f} | learning rate: {3e-4 * draw.random():.6E} | "
        f"global batch size:  1024 | lm loss: {1.5 + draw.random():.6E} | loss scale: 1.0 | grad norm: {draw.random():.3f} | "
        f"number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def _nccl(draw: random.Random, step: int) -> str:
    local, node = step % 8, draw.randrange(8)
    rank = local + 8 * node
    return f"node-{node:03}:{40_000 + local}:{41_000 + local} [{local}] NCCL INFO Channel {step % 32:02}/0 : {rank}[{local}] -> {(rank + 8) % 64}[{local}] [send] via NET/IB/{local}/GDRDMA\n"


_SAID = (
    "INFO - trainer - step {n}: memory allocated 61.2 GiB, reserved 70.4 GiB, max memory 74.1 GiB",
    "INFO - data - loader workers=8 prefetch=4 queue depth {q} (no stalls, timeout=1800s)",
    "INFO - io - wrote step_{n} to /mnt/out in {q}.3s, 0 errors, shared storage ok",
    "DEBUG - elastic - heartbeat from agent {q} ok; exit barrier not reached; last error none",
    "WARNING - tokenizer - sequence length is longer than the specified maximum ({q} > 4096)",
    "INFO - eval - perplexity at step {n}: 8.{q}; accuracy 0.7{q}; signal to noise 3.1",
    "INFO - gc - collected {q} objects; resident 45.1 GiB out of 2048 GiB host memory",
    "WARNING - s3 - read timed out, retry 1/5 of shard {q}",
)


def _logging(draw: random.Random, step: int) -> str:
    said = draw.choice(_SAID).format(n=step, q=draw.randrange(1, 99))
    return f"2026-03-{1 + step // 90_000 % 28:02} {step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02},{step % 1000:03} - [rank {draw.randrange(RANKS)}] {said}\n"


def _failure() -> Iterator[str]:
    frames = (
        "Traceback (most recent call last):",
        '  File "/workspace/train.py", line 812, in <module>',
        "    main()",
        '  File "/workspace/train.py", line 655, in main',
        "    loss = model(batch)",
    )
    yield from (f"[rank{ORIGIN}]: {line}\n" for line in frames)
    yield (
        f"[rank{ORIGIN}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 5 has a total capacity of 79.10 GiB of which "
        "1.20 GiB is free. Including non-PyTorch memory, this process has 77.88 GiB memory in use. Of the allocated memory 70.11 GiB is allocated by "
        "PyTorch, and 5.90 GiB is reserved by PyTorch but unallocated.\n"
    )
    others = [rank for rank in range(RANKS) if rank != ORIGIN]
    for rank in others:
        yield (
            f"[rank{rank}]:[E317 04:11:{rank % 60:02}.123456789 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=123456, OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, Timeout(ms)=1800000) ran for 1800021 milliseconds before timing out.\n"
        )
        yield from (f"[rank{rank}]: {line}\n" for line in frames)
        yield f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
    for rank in others:
        yield f"W0317 04:12:00.000000 139 torch/distributed/elastic/multiprocessing/api.py:900] Sending process {4000 + rank} closing signal SIGTERM\n"
    yield (
        "E0317 04:12:31.000000 139 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 5 (pid: 4013) of binary: /opt/python\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-17_04:11:58\n  host      : node-001\n  rank      : 13 (local_rank: 5)\n"
        "  exitcode  : 1 (pid: 4013)\n  error_file: <N/A>\n"
    )
