"""The replayed caching allocator: how quick it is, and whether it does what torch's own compiled allocator does.

    python benchmarks/allocator.py                                # time per event
    python benchmarks/allocator.py --torch DIR [--seed N]         # and event by event beside torch's libc10_cuda.so
    python benchmarks/allocator.py --torch DIR --write            # and writes what torch did for the tests

DIR is the folder of an installed or unpacked ``torch`` built for CUDA 13; no GPU is needed, since its allocator is given
a made-up device (``allocator_reference/``) that only counts. Needs g++, nm and CUDA's headers (``--cuda``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from diag_kit.memory.allocator import Allocator, OutOfMemory, parse_config, replay, required_capacity
from diag_kit.units import MIB

HERE = Path(__file__).parent / "allocator_reference"
OUT = Path(__file__).parents[1] / "tests" / "memory" / "data" / "allocator_reference.json"
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:64",
    "max_split_size_mb:200",
    "max_split_size_mb:30,max_non_split_rounding_mb:100",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[64:8,256:4]",
    "roundup_power2_divisions:[1:2,64:8,256:4,>:16]",
    "large_segment_size_mb:12",
    "large_segment_size_mb:40",
    "per_process_memory_fraction:0.7",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.7,max_split_size_mb:50",
    "expandable_segments:True,large_segment_size_mb:40",
    "expandable_segments:True,max_split_size_mb:32",
    "expandable_segments:True,roundup_power2_divisions:4",
    "expandable_segments:True,garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
)
Event = tuple[str, int, int, int]  # what (m, f or e), name, bytes, stream
State = tuple[int, int, int]  # address or -1, reserved, allocated


def random_events(rng: random.Random, count: int, largest: int) -> list[Event]:
    """A program without sense: sizes up to 2 ** largest bytes, few or many of them, freed in any order."""
    streams, target = rng.choice([1, 1, 3]), rng.choice([5, 30, 200])
    palette = [rng.randrange(1, 1 << rng.randrange(1, largest)) for _ in range(rng.choice([0, 8, 30]))]
    events: list[Event] = []
    live: list[int] = []
    for name in range(count):
        if rng.random() < 0.002:
            events.append(("e", 0, 0, 0))
        elif live and rng.random() < len(live) / (2 * target):
            events.append(("f", live.pop(rng.randrange(len(live)) if rng.random() < 0.6 else -1), 0, 0))
        else:
            size = rng.choice(palette) if palette else rng.randrange(1, 1 << rng.randrange(1, largest))
            events.append(("m", name, size, rng.randrange(streams)))
            live.append(name)
    return events


def ours(events: list[Event], settings: str, capacity: int | None) -> tuple[list[State], Allocator]:
    """What the replayed allocator did at each event; frees of what did not fit are no events."""
    allocator = Allocator(parse_config(settings), capacity)
    failed: set[int] = set()
    states = []
    for what, name, size, stream in events:
        address = 0
        try:
            if what == "m":
                address = allocator.malloc(name, size, stream)
            elif what == "e":
                allocator.empty_cache()
            elif name not in failed:
                allocator.free(name)
        except OutOfMemory:
            failed.add(name)
            address = -1
        states.append((address, allocator.reserved, allocator.allocated))
    return states, allocator


def build(torch: Path, cuda: Path, folder: Path) -> Callable[[list[Event], str, int], list[State]]:
    """Torch's allocator over the made-up device, as a function of events, settings and the device's bytes."""
    libraries = [torch / "lib" / name for name in ("libc10_cuda.so", "libc10.so")]
    names = subprocess.run(["nm", "-D", "--undefined-only", libraries[0]], capture_output=True, text=True, check=True)
    wanted = {word.partition("@")[0] for word in names.stdout.split() if word.startswith("cuda")}
    own = (HERE / "device.cpp").read_text(encoding="utf-8")
    stubs = [f'extern "C" int {name}() {{ return 0; }}' for name in sorted(wanted) if f"{name}(" not in own]
    (folder / "stubs.cpp").write_text("\n".join(stubs), encoding="utf-8")
    (folder / "versions").write_text("libcudart.so.13 { global: *; };", encoding="utf-8")
    runtime = folder / "libcudart.so.13"
    compiler = ["g++", "-std=c++20", "-O1", f"-I{cuda / 'include'}", f"-I{torch / 'include'}"]
    versions = ["-Wl,-soname,libcudart.so.13", f"-Wl,--version-script={folder / 'versions'}"]
    subprocess.run(
        [*compiler, "-fPIC", "-shared", *versions, "-o", runtime, HERE / "device.cpp", folder / "stubs.cpp"], check=True
    )
    subprocess.run([*compiler, "-o", folder / "drive", HERE / "drive.cpp", *libraries, runtime], check=True)

    def run(events: list[Event], settings: str, capacity: int) -> list[State]:
        lines = "\n".join(" ".join(map(str, event[: {"m": 4, "f": 2, "e": 1}[event[0]]])) for event in events)
        environment = os.environ | {
            "PYTORCH_ALLOC_CONF": settings, "DEVICE_BYTES": str(capacity), "LD_LIBRARY_PATH": f"{folder}:{torch / 'lib'}",
        }  # fmt: skip
        done = subprocess.run(
            [folder / "drive"], input=lines + "\n", capture_output=True, text=True, check=True, env=environment
        )
        states = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
        return [(at - (1 << 44) if at > 0 else at, reserved, allocated) for at, reserved, allocated in states]

    return run


def digest(states: list[State]) -> str:
    """Of all that was seen at every event."""
    return hashlib.sha256(repr(states).encode()).hexdigest()[:32]


def compare(theirs: Callable[[list[Event], str, int], list[State]], seed: int, rounds: int) -> int:
    """Prints for each setting how many allocations were compared; returns in how many runs there was a difference."""
    rng = random.Random(seed)
    differ = 0
    for settings in SETTINGS:
        allocations = full = wrong = 0
        for _ in range(rounds):
            events = random_events(rng, 3000, rng.choice([20, 24, 26, 28, 30]))
            peak = ours(events, settings, None)[1].peak_reserved
            capacity = int(peak * rng.choice([0.4, 0.6, 0.75, 0.85, 0.95, 1.0, 2.0])) // MIB * MIB
            expected, (got, _) = theirs(events, settings, capacity), ours(events, settings, capacity)
            allocations += sum(event[0] == "m" for event in events)
            full += sum(state[0] == -1 for state in expected)
            wrong += expected != got
            first = next((i for i, pair in enumerate(zip(expected, got, strict=True)) if pair[0] != pair[1]), None)
            if first is not None:
                print(f"  event {first} {events[first]}: torch {expected[first]}, here {got[first]}")
        differ += wrong
        print(f"{settings or 'default settings'}: {allocations} allocations, {full} out of memory, {wrong} runs differ")
    return differ


def write(theirs: Callable[[list[Event], str, int], list[State]], version: str) -> None:
    """Keeps four programs and what torch did with each, at each setting, on a tight and on an ample device."""
    rng = random.Random(7)
    programs = [random_events(rng, 900, largest) for largest in (23, 26, 28, 30)]
    runs = []
    for settings in SETTINGS:
        for i, events in enumerate(programs):
            for share in (0.7, 1.5):
                capacity = int(ours(events, settings, None)[1].peak_reserved * share) // MIB * MIB
                states = theirs(events, settings, capacity)
                seen = [max(s[1] for s in states), states[-1][1], sum(s[0] == -1 for s in states), digest(states)]
                runs.append([settings, i, capacity, *seen])
    source = (
        f"the caching allocator of torch {version} (libc10_cuda.so) over a made-up device, by benchmarks/allocator.py; "
        "events: name, bytes (0: freed, -1: empty_cache), stream; runs: settings, program, capacity_bytes, peak and last "
        "reserved, requests out of memory, digest of (address, reserved, allocated) at every event"
    )
    kept = [[[name, {"f": 0, "e": -1}.get(what, size), stream] for what, name, size, stream in p] for p in programs]
    rows = {key: [json.dumps(row, separators=(",", ":")) for row in rows] for key, rows in (("programs", kept), ("runs", runs))}
    text = ",\n".join(f'"{key}": [\n' + ",\n".join(lines) + "\n]" for key, lines in rows.items())
    OUT.write_text(f'{{"source": {json.dumps(source)},\n{text}}}\n', encoding="utf-8")


def speed() -> None:
    """Prints the time per event of programs of about the length of training steps, and of the search for a capacity."""
    rng = random.Random(3)
    for count, target in ((25_000, 300), (180_000, 1500)):
        ids: list[int] = []
        sizes: list[int] = []
        live: list[int] = []
        palette = [rng.choice([1, 3, 8]) * 512 << rng.randrange(17) for _ in range(40)]
        for name in range(count):
            if live and rng.random() < len(live) / (2 * target):
                ids.append(live.pop(-1 - int(rng.random() ** 3 * len(live))))
                sizes.append(0)
            else:
                ids.append(name)
                sizes.append(rng.choice(palette))
                live.append(name)
        for settings in ("", "expandable_segments:True"):
            config = parse_config(settings)
            start = time.process_time()
            done = replay(ids, sizes, config)
            middle = time.process_time()
            least = required_capacity(ids, sizes, config)
            end = time.process_time()
            print(
                f"{count:,} events, {settings or 'default settings'}: {(middle - start) / count * 1e6:.1f} µs an event; "
                f"required capacity in {end - middle:.1f} s: {least / done.peak_reserved_bytes:.3f} of peak reserved"
            )


def main() -> int:
    """Runs what the arguments ask for; 1 where torch did anything else."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--torch", type=Path, help="folder of a torch built for CUDA 13")
    options.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda"), help="folder with CUDA's include")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--rounds", type=int, default=6, help="programs for each setting")
    options.add_argument("--write", action="store_true", help=f"write {OUT.name}")
    given = options.parse_args()
    if given.torch is None:
        speed()
        print("not compared with torch's own allocator: name one with --torch")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        theirs = build(given.torch, given.cuda, Path(folder))
        if given.write:
            version = (given.torch / "version.py").read_text(encoding="utf-8")
            write(theirs, version.partition("__version__ = '")[2].partition("'")[0])
        return 1 if compare(theirs, given.seed, given.rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
