"""Write the sample runs of data/samples: seven runs as they could have been left, made from arithmetic.

usage: python data/make_samples.py [FOLDER]

No run here happened. Each is worked out from a stated model: parameters from its config.json, saved activations from
what the layers keep for backward, reserved memory from the allocator's rounding; an out-of-memory message is written
only when its own figures add up. Line shapes and frames are those of Python 3.11, torch 2.5.1 and transformers
4.51.3. Seeded: the same bytes every time. Standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from sample_runs.accumulation import accumulation_spike
from sample_runs.activation import activation_spike, activation_trial, long_batch_outlier
from sample_runs.other import healthy_run, not_memory
from sample_runs.printing import Files
from sample_runs.ranks import many_ranks

SAMPLES: tuple[tuple[str, Callable[[], Files], str, str], ...] = (
    (
        "accumulation-spike",
        accumulation_spike,
        "Accumulation spike",
        "Accumulation grows from 4 to 20 micro-batches a step, and so does the peak; the tenth step does not end.",
    ),
    (
        "activation-spike",
        activation_spike,
        "Activation spike",
        "Steady state is a third of the card; then one softmax at 4,096 tokens asks for 4 GiB.",
    ),
    (
        "activation-trial",
        activation_trial,
        "The trial before it",
        "The activation spike's run at 1,024 tokens: it ends well. Compare the spike with it.",
    ),
    (
        "long-batch-outlier",
        long_batch_outlier,
        "Long-batch outlier",
        "240 batches pass; the next is padded to four times the longest bucket.",
    ),
    (
        "many-ranks",
        many_ranks,
        "Many ranks",
        "Eight ranks fail within a second of each other, seven of them only because they waited.",
    ),
    (
        "healthy-run",
        healthy_run,
        "Healthy run",
        "Memory grows for a few steps, stays flat, and the run ends: nothing to fix.",
    ),
    (
        "not-memory",
        not_memory,
        "Not memory",
        "The card is 94 % full and the log speaks of memory, but that is not what stopped it.",
    ),
)
DEFAULT = "accumulation-spike"


def build() -> dict[str, bytes]:
    """Every file of data/samples: path from there -> bytes."""
    files = {f"{folder}/{name}": text.encode() for folder, make, _, _ in SAMPLES for name, text in make().items()}
    index = [
        {"folder": folder, "title": title, "teaser": teaser, "default": folder == DEFAULT}
        for folder, _, title, teaser in SAMPLES
    ]
    return files | {"INDEX.json": (json.dumps({"samples": index}, indent=2, ensure_ascii=False) + "\n").encode()}


def main() -> None:
    """Write them all."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "samples"
    for name, content in build().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    print(f"{len(build())} files in {root}")


if __name__ == "__main__":
    main()
