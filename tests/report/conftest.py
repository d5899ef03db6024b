"""Diagnoses as the engine would give them, built by hand, and one whose every text is hostile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag_kit.checklist import Checklist
from diag_kit.evidence.facts import Source
from diag_kit.findings import Collateral, Diagnosis, Failure, Finding, Fix, Missing, Moment, Statement

GIB = 1024**3
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.48 GiB. GPU 3 has a total capacity of 79.15 GiB "
    "of which 2.10 GiB is free. Including non-PyTorch memory, this process has 77.04 GiB in use."
)
RANK3 = "/home/alice/runs/llama-8b/rank3.log"
RANK0 = "/home/alice/runs/llama-8b/rank0.log"
MESSAGE = Source(RANK3, 10233, OOM, (
    "    attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)",
    "  File \"/home/alice/venv/lib/python3.11/site-packages/torch/nn/functional.py\", line 2140, in softmax",
    OOM,
    "  host      : gpu-12.cluster.internal",
    "srun: error: gpu-12: task 3: Exited with exit code 1",
))  # fmt: skip
FRAME = Source(RANK3, 10231, MESSAGE.context[0], MESSAGE.context[:3])
CONFIG = Source("/home/alice/runs/llama-8b/config.yaml", 14, "attn_implementation: eager")
WAITED = Source(RANK0, 9120, "[rank0]:[E1130 12:01:02] Watchdog caught collective operation timeout: 10.0.3.17:29500")

HOSTILE = (
    "<script>alert(1)</script></pre></details>\n```\n# owned\n| a | b |\n{{7*7}}{% raw %} \x1b[31mred\x1b[0m \x00 "
    "\u202egnp.exe\u2066 `tick` ![x](http://evil.example/x.png) [a](javascript:alert(1)) \udcff --> ]]> ${7*7}"
)


def spike() -> Diagnosis:
    """An activation spike on one of eight ranks; the others waited for it."""
    quadratic = Finding(
        "attention-quadratic", "activation-memory-spike", "Activation memory spike",
        "likely",
        claim="Eager attention holds heads × length² scores for a sequence, and softmax makes a second copy in fp32.",
        for_=(
            Statement("The request of 6.48 GiB was made by the softmax over attention scores.", FRAME),
            Statement("Asked for 6.48 GiB; 2.10 GiB free and 1.92 GiB cached don't hold it.", MESSAGE),
            Statement("The run states eager attention.", CONFIG),
        ),
        missing=(Missing("batch-shapes", "The shape of the batch at step 812",
                         "print(input_ids.shape) before the forward pass, then rerun from step 800"),),
        fixes=(
            Fix("Use fused attention", 19 * GIB + 3 * GIB // 10, "none known; numerics differ in the last bits",
                "python -c 'import torch; print(torch.cuda.max_memory_allocated())'", "set attn_implementation back",
                {"pytorch": "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                 "trainer": "AutoModelForCausalLM.from_pretrained(name, attn_implementation=\"sdpa\")"},
                "closed form for 32 heads, 8,192 tokens, bf16"),
            Fix("Halve the micro-batch, double accumulation", 31 * GIB, "about 8 % slower steps", "rerun step 812"),
            Fix("Cap sequences at 6,144 tokens", None, "longest texts are cut", "rerun step 812"),
        ),
    )  # fmt: skip
    logits = Finding(
        "logits-loss-peak", "logits-loss-peak", "Logits and cross-entropy", "possible",
        for_=(Statement("The vocabulary has 128,256 entries.", CONFIG),),
        against=(Statement("The failing frame is softmax over scores, not the loss.", FRAME),),
    )  # fmt: skip
    fragmentation = Finding(
        "fragmentation", "fragmentation", "Fragmented cache", "ruled-out",
        against=(Statement("Free and cached memory together are less than the request.", MESSAGE),),
    )  # fmt: skip
    facts = {"tried_to_allocate_bytes": 6957847020, "total_bytes": 84987084800, "free_bytes": 2254857830,
             "allocated_bytes": 79054848000, "reserved_unallocated_bytes": 2061584302}  # fmt: skip
    figures = {"request_bytes": 6957847020, "total_bytes": 84987084800, "free_bytes": 2254857830,
               "allocated_bytes": 79054848000, "cached_bytes": 2061584302, "reserved_bytes": 81116432302,
               "unaccounted_bytes": 1615794668, "request_exceeds_capacity": False}  # fmt: skip
    return Diagnosis(
        family="gpu-oom",
        summary="Rank 3 ran out of GPU memory in the forward pass of step 812, asking 6.48 GiB for attention scores.",
        failure=Failure(MESSAGE, rank=3, device=3, host="gpu-12.cluster.internal", step=812, phase="forward",
                        operation="attention scores", time=1796040062.0, facts=facts, message=OOM),
        initiating_rank=3,
        initiating_reason="its message stands 600 s before the first timeout of the others",
        collateral=(Collateral(0, "collective timed out waiting for rank 3", WAITED),
                    Collateral(1, "collective timed out waiting for rank 3", WAITED)),
        findings=(quadratic, logits, fragmentation),
        missing=quadratic.missing,
        next_action="Rerun step 812 with fused attention and the same batch; the peak should fall by about 19.3 GiB.",
        coverage={"files": 9, "bytes": 128974848, "bytes_read": 128974848, "notes": ["profile.bin: not text, skipped"]},
        settings={"micro_batch": (4, CONFIG), "seq_len": (8192, CONFIG), "attention": ("eager", CONFIG),
                  "checkpointing": (False, CONFIG), "model": ({"n_layers": 32, "hidden": 4096}, CONFIG)},
        restart="torchrun --nproc_per_node 8 train.py --config config.yaml --micro_batch 2 --grad_accum 8 "
                "--run_name 'llama 8b, retry'",
        growth="no growth over 811 steps (peak 71.2 to 71.9 GiB)",
        content_key="5f0c",
        figures=figures,
        timeline=(Moment("originator", "CUDA out of memory", MESSAGE, 3, "gpu-12.cluster.internal", 1796040062.0),
                  Moment("victim", "collective timed out waiting for rank 3", WAITED, 0),
                  Moment("victim", "collective timed out waiting for rank 3", WAITED, 1)),
    )  # fmt: skip


def hostile() -> Diagnosis:
    """Every text that a log, a settings file or a person can put into a report, as an attacker would write it."""
    source = Source(f"logs/{HOSTILE}.log", 7, HOSTILE + "x" * 100_000, (HOSTILE, "y" * 100_000))
    said = Statement(HOSTILE, source)
    finding = Finding("attention-quadratic", HOSTILE, HOSTILE, "likely", claim=HOSTILE, for_=(said,), against=(said,),
                      missing=(Missing("full-log", HOSTILE, HOSTILE),),
                      fixes=(Fix(HOSTILE, 1, HOSTILE, HOSTILE, HOSTILE, {"pytorch": HOSTILE}, HOSTILE),))  # fmt: skip
    return replace(
        spike(), summary=HOSTILE, initiating_reason=HOSTILE, collateral=(Collateral(1, HOSTILE, source),),
        timeline=(Moment("originator", HOSTILE, source, 3, HOSTILE, 1e9), Moment("victim", HOSTILE, source, 1, HOSTILE)),
        failure=Failure(source, rank=3, host=HOSTILE, device=HOSTILE, operation=HOSTILE, message=HOSTILE,
                        facts={f"odd{HOSTILE}_bytes": 1}),
        findings=(finding, replace(finding, verdict="ruled-out")), missing=finding.missing, next_action=HOSTILE,
        restart=HOSTILE, growth=HOSTILE, coverage={"files": 1, "bytes": 2, "bytes_read": 1, "notes": [HOSTILE]},
        settings={HOSTILE: (HOSTILE, source)},
    )  # fmt: skip


LLAMA = {"n_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "gated_ffn": True, "vocab": 128256,
         "tied_embeddings": False}  # fmt: skip
LOGGED = {"model": LLAMA, "micro_batch": 4, "seq_len": 8192, "attention": "eager", "precision": "bf16",
          "parallelism": {"strategy": "zero3", "world_size": 8}, "capacity_bytes": 84987084800}  # fmt: skip
WHAT_IF = {"logged": LOGGED, "explored": [{"settings": LOGGED | {"attention": "flash"}}],
           "settings": LOGGED | {"attention": "flash", "checkpointing": "full"}}  # fmt: skip
PLOTS = [{
    "title": "Peak against sequence length",
    "text": "Eager attention stops fitting at 7,424 tokens; fused attention fits up to 32,768.",
    "spec": {"data": [{"type": "scatter", "x": [1024, 4096, 8192], "y": [20, 38, 90], "name": "eager </script>"},
                      {"type": "scatter", "x": [1024, 4096, 8192], "y": [19, 30, 50], "name": "fused"}],
             "layout": {"xaxis": {"title": {"text": "tokens"}}, "yaxis": {"title": {"text": "GiB"}}}},
}]  # fmt: skip


@pytest.fixture
def diagnosis() -> Diagnosis:
    """An ordinary diagnosis."""
    return spike()


@pytest.fixture
def hostile_diagnosis() -> Diagnosis:
    """One whose every text is hostile."""
    return hostile()


@pytest.fixture
def checklist(diagnosis: Diagnosis) -> Checklist:
    """The spike's list, walked by two people, one of whom overruled the evidence."""
    checklist = Checklist.from_diagnosis(diagnosis)
    first = next(item.id for item in checklist if item.kind == "for")
    checklist.mark(first, "refuted", "Grace Hopper", "frame is from the warm-up", when="2026-01-01T11:00:00.000+00:00")
    checklist.mark(
        "universal/reproduce", "confirmed", "Ada Lovelace", "seed 7, twice", when="2026-01-01T10:00:00.000+00:00"
    )
    return checklist
