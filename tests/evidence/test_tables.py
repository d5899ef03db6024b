"""Tables of every tool give memory by step, time, rank and device, each point with its row; broken ones cost a note."""

import json
import struct

import pytest

from diag_kit.evidence.columns import EDGE, MAX_ROWS
from diag_kit.evidence.facts import MemoryPoint
from diag_kit.evidence.run import load_run
from diag_kit.evidence.tfevents import masked_crc
from tests.effort import costs_less

MIB, GIB = 1 << 20, 1 << 30


def read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_run([tmp_path / name])


def rows(run):
    return [(p.step, p.micro_step, p.device, p.metric, p.value_bytes // MIB, p.source.line) for p in run.points]


NVIDIA = "timestamp, index, memory.used [MiB], memory.total [MiB]\n"
READINGS = "2026/05/19 10:00:00.123, 0, 1000 MiB, 81559 MiB\n2026/05/19 10:00:10.123, 0, 1100 MiB, 81559 MiB\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("smi.csv", NVIDIA + READINGS, [(None, None, 0, "used", 1000, 2), (None, None, 0, "used", 1100, 3)]),
        ("smi.log", NVIDIA + READINGS, [(None, None, 0, "used", 1000, 2), (None, None, 0, "used", 1100, 3)]),
        ("smi.txt", READINGS, [(None, None, 0, "used", 1000, 1), (None, None, 0, "used", 1100, 2)]),
        (
            "smi.csv",
            NVIDIA + READINGS.replace(" MiB", ""),
            [(None, None, 0, "used", 1000, 2), (None, None, 0, "used", 1100, 3)],
        ),
        (
            "bare.csv",
            READINGS.replace(" MiB", ""),
            [(None, None, 0, "used", 1000, 1), (None, None, 0, "used", 1100, 2)],
        ),
        (
            "apps.csv",
            "gpu_uuid, pid, process_name, used_memory [MiB]\nGPU-1a, 77, python, 512 MiB\nGPU-1a, 78, python, [N/A]\n",
            [(None, None, None, "used", 512, 2)],
        ),
        (
            "dmon.txt",
            "# gpu     fb   bar1   ccpm\n# Idx     MB     MB     MB\n    1   4321      2      0\n    1      -      2      0\n",
            [(None, None, 1, "used", 4321, 3)],
        ),
        (
            "dmon-dt.txt",
            "#Date       Time        gpu     fb   bar1\n#YYYYMMDD   HH:MM:SS    Idx     MB     MB\n 20260519   10:00:01      0   4321      2\n",
            [(None, None, 0, "used", 4321, 3)],
        ),
        (
            "dcgm.txt",
            "#Entity   FBUSD   FBFRE\nID\nGPU 3     12345   69000\nGPU 3     N/A     69000\n",
            [(None, None, 3, "used", 12345, 3)],
        ),
        (
            "gpu.prom",
            "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).\n# TYPE DCGM_FI_DEV_FB_USED gauge\n"
            'DCGM_FI_DEV_FB_USED{gpu="2",UUID="GPU-9",modelName="H100"} 12345\nDCGM_FI_DEV_FB_FREE{gpu="2"} 69000\n',
            [(None, None, 2, "used", 12345, 3)],
        ),
        (
            "dcgm.csv",
            "timestamp,gpu,DCGM_FI_DEV_FB_USED\n1779184800,5,999\n",
            [(None, None, 5, "used", 999, 2)],
        ),
        (
            "metrics.csv",  # Lightning: each row fills only the columns of one hook
            "epoch,step,train_loss,DeviceStatsMonitor.on_train_batch_start/allocated_bytes.all.current,"
            "DeviceStatsMonitor.on_train_batch_start/allocated_bytes.all.allocated,DeviceStatsMonitor.x/allocation.all.peak\n"
            "0,49,0.5,,,\n,49,,2097152,999999999,77\n,99,,3145728,999999999,77\n",
            [(49, None, None, "allocated", 2, 3), (99, None, None, "allocated", 3, 4)],
        ),
        (
            "titan.jsonl",
            '{"step": 10, "memory/max_active(GiB)": 2.0, "memory/max_reserved(GiB)": 3, "memory/max_active(%)": 9, "memory/num_ooms": 0}\n',
            [(10, None, None, "peak_allocated", 2048, 1), (10, None, None, "peak_reserved", 3072, 1)],
        ),
        (
            "wandb-events.jsonl",
            json.dumps(
                {
                    "_timestamp": 1779184800.5,
                    "system.gpu.1.memoryAllocatedBytes": 5 * GIB,
                    "system.gpu.1.memoryAllocated": 6.1,
                    "system.gpu.1.memory": 40,
                    "system.proc.memory.rssMB": 2000.0,
                }
            ),
            [(None, None, 1, "used", 5120, 1), (None, None, None, "host_used", 2000, 1)],
        ),
        ("windows.tsv", "step\tgpu_mem_gb\r\n1\t2\r\n2\t3\r\n", [(1, None, None, "used", 2048, 2), (2, None, None, "used", 3072, 3)]),
        (
            "nested.csv",
            "optimizer_step,micro_step,rank,allocated_mib\n7,0,1,10\n7,1,1,20\n",
            [(7, 0, None, "allocated", 10, 2), (7, 1, None, "allocated", 20, 3)],
        ),
    ],
)  # fmt: skip
def test_each_tool_is_read_with_place_unit_and_device(tmp_path, name, text, expected):
    """Metric, unit, step or time, device and the row's own line, whatever tool wrote the table."""
    assert rows(read(tmp_path, name, text)) == expected


def test_capacity_and_time_are_facts(tmp_path):
    """``memory.total`` is the card's capacity, and stamps without steps are kept as seconds."""
    run = read(tmp_path, "smi.csv", NVIDIA + READINGS)
    assert run.settings["capacity_bytes"].value == 81559 * MIB
    assert run.points[1].time - run.points[0].time == 10


def test_a_log_that_begins_with_a_stamp_is_still_a_log(tmp_path):
    """A first line with a date and commas, or one that echoes the tool's call, makes no table of a log."""
    oom = "RuntimeError: CUDA out of memory.\n"
    for first in ("2026/05/19 10:00:00.123, INFO, starting, 4 workers\n", "$ nvidia-smi --query-gpu=index,memory.used\n"):
        assert [e.family for e in read(tmp_path, "run.log", first + oom).events] == ["gpu-oom"]


@pytest.mark.parametrize(
    ("content", "words", "points"),
    [
        (b"\xef\xbb\xbfstep,gpu_mem_mib\n1,500\n", None, 1),
        ("step,gpu_mem_mib\n1,500\n".encode("utf-16"), None, 1),
        ("step,gpu_mem_mib\n1,500\n".encode("utf-16-le"), None, 1),
        (b"step;gpu_mem_mib\n1;500\n", None, 1),
        (b"step,gpu_mem_mib\n1,5\x0000\n", None, 1),
        (b"step,gpu_mem_mib\n1," + b"9" * (10 << 20) + b"\n2,600\n", "longer than", 1),
        (b"step,gpu_mem_mib\n1,nan\n2,inf\n3,1e400\n4,-5\n5,x\n6,600\n", "5 cells", 1),
        (b"step,gpu_mem_mib,gpu_mem_mib\n1,500,600\n", "one name", 2),
        (b"step,gpu_mem_mib\n", "no rows", 0),
        (b"step,gpu_mem_mib\n1,500,7,7,7\n", "do not fit", 1),
        (b"step,loss\n1,0.5\n", "without a column of memory", 0),
        (b"name,gpu_mem_mib\na,500\n", "without a column of steps", 0),
        (b'step,gpu_mem_mib\n1,"500\n2,600\n', None, 2),
        (b"step,gpu_mem_mib\n1,500\nstep,gpu_mem_mib\n2,600\n", None, 2),
    ],
)
def test_a_broken_table_costs_one_note(tmp_path, content, words, points):
    """Encodings, delimiters, huge lines, values that are none: the good rows are read, one note says what was not."""
    run = read(tmp_path, "m.csv", content)
    notes = run.coverage()["notes"]
    assert len(run.points) == points and len(notes) == (words is not None) and (words or "") in "".join(notes)


def test_a_long_series_keeps_whole_windows_head_and_tail(tmp_path):
    """Thinned to a bounded number of points, head and tail whole, and no accumulation window cut in its middle."""
    text = "step,micro_step,allocated_mib\n" + "".join(f"{i // 8},{i % 8},{i % 8}\n" for i in range(12 * MAX_ROWS // 8))
    (tmp_path / "m.csv").write_text(text)
    run = load_run([tmp_path])
    assert len(run.points) <= MAX_ROWS + 3 * EDGE and "kept of" in run.coverage()["notes"][0]
    by_step = {}
    for point in run.points:
        by_step.setdefault(point.step, []).append(point.micro_step)
    assert all(micro == list(range(8)) for micro in by_step.values())
    last = max(by_step)
    assert set(range(EDGE // 8)) <= by_step.keys() and set(range(last - EDGE // 8 + 1, last)) <= by_step.keys()
    gaps = {b - a for a, b in zip(sorted(by_step), sorted(by_step)[1:], strict=False)}
    assert max(gaps) <= 8


def test_many_series_and_rows_stay_bounded(tmp_path):
    """A million ranks make no million series; the cost grows with the rows alone."""
    (tmp_path / "m.csv").write_text("step,rank,allocated_mib\n" + "".join(f"1,{i},5\n" for i in range(30_000)))
    run = load_run([tmp_path])
    assert len(run.points) == 2000 and "beyond 2,000 series" in run.coverage()["notes"][0]
    assert costs_less(lambda: load_run([tmp_path]), 100)


def test_an_outcome_of_a_trial_is_an_event(tmp_path):
    """A row without a step that says it ran out of memory is a failure with the sizes that stand beside it."""
    text = "trial,max_reserved_mib,allocated_mib,status\na,70000,9000,failed: OOM in all-gather\nb,50000,9000,ok\nc,1,1,host OOM\n"
    (event,) = read(tmp_path, "trials.csv", text).events
    assert (event.family, event.source.line) == ("gpu-oom", 2)
    assert event.figures == {"reserved_bytes": 70000 * MIB, "allocated_bytes": 9000 * MIB}


def varint(number):
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def field(number, wire, content):
    return varint(number << 3 | wire) + (varint(len(content)) + content if wire == 2 else content)


def event(step, values, when=1.5e9):
    """A record of an event file, built by hand from the field numbers of event.proto and summary.proto."""
    inside = b"".join(field(1, 2, field(1, 2, tag.encode()) + how) for tag, how in values)
    data = field(1, 1, struct.pack("<d", when)) + field(2, 0, varint(step)) + field(5, 2, inside)
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", masked_crc(size)) + data + struct.pack("<I", masked_crc(data))


def simple(value):
    return field(2, 5, struct.pack("<f", value))


def tensor(dtype, content):
    return field(8, 2, field(1, 0, varint(dtype)) + content)


def test_the_checksum_is_crc32c():
    """The published check value of CRC-32C ("123456789" gives e3069283), masked as TFRecord masks it."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_event_files_are_read_without_tensorboard(tmp_path):
    """Scalars as simple values and as tensors of each dtype, with step and wall time; other tags and kinds are left."""
    data = event(0, [("loss", simple(1.0))]) + b"".join(
        (
            event(3, [("memory/max_active(GiB)", simple(2.0)), ("loss", simple(0.1))], when=100.0),
            event(4, [("gpu_allocated_bytes", tensor(9, field(10, 2, varint(7 * MIB))))]),
            event(5, [("gpu_allocated_bytes", tensor(2, field(4, 2, struct.pack("<d", 8 * MIB))))]),
            event(6, [("gpu_allocated_bytes", tensor(1, field(5, 2, struct.pack("<f", 9 * MIB))))]),
            event(7, [("gpu_allocated_bytes", field(5, 2, b"a histogram"))]),
        )
    )
    run = read(tmp_path, "events.out.tfevents.1.host", data)
    assert rows(run) == [
        (3, None, None, "peak_allocated", 2048, 2),
        (4, None, None, "allocated", 7, 3),
        (5, None, None, "allocated", 8, 4),
        (6, None, None, "allocated", 9, 5),
    ]
    assert run.points[0].time == 100.0 and "max_active" in run.points[0].source.text
    assert run.files[0].kind == "table" and not run.coverage()["notes"]


@pytest.mark.parametrize(
    ("spoil", "points", "words"),
    [
        (lambda d: d[:-3], 1, "cut off"),
        (lambda d: d[:-30] + b"~" + d[-29:], 1, "checksum"),
        (lambda d: d + b"garbage, no record", 2, "broken"),
        (lambda d: struct.pack("<Q", 1 << 62) + struct.pack("<I", masked_crc(struct.pack("<Q", 1 << 62))) + d, 0, "broken"),
    ],
)  # fmt: skip
def test_broken_event_files_give_what_came_before(tmp_path, spoil, points, words):
    """A torn end, a flipped byte, garbage or an absurd length cost a note, never the readings before."""
    data = event(1, [("gpu_mem_gb", simple(1.0))]) + event(2, [("gpu_mem_gb", simple(2.0))])
    run = read(tmp_path, "events.out.tfevents.2.host", spoil(data))
    assert len([p for p in run.points if isinstance(p, MemoryPoint)]) == points
    assert any(words in note for note in run.coverage()["notes"])


def test_event_files_of_a_real_writer(tmp_path):
    """What torch's own SummaryWriter, or tensorboardX, writes is read alike."""
    try:
        from torch.utils import tensorboard as writers
    except ImportError:
        writers = pytest.importorskip("tensorboardX")
    with writers.SummaryWriter(tmp_path) as writer:
        for step in range(5):
            writer.add_scalar("gpu_mem_gb", 2.0 + step, step)
    assert [(p.step, p.value_bytes) for p in load_run([tmp_path]).points] == [(i, (2 + i) * GIB) for i in range(5)]
