"""Two runs that memory did not stop."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from .arithmetic import GIB, MIB, segment
from .printing import CALL, TF, Files, Frame, above_bar, bar, document, mib, traceback, trainer


def healthy_run() -> Files:
    """BERT-base on one card: memory grows while states and the longest batches arrive, stays flat, and the run ends."""
    rng, params, batch, hidden, layers, ffn = random.Random(5), 109_483_778, 32, 768, 12, 3072
    steps, per_epoch = 345, 115
    now, reserved, rows = (
        datetime(2026, 1, 22, 16, 40, 3, 91000),
        0,
        ["step,seq_len,allocated_mib,peak_allocated_mib,reserved_mib"],
    )
    info = "[INFO|trainer.py:{}] 2026-01-22 16:40:03,091 >> {}\n"
    log = [
        "Some weights of BertForSequenceClassification were not initialized from the model checkpoint at /models/bert-base-uncased and are "
        "newly initialized: ['classifier.bias', 'classifier.weight']\n",
        "You should probably TRAIN this model on a down-stream task to be able to use it for predictions and inference.\n",
        *(
            info.format(n, text)
            for n, text in (
                (2414, "***** Running training *****"),
                (2415, "  Num examples = 3,668"),
                (2416, "  Num Epochs = 3"),
                (2417, f"  Instantaneous batch size per device = {batch}"),
                (2420, f"  Total train batch size (w. parallel, distributed & accumulation) = {batch}"),
                (2421, "  Gradient Accumulation steps = 1"),
                (2422, f"  Total optimization steps = {steps:,}"),
                (2423, f"  Number of trainable parameters = {params:,}"),
            )
        ),
    ]
    seconds, scores = 0.0, {1: (0.4021, 0.8235, 0.8772), 2: (0.3466, 0.8554, 0.8977), 3: (0.3812, 0.8603, 0.9011)}
    for step in range(1, steps + 1):
        length = min(103, 56 + 3 * min(step, 4) + rng.randrange(0, 36)) if step != 14 else 103
        tokens = batch * length
        saved = layers * tokens * (34 * hidden + 4 * ffn + 12 * 4) + tokens * 10 * hidden
        peak = (4 if step == 1 else 12) * params + 2 * params + saved
        peak = max(peak, 20 * params)  # AdamW's foreach step: weights, gradients, two states, one list of temporaries
        reserved = max(reserved, segment(max(peak, 16 * params + saved) + 96 * MIB))
        rows.append(f"{step},{length},{mib(12 * params)},{mib(peak)},{mib(reserved)}")
        seconds += 0.055 + tokens / 60_000 + rng.uniform(0, 0.01)
        drawn = bar(step, steps, seconds)
        if step % 23 == 0:
            entry = {
                "loss": round(0.66 - 0.45 * step / steps + rng.gauss(0, 0.02), 4),
                "grad_norm": round(rng.uniform(2, 9), 6),
                "learning_rate": round(2e-5 * (1 - step / steps), 12),
                "epoch": round(step / per_epoch, 2),
            }
            log.append(above_bar(str(entry), drawn))
        log.append("\r" + drawn)
        if step % per_epoch == 0:
            loss, accuracy, f1 = scores[step // per_epoch]
            log += [
                "\n",
                f"\r{bar(51, 51, 1.4)}\n",
                str(
                    {
                        "eval_loss": loss,
                        "eval_accuracy": accuracy,
                        "eval_f1": f1,
                        "eval_runtime": 1.4212,
                        "eval_samples_per_second": 287.08,
                        "epoch": float(step // per_epoch),
                    }
                )
                + "\n",
            ]
            if step < steps:
                log.append(
                    "[memory] cache after evaluation: reserved but unallocated memory is kept for the next step, this is not a leak\n"
                )
    now += timedelta(seconds=seconds + 5)
    log += [
        f"[INFO|trainer.py:2657] {now.strftime('%Y-%m-%d %H:%M:%S')},412 >> \n\nTraining completed. Do not forget to share your model on "
        "huggingface.co/models =)\n\n\n",
        above_bar(
            str(
                {
                    "train_runtime": round(seconds, 4),
                    "train_samples_per_second": round(3 * 3668 / seconds, 3),
                    "train_steps_per_second": round(steps / seconds, 3),
                    "train_loss": 0.4317,
                    "epoch": 3.0,
                }
            ),
            bar(steps, steps, seconds),
        ),
        f"\r{bar(steps, steps, seconds)}\n",
        f"[INFO|trainer.py:3984] {now.strftime('%Y-%m-%d %H:%M:%S')},655 >> Saving model checkpoint to /runs/mrpc-bert\n",
        "***** train metrics *****\n  epoch                    =        3.0\n  train_loss               =     0.4317\n",
    ]
    config = {
        "architectures": ["BertForSequenceClassification"],
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": 12,
        "num_hidden_layers": layers,
        "torch_dtype": "float32",
        "transformers_version": "4.51.3",
        "type_vocab_size": 2,
        "vocab_size": 30522,
    }
    arguments = {
        "output_dir": "/runs/mrpc-bert",
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": 1,
        "num_train_epochs": 3.0,
        "bf16": True,
        "optim": "adamw_torch",
        "learning_rate": 2e-05,
        "eval_strategy": "epoch",
        "group_by_length": False,
        "seed": 42,
    }
    return {
        "train.log": "".join(log),
        "memory.csv": "\n".join(rows) + "\n",
        "config.json": document(config),
        "training_args.json": document(arguments),
    }


def not_memory() -> Files:
    """GPT-2 medium at 94 % of its card, after an earlier attempt without memory; what stops it is a position beyond 1,024."""
    rng, total, steps, layers, hidden, vocab = random.Random(6), 34_079_899_648, 2400, 24, 1024, 50257  # V100-SXM2-32GB
    params = vocab * hidden + 1024 * hidden + layers * (12 * hidden * hidden + 13 * hidden) + 2 * hidden
    used = round(0.941 * total)
    log = [
        "job 48219: resubmitted by sched-retry, attempt 2 (attempt 1, job 48213: CUDA out of memory, per-device batch was 16, now 8)\n",
        "[2026-06-02 21:07:31,440] INFO run_clm: GPT2LMHeadModel, "
        f"{params:,} parameters, fp16 autocast, Tesla V100-SXM2-32GB\n",
        "[2026-06-02 21:07:52,018] WARNING tokenization_utils_base: Token indices sequence length is longer than the specified maximum sequence "
        "length for this model (1391 > 1024). Running this sequence through the model will result in indexing errors\n",
        "[2026-06-02 21:08:03,377] INFO run_clm: 19,204 examples, block_size not set: examples are not cut\n",
    ]
    seconds, now = 0.0, datetime(2026, 6, 2, 21, 8, 4)
    for step in range(1, 388):
        seconds += 0.84 + rng.uniform(-0.05, 0.09)
        drawn = bar(step, steps, seconds)
        if step % 20 == 0:
            stamp = (now + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")
            log.append(
                above_bar(
                    f"[{stamp},{rng.randrange(1000):03d}] INFO run_clm: step {step} loss {3.41 - 0.4 * step / 387 + rng.gauss(0, 0.03):.4f} "
                    f"gpu mem {used / GIB:.2f} GiB ({100 * used / total:.1f}% of {total / GIB:.2f} GiB, flat since step 12)",
                    drawn,
                )
            )
        log.append("\r" + drawn)
    log.append("\n")
    log += [
        "../aten/src/ATen/native/cuda/Indexing.cu:1369: indexSelectLargeIndex: "
        f"block: [{rng.randrange(40, 300)},0,0], thread: [{rng.randrange(32, 128)},0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        for _ in range(18)
    ]
    gpt2 = f"{TF}/models/gpt2/modeling_gpt2.py"
    frames: list[Frame] = [
        *trainer("/data/jobs/48219/run_clm.py", 388, 371),
        (gpt2, 1062, "forward", "transformer_outputs = «self.transformer(»"),
        *CALL,
        (gpt2, 821, "forward", "hidden_states = inputs_embeds + «position_embeds.to(inputs_embeds.device)»"),
    ]
    log += [
        line + "\n"
        for line in (
            *traceback(frames, "RuntimeError: CUDA error: device-side assert triggered"),
            "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
            "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
            "",
            "job 48219: exit status 1 after 338 s; peak host memory 21.4 GiB of 64.0 GiB",
        )
    ]
    config = {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": hidden,
        "n_head": 16,
        "n_inner": None,
        "n_layer": layers,
        "n_positions": 1024,
        "resid_pdrop": 0.1,
        "torch_dtype": "float32",
        "transformers_version": "4.51.3",
        "vocab_size": vocab,
    }
    arguments = {
        "output_dir": "/data/runs/clm-gpt2m",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "fp16": True,
        "optim": "adamw_torch",
        "learning_rate": 5e-05,
        "max_steps": steps,
        "logging_steps": 20,
        "seed": 7,
    }
    return {"train.log": "".join(log), "config.json": document(config), "training_args.json": document(arguments)}
