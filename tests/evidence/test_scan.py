"""Scanning finds every hit once, whatever the engine, the blocks and the parts, and stays cheap when a log repeats
itself.
"""

import functools
import importlib.util
import io
import itertools
import random
import tracemalloc
from pathlib import Path

import pytest

from diag_kit.evidence import reading
from diag_kit.evidence import run as run_module
from diag_kit.evidence import scan as scan_module
from diag_kit.evidence.facts import Event
from diag_kit.evidence.run import load_run
from diag_kit.evidence.scan import Literals, merged, scan
from diag_kit.evidence.scan.engines import ENGINES, prepared, preparer
from tests.evidence.samples import SAMPLES

OOM = SAMPLES["torch_oom"][0]
NAMES = [engine.name for engine in ENGINES]


def over(data, literals, *, engine=None, **more):
    """A scan of bytes held in memory."""
    at = 0

    def read(size):
        nonlocal at
        at += size
        return data[at - size : at]

    return scan(read, literals, preparer(engine), **more)


def places(found):
    """Literal -> offsets of its kept neighbourhoods' literals, and the counts."""
    return {literal: (one.count, [span.start for span in one.spans()]) for literal, one in found.found.items()}


def test_a_hit_across_blocks_is_found_once(monkeypatch):
    """A literal that blocks cut in two is neither lost nor counted twice, for every cut."""
    data = b"x" * 40 + b"out of memory" + b"y" * 31 + b"oom" + b"z" * 9
    monkeypatch.setattr(scan_module, "BEFORE", 0)
    monkeypatch.setattr(scan_module, "AFTER", 12)
    for size in range(1, 60):
        monkeypatch.setattr(scan_module, "BLOCK", size)
        for name in NAMES:
            found = over(data, Literals((b"out of memory", b"oom")), engine=name, edge=0)
            assert places(found) == {b"out of memory": (1, [40]), b"oom": (1, [data.find(b"oom")])}, (size, name)


@pytest.mark.parametrize("name", NAMES)
def test_every_engine_gives_the_same(name):
    """On text full of whole, cut and overlapping literals all engines agree with the slow and sure way."""
    wanted = reading.literals().all
    draw = random.Random(5)
    _, present = prepared(wanted, name)
    for _ in range(200):
        pieces = [draw.choice(wanted) for _ in range(draw.randint(0, 12))]
        pieces = [piece[: draw.randint(1, len(piece))] if draw.random() < 0.4 else piece for piece in pieces]
        data = b"".join(piece + draw.choice([b"", b" ", b"\n", b"\xff", b"\0"]) for piece in pieces)
        assert present(memoryview(data)) == {which for which, one in enumerate(wanted) if one in data}


def test_engines_are_here_to_be_compared():
    """The comparison above would prove nothing with one engine: the tests' environment has all of them."""
    assert len(NAMES) == 3
    for name in NAMES:
        prepared(reading.literals().all, name)


def test_parts_joined_are_the_whole(monkeypatch):
    """A file scanned in parts and joined gives the neighbourhoods, line numbers and counts of one pass."""
    draw = random.Random(3)
    lines = [f"line {i} {'x' * draw.randint(0, 300)}" for i in range(4000)]
    for i in draw.sample(range(4000), 70):
        lines[i] += " oom-event"
    for i in draw.sample(range(4000), 900):
        lines[i] += " roll-line"
    data = "\n".join(lines).encode()
    literals = Literals((b"oom-event",), (b"roll-line",))
    monkeypatch.setattr(scan_module, "BEFORE", 2000)
    monkeypatch.setattr(scan_module, "AFTER", 1000)
    monkeypatch.setattr(scan_module, "BLOCK", 10_000)
    whole = over(data, literals)
    cuts = [0, *sorted(draw.sample(range(len(data)), 6)), len(data)]
    parts = [
        over(data[a:], literals, at=a, before=data[max(0, a - 2000) : a], until=b)
        for a, b in itertools.pairwise(cuts)
    ]
    joined = parts[0]
    for part in parts[1:]:
        joined = joined.then(part)
    assert (joined.newlines, joined.end) == (whole.newlines, whole.end) == (data.count(b"\n"), len(data))
    for literal in literals.all:
        mine, theirs = joined.found[literal], whole.found[literal]
        assert mine.count == theirs.count == data.count(literal)
        for one in (mine, theirs):
            for span in one.spans():
                assert data[span.start : span.end] == span.data
                assert data.count(b"\n", 0, span.start) == span.newlines
        true = [o for o in range(len(data)) if data.startswith(literal, o)]
        kept = true if literal == b"roll-line" else true[: scan_module.KEPT] + true[-scan_module.KEPT :]
        for one in (mine, theirs):
            assert all(any(span.start <= o < span.end for span in one.spans()) for o in kept)


def test_line_numbers_survive_any_size(tmp_path):
    """In a log larger than the window the failing line keeps its true number, and a small log gives the same event."""
    filler = "".join(
        f"[{i:06}] nothing of note happens on this line of the log, it only makes it long\n" for i in range(40_000)
    )
    log = tmp_path / "big.log"
    log.write_text(filler + OOM + "\n" + filler)
    assert log.stat().st_size > 2 * run_module._WHOLE
    small = load_run(text=OOM).of(Event)[0]
    for name in NAMES:
        [event] = [event for event in load_run([log], engine=name).of(Event) if event.kind == "torch.oom"]
        assert event.source.line == 40_001
        assert event.figures == small.figures


def test_a_storm_of_one_error_is_capped_and_counted(tmp_path):
    """A hundred thousand equal errors cost a bounded number of parsed events; what was not parsed is said."""
    log = tmp_path / "storm.log"
    log.write_text((OOM + "\n") * 20_000)
    run = load_run([log])
    assert 0 < len(run.of(Event)) <= 3_000
    assert "not parsed" in " ".join(run.coverage()["notes"])
    assert run.of(Event)[0].source.line == 1 and run.of(Event)[-1].source.line == 20_000


def test_memory_stays_bounded(tmp_path):
    """Reading a log of 64 MiB needs a small part of that in memory, quiet or storming."""
    quiet = "".join(f"line {i} of a long quiet log\n" for i in range(40_000)).encode()
    storm = "".join(f"[rank{i % 64}]: DataLoader worker Traceback Error {i}\n" for i in range(20_000)).encode()
    for block in (quiet, storm):
        log = tmp_path / "long.log"
        with log.open("wb") as out:
            for _ in range(64 * 1024 * 1024 // len(block)):
                out.write(block)
            out.write(OOM.encode())
        tracemalloc.start()
        run = load_run([log], workers=1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert "torch.oom" in [event.kind for event in run.of(Event)]
        assert peak < 48 << 20, f"{peak >> 20} MiB"


def test_touching_spans_are_one_and_none_is_longer_than_needed():
    """Spans put together hold each byte once, and what lies apart stays apart."""
    data = bytes(range(256)) * 40
    found = over(data.replace(b"\n", b"."), Literals((b"\x41\x42\x43",)))
    spans = merged(found.found[b"\x41\x42\x43"].spans())
    assert [span.start for span in spans] == [0] and spans[0].end == len(data)


CASES = sorted(Path(__file__).parents[1].joinpath("cases").iterdir())


def test_a_long_log_is_judged_as_a_short_one(tmp_path, monkeypatch):
    """Real failures between quiet lines that make their logs large get the answer of the short log."""
    from diag_kit.diagnosis import judge
    from diag_kit.evidence.text import decode, labels_of

    def said(run):
        found = judge(run)
        failure = found.failure and (found.failure.phase, found.failure.step, dict(found.failure.facts))
        verdicts = [(one.cause, one.verdict) for one in found.findings]
        return found.family, found.initiating_rank, verdicts, failure

    quiet = "".join(f"node-{i % 8}:{4000 + i % 8}:1 [{i % 8}] NCCL INFO Channel {i % 32:02d} via P2P\n" for i in range(1200))
    for case in random.Random(2).sample([one for one in CASES if (one / "evidence").is_dir()], 45):
        logs = sorted(case.joinpath("evidence").glob("*.txt")) + sorted(case.joinpath("evidence").glob("*.log"))
        if any(labels_of(decode(log.read_bytes())) for log in logs):
            continue  # every line of such a log begins with a number, the quiet ones here do not
        folder = tmp_path / case.name
        folder.mkdir()
        for file in case.joinpath("evidence").iterdir():
            text = file.read_bytes()
            wide = text[:2] in (b"\xff\xfe", b"\xfe\xff")
            if file in logs and not wide:
                text = quiet.encode() + text + b"\n" + quiet.encode()
            (folder / file.name).write_bytes(text)
        short = said(load_run([case / "evidence"]))
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "_WHOLE", 0)
            patch.setattr(reading, "How", functools.partial(reading.How, edge=0))
            patch.setattr(reading, "SMALL", 0)
            assert said(load_run([folder])) == short, case.name


def _healthy_log():
    spec = importlib.util.spec_from_file_location("realistic_log", Path(__file__).parents[2] / "benchmarks" / "realistic_log.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._healthy(8 << 20)


def test_little_of_a_healthy_log_is_parsed():
    """Words that are looked for are rare where nothing failed: less than a tenth of the bytes are kept to be parsed."""
    data = _healthy_log()
    wanted = reading.literals()
    found = over(data, wanted, size=len(data), edge=0)
    often = {literal: one.count for literal, one in found.found.items() if one.count > 80}
    assert not often
    spans = {span for one in found.found.values() for span in one.spans()}
    spans |= {span for sampled in found.samples.values() for span in sampled}
    assert 0 < sum(len(span.data) for span in merged(spans)) < len(data) / 8


def test_what_comes_in_every_block_is_not_asked_of_the_engine():
    """After some blocks the engine is asked for fewer literals, and what is found stays the same."""
    data = _healthy_log()
    asked = []
    prepare = preparer(None)

    def recorded(literals):
        asked.append(len(literals))
        return prepare(literals)

    wanted = reading.literals()
    found = scan(io.BytesIO(data).read, wanted, recorded, size=len(data), edge=0)
    assert asked[0] == len(wanted.all) and asked[-1] < asked[0]
    assert all(found.samples.get(word) for word in wanted.all if data.count(word) > 5_000 and word not in wanted.steps)
