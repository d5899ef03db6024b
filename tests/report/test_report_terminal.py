"""The diagnosis in a terminal: short, whole, readable at any width, and safe whatever the log held."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

from diag_kit.evidence.facts import Source
from diag_kit.findings import Finding, Missing, Statement
from diag_kit.report.terminal import render


def test_the_whole_answer_stands_in_about_a_dozen_lines(diagnosis):
    """What stopped the run, where, the sum, why, what is missing, what next, the restart line, what was read."""
    assert (
        render(diagnosis)
        == """\
GPU OUT OF MEMORY. Rank 3 ran out of GPU memory in the forward pass of step 812,
asking 6.48 GiB for attention scores.

where     rank 3, cuda:3, on gpu-12.cluster.internal, step 812, forward,
          attention scores — /home/alice/runs/llama-8b/rank3.log:10233
sizes     asked 6.48 GiB of 79.15 GiB; free 2.10 GiB + cached 1.92 GiB =
          4.02 GiB: 2.46 GiB short
growth    no growth over 811 steps (peak 71.2 to 71.9 GiB)
others    2 ranks only report it: collective timed out waiting for rank 3
likely    Attention quadratic (Activation memory spike)
          + The request of 6.48 GiB was made by the softmax over attention
            scores. (rank3.log:10231)
possible  Logits loss peak (Logits and cross-entropy)
          + The vocabulary has 128,256 entries. (config.yaml:14)
          and 1 ruled out
missing   The shape of the batch at step 812: print(input_ids.shape) before the
          forward pass, then rerun from step 800
next      Rerun step 812 with fused attention and the same batch; the peak
          should fall by about 19.3 GiB.
restart   torchrun --nproc_per_node 8 train.py --config config.yaml \\
          --micro_batch 2 --grad_accum 8 --run_name 'llama 8b, retry'
read      9 files, all 123 MiB; profile.bin: not text, skipped
"""
    )


@pytest.mark.parametrize("width", [20, 40, 72, 100, 200])
def test_lines_keep_the_width(diagnosis, width):
    """No line is wider than asked for (36 at least), save one that holds a single long word."""
    for line in render(diagnosis, width=width).splitlines():
        assert len(line) <= max(width, 36) or len(line[10:].removeprefix("— ").split()) <= 1


def test_the_restart_line_can_be_pasted(diagnosis):
    """Broken over lines, the command is still the same to a shell."""
    text = render(diagnosis, width=44)
    block = text[text.index("restart") + len("restart") : text.index("read  ")]
    assert shlex.split(block.replace("\\\n", " ")) == shlex.split(diagnosis.restart)


def test_a_command_that_gets_the_missing_fact_can_be_pasted(diagnosis):
    """A command is broken like the restart line, a sentence like text."""
    command = "grep -nE 'backward\\(|retain_graph|append\\(|no_sync' train.py train_utils.py"
    text = render(replace(diagnosis, missing=(Missing("training-code", "What the step keeps", command),)), width=60)
    block = text[text.index("What the step keeps") + len("What the step keeps") : text.index("next  ")]
    assert shlex.split(block.replace("\\\n", " ")) == shlex.split(command)


def test_colour_only_when_asked(diagnosis):
    """Plain by default; colour adds nothing but escapes."""
    import re

    assert "\x1b" not in render(diagnosis)
    assert re.sub(r"\x1b\[[0-9;]*m", "", render(diagnosis, color=True)) == render(diagnosis)


def test_a_log_cannot_drive_the_terminal(hostile_diagnosis):
    """Escapes, NULs, reordering and 100 kB lines come out as short plain text."""
    text = render(hostile_diagnosis)
    assert not [c for c in text if ord(c) < 32 and c != "\n"]
    assert not set(text) & set("\x7f\u202e\u2066\udcff")
    assert len(text) < 8_000


def test_nothing_wrong_is_short(diagnosis):
    """A run that ended well says so in three lines."""
    fine = replace(diagnosis, family="ok", summary="The run ended after 812 steps.", failure=None, collateral=(),
                   findings=(), missing=(), next_action="", restart=None, growth="", figures={})  # fmt: skip
    assert render(fine) == (
        "NO FAILURE FOUND. The run ended after 812 steps.\n\n"
        "read      9 files, all 123 MiB; profile.bin: not text, skipped\n"
    )


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"request_bytes": 2**30}, "asked 1.00 GiB\n"),
        ({"request_bytes": 2**30, "free_bytes": 2**29}, "free 512 MiB: 512 MiB short"),
        ({"request_bytes": 2**30, "free_bytes": 2**31}, "free memory alone would have held it"),
        ({"request_bytes": 2**30, "free_bytes": 2**29, "cached_bytes": 2**30}, "together enough, but not in one piece"),
        ({"request_bytes": 2**40, "free_bytes": 0, "request_exceeds_capacity": True}, "more than the whole device"),
    ],
)
def test_the_sum_is_judged(diagnosis, figures, says):
    """The sizes that the message states decide the words; a size that is absent is not made up."""
    assert says in render(replace(diagnosis, figures=figures), width=200)


def test_the_first_finding_shows_both_sides(diagnosis):
    """The leading finding shows a line for and one against; a Windows path is cut to its file."""
    said = Statement("it is so", Source(r"C:\logs\a.log", 3))
    finding = Finding("fragmentation", "fragmentation", "Fragmentation", "likely", (said,), (said,))
    text = render(replace(diagnosis, findings=(finding,)))
    assert "+ it is so (a.log:3)" in text
    assert "− it is so (a.log:3)" in text


def test_a_terminal_needs_no_template_engine():
    """Showing a diagnosis in a terminal loads neither jinja2 nor a plotting library."""
    program = "import sys, diag_kit.report.terminal; print({'jinja2', 'plotly', 'pandas'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
