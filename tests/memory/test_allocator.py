"""The replayed caching allocator: its rules one by one, recordings, torch's own allocator, and impossible events."""

from __future__ import annotations

import hashlib
import json
import random
import time
from pathlib import Path

import pytest

from diag_kit.errors import DiagKitError, SettingsError
from diag_kit.memory.allocator import (
    Allocator,
    AllocatorConfig,
    OutOfMemory,
    parse_config,
    replay,
    required_capacity,
)  # fmt: skip
from diag_kit.units import GIB, KIB, MIB

DATA = Path(__file__).parent / "data"
RECORDINGS = json.loads((DATA / "allocator_recordings.json").read_text(encoding="utf-8"))
REFERENCE = json.loads((DATA / "allocator_reference.json").read_text(encoding="utf-8"))
EXPANDABLE = AllocatorConfig(expandable_segments=True)


def allocate(allocator: Allocator, *sizes: int) -> list[int]:
    """Allocates each size under its place in the row; the addresses."""
    return [allocator.malloc(name, size) for name, size in enumerate(sizes)]


# The rules


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
        (20 * MIB - 512, 20 * MIB, 20 * MIB),
        (3 * GIB + 1, 3 * GIB + 512, 3 * GIB + 2 * MIB),
    ],
)
def test_one_request(requested, block, segment):
    """Sizes go by 512; segments have 2 MiB, 20 MiB or whole 2 MiB; a large block keeps a rest of up to 1 MiB."""
    allocator = Allocator()
    allocator.malloc(0, requested)
    assert (allocator.allocated, allocator.reserved) == (block, segment)
    assert allocator.segments == [(0, segment, block)]


def test_small_requests_share_a_segment_and_large_ones_another():
    """Small and large requests never share memory, however much of it is free."""
    allocator = Allocator()
    assert allocate(allocator, MIB, 512 * KIB, 512, 2 * MIB, 2 * MIB) == [
        0, MIB, MIB + 512 * KIB, 2 * MIB, 4 * MIB,
    ]  # fmt: skip
    assert allocator.segments == [(0, 2 * MIB, MIB + 512 * KIB + 512), (2 * MIB, 20 * MIB, 4 * MIB)]


def test_best_fit_is_the_smallest_then_the_lowest():
    """Of free blocks of 8, 4 and 4 MiB, a request of 3 MiB takes the first of 4 MiB; freed, they merge to one again."""
    allocator = Allocator()
    at = allocate(allocator, 8 * MIB, 2 * MIB, 4 * MIB, 2 * MIB, 4 * MIB)
    for name in (4, 0, 2):
        allocator.free(name)
    assert allocator.malloc("new", 3 * MIB) == at[2]
    for name in (1, 3, "new"):
        allocator.free(name)
    assert allocator.allocated == 0
    assert allocator.malloc("all", 20 * MIB) == 0
    assert allocator.reserved == 20 * MIB


def test_streams_do_not_share_free_blocks():
    """What one stream freed, another does not get."""
    allocator = Allocator()
    allocator.malloc(0, 30 * MIB, stream=0)
    allocator.free(0)
    allocator.malloc(1, 30 * MIB, stream=7)
    assert allocator.reserved == 60 * MIB
    assert not replay([0, 0, 1], [MIB, -1, MIB], streams=[0, 0, 1]).verified


def test_peaks_and_fragmentation():
    """Two freed segments of 30 MiB don't make one of 40: 100 MiB are reserved, and 60 lay unused meanwhile."""
    ids, sizes = [0, 1, 0, 1, 2], [30 * MIB, 30 * MIB, 0, 0, 40 * MIB]
    done = replay(ids, sizes)
    assert (done.peak_allocated_bytes, done.reserved_at_allocated_peak_bytes) == (60 * MIB, 60 * MIB)
    assert (done.peak_reserved_bytes, done.fragmentation_bytes, done.segments_at_peak) == (100 * MIB, 60 * MIB, 3)
    assert (done.events, done.oom, done.oom_bytes, done.retries, done.verified) == (5, None, None, 0, True)


def test_empty_cache_keeps_segments_in_use():
    """Only segments without an allocated block go back; a free block beside one in use stays."""
    allocator = Allocator()
    allocate(allocator, 30 * MIB, 2 * MIB, 2 * MIB, 512)
    allocator.free(0)
    allocator.free(1)
    allocator.empty_cache()
    assert allocator.segments == [(30 * MIB, 20 * MIB, 2 * MIB), (50 * MIB, 2 * MIB, 512)]


def test_a_full_device_gets_its_cache_back_before_a_request_fails():
    """On 64 MiB, 30 cached MiB make room for 40; what can't be given back ends the run at that event."""
    ids, sizes = [0, 1, 0, 2, 3], [30 * MIB, 20 * MIB, 0, 40 * MIB, 10 * MIB]
    full = replay(ids, sizes, capacity_bytes=64 * MIB)
    assert (full.oom, full.oom_bytes, full.retries, full.events) == (4, 10 * MIB, 2, 4)
    assert full.peak_reserved_bytes == 60 * MIB
    assert not full.verified
    done = replay(ids, sizes, capacity_bytes=70 * MIB)
    assert (done.oom, done.retries, done.peak_reserved_bytes) == (None, 1, 70 * MIB)
    assert replay(ids, sizes).peak_reserved_bytes == 90 * MIB


def test_an_allocator_goes_on_after_it_was_full():
    """A refused request leaves the rest as it was."""
    allocator = Allocator(capacity_bytes=20 * MIB)
    allocator.malloc(0, 2 * MIB)
    with pytest.raises(OutOfMemory) as full:
        allocator.malloc(1, 30 * MIB)
    assert full.value.bytes == 30 * MIB
    allocator.malloc(1, 2 * MIB)
    assert (allocator.allocated, allocator.reserved) == (4 * MIB, 20 * MIB)


def test_max_split_size():
    """A cached block of 40 MiB serves no request of 8; from max_split on, one 20 MiB larger than the request is refused."""
    config = parse_config("max_split_size_mb:32")
    allocator = Allocator(config)
    allocator.malloc(0, 40 * MIB)
    allocator.free(0)
    allocator.malloc(1, 8 * MIB)
    assert allocator.reserved == 60 * MIB
    allocator.malloc(2, 34 * MIB)
    assert (allocator.reserved, allocator.allocated) == (60 * MIB, 48 * MIB)
    allocator.malloc(3, 70 * MIB)
    allocator.free(3)
    allocator.malloc(4, 50 * MIB)
    assert allocator.reserved == 180 * MIB


@pytest.mark.parametrize(
    ("text", "requested", "block"),
    [
        ("roundup_power2_divisions:4", 1200 * KIB, 1280 * KIB),
        ("roundup_power2_divisions:4", 1024 * KIB, 1024 * KIB),
        ("roundup_power2_divisions:4", 1025, 1536),
        ("roundup_power2_divisions:4", 2049, 2560),
        ("roundup_power2_divisions:1", 1200 * KIB + 1, 1200 * KIB + 512),
        ("roundup_power2_divisions:[64:8,256:4,>:1]", 33 * MIB, 36 * MIB),
        ("roundup_power2_divisions:[64:8,256:4,>:1]", 65 * MIB, 72 * MIB),
        ("roundup_power2_divisions:[64:8,256:4,>:1]", 129 * MIB, 129 * MIB),
        ("roundup_power2_divisions:[64:8,256:4,>:1]", 257 * MIB, 320 * MIB),
        ("roundup_power2_divisions:[64:8,256:4,>:1]", 513 * MIB - 1, 513 * MIB),
        ("roundup_power2_divisions:[64:8,256:4]", 257 * MIB, 320 * MIB),
        ("roundup_power2_divisions:[64:8,256:4]", 513 * MIB, 513 * MIB),
    ],
)
def test_roundup_power2_divisions(text, requested, block):
    """Up to the next of that many equal parts of a power of two, by the MiB from which each holds."""
    assert parse_config(text).round(requested) == block


def test_expandable_segments():
    """Pages of 2 and 20 MiB are mapped as the end of the one segment grows, and whole free pages go back."""
    allocator = Allocator(EXPANDABLE, capacity_bytes=400 * MIB)
    first, second = allocate(allocator, 30 * MIB, 15 * MIB)
    assert (second - first, allocator.reserved, allocator.allocated) == (30 * MIB, 60 * MIB, 45 * MIB)
    allocator.free(0)
    allocator.malloc(2, 40 * MIB)
    assert allocator.reserved == 100 * MIB
    allocator.empty_cache()
    assert allocator.reserved == 80 * MIB
    assert [(at - first, size, used) for at, size, used in allocator.segments] == [(20 * MIB, 80 * MIB, 55 * MIB)]
    allocator.malloc(3, MIB)
    assert allocator.reserved == 82 * MIB
    for name in (1, 2, 3):
        allocator.free(name)
    allocator.empty_cache()
    assert (allocator.reserved, allocator.segments) == (0, [])
    assert allocator.malloc(4, 30 * MIB) >= first + 400 * MIB


def test_expandable_segments_need_less_where_sizes_grow():
    """Requests that grow leave a segment of each size behind; an expandable one grows along, which is not verified."""
    ids = [name for name in range(20) for _ in range(2)]
    sizes = [size for name in range(20) for size in ((name + 10) * 4 * MIB, -1)]
    native, expandable = replay(ids, sizes), replay(ids, sizes, EXPANDABLE)
    assert native.peak_reserved_bytes == sum((name + 10) * 4 * MIB for name in range(20))
    assert expandable.peak_reserved_bytes == 120 * MIB
    assert (native.verified, expandable.verified) == (True, False)


def test_garbage_collection_acts_under_a_fraction_only():
    """The threshold alone changes nothing; with a memory fraction, what was unused for longest is given back."""
    ids = [0, 1, 2, 1, 3, 2, 4]
    sizes = [2 * MIB, 30 * MIB, 40 * MIB, 0, 2 * MIB, 0, 50 * MIB]
    alone = replay(ids, sizes, parse_config("garbage_collection_threshold:0.4"), 200 * MIB)
    assert alone.peak_reserved_bytes == 140 * MIB
    both = parse_config("garbage_collection_threshold:0.4,per_process_memory_fraction:0.9")
    assert replay(ids, sizes, both, 200 * MIB).peak_reserved_bytes == 110 * MIB
    half = parse_config("per_process_memory_fraction:0.5")
    assert replay([0, 1], [30 * MIB, 20 * MIB], half, 100 * MIB).oom is None
    assert replay([0, 1], [30 * MIB, 22 * MIB], half, 100 * MIB).oom == 1


# What decides whether a run fits


def test_required_capacity_is_less_than_the_peak_with_room_to_spare():
    """30 and 20 MiB are cached when 40 are asked for: 90 MiB are reserved given room, but 50 do."""
    ids, sizes = [0, 1, 0, 1, 2], [30 * MIB, 20 * MIB, 0, 0, 40 * MIB]
    assert replay(ids, sizes).peak_reserved_bytes == 90 * MIB
    assert required_capacity(ids, sizes) == 50 * MIB
    assert replay(ids, sizes, capacity_bytes=48 * MIB).oom == 1
    assert required_capacity(ids, sizes, tolerance_bytes=1) == 50 * MIB


@pytest.mark.parametrize("config", [AllocatorConfig(), EXPANDABLE, parse_config("max_split_size_mb:20")])
def test_required_capacity_is_the_border(config):
    """A random program runs at its required capacity and not at 2 MiB less, whatever the settings."""
    rng = random.Random(5)
    ids, sizes, live = [], [], []
    for name in range(1500):
        if live and rng.random() < len(live) / 60:
            ids.append(live.pop(rng.randrange(len(live))))
            sizes.append(0)
        else:
            ids.append(name)
            sizes.append(rng.randrange(1, 1 << rng.randrange(10, 27)))
            live.append(name)
    least = required_capacity(ids, sizes, config)
    assert replay(ids, sizes, config, least).oom is None
    assert replay(ids, sizes, config, least - 2 * MIB).oom is not None


def test_steps_in_a_steady_state_repeat_under_the_same_names():
    """A step that leaves nothing behind can be replayed again under its names, and reserves no more than before."""
    ids, sizes = [0, 1, 2, 0, 1, 3, 2, 3], [5 * MIB, 70 * MIB, 3000, 0, 0, 80 * MIB, 0, 0]
    one, three = replay(ids, sizes), replay(ids * 3, sizes * 3)
    assert (one.peak_reserved_bytes, three.peak_reserved_bytes) == (172 * MIB, 172 * MIB)
    assert three.events == 24


# Recordings of real GPUs


def lay_out(allocator: Allocator, segments: list) -> None:
    """Brings the allocator into a recorded state: blocks of each segment in order, negative ones free, named by address."""
    free = []
    for start, size, blocks in segments:
        allocator.next_address = start
        allocator.malloc("opener", MIB if size == 2 * MIB else size)
        allocator.free("opener")
        for block in blocks:
            for part in [block] if block > 0 else [min(-block, MIB), -block - MIB] if size == 2 * MIB else [-block]:
                if part > 0:
                    assert allocator.malloc(start, part) == start
                    free += [start] * (block < 0)
                    start += part
    for name in free:
        allocator.free(name)


@pytest.mark.parametrize("recording", RECORDINGS["recordings"], ids=lambda recording: recording["name"])
def test_a_recording_is_reproduced(recording):
    """Every address, every segment and the state at the end are those of the GPU; given are the driver's addresses."""
    allocator = Allocator()
    lay_out(allocator, recording["start"])
    reserved = sum(size for _, size, _ in recording["start"])
    checked = 0
    for address, action, size in recording["events"]:
        if action == "s":
            allocator.next_address = address
            reserved += size
        elif action == "f":
            allocator.free(address)
        else:
            assert allocator.malloc(address, size) == address
            checked += 1
            assert allocator.reserved == reserved
    assert allocator.segments == [tuple(segment) for segment in recording["end"]]
    assert checked > 30


def test_what_a_real_out_of_memory_left_follows_the_rules():
    """At a real out-of-memory each block of 176 segments is its request rounded, and each segment of a size by rule."""
    segments = RECORDINGS["oom_state"]["segments"]
    for pool, size, blocks in segments:
        assert size == sum(block for block, _ in blocks)
        assert size == 2 * MIB if pool == "small" else size % (2 * MIB) == 0 and size >= 10 * MIB
        assert all(block == AllocatorConfig().round(requested) for block, requested in blocks if requested)
    assert len(segments) == 176


# Torch's own allocator over a made-up device


def followed(program: list, settings: str, capacity: int) -> list:
    """What the replay does with a kept program, in the form and with the digest of the reference."""
    allocator = Allocator(parse_config(settings), capacity)
    failed, states = set(), []
    for name, size, stream in program:
        address = 0
        if size > 0:
            try:
                address = allocator.malloc(name, size, stream)
            except OutOfMemory:
                failed.add(name)
                address = -1
        elif size < 0:
            allocator.empty_cache()
        elif name not in failed:
            allocator.free(name)
        states.append((address, allocator.reserved, allocator.allocated))
    digest = hashlib.sha256(repr(states).encode()).hexdigest()[:32]
    return [max(state[1] for state in states), allocator.reserved, len(failed), digest]


@pytest.mark.parametrize("settings", sorted({run[0] for run in REFERENCE["runs"]}))
def test_torch_itself_did_the_same(settings):
    """At every event of random programs, address, reserved and allocated are those of torch's compiled allocator.

    On a tight device and an ample one: with requests out of memory, caches given back, garbage collection, streams.
    """
    runs = [run for run in REFERENCE["runs"] if run[0] == settings]
    assert len(runs) == 8
    for _, program, capacity, *seen in runs:
        assert followed(REFERENCE["programs"][program], settings, capacity) == seen


def test_the_reference_tells_settings_apart():
    """Under other settings than torch had, or on a smaller device, the digests differ: the comparison can fail."""
    default = [run for run in REFERENCE["runs"] if run[0] == ""]
    for other in sorted({run[0] for run in REFERENCE["runs"]} - {"", "garbage_collection_threshold:0.5"}):
        assert any(followed(REFERENCE["programs"][run[1]], other, run[2]) != run[3:] for run in default)
    smaller = [followed(REFERENCE["programs"][run[1]], "", run[2] * 3 // 4) != run[3:] for run in default]
    assert any(smaller)
    assert sum(run[5] > 0 for run in REFERENCE["runs"]) > 40


# Settings as text


def test_settings_are_read():
    """Blanks, empty settings and those without effect are taken as torch takes them; the last of two holds."""
    assert parse_config("") == AllocatorConfig()
    assert parse_config(" backend:native , pinned_use_background_threads:True,") == AllocatorConfig()
    read = parse_config(
        "max_split_size_mb:64,expandable_segments: True,max_split_size_mb:128,per_process_memory_fraction:.5"
    )
    assert read == AllocatorConfig(expandable_segments=True, max_split_bytes=128 * MIB, memory_fraction=0.5)
    assert (
        parse_config("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_divisions
        == (1,) * 9 + (2, 4) + (8,) * 5
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("expandable_segment:True", ["expandable_segment'", "expandable_segments"]),
        ("expandable_segments:true", ["True or False", "'true'"]),
        ("expandable_segments", ["no value"]),
        ("max_split_size_mb=64", ["max_split_size_mb=64", "known"]),
        ("max_split_size_mb:64;expandable_segments:True", ["max_split_size_mb", "from 20"]),
        ("max_split_size_mb:19", ["max_split_size_mb", "from 20", "'19'"]),
        ("max_split_size_mb:" + "9" * 5000, ["max_split_size_mb", "from 20"]),
        ("max_split_size_mb:" + "9" * 500, ["max_split_size_mb", "from 20"]),
        ("large_segment_size_mb:10", ["large_segment_size_mb", "from 11"]),
        ("garbage_collection_threshold:1.0", ["garbage_collection_threshold", "between 0 and 1"]),
        ("garbage_collection_threshold:nan", ["garbage_collection_threshold", "'nan'"]),
        ("per_process_memory_fraction:1.5", ["per_process_memory_fraction", "from 0 to 1"]),
        ("roundup_power2_divisions:3", ["powers of 2", "'3'"]),
        ("roundup_power2_divisions:0", ["powers of 2"]),
        ("roundup_power2_divisions:[256:3]", ["powers of 2"]),
        ("roundup_power2_divisions:[100:2,>:4]", ["powers of 2"]),
        ("roundup_power2_divisions:[256]", ["powers of 2"]),
        ("roundup_power2_divisions:[256:1:2", ["powers of 2"]),
        ("backend:cudaMallocAsync", ["backend:native", "cudaMallocAsync"]),
        ("\n\x00🙂", ["no setting"]),
        ("[" * 4000, ["no setting"]),
    ],
)
def test_what_torch_refuses_is_refused_in_one_line(text, words):
    """A wrong setting is one line that names it and what is allowed."""
    with pytest.raises(SettingsError) as wrong:
        parse_config(text)
    message = str(wrong.value)
    assert message.startswith("PYTORCH_ALLOC_CONF: ")
    assert len(message) < 900
    assert "\n" not in message
    for word in words:
        assert word in message


# Impossible events


@pytest.mark.parametrize(
    ("ids", "sizes", "words"),
    [
        ([1, 1, 1], [512, -512, -512], ["event 2", "1 is freed", "not allocated"]),
        ([1, 2], [512, 0], ["event 1", "2 is freed", "not allocated"]),
        ([1, 1], [512, 512], ["event 1", "1 is allocated already"]),
        ([1], [1 << 50], ["event 0", "any device"]),
        ([10**6000], [10**6000], ["event 0", "any device"]),
        ([1, 2], [512], ["differ in number", "2", "1"]),
        (["x" * 10**6], [-1], ["event 0", "freed"]),
    ],
)
def test_an_impossible_event_is_one_clear_error(ids, sizes, words):
    """It names the event and what is wrong with it, in one line, and ``required_capacity`` says the same."""
    for run in (replay, required_capacity):
        with pytest.raises(DiagKitError) as wrong:
            run(ids, sizes)
        assert len(str(wrong.value)) < 200
        assert "\n" not in str(wrong.value)
        for word in words:
            assert word in str(wrong.value)


def test_no_events():
    """Nothing happened: nothing is reserved, and nothing is needed."""
    done = replay([], [])
    assert (done.events, done.peak_reserved_bytes, done.oom) == (0, 0, None)
    assert required_capacity([], []) == 0


def test_arrays_are_taken():
    """Arrays of numpy are events as lists are."""
    numpy = pytest.importorskip("numpy")
    ids, sizes = [0, 1, 0, 2], [5 * MIB, 7000, 0, 30 * MIB]
    assert replay(numpy.array(ids), numpy.array(sizes)) == replay(ids, sizes)
    assert required_capacity(numpy.array(ids), numpy.array(sizes)) == required_capacity(ids, sizes)


def test_many_free_blocks_cost_little_each():
    """Of ten times as many free blocks that can't merge, of thousands of sizes, each costs about the same."""

    def seconds_per_event(count: int) -> float:
        ids = [*range(count), *range(0, count, 2), *range(count, 2 * count)]
        sizes = (
            [512 * (i % 2039 + 1) for i in range(count)]
            + [0] * (count // 2)
            + [512 * (i % 2027 + 1) for i in range(count)]
        )
        start = time.process_time()
        replay(ids, sizes)
        return (time.process_time() - start) / len(ids)

    assert seconds_per_event(40_000) < 5 * min(seconds_per_event(4_000) for _ in range(3))
