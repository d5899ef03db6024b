"""Reading large logs, beside GNU grep with the same literals: throughput, memory, many files, packed files.

Each figure is the median of three fresh processes, taken in turn. grep only finds the places (``grep -a -b -o -F -f``);
what is held against it reads, parses and gives facts. Sizes: SIZE_MIB in the environment (default 1024), a sixteenth of
it for the standard library alone.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from realistic_log import ORIGIN, write

from diag_kit.evidence.reading import literals

RUNS = int(os.environ.get("RUNS", "3"))
MIB = int(os.environ.get("SIZE_MIB", "1024"))

READ = """
import json, resource, sys, time
from diag_kit.evidence import run, reading
from diag_kit.evidence.scan.engines import prepared
path, engine, workers = sys.argv[1], sys.argv[2] or None, int(sys.argv[3]) or None
prepared(reading.literals().all, engine)
def most():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
base = most()
begun = time.perf_counter()
read = run.load_run([path], engine=engine, workers=workers)
wall = time.perf_counter() - begun
own, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
oom = [event for event in read.events if event.kind == "torch.oom"]
print(json.dumps({"wall": wall, "cpu": own.ru_utime + own.ru_stime + theirs.ru_utime + theirs.ru_stime,
                  "mib": (most() - base) / 1024, "rank": oom[0].rank if oom else None}))
"""

SCAN = """
import json, sys, time
from pathlib import Path
from diag_kit.evidence import reading
how = reading.How(engine=sys.argv[2])
path = Path(sys.argv[1])
reading.scan_part(path, 0, 1, 1, how)
begun = time.perf_counter()
reading.scan_part(path, 0, None, path.stat().st_size, how)
print(json.dumps({"wall": time.perf_counter() - begun}))
"""

UNPACK = """
import json, sys, time
from diag_kit.evidence.streams import open_text
begun = time.perf_counter()
with open_text(sys.argv[1]) as stream:
    while stream.read(1 << 20):
        pass
print(json.dumps({"wall": time.perf_counter() - begun}))
"""


def python(program: str, *arguments: object) -> dict[str, float]:
    """Figures that a program in a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def grep(path: Path, patterns: Path, *how: str) -> dict[str, float]:
    """Seconds of grep over a file."""
    environment = {**os.environ, "LC_ALL": "C"}
    begun = time.perf_counter()
    with Path(f"{patterns}.out").open("wb") as out:  # into a file: grep stops at the first hit where the output is /dev/null
        subprocess.run(["grep", "-a", *how, "-F", "-f", patterns, path], stdout=out, env=environment, check=True)
    return {"wall": time.perf_counter() - begun}


def in_turn(**measures: object) -> dict[str, dict[str, float]]:
    """Median of each measure's figures over RUNS rounds."""
    rounds = [{name: measure() for name, measure in measures.items()} for _ in range(RUNS)]  # type: ignore[operator]
    return {
        name: {key: statistics.median(one[name][key] or 0 for one in rounds) for key in rounds[0][name]} for name in measures
    }


def main() -> None:
    """Measure, and print a line for each comparison."""
    print(f"{platform.python_version()}, {os.cpu_count()} cores, {MIB} MiB, median of {RUNS}")
    with tempfile.TemporaryDirectory(prefix="diag-kit-") as folder:
        log, small, packed, many = (Path(folder, name) for name in ("run.log", "small.log", "run.log.gz", "many"))
        patterns = Path(folder, "literals")
        patterns.write_bytes(b"\n".join(literals().all) + b"\n")
        write(log, MIB << 20)
        write(small, (MIB << 20) // 16)
        for path in (log, small):
            subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)  # into the page cache
        size = log.stat().st_size / (1 << 20)

        found = in_turn(
            grep=lambda: grep(log, patterns, "-b", "-o"),
            grep_count=lambda: grep(log, patterns, "-c"),
            hyperscan=lambda: python(READ, log, "hyperscan", 0),
            one_process=lambda: python(READ, log, "hyperscan", 1),
            scan_only=lambda: python(SCAN, log, "hyperscan"),
            ahocorasick=lambda: python(READ, log, "ahocorasick_rs", 0),
            aho_one=lambda: python(READ, log, "ahocorasick_rs", 1),
        )
        base = found["grep"]["wall"]
        print(f"\n{'one log':44} {'s':>7} {'MiB/s':>7} {'x grep':>7}  memory above imports")
        for name, words in (
            ("grep", "grep -a -b -o -F, same literals"),
            ("grep_count", "grep -a -c -F, same literals"),
            ("hyperscan", "read to facts, hyperscan, all cores"),
            ("one_process", "read to facts, hyperscan, one process"),
            ("scan_only", "scan alone, hyperscan, one process"),
            ("ahocorasick", "read to facts, ahocorasick_rs, all cores"),
            ("aho_one", "read to facts, ahocorasick_rs, one process"),
        ):
            one = found[name]
            memory = f"{one['mib']:.0f} MiB" if "mib" in one else ""
            print(f"{words:44} {one['wall']:7.2f} {size / one['wall']:7.0f} {base / one['wall']:7.2f}  {memory}")
            assert one.get("rank", ORIGIN) == ORIGIN
        plain = in_turn(alone=lambda: python(READ, small, "standard library", 1), grep=lambda: grep(small, patterns, "-b", "-o"))
        rate = size / 16 / plain["alone"]["wall"]
        print(f"{'read to facts, standard library alone':44} {plain['alone']['wall']:7.2f} {rate:7.0f} "
              f"{plain['grep']['wall'] / plain['alone']['wall']:7.2f}  {plain['alone']['mib']:.0f} MiB (1/16 of the log)")  # fmt: skip

        many.mkdir()
        count = MIB
        with log.open("rb") as stream:
            for number in range(count):
                many.joinpath(f"node{number // 8}-{number % 8}.log").write_bytes(stream.read(1 << 20))
        shared = in_turn(one=lambda: python(READ, log, "hyperscan", 0), many=lambda: python(READ, many, "hyperscan", 0))
        ratio = shared["many"]["wall"] / shared["one"]["wall"]
        print(f"\n{count} files of 1 MiB: {shared['many']['wall']:.2f} s, the same bytes in one file {shared['one']['wall']:.2f} s: {ratio:.2f} x")
        shutil.rmtree(many)

        with small.open("rb") as source, gzip.open(packed, "wb", 6) as target:
            shutil.copyfileobj(source, target)
        gz = in_turn(
            read=lambda: python(READ, packed, "hyperscan", 1),
            unpack=lambda: python(UNPACK, packed),
            scan=lambda: python(READ, small, "hyperscan", 1),
        )
        allowed = gz["unpack"]["wall"] + 1.2 * gz["scan"]["wall"]
        print(f"gzip: read {gz['read']['wall']:.2f} s; unpacking alone {gz['unpack']['wall']:.2f} s + 1.2 x reading its text {gz['scan']['wall']:.2f} s "
              f"= {allowed:.2f} s: {gz['read']['wall'] / allowed:.2f} x")  # fmt: skip


if __name__ == "__main__":
    main()
