"""What a diagnosis costs, beside what a person would use instead.

    python benchmarks/diagnose.py [--mib 64]

Prints CPU seconds of ``diag-kit diagnose`` on a log of 10 KB beside a bare interpreter, the modules that it does not
load, and the rate on a large log beside ``grep -F`` with the same literals over the same file, in one run, median of
three.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from diag_kit.evidence.parsers import all_parsers

OOM = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 3 has a total capacity of 79.10 GiB of which 1.25 GiB is free. "
    "Including non-PyTorch memory, this process has 77.80 GiB memory in use. Of the allocated memory 71.00 GiB is allocated by PyTorch, and 5.10 GiB is "
    "reserved by PyTorch but unallocated.\n"
)


def write_log(path: Path, size: int) -> None:
    """A log of about ``size`` bytes as training writes it: iterations, progress bars, NCCL chatter, one failure at the
    end.
    """
    draw = random.Random(7)
    written = step = 0
    with path.open("w") as out:
        while written < size - len(OOM):
            step += 1
            kind = draw.random()
            if kind < 0.4:
                line = f" iteration {step:8}/  500000 | consumed samples: {step * 64:12} | elapsed time per iteration (ms): {draw.uniform(300, 900):.1f}\n"
            elif kind < 0.7:
                line = f"  {step % 100}%|{'█' * 12}| {step}/500000 [12:01<{step % 60}:00:00,  2.2s/it, loss={draw.uniform(1, 9):.3f}]\r"
            else:
                line = f"node{step % 8}:{900 + step % 64}:{1900 + step % 64} [{step % 8}] NCCL INFO Channel {step % 32:02}/0 : {step % 64} -> {(step + 1) % 64} via P2P\n"
            out.write(line)
            written += len(line)
        out.write("\n" + OOM)


def cpu_seconds(command: Sequence[str], times: int = 3) -> float:
    """Median CPU seconds (user and system) of a command and its children."""
    spent = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(spent)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="size of the large log")
    size = parser.parse_args().mib << 20
    diagnose = [sys.executable, "-m", "diag_kit.cli", "diagnose", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        small, large, literals = (Path(folder, name) for name in ("small.log", "large.log", "literals"))
        write_log(small, 10_000)
        write_log(large, size)
        literals.write_text(
            "\n".join(
                sorted({text for module in all_parsers() for text in module.LITERALS if not hasattr(module, "SERIES")})
            )
        )
        bare = cpu_seconds([sys.executable, "-c", "pass"])
        cost = cpu_seconds([*diagnose, str(small)])
        print(f"10 KB log: {cost:.2f} s of CPU, a bare interpreter {bare:.2f} s")
        ours = cpu_seconds([*diagnose, str(large)]) - cost
        print(f"{size >> 20} MiB log: {(size >> 20) / ours:.0f} MiB per second of CPU", end="")
        if grep := shutil.which("grep"):
            theirs = cpu_seconds([grep, "-F", "-c", "-f", str(literals), str(large)])
            print(f", grep -F -c with the same literals {(size >> 20) / theirs:.0f}: {theirs / ours:.2f} of its rate")
        else:
            print()


if __name__ == "__main__":
    main()
