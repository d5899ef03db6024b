"""Many files and large ones are shared out, and nothing is lost when a file vanishes or the reader is stopped."""

import os

import pytest

from diag_kit.errors import EvidenceError, StopReading
from diag_kit.evidence import reading, sharing
from diag_kit.evidence.facts import Event
from diag_kit.evidence.run import load_run
from tests.evidence.samples import SAMPLES

OOM = SAMPLES["torch_oom"][0]
QUIET = "".join(f"node-{i % 8}:{4000 + i}:1 [{i % 8}] NCCL INFO Channel {i:04d} via P2P\n" for i in range(20_000))


@pytest.fixture
def small_parts(monkeypatch):
    """Files are divided as if a megabyte were large."""
    monkeypatch.setattr(sharing, "_SLOW_PART", 256 << 10)
    monkeypatch.setattr(sharing, "_PART", 256 << 10)


def events(run):
    return [(e.kind, e.source.path, e.source.line, dict(e.figures)) for e in run.of(Event)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_divided_file_is_the_whole_file(tmp_path, small_parts, workers):
    """Parts of one log, read in turn or in two processes, give the facts of one pass, with their line numbers."""
    log = tmp_path / "run.log"
    log.write_text(QUIET + OOM + "\n" + QUIET * 2 + OOM + "\n" + QUIET)
    assert log.stat().st_size > 12 * sharing._PART
    run = load_run([log], workers=workers)
    assert [line for _, _, line, _ in events(run)] == [20_001, 60_002]
    assert run.coverage() == {"files": 1, "bytes": log.stat().st_size, "bytes_read": log.stat().st_size, "notes": []}


def test_many_files_by_two_processes(tmp_path):
    """Each file's facts come back under its name, in the order of the names, whoever read them."""
    for rank in range(60):
        (tmp_path / f"rank{rank}.log").write_text(QUIET[: 3000 * rank] + (OOM + "\n" if rank % 7 == 3 else ""))
    alone, shared = load_run([tmp_path], workers=1), load_run([tmp_path], workers=2)
    assert events(alone) == events(shared) and len(events(shared)) == 9
    assert list(alone.files) == list(shared.files)
    assert alone.content_key == shared.content_key


def test_stopping_keeps_the_end_of_the_log(tmp_path, small_parts):
    """The end of a log is read before its beginning; where the person stops, it is judged, and the rest is told."""
    log = tmp_path / "run.log"
    log.write_text(OOM.replace("GPU 0", "GPU 7") + "\n" + QUIET * 6 + OOM + "\n")
    calls = 0

    def stop(path, done, total):
        nonlocal calls
        assert 0 <= done <= total == log.stat().st_size and path == str(log)
        calls += 1
        if calls > 4:
            raise StopReading("enough")

    run = load_run([log], on_progress=stop, workers=1)
    assert [line for _, _, line, _ in events(run)] == [120_002]
    covered = run.coverage()
    assert 0 < covered["bytes_read"] < covered["bytes"] and "reading was stopped" in " ".join(covered["notes"])


def test_stopping_in_one_packed_file_keeps_what_was_read(tmp_path):
    """A file that can only be read forward is judged up to where it was stopped."""
    import gzip

    (tmp_path / "run.log.gz").write_bytes(gzip.compress((OOM + "\n" + QUIET * 20).encode(), 1))
    seen = []

    def stop(path, done, total):
        seen.append(done)
        if done > total // 3:
            raise StopReading("enough")

    run = load_run([tmp_path], on_progress=stop)
    assert [kind for kind, *_ in events(run)] == ["torch.oom"]
    assert "reading was stopped" in " ".join(run.coverage()["notes"]) and seen == sorted(seen)


def test_a_file_that_vanishes_or_is_closed_leaves_the_rest(tmp_path, monkeypatch):
    """Between listing and reading a file may go, or never have been readable: a note, and the others are judged."""
    for name in ("gone.log", "stays.log"):
        (tmp_path / name).write_text(QUIET + OOM)
    real = reading.open_text

    def opened(path):
        if path.name == "gone.log":
            path.unlink()
        return real(path)

    monkeypatch.setattr(reading, "open_text", opened)
    run = load_run([tmp_path], workers=1)
    assert [path for _, path, _, _ in events(run)] == ["stays.log"]
    assert any("gone.log: can't be read" in note for note in run.coverage()["notes"])


def test_a_growing_file_is_read_as_far_as_it_goes(tmp_path, monkeypatch, small_parts):
    """What is appended between listing and reading is read too."""
    log = tmp_path / "run.log"
    log.write_text(QUIET * 2)
    real = reading.scan_part

    def appended(path, start, end, size, how):
        if end is None:
            with log.open("a") as out:
                out.write(OOM + "\n")
        return real(path, start, end, size, how)

    monkeypatch.setattr(reading, "scan_part", appended)
    run = load_run([log], workers=1)
    assert [line for _, _, line, _ in events(run)] == [40_001]
    assert run.coverage()["bytes_read"] == log.stat().st_size


def test_pipes_links_and_closed_folders_are_listed_not_opened(tmp_path):
    """A pipe would hang, a link could lead anywhere, cyclic or not: each is left out by name, with the reason."""
    (tmp_path / "run.log").write_text(OOM)
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "passwd.log").symlink_to("/etc/passwd")
    (tmp_path / "self.log").symlink_to(tmp_path / "self.log")
    run = load_run([tmp_path])
    assert [kind for kind, *_ in events(run)] == ["torch.oom"]
    notes = " | ".join(run.coverage()["notes"])
    assert "pipe.log: a pipe" in notes and "passwd.log: a link" in notes and "self.log: a link" in notes
    with pytest.raises(EvidenceError, match=r"leads nowhere|can't be read|no such file"):
        load_run([tmp_path / "self.log"])


def test_a_pattern_names_files(tmp_path):
    """What a shell did not expand is expanded here; a pattern that matches nothing is one clear line."""
    for name in ("rank0.log", "rank1.log", "other.txt"):
        (tmp_path / name).write_text(OOM)
    run = load_run([str(tmp_path / "rank*.log")])
    assert [event.rank for event in run.of(Event)] == [0, 1]
    with pytest.raises(EvidenceError, match="no such file"):
        load_run([str(tmp_path / "nothing*.log")])


def test_a_million_names_of_ranks(tmp_path):
    """A log whose every line claims another rank is read in bounded memory, and answered."""
    from diag_kit.diagnosis import diagnose

    log = tmp_path / "many.log"
    with log.open("w") as out:
        for rank in range(300_000):
            out.write(f"[rank{rank}]: quiet line of rank {rank}\n")
        out.write(f"[rank299999]: {OOM}\n")
    found = diagnose(log)
    assert found.family == "gpu-oom" and len(str(found.to_json())) < 200_000
