"""The timeline and the files as rows: nothing is claimed that no line says, and long lists keep what matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag_kit import report
from diag_kit.evidence.facts import FileCoverage, Source
from diag_kit.findings import Diagnosis, Moment
from diag_kit.report.lists import (
    files_in_order,
    files_text,
    gathered,
    ranges,
    status_of,
    timed,
    timeline_rows,
    timeline_text,
)

from .conftest import HOSTILE

T0 = 1_775_570_531.306


def moment(role: str, rank: int | None = None, time: float | None = None, **more) -> Moment:
    name = f"rank{rank}.log"
    return Moment(role, more.pop("what", f"{role} of {rank}"), Source(name, 7, f"line of {name}"), rank, time=time, **more)


def eight() -> tuple[Moment, ...]:
    """Rank 3 of eight fails; the others wait for it for 600 seconds."""
    waits = [moment("victim", r, T0 + 600 + r, began=T0 + r) for r in range(8) if r != 3]
    return (moment("originator", 3, T0), *waits)


def test_a_timeline_in_words(diagnosis: Diagnosis) -> None:
    """Who failed first, who waited and for how long, from the moments alone."""
    rows = timeline_rows(replace(diagnosis, timeline=eight()))
    assert (rows[0].who, rows[0].when) == ("rank 3", "14:02:11.306")
    text = timeline_text(rows, 3, {})
    assert text == "Rank 3 failed first. 7 ranks (0–2, 4–7): waited for another rank, the longest for 600 s."


def test_no_rank_is_named_first_where_the_evidence_names_none(diagnosis: Diagnosis) -> None:
    """Errors of their own on every rank make none of them the first."""
    rows = timeline_rows(replace(diagnosis, timeline=tuple(moment("originator", r, T0) for r in range(8))))
    text = timeline_text(rows, None, {})
    assert "8 ranks (0–7): error of its own" in text
    assert "first" not in text


def test_missing_stamps_are_said(diagnosis: Diagnosis) -> None:
    """Without two different stamps there is no axis of time, and the words say that order between files is none."""
    rows = timeline_rows(replace(diagnosis, timeline=(moment("originator", 3), moment("victim", 0))))
    assert not timed(rows)
    assert "no order in time" in timeline_text(rows, 3, {})
    rows = timeline_rows(replace(diagnosis, timeline=(*eight(), moment("teardown", 5))))
    assert timed(rows)
    assert "1 of 9 carry no time stamp" in timeline_text(rows, 3, {})


@pytest.mark.parametrize("time", [float("inf"), float("nan"), 1e300, -1e300])
def test_a_stamp_that_no_clock_shows_is_none(diagnosis: Diagnosis, time: float) -> None:
    """A damaged stamp costs its place on the axis, not the page."""
    rows = timeline_rows(replace(diagnosis, timeline=(moment("originator", 3, time), moment("victim", 0, T0, began=time))))
    assert (rows[0].time, rows[0].when, rows[1].began) == (None, "", None)


def test_waits_and_repetitions_stand_in_the_words_once(diagnosis: Diagnosis) -> None:
    """How long a rank waited and how many equal lines there are; what a line says already is not said again."""
    said = (moment("victim", 0, T0 + 60, began=T0, what="waited", count=1200),
            moment("victim", 1, T0 + 60, began=T0, what="waited 60 s"))  # fmt: skip
    first, second = timeline_rows(replace(diagnosis, timeline=said))
    assert first.what == "waited (for 60 s) (×1,200)"
    assert second.what == "waited 60 s"


def test_one_moment_is_no_timeline(diagnosis: Diagnosis) -> None:
    """Nothing is drawn of a single line."""
    assert timeline_rows(replace(diagnosis, timeline=eight()[:1])) == []


def test_files_by_what_was_read() -> None:
    """Unread before partly read before whole, each with its word; an empty file was read whole."""
    files = [FileCoverage("a.log", 10, 10, "log"), FileCoverage("b.log", 10, 4, "log", ("stopped",)),
             FileCoverage("c.pt", 10, 0, "binary"), FileCoverage("d.log", 0, 0, "empty")]  # fmt: skip
    assert [(f.path, status_of(f)) for f in files_in_order(files)] == [
        ("c.pt", "not read"), ("b.log", "in part"), ("a.log", "whole"), ("d.log", "whole")
    ]  # fmt: skip
    assert files_text(files) == "4 files: 1 not read, 1 read in part, 2 read whole"


def test_ranges_are_bounded() -> None:
    """A list of ranks stays short however many there are."""
    assert ranges(range(1024)) == "0–1023"
    assert ranges(range(0, 1024, 2)) == "0, 2, 4, 6, 8, 10, …"
    assert ranges([]) == ""


def test_a_long_timeline_in_the_report_keeps_who_failed_first(tmp_path, diagnosis: Diagnosis) -> None:
    """A thousand waits are one row with their ranks and times; the rank that failed first keeps its own."""
    waits = [moment("victim", r, T0 + 600 + r, began=T0 + r) for r in range(1024) if r != 517]
    told = replace(diagnosis, initiating_rank=517, timeline=(*waits, moment("originator", 517, T0)))
    for name, size in (("r.html", 60_000), ("r.md", 20_000)):
        text = report.write(tmp_path / name, told).read_text(encoding="utf-8")
        assert "originator of 517" in text
        assert "1,023 ranks (0–516, 518–1023)" in text
        assert "14:12:11.306 – 14:29:14.306" in text
        assert len(text) < size
    assert [row.who for row in gathered(timeline_rows(told), 517)] == ["1,023 ranks (0–516, 518–1023)", "rank 517"]


def test_errors_of_their_own_stand_one_by_one_where_they_are_few(diagnosis: Diagnosis) -> None:
    """Suspects are never lumped together; where every rank has an error of its own, they are one row without a first."""
    few = tuple(moment("originator", r, T0) for r in range(8))
    assert len(gathered(timeline_rows(replace(diagnosis, timeline=few)), None)) == 8
    all_alike = tuple(moment("originator", r) for r in range(64))
    assert [row.who for row in gathered(timeline_rows(replace(diagnosis, timeline=all_alike)), None)] == ["64 ranks (0–63)"]
    lines = tuple(moment("teardown", None) for _ in range(9))
    (row,) = gathered(timeline_rows(replace(diagnosis, timeline=lines)), None)
    assert (row.who, row.when, row.time) == ("rank not stated, 9 lines", "", None)


def test_moments_beyond_those_kept_are_counted(diagnosis: Diagnosis) -> None:
    """A list that was cut says so where its words give a number."""
    rows = timeline_rows(replace(diagnosis, timeline=eight()))
    assert "for 600 s; 5,000 more lines say so." in timeline_text(rows, 3, {"victim": 5000})


def test_what_would_settle_it_is_asked_for_once(tmp_path, diagnosis: Diagnosis) -> None:
    """What stands at the top of the page is not asked for again under each finding."""
    asked = diagnosis.missing[0]
    assert asked in diagnosis.findings[0].missing
    for name in ("r.html", "r.md"):
        assert report.write(tmp_path / name, diagnosis).read_text(encoding="utf-8").count(asked.what.rstrip(".")) == 1


def test_the_report_escapes_and_redacts_the_lists(tmp_path, diagnosis: Diagnosis) -> None:
    """A hostile line and file name are text; a host that only the timeline names becomes an alias."""
    bad = Moment("victim", HOSTILE, Source(HOSTILE, 1, HOSTILE), 0, "titan", T0)
    told = replace(diagnosis, timeline=(*eight(), bad, moment("confirmation", host="titan")),
                   files=(FileCoverage(HOSTILE, 10, 0, "unread", (HOSTILE,)),))  # fmt: skip
    text = report.write(tmp_path / "r.html", told).read_text(encoding="utf-8")
    assert "<script>alert(1)" not in text
    assert "titan" not in text
    assert "1 file: 1 not read" in text
