"""A run of eight ranks of which one failed and seven waited."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from .arithmetic import EIGHT_B, GIB, KIB, MIB, out_of_memory, size
from .printing import CALL, LLAMA, TF, TORCH, WRAPPERS, Files, Frame, traceback


def many_ranks() -> Files:
    """Eight ranks; on rank 3's card another process holds 58 GiB. Its peers wait for ten minutes, then abort."""
    rng, model, batch, length, world = random.Random(4), EIGHT_B, 2, 8192, 8
    tokens, total = batch * length, 84_942_979_072  # H100 80GB HBM3
    shard, root = 4 * model.params // world, 2 * (2 * model.vocab * model.hidden + model.hidden)
    checkpoints, head = model.layers * tokens * model.hidden * 2, tokens * (8 * model.hidden + 2 * model.vocab)
    allocated, idle, outside = shard + root + checkpoints + head, 603 * MIB + 512 * KIB, 1_583 * MIB
    stranger, held, pids, agent = 1482290, 58 * GIB + 214 * MIB, [21610 + r for r in range(world)], 21544
    request = 4 * tokens * model.vocab
    if total - allocated - idle - outside < 2 * request:
        raise ValueError("the run must fit where the card is its own")
    message = out_of_memory(
        request, total=total, allocated=allocated, idle=idle, outside=outside, device=3, others=[(stranger, held)]
    )
    script, host = "/mnt/lustre/proj/cpt/train_fsdp.py", "gpu-node-07"
    died = datetime(2026, 4, 7, 14, 2, 11, 306000)
    frames: list[Frame] = [
        (script, 302, "<module>", "main()"),
        (
            f"{TORCH}/distributed/elastic/multiprocessing/errors/__init__.py",
            355,
            "wrapper",
            "return «f(*args, **kwargs)»",
        ),
        (script, 287, "main", "loss = «model(input_ids=ids, labels=ids, use_cache=False)».loss"),
        *CALL,
        (
            f"{TORCH}/distributed/fsdp/fully_sharded_data_parallel.py",
            864,
            "forward",
            "output = «self._fsdp_wrapped_module(*args, **kwargs)»",
        ),
        *CALL,
        *WRAPPERS,
        (
            LLAMA,
            841,
            "forward",
            "loss = «self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)»",
        ),
        (f"{TF}/loss/loss_utils.py", 51, "ForCausalLMLoss", "logits = «logits.float()»"),
    ]
    files: Files = {
        "config.json": model.config("bfloat16", rope_theta=500000.0),
        "train_config.yaml": (
            "model: config.json\nmicro_batch_size: 2\nseq_length: 8192\ngradient_accumulation_steps: 4\nprecision: bf16-mixed\n"
            "attn_implementation: flash_attention_2\nactivation_checkpointing: true\nstrategy: fsdp\nsharding: full_shard\n"
            "world_size: 8\noptimizer: adamw\nlearning_rate: 1.0e-5\nmax_steps: 4000\n"
        ),
    }
    gathered, waits = model.layer_params, model.layers + 3
    work = f"WorkNCCL(SeqNum={waits}, OpType=_ALLGATHER_BASE, NumelIn={gathered // world}, NumelOut={gathered}, Timeout(ms)=600000)"
    terminated = (5, 6)
    for rank in range(world):
        lines = [
            f"[2026-04-07 14:01:{22 + rank % 3 + number:02d},{rng.randrange(1000):03d}] [rank {rank}] {text}"
            for number, text in enumerate(
                (
                    f"host {host} local_rank {rank} pid {pids[rank]} device cuda:{rank} NVIDIA H100 80GB HBM3",
                    f"cuda:{rank} free before load: {size(total - 529 * MIB - (held if rank == 3 else 0))} of {size(total)}",
                    f"{model.params:,} parameters; this rank holds {model.params // world:,} in fp32 ({size(shard)})",
                    "FSDP: 33 units, FULL_SHARD, bf16 compute, activation checkpointing on every decoder layer",
                )
            )
        ]
        lines.append(
            f"[2026-04-07 14:02:0{rng.randrange(4, 7)},{rng.randrange(1000):03d}] [rank {rank}] step 1: micro-batch 1 of 4, 2 x 8192 tokens"
        )
        if rank == 3:
            lines += [f"[rank3]: {line}" for line in traceback(frames, message)]
        else:
            at = died + timedelta(seconds=600.4 + rng.uniform(0, 0.3))

            def native(number: int, text: str, at: datetime = at, rank: int = rank) -> str:
                stamp = at.strftime("%m%d %H:%M:%S.%f").lstrip("0") + f"{rng.randrange(1000):03d}"
                return f"[rank{rank}]:[E{stamp} ProcessGroupNCCL.cpp:{number}] {text}"

            group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
            state = f"{waits}, last enqueued NCCL work: {waits + 1}, last completed NCCL work: {waits - 1}."
            caught = f"[Rank {rank}] Watchdog caught collective operation timeout: {work} ran for {600000 + rng.randrange(2, 98)} milliseconds before timing out."
            lines += [
                native(616, caught),
                native(1785, f"{group} Exception (either an error or timeout) detected by watchdog at work: {state}"),
            ]
            if rank not in terminated:
                ended = f"{group} Process group watchdog thread terminated with exception: {caught}"
                native_frames = [
                    "Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:618 (most recent call first):",
                    *(f"frame #{i}: {what} in {where})" for i, (what, where) in enumerate(stack(rng))),
                    "",
                ]
                lines += [
                    native(1834, f"{group} Timeout at NCCL work: {state}"),
                    native(
                        630,
                        f"[Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
                        "subsequent GPU operations might run on corrupted/incomplete data.",
                    ),
                    native(636, f"[Rank {rank}] To avoid data inconsistency, we are taking the entire process down."),
                    native(1595, ended),
                    *native_frames,
                    "terminate called after throwing an instance of 'c10::DistBackendError'",
                    f"  what():  {ended}",
                    *native_frames,
                ]
        files[f"rank{rank}.log"] = "\n".join(lines) + "\n"
    files["launcher.log"] = launcher(script, host, died, pids, agent, terminated, frames, message)
    return files


def stack(rng: random.Random) -> list[tuple[str, str]]:
    """Native frames of a watchdog's exception."""
    at = [f"0x7f{rng.randrange(16**10):010x}" for _ in range(7)]
    cuda, libc = f"{TORCH}/lib/libtorch_cuda.so", "/lib/x86_64-linux-gnu/libc.so.6"
    return [
        (f"c10::Error::Error(c10::SourceLocation, std::string) + 0x96 ({at[0]}", f"{TORCH}/lib/libc10.so"),
        (
            "c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >) + 0x282 "
            f"({at[1]}",
            cuda,
        ),
        (f"c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 ({at[2]}", cuda),
        (f"c10d::ProcessGroupNCCL::ncclCommWatchdog() + 0x14d ({at[3]}", cuda),
        (f"<unknown function> + 0x145c0 ({at[4]}", f"{TORCH}/lib/libtorch.so"),
        (f"<unknown function> + 0x94ac3 ({at[5]}", libc),
        (f"<unknown function> + 0x126850 ({at[6]}", libc),
    ]


def launcher(
    script: str,
    host: str,
    died: datetime,
    pids: list[int],
    agent: int,
    terminated: tuple[int, ...],
    frames: list[Frame],
    message: str,
) -> str:
    """What torchrun prints: the command, the signals it sent, and the failure that it saw first."""
    ended, elastic = "2026-04-07_14:12:12", f"{TORCH}/distributed"
    aborted = [rank for rank in range(len(pids)) if rank not in (3, *terminated)]
    lines = [
        f"$ torchrun --standalone --nproc_per_node 8 --log-dir logs --redirects 3 {script} --config train_config.yaml",
        f"W0407 14:01:08.118000 {agent} torch/distributed/run.py:793] ",
        f"W0407 14:01:08.118000 {agent} torch/distributed/run.py:793] *****************************************",
        f"W0407 14:01:08.118000 {agent} torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1 in "
        "default, to avoid your system being overloaded, please further tune the variable for optimal performance in your application as needed. ",
        f"W0407 14:01:08.118000 {agent} torch/distributed/run.py:793] *****************************************",
        *(
            f"W0407 14:12:12.7{r}4000 {agent} torch/distributed/elastic/multiprocessing/api.py:897] Sending process {pids[r]} closing signal SIGTERM"
            for r in terminated
        ),
        f"E0407 14:12:14.402000 {agent} torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 3 (pid: {pids[3]}) "
        "of binary: /opt/conda/envs/llm/bin/python",
        *traceback(
            [
                ("/opt/conda/envs/llm/bin/torchrun", 8, "<module>", "sys.exit(«main()»)"),
                (
                    f"{elastic}/elastic/multiprocessing/errors/__init__.py",
                    355,
                    "wrapper",
                    "return «f(*args, **kwargs)»",
                ),
                (f"{elastic}/run.py", 919, "main", "run(args)"),
                (f"{elastic}/run.py", 910, "run", "elastic_launch("),
                (
                    f"{elastic}/launcher/api.py",
                    138,
                    "__call__",
                    "return «launch_agent(self._config, self._entrypoint, list(args))»",
                ),
                (f"{elastic}/launcher/api.py", 269, "launch_agent", "raise ChildFailedError("),
            ],
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        ),
        "=" * 60,
        f"{script} FAILED",
        "-" * 60,
        "Failures:",
    ]
    for index, rank in enumerate(aborted, 1):
        lines += [
            f"[{index}]:",
            f"  time      : {ended}",
            f"  host      : {host}",
            f"  rank      : {rank} (local_rank: {rank})",
            f"  exitcode  : -6 (pid: {pids[rank]})",
            "  error_file: <N/A>",
            f"  traceback : Signal 6 (SIGABRT) received by PID {pids[rank]}",
        ]
    told = traceback(frames, message)
    lines += [
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {died.strftime('%Y-%m-%d_%H:%M:%S')}",
        f"  host      : {host}",
        "  rank      : 3 (local_rank: 3)",
        f"  exitcode  : 1 (pid: {pids[3]})",
        "  error_file: /tmp/torchelastic_k1w0s2ab/none_q7d0x3/attempt_0/3/error.json",
        f"  traceback : {told[0]}",
        *(f"  {line}" for line in told[1:]),
        "  ",
        "=" * 60,
    ]
    return "\n".join(lines) + "\n"
