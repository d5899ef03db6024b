"""Two runs whose activations do not fit: attention that grows with the square of length, and one long batch."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from .arithmetic import KIB, MIB, SMALL, TINY, out_of_memory, segment, size
from .printing import (
    CALL,
    LLAMA_MLP,
    LLAMA_MODEL,
    LLAMA_SOFTMAX,
    Files,
    Frame,
    above_bar,
    bar,
    document,
    jsonl,
    mib,
    traceback,
    trainer,
)


def activation_spike() -> Files:
    """Eager attention at 4,096 tokens: 16 GiB of steady state on a 48 GiB card, and a softmax that asks for 4 GiB in layer 6."""
    model, batch, length = SMALL, 2, 4096
    total, outside, idle = 51_035_635_712, 458 * MIB, 62 * MIB + 310 * KIB  # RTX A6000
    scores = batch * model.heads * length * length * 4
    tokens = batch * length
    layer = (
        model.saved(tokens, mixed=True, eager_scores=scores) + 2 * model.layer_params
    )  # and autocast's copies of its weights
    before_softmax = tokens * (14 + 6 + 4 + 4) * model.hidden  # this layer's norm, queries, keys, values
    for done in range(model.layers):
        allocated = (
            4 * model.params + done * layer + before_softmax + scores
        )  # masked scores are live beside the request
        if allocated + idle + outside + scores > total:
            break
    message = out_of_memory(scores, total=total, allocated=allocated, idle=idle, outside=outside)
    script = "/home/tomas/longdoc/train_sft.py"
    arguments = {
        "output_dir": "/home/tomas/runs/longdoc-4k",
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": 8,
        "gradient_checkpointing": False,
        "max_seq_length": length,
        "packing": True,
        "bf16": True,
        "fp16": False,
        "optim": "adamw_torch",
        "learning_rate": 2e-05,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.03,
        "num_train_epochs": 1.0,
        "max_steps": 1500,
        "logging_steps": 10,
        "save_steps": 500,
        "eval_strategy": "no",
        "dataloader_num_workers": 4,
        "seed": 42,
        "report_to": ["wandb"],
        "attn_implementation": "eager",
    }
    info = "[INFO|trainer.py:{}] 2026-05-19 10:21:44,{} >> {}"
    lines = [
        "wandb: Tracking run with wandb version 0.19.9",
        "wandb: Run data is saved locally in /home/tomas/longdoc/wandb/run-20260519_102112-8f2k1q0z",
        "\x1b[33m[2026-05-19 10:21:15,204] WARNING train_sft: log_attention_maps=True needs attention weights: loading the model with "
        'attn_implementation="eager"\x1b[0m',
        "[2026-05-19 10:21:31,870] INFO train_sft: packed 24,003 sequences of 4,096 tokens",
        f"[2026-05-19 10:21:43,655] INFO train_sft: weights on cuda:0 (NVIDIA RTX A6000), {size(4 * model.params)} of {size(total)}",
        "Using auto half precision backend",
        info.format(2414, "183", "***** Running training *****"),
        info.format(2415, "183", "  Num examples = 24,003"),
        info.format(2416, "183", "  Num Epochs = 1"),
        info.format(2417, "183", f"  Instantaneous batch size per device = {batch}"),
        info.format(2420, "183", f"  Total train batch size (w. parallel, distributed & accumulation) = {batch * 8}"),
        info.format(2421, "183", "  Gradient Accumulation steps = 8"),
        info.format(2422, "183", "  Total optimization steps = 1,500"),
        info.format(2423, "184", f"  Number of trainable parameters = {model.params:,}"),
    ]
    frames = [*trainer(script, 148, 141), *LLAMA_MODEL, *LLAMA_SOFTMAX]
    log = "\n".join(lines) + "\n\r" + bar(0, 1500, 0) + "\n".join(traceback(frames, message)) + "\n"
    log += (
        "\x1b[1;34mwandb\x1b[0m: 🚀 View run \x1b[33mlongdoc-4k\x1b[0m\n\x1b[1;34mwandb\x1b[0m: Find logs at: "
        "\x1b[1;35mwandb/run-20260519_102112-8f2k1q0z/logs\x1b[0m\n\r" + bar(0, 1500, 2.9) + "\n"
    )
    return {
        "train.log": log,
        "config.json": model.config("float32", attn_implementation="eager"),
        "training_args.json": document(arguments),
    }


def activation_trial() -> Files:
    """The trial before the spike: 60 steps at 1,024 tokens, all else alike. It fits with 15 GiB to spare, and ends."""
    rng, model, batch, length, steps = random.Random(7), SMALL, 2, 1024, 60
    files = activation_spike()
    log = files["train.log"].split("\n\r")[0] + "\n"
    for old, new in (
        ("24,003 sequences of 4,096", "96,012 sequences of 1,024"),
        ("Num examples = 24,003", "Num examples = 96,012"),
        ("optimization steps = 1,500", f"optimization steps = {steps}"),
        ("20260519_102112-8f2k1q0z", "20260518_174502-c41m7x9p"),
        ("2026-05-19 10:21", "2026-05-18 17:45"),
    ):
        log = log.replace(old, new)
    arguments = files["training_args.json"]
    for old, new in (("4k", "1k"), ('"max_seq_length": 4096', f'"max_seq_length": {length}'),
                     ('"max_steps": 1500', f'"max_steps": {steps}')):  # fmt: skip
        arguments = arguments.replace(old, new)
    tokens, scores = batch * length, batch * model.heads * length * length * 4
    layer = model.saved(tokens, mixed=True, eager_scores=scores) + 2 * model.layer_params
    graph = model.layers * layer + tokens * (10 * model.hidden + 12 * model.vocab)
    total, rows, seconds = 51_035_635_712, ["step,allocated_mib,peak_allocated_mib"], 0.0
    for step in range(1, steps + 1):
        held = (4 if step == 1 else 12) * model.params  # fp32 weights, then AdamW's two states too
        peak = max(held + 4 * model.params + graph, 20 * model.params)  # with gradients; or AdamW's list of temporaries
        if peak > total - 2 * 1024 * MIB:
            raise ValueError("the trial must fit")
        rows.append(f"{step},{mib(held)},{mib(peak)}")
        seconds += 6.1 + rng.uniform(-0.1, 0.2)
        if step % 10 == 0:
            entry = {"loss": round(2.31 - 0.004 * step + rng.gauss(0, 0.02), 4), "grad_norm": round(rng.uniform(1, 2), 6),
                     "learning_rate": round(2e-5 * (1 - step / steps), 12), "epoch": round(step * 16 / 96_012, 4)}  # fmt: skip
            log += above_bar(str(entry), bar(step, steps, seconds))
        log += "\r" + bar(step, steps, seconds)
    run = {"train_runtime": round(seconds, 4), "train_steps_per_second": round(steps / seconds, 3), "train_loss": 2.1827}
    log += "\n" + str(run) + "\n"
    return files | {"train.log": log, "training_args.json": arguments, "memory.csv": "\n".join(rows) + "\n"}


def long_batch_outlier() -> Files:
    """240 batches in buckets up to 1,024 tokens, then one padded to 4,096. Memory follows length; nothing else changed."""
    rng, model, batch = random.Random(3), TINY, 8
    total, outside, idle = 25_386_352_640, 541 * MIB, 41 * MIB + 820 * KIB  # RTX 4090
    states = 12 * model.params  # fp32 weights and AdamW's two states; gradients are set to None between steps
    copies = 2 * (model.layers * model.layer_params + model.vocab * model.hidden)  # 16-bit copies made by autocast
    head = 10 * model.hidden + 12 * model.vocab
    start = datetime(2026, 2, 3, 2, 11, 9, 771000)
    edges, weights = (256, 384, 512, 640, 768, 896, 1024), (9, 16, 22, 20, 15, 11, 7)
    now, reserved, rows = start + timedelta(seconds=21), 0, []
    log = ["$ python finetune.py --config run.yaml\n"]

    def record(step: int, length: int, before: int, peak: int, held: int, **more: object) -> dict[str, object]:
        sizes = {"allocated_mib": mib(before), "peak_allocated_mib": mib(peak), "reserved_mib": mib(held)}
        return {"step": step, "seq_len": length, "batch_size": batch, **sizes, **more}

    def say(text: str, level: str = "INFO", source: str = "finetune") -> None:
        log.append(f"[{now.strftime('%Y-%m-%d %H:%M:%S')},{now.microsecond // 1000:03d}][{level}] {source}: {text}\n")

    say(
        f"NVIDIA GeForce RTX 4090, {size(total)}, torch 2.5.1+cu124; {model.params:,} trainable parameters, amp bfloat16"
    )
    say(
        "dynamic padding: samples are grouped by length, each batch is padded to its longest sample, in steps of 128",
        source="collate",
    )
    say("bucket edges 256 384 512 640 768 896 1024; 187,402 samples, 23,425 batches an epoch", source="collate")
    seconds = 0.0
    for step in range(1, 241):
        length = rng.choices(edges, weights)[0]
        tokens = batch * length
        saved = tokens * head + model.layers * model.saved(tokens, mixed=True)
        base = states if step > 1 else 4 * model.params
        peak = base + copies + saved
        reserved = max(reserved, segment(peak + 180 * MIB))
        took = tokens / 31_000 + 0.031 + rng.uniform(0, 0.02)
        seconds += took
        loss = 2.14 - 0.31 * (1 - 1 / (1 + step / 90)) + rng.gauss(0, 0.035)
        rows.append(record(step, length, base, peak, reserved, loss=round(loss, 4), step_seconds=round(took, 3)))
        drawn = bar(step, 23425, seconds)
        now = start + timedelta(seconds=21 + seconds)
        if step % 20 == 0:
            log.append(f"\r{' ' * len(drawn)}\r")
            say(f"step {step} loss {loss:.4f} grad_norm {0.8 + rng.uniform(0, 0.5):.3f} lr 2.00e-04")
        log.append("\r" + drawn)
    length = 4096
    tokens = batch * length
    log.append("\n")
    say("step 241: longest sample has 4,093 tokens, batch of 8 padded to 4096", "WARNING", "collate")
    layer = model.saved(tokens, mixed=True) + 2 * model.layer_params
    part = model.saved(tokens, mixed=True, through_mlp=False)
    done = (total - outside - idle - states - part) // layer
    allocated = states + done * layer + part
    message = out_of_memory(2 * tokens * model.ffn, total=total, allocated=allocated, idle=idle, outside=outside)
    rows.append(record(241, length, states, allocated, allocated + idle, loss=None, step_seconds=None))
    script = "/workspace/finetune/finetune.py"
    frames: list[Frame] = [
        (script, 231, "<module>", "main()"),
        (script, 219, "main", "run_epoch(model, loader, optimizer, metrics)"),
        (script, 158, "run_epoch", "loss = «model(input_ids=ids, attention_mask=mask, labels=labels)».loss"),
        *CALL,
        *LLAMA_MODEL,
        *LLAMA_MLP,
    ]
    log += [line + "\n" for line in traceback(frames, message)]
    settings = (
        "# fine-tune on support threads, second attempt\nmodel_config: config.json\nattn_implementation: sdpa\nmixed_precision: bf16\n"
        f"gradient_checkpointing: false\nmicro_batch_size: {batch}\ngradient_accumulation_steps: 1\nmax_samples_per_epoch: 187402\n"
        "bucket_edges: [256, 384, 512, 640, 768, 896, 1024]\ndrop_longer_than: null\noptim: adamw_torch\nlearning_rate: 2.0e-4\nseed: 3\n"
    )
    return {
        "train.log": "".join(log),
        "metrics.jsonl": jsonl(rows),
        "config.json": model.config("float32"),
        "run.yaml": settings,
    }
