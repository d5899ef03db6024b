"""A file is read as the text in it, whatever packs it; what is broken gives what it holds and says so."""

import bz2
import gzip
import lzma

import pytest

from diag_kit.evidence import streams
from diag_kit.evidence.facts import Event
from diag_kit.evidence.run import load_run
from diag_kit.evidence.streams import open_text
from tests.evidence.samples import SAMPLES

OOM = SAMPLES["torch_oom"][0]
TEXT = ("".join(f"step {i} of a quiet run, loss {i * 7919 % 1000}\n" for i in range(60_000)) + OOM + "\n").encode()


def zstd(data):
    from backports.zstd import compress

    return compress(data)


PACKS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


@pytest.mark.parametrize("suffix", PACKS)
def test_packed_text_is_read_in_blocks_of_any_size(tmp_path, suffix):
    """The bytes of the text, from one archive and from two put together, whatever is asked for at a time."""
    pack = PACKS[suffix]
    for name, data in (("one", pack(TEXT)), ("two", pack(TEXT[:1000]) + pack(TEXT[1000:]))):
        path = tmp_path / f"{name}.{suffix}"
        path.write_bytes(data)
        for size in (1 << 20, 4093):
            with open_text(path) as stream:
                assert b"".join(iter(lambda stream=stream, size=size: stream.read(size), b"")) == TEXT
                assert not stream.note and stream.raw_read == len(data)


@pytest.mark.parametrize("suffix", PACKS)
def test_a_cut_archive_gives_what_it_holds(tmp_path, suffix):
    """Half of an archive is read to where it ends; the coverage says that it does; no other file is lost."""
    data = PACKS[suffix](TEXT)
    (tmp_path / f"run.log.{suffix}").write_bytes(data[: len(data) * 3 // 4])
    (tmp_path / "rank3.log").write_text(OOM)
    run = load_run([tmp_path])
    assert [(event.kind, event.rank) for event in run.of(Event) if event.family == "gpu-oom"] == [("torch.oom", 3)]
    [note] = [note for note in run.coverage()["notes"] if f".{suffix}" in note]
    assert "ends in the middle" in note or "broken" in note


@pytest.mark.parametrize("suffix", PACKS)
def test_a_packed_log_is_the_same_evidence(tmp_path, suffix):
    """Event, line number and figures are those of the plain log; bytes of the coverage are those of the file."""
    plain, packed = tmp_path / "run.log", tmp_path / f"packed.log.{suffix}"
    plain.write_bytes(TEXT)
    packed.write_bytes(PACKS[suffix](TEXT))
    one, other = (next(e for e in load_run([p]).of(Event) if e.kind == "torch.oom") for p in (plain, packed))
    assert (one.source.line, one.figures) == (other.source.line, other.figures) and one.source.line == 60_001
    assert load_run([packed]).coverage()["bytes_read"] == packed.stat().st_size


def test_a_packed_table_is_a_table(tmp_path):
    """The kind of a file is told by its name without the packing."""
    (tmp_path / "mem.csv.gz").write_bytes(gzip.compress(b"step,allocated_mib\n1,100\n2,101\n"))
    assert [point.value_bytes >> 20 for point in load_run([tmp_path]).points] == [100, 101]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_wide_text_is_read_at_any_size(tmp_path, encoding):
    """A large UTF-16 log, as Windows writes them, is scanned as UTF-8; the line number is the text's."""
    (tmp_path / "run.log").write_bytes(TEXT.decode().encode(encoding))
    [event] = [event for event in load_run([tmp_path]).of(Event) if event.kind == "torch.oom"]
    assert event.source.line == 60_001


def test_an_archive_made_to_expand_is_left(tmp_path, monkeypatch):
    """What expands beyond reason is read to a limit, and the coverage says so."""
    monkeypatch.setattr(streams, "_SUSPECT", 1 << 20)
    monkeypatch.setattr(streams, "_MOST_FOLD", 50)
    (tmp_path / "bomb.log.gz").write_bytes(gzip.compress(OOM.encode() + b"\n" + b" " * (64 << 20)))
    run = load_run([tmp_path])
    assert "expands more than 50-fold" in " ".join(run.coverage()["notes"])
    assert [event.kind for event in run.of(Event)] == ["torch.oom"]


def test_garbage_behind_an_archive_is_no_error(tmp_path):
    """Padding or a signature behind the data does not make it broken."""
    (tmp_path / "run.log.gz").write_bytes(gzip.compress(OOM.encode()) + b"signature of some backup tool")
    run = load_run([tmp_path])
    assert [event.kind for event in run.of(Event)] == ["torch.oom"] and not run.coverage()["notes"]
