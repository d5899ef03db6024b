"""Mutated evidence for as long as you like: nothing may come back but answers.

    make fuzz, or python tests/fuzz.py [--seconds 600] [--seed 1]

Real cases (tests/cases) are cut, flipped, spliced into each other, packed and cut again, given other names, other
prefixes, other encodings and other neighbours in their folder; each is diagnosed as the command does it. Fails, and
keeps the folder, on anything but exit status 0 with one JSON document or 2 with one line; on a reader that stumbled; on
an answer that takes more than 20 seconds of CPU.
"""

from __future__ import annotations

import argparse
import bz2
import collections
import contextlib
import gzip
import io
import json
import lzma
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from diag_kit import cli
from diag_kit.evidence.parsers import all_parsers

CASES = Path(__file__).resolve().parent / "cases"
SLOW_SECONDS = 20
PREFIXES = (
    "[rank{n}]: ", "[default{m}]:", "{n}: ", "(Worker pid={n}) ", "worker-{m}  | ", "2026-03-01 04:0{m}:11,123 - ", "[1,{n}]<stderr>:",
    "[2024-02-07 10:17:32,656] [DEBUG] [a.b:210] [PID:20210{m}] [RANK:{n}] ", "node-{m}:40{n}:41 [{m}] NCCL INFO ", "E   ", "│ ", "\x1b[31m",
)  # fmt: skip
NAMES = ("rank{n}.log", "run.log", "stderr.txt", "a/b/{n}/stdout.log", "metrics.csv", "x.jsonl", "config.json", "args.yaml", "out.log.gz", "events.out.tfevents.1.h", "dmesg", "smi.csv", "error.json")  # fmt: skip


def mutated(draw: random.Random, data: bytes, others: list[bytes], words: list[bytes]) -> bytes:
    """The bytes after a few changes of different kinds."""
    out = bytearray(data)
    for _ in range(draw.randint(0, 9)):
        at = draw.randrange(len(out) + 1)
        kind = draw.randrange(11)
        if kind == 0:
            del out[at : at + draw.randint(1, 400)]
        elif kind == 1:
            out[at:at] = bytes(draw.choice(b"\0\n\r\x1b[]|{}\"':,.0123456789eE-+%\xff\xe2") for _ in range(draw.randint(1, 40)))
        elif kind == 2:
            out[at:at] = out[at : at + draw.randint(1, 300)] * draw.randint(1, 30)
        elif kind == 3 and out:
            out[at % len(out)] ^= 1 << draw.randrange(8)
        elif kind == 4:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            out[at:at] = other[start : start + draw.randint(1, 3000)]
        elif kind == 5:
            out[at:at] = draw.choice(words) * draw.choice((1, 1, 2, 50))
        elif kind == 6:
            number = str(draw.choice((0, -1, 1 << 62, 1 << 70, 10**30, 1e308, "nan", "inf", 0.0, 2**31))).encode()
            out[at : at + draw.randint(0, 6)] = number
        elif kind == 7:
            lines = out.split(b"\n")
            draw.shuffle(lines)
            out = bytearray(b"\n".join(lines))
        elif kind == 8:
            prefixes = draw.sample(PREFIXES, draw.randint(1, 3))
            lines = out.split(b"\n")
            marks = ["".join(p.format(n=draw.randrange(70), m=draw.randrange(8)) for p in prefixes).encode() for _ in range(8)]
            out = bytearray(b"\n".join(draw.choice(marks) + line for line in lines))
        elif kind == 9:
            out = bytearray(out.replace(b"\n", draw.choice((b"\r\n", b"\r", b" ", b"\n\n"))))
        else:
            out = out[: draw.randrange(len(out) + 1)]
    text = bytes(out[: 600_000])
    if draw.random() < 0.05:
        text = text.decode("utf-8", "replace").encode(draw.choice(("utf-16", "utf-16-le", "utf-8-sig", "latin-1")), "replace")
    if draw.random() < 0.08:
        text = draw.choice((gzip.compress, bz2.compress, lzma.compress))(text)
        if draw.random() < 0.5:
            text = text[: draw.randrange(len(text) + 1)]
    return text


def once(draw: random.Random, folder: Path, files: list[tuple[str, bytes]], words: list[bytes]) -> str:
    """One diagnosis of a made-up folder; the family that was answered, or ``refused``. Raises on anything else."""
    everything = [data for _, data in files]
    for number in range(draw.choice((1, 1, 2, 3, 6))):
        name, data = draw.choice(files)
        if draw.random() < 0.4:
            name = draw.choice(NAMES).format(n=draw.randrange(70))
        path = folder / f"{number if draw.random() < 0.3 else ''}{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(mutated(draw, data, everything, words))
    out, told = io.StringIO(), io.StringIO()
    begun = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        status = cli.main(["diagnose", str(folder), "--json"])
    spent = time.process_time() - begun
    if spent > SLOW_SECONDS:
        raise AssertionError(f"took {spent:.1f} s of CPU")
    if status == 2:
        line = told.getvalue()
        if line.count("\n") != 1 or "internal fault" in line or out.getvalue():
            raise AssertionError(f"refused with {line!r}")
        return "refused"
    answer = json.loads(out.getvalue(), parse_constant=lambda word: (_ for _ in ()).throw(ValueError(word)))
    stumbled = [note for note in answer["coverage"]["notes"] if "stumbled" in note]
    if status or stumbled:
        raise AssertionError(f"status {status}, {stumbled}")
    if draw.random() < 0.1:  # the reports too
        for suffix in (".html", ".md"):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                if cli.main(["diagnose", str(folder), "--report", str(folder.parent / f"out{suffix}")]):
                    raise AssertionError(f"no {suffix} report")
    return str(answer["family"])


def main() -> int:
    """Exit status 0 where nothing but answers came back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    files = [(path.name, path.read_bytes()) for path in sorted(CASES.glob("*/evidence/*")) if path.is_file()]
    words = [literal.encode() for parser in all_parsers() for literal in (*parser.LITERALS, *getattr(parser, "SERIES", ()))]
    answers: collections.Counter[str] = collections.Counter()
    faults = 0
    number = args.seed * 1_000_000
    while time.process_time() < args.seconds:
        number += 1
        draw = random.Random(number)
        with tempfile.TemporaryDirectory(prefix="diag-kit-fuzz-") as top:
            folder = Path(top, "run")
            folder.mkdir()
            try:
                answers[once(draw, folder, files, words)] += 1
            except Exception:  # noqa: BLE001 (whatever it is, it is what this looks for)
                faults += 1
                kept = Path(tempfile.mkdtemp(prefix="diag-kit-fault-"))
                shutil.copytree(folder, kept / "run")
                print(f"seed {number}, kept in {kept}:\n{traceback.format_exc(limit=-6)}", file=sys.stderr)
    print(f"{sum(answers.values()) + faults:,} folders in {time.process_time():.0f} s of CPU: {dict(answers.most_common())}, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
