"""Scanning finds every hit once, whatever the chunks, and stays cheap when a log repeats itself."""

import io
import tracemalloc

from diag_kit.evidence import run as run_module
from diag_kit.evidence import scan as scan_module
from diag_kit.evidence.facts import Event
from diag_kit.evidence.run import load_run
from diag_kit.evidence.scan import scan
from tests.evidence.samples import SAMPLES

OOM = SAMPLES["torch_oom"][0]


def test_a_hit_across_chunks_is_found_once(monkeypatch):
    """A literal that chunks cut in two is neither lost nor counted twice, for every cut."""
    data = b"x" * 40 + b"out of memory" + b"y" * 31 + b"oom" + b"z" * 9
    expected = {b"out of memory": [40], b"oom": [data.find(b"oom")]}
    for size in range(1, 60):
        monkeypatch.setattr(scan_module, "CHUNK", size)
        found = scan(io.BytesIO(data), list(expected))
        assert {literal: hits.offsets() for literal, hits in found.hits.items()} == expected, size


def test_line_numbers_survive_any_size(tmp_path):
    """In a log larger than the window the failing line keeps its true number, and a small log gives the same event."""
    filler = "".join(
        f"[{i:06}] nothing of note happens on this line of the log, it only makes it long\n" for i in range(40_000)
    )
    log = tmp_path / "big.log"
    log.write_text(filler + OOM + "\n" + filler)
    assert log.stat().st_size > 2 * run_module.SMALL
    [event] = [event for event in load_run([log]).of(Event) if event.kind == "torch.oom"]
    assert event.source.line == 40_001
    small = load_run(text=OOM).of(Event)[0]
    assert event.figures == small.figures


def test_a_storm_of_one_error_is_capped_and_counted(tmp_path):
    """A hundred thousand equal errors cost a bounded number of parsed events; what was not parsed is said."""
    log = tmp_path / "storm.log"
    log.write_text((OOM + "\n") * 20_000)
    run = load_run([log])
    assert 0 < len(run.of(Event)) <= 3_000
    assert "not parsed" in " ".join(run.coverage()["notes"])


def test_memory_stays_bounded(tmp_path):
    """Reading a log of 64 MiB needs a small part of that in memory."""
    log = tmp_path / "long.log"
    block = "".join(f"line {i} of a long quiet log\n" for i in range(40_000)).encode()
    with log.open("wb") as out:
        for _ in range(64 * 1024 * 1024 // len(block)):
            out.write(block)
        out.write(OOM.encode())
    tracemalloc.start()
    run = load_run([log])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [event.kind for event in run.of(Event)] == ["torch.oom"]
    assert peak < 40 << 20, f"{peak >> 20} MiB"
