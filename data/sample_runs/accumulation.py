"""A run whose graphs outlive their micro-step."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from .arithmetic import KIB, MIB, SMALL, out_of_memory, segment, size
from .printing import CALL, LLAMA_MLP, LLAMA_MODEL, Files, Frame, bar, document, mib, traceback


def accumulation_spike() -> Files:
    """Losses summed over the window, one backward at its end; the window grows 4, 8, 12, 20. Ends in micro-step 16 of step 10."""
    rng, model, tokens = random.Random(1), SMALL, 1024
    total, outside_about = 42_298_834_944, 497 * MIB  # A100-SXM4-40GB
    weights, head_saved, head_transient = (
        2 * model.params,
        tokens * (8 * model.hidden + 4 * model.vocab),
        tokens * 6 * model.vocab,
    )
    graph = model.layers * model.saved(tokens, mixed=False) + head_saved
    reserved_end = (total - outside_about) // (2 * MIB) * 2 * MIB
    now, reserved, micro, rows, log = (
        datetime(2026, 3, 11, 9, 14, 2, 518000),
        0,
        0,
        ["time,step,micro_step,allocated_mib,reserved_mib"],
        [],
    )

    def say(line: int, text: str, level: str = "INFO    ") -> None:
        stamp = now.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        bold = "\x1b[1m" if level.startswith("INFO") else "\x1b[33m\x1b[1m"
        log.append(
            f"\x1b[32m{stamp}\x1b[0m | {bold}{level}\x1b[0m | \x1b[36m__main__\x1b[0m:\x1b[36mtrain\x1b[0m:\x1b[36m{line}\x1b[0m - "
            f"{bold}{text}\x1b[0m\n"
        )

    log.append("$ python train.py --config train_config.json\n")
    say(58, "torch 2.5.1+cu124 | transformers 4.51.3 | NVIDIA A100-SXM4-40GB | host gpu-a3.cluster.local | user lena")
    say(63, f"model: {model.params:,} parameters, bfloat16, attention sdpa, from scratch")
    say(71, "batch ramp-up: 4 micro-batches a step, 8 from step 4, 12 from step 7, 20 from step 10")
    say(74, "loss is summed over the window and divided by its tokens; one backward per optimizer step")
    steps, losses = [4] * 3 + [8] * 3 + [12] * 3 + [20], [10.82, 10.79, 10.71, 10.55, 10.31, 10.04, 9.78, 9.55, 9.37]
    started = now = now + timedelta(seconds=11.2)
    for step, window in enumerate(steps, 1):
        base = weights * (1 if step == 1 else 3)  # AdamW's two states appear at the end of step 1
        for micro in range(1, window + 1):
            allocated = base + micro * graph
            if allocated + head_transient > reserved_end:
                break
            now += timedelta(seconds=0.118 + rng.uniform(-0.004, 0.006))
            reserved = min(max(reserved, segment(allocated + head_transient + 70 * MIB)), reserved_end)
            rows.append(f"{(now - started).total_seconds():.2f},{step},{micro},{mib(allocated)},{mib(reserved)}")
        else:
            now += timedelta(seconds=0.21 * window)
            reserved = max(reserved, segment(base + window * graph + 2 * head_transient))
            peak = size(base + window * graph + head_transient)
            say(
                187,
                f"step {step}/2000 | micro-steps {window} | loss {losses[step - 1]:.4f} | lr {6e-5 * step / 100:.2e} | peak allocated {peak}",
            )
            log.append("\r" + bar(step, 2000, (now - started).total_seconds()))
            log.append("\n" if step == len(steps) - 1 else "\r" + " " * 52 + "\r")
    # Micro-step 16 gets as far as some layer's gate projection.
    in_layer = tokens * (24 * model.hidden + 4 * model.heads)
    layer = model.saved(tokens, mixed=False)
    held = base + (micro - 1) * graph + in_layer
    done = (reserved_end - 20 * MIB - held) // layer
    if not 0 <= done < model.layers:
        raise ValueError(f"micro-step {micro} does not end inside a layer")
    allocated = held + done * layer
    free = 9 * MIB + 640 * KIB
    message = out_of_memory(
        2 * tokens * model.ffn,
        total=total,
        allocated=allocated,
        idle=reserved_end - allocated,
        outside=total - free - reserved_end,
    )
    script = "/home/lena/pretrain/train.py"
    frames: list[Frame] = [
        (script, 214, "<module>", "main()"),
        (script, 206, "main", "train(cfg, model, loader, optimizer)"),
        (script, 163, "train", "window_loss = window_loss + «token_loss(model, micro_batch)»"),
        (
            script,
            112,
            "token_loss",
            'out = «model(input_ids=batch["input_ids"], labels=batch["labels"], num_items_in_batch=1)»',
        ),
        *CALL,
        *LLAMA_MODEL,
        *LLAMA_MLP,
    ]
    log += [line + "\n" for line in traceback(frames, message)]
    config = {
        "model_config": "config.json",
        "attn_implementation": "sdpa",
        "precision": "bf16-true",
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 1,
        "max_seq_length": tokens,
        "gradient_accumulation_steps": 20,
        "batch_ramp_up": {"1": 4, "4": 8, "7": 12, "10": 20},
        "optim": "adamw_torch",
        "learning_rate": 6e-5,
        "warmup_steps": 100,
        "max_steps": 2000,
        "data": "/home/lena/data/fineweb-edu-10bt",
        "output_dir": "/home/lena/runs/ramp-07",
        "seed": 17,
    }
    return {
        "train.log": "".join(log),
        "memory.csv": "\n".join(rows) + "\n",
        "config.json": model.config("bfloat16"),
        "train_config.json": document(config),
    }
