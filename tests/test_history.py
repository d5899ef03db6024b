"""The store of past work: nothing lost, two writers at once, and one clear line where it can't be kept."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from diag_kit.errors import StateError
from diag_kit.history import FILE_NAME, MIGRATIONS, History, data_folder

MARK = {
    "item": "universal/reproduce",
    "state": "confirmed",
    "by": "Ada",
    "note": "seed 7",
    "when": "2026-01-01T10:00:00",
}


def test_marks_survive_a_restart(tmp_path):
    """A mark is there for the next kernel, without a close or a save call."""
    History(tmp_path).save_mark("k", MARK)
    assert History(tmp_path).marks("k") == [MARK]
    assert History(tmp_path).marks("other evidence") == []


def test_a_mark_replaces_only_its_authors(tmp_path):
    """The same person's newer mark wins; another's stays; one taken back is gone."""
    history = History(tmp_path)
    history.save_mark("k", MARK)
    history.save_mark("k", MARK | {"state": "refuted"})
    history.save_mark("k", MARK | {"by": "Grace", "when": "2026-01-02"})
    assert [(mark["by"], mark["state"]) for mark in history.marks("k")] == [("Ada", "refuted"), ("Grace", "confirmed")]
    history.drop_mark("k", MARK["item"], "Ada")
    assert [mark["by"] for mark in history.marks("k")] == ["Grace"]


def test_what_if_and_diagnosis_come_back(tmp_path):
    """Explored settings and past diagnoses return as given, newest first."""
    history = History(tmp_path)
    assert history.what_if("k") is None
    assert history.diagnosis("k") is None
    history.save_what_if("k", {"micro_batch": 2})
    for key in ("k", "k2"):
        history.save_diagnosis(key, {"family": "gpu-oom", "summary": f"{key} ½"}, ("logs/",))
    assert history.what_if("k") == {"micro_batch": 2}
    assert history.diagnosis("k")["summary"] == "k ½"
    assert {(past.content_key, past.evidence) for past in history.past()} == {("k", ("logs/",)), ("k2", ("logs/",))}
    assert len(history.past(limit=1)) == 1


def test_two_kernels_write_at_once(tmp_path):
    """Two processes that write to a fresh folder together lose no mark."""
    program = """
import sys
from diag_kit.history import History
history = History(sys.argv[1])
for number in range(40):
    history.save_mark("k", {"item": f"{sys.argv[2]}-{number}", "state": "todo", "by": "Ada", "note": "", "when": ""})
"""
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name]) for name in "ab"]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    assert len(History(tmp_path).marks("k")) == 80


def test_the_folder_is_the_users(tmp_path, monkeypatch):
    """DIAG_KIT_DATA decides the folder, else the system's place for user data; it is made private."""
    monkeypatch.setenv("DIAG_KIT_DATA", str(tmp_path / "deep" / "er"))
    assert History().path == tmp_path / "deep" / "er" / FILE_NAME
    assert (tmp_path / "deep" / "er").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("DIAG_KIT_DATA")
    assert data_folder().name == "diag-kit"


def broken_file(folder):
    """A file that is no database."""
    (folder / FILE_NAME).write_bytes(b"this is no database" * 100)
    return folder


def newer_file(folder):
    """A file of a newer version."""
    History(folder)
    sqlite3.connect(folder / FILE_NAME).execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    return folder


def file_instead_of_folder(folder):
    """A file where the folder should be."""
    (folder / "taken").write_text("")
    return folder / "taken"


@pytest.mark.parametrize("prepare", [broken_file, newer_file, file_instead_of_folder])
def test_a_folder_that_cannot_be_used_is_one_clear_line(tmp_path, prepare):
    """Corrupt, newer or unwritable: one line that names the place and the way out."""
    folder = prepare(tmp_path)
    with pytest.raises(StateError) as caught:
        History(folder)
    said = str(caught.value)
    assert str(folder) in said
    assert "DIAG_KIT_DATA" in said
    assert "\n" not in said


def test_a_write_that_fails_later_is_one_clear_line(tmp_path):
    """A store that became read-only still reads; writing says so in one line."""
    history = History(tmp_path)
    history.save_mark("k", MARK)
    history._db.execute("PRAGMA query_only = ON")
    with pytest.raises(StateError, match=r"readonly.*DIAG_KIT_DATA"):
        history.save_mark("k", MARK | {"by": "Grace"})
    assert history.marks("k") == [MARK]


def test_a_damaged_row_is_one_clear_line(tmp_path):
    """A document that is no longer JSON is reported, not a traceback."""
    history = History(tmp_path)
    history._db.execute("INSERT INTO what_if VALUES ('k', '{', '')")
    with pytest.raises(StateError, match="DIAG_KIT_DATA"):
        history.what_if("k")
