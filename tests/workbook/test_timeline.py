"""The timeline's drawing: a lane for each rank or group, honest axes, readable colours, and its lines on demand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime

import plotly.graph_objects
import pytest

from diag_kit.evidence.facts import Source
from diag_kit.findings import Diagnosis, Moment
from diag_kit.report.lists import ROLES, timeline_rows
from diag_kit.workbook import Workbook, places
from diag_kit.workbook.figures import Figure
from diag_kit.workbook.state import WorkbookState
from diag_kit.workbook.timeline_view import LOOKS, MAX_LANES, lanes_of, timeline_figure

T0 = 1_775_570_531.0


def moment(role: str, rank: int | None, time: float | None = None, **more) -> Moment:
    source = Source(f"rank{rank}.log", 7, "the line itself", ("before", "the line itself", "after"))
    return Moment(role, more.pop("what", role), source, rank, more.pop("host", None), time, **more)


@pytest.fixture(scope="module")
def failed() -> Diagnosis:
    """The sample of eight ranks, whose rank 3 failed first."""
    state = WorkbookState()
    state.open(next(s.path for s in places.samples() if s.title == "Many ranks"))
    return state.diagnosis


def run_of(ranks: int, first: int, failed: Diagnosis) -> Diagnosis:
    """A run in which one rank fails and all others wait for it, eight to a node."""
    waits = [moment("victim", r, T0 + 600 + r / 100, began=T0 + r / 100, host=f"node{r // 8}") for r in range(ranks) if r != first]
    start = moment("originator", first, T0, host=f"node{first // 8}")
    return replace(failed, initiating_rank=first, timeline=(start, *waits))


def lanes(figure: Figure) -> list[str]:
    return figure.spec["layout"]["yaxis"]["ticktext"]


def labels(figure: Figure) -> list[str]:
    return [annotation["text"] for annotation in figure.spec["layout"]["annotations"]]


def test_eight_ranks_have_a_lane_each(failed: Diagnosis) -> None:
    """Marks stand at their stamps, a bar shows how long each waited, and the first to fail is named in the drawing."""
    figure = timeline_figure(run_of(8, 3, failed))
    assert lanes(figure) == [f"rank {r}" if r != 3 else "<b>rank 3 failed first</b>" for r in range(8)]
    assert labels(figure) == []  # nothing is written over the marks
    bars, waits, first = figure.spec["data"]
    began, ended = (datetime.fromisoformat(x) for x in bars["x"][:2])
    assert (ended - began).total_seconds() == 600
    assert (waits["name"], first["name"]) == (ROLES["victim"], ROLES["originator"])
    assert first["y"] == [3]
    assert figure.text.startswith("Rank 3 failed first.")


def test_a_thousand_ranks_share_lanes(failed: Diagnosis) -> None:
    """Of 1,024 ranks the first to fail keeps its lane, on top; nobody is left out, and the drawing stays small."""
    told = run_of(1024, 517, failed)
    figure = timeline_figure(told)
    assert lanes(figure) == ["<b>rank 517 failed first</b>", f"1,023 ranks: {ROLES['victim']}"]
    assert sorted(i for _, inside in lanes_of(timeline_rows(told), 517) for i in inside) == list(range(1024))
    assert len(json.dumps(figure.spec)) < 1_000_000
    assert lanes(timeline_figure(run_of(64, 5, failed)))[1] == f"7 ranks on node0: {ROLES['victim']}"


def test_reports_of_launchers_share_a_lane(failed: Diagnosis) -> None:
    """Nodes are told apart where their ranks waited; what their launchers say afterwards takes no lane for each."""
    reports = [moment("confirmation", 8 * n, T0 + 700 + n, host=f"node{n}") for n in range(4)]
    told = run_of(32, 5, failed)
    names = lanes(timeline_figure(replace(told, timeline=(*told.timeline, *reports))))
    assert names == ["<b>rank 5 failed first</b>", f"7 ranks on node0: {ROLES['victim']}",
                     *(f"8 ranks on node{n}: {ROLES['victim']}" for n in (1, 2, 3)),
                     f"4 ranks: {ROLES['confirmation']}"]  # fmt: skip


def test_suspects_keep_their_lane_and_a_symmetric_failure_shares_one(failed: Diagnosis) -> None:
    """A few ranks with an error of their own are seen one by one; where all have one they share lanes."""
    waits = [moment("victim", r, T0 + 9) for r in range(100)]
    some = replace(failed, initiating_rank=None, timeline=(*waits, moment("originator", 200, T0), moment("originator", 300, T0)))
    assert lanes(timeline_figure(some))[:2] == ["rank 200", "rank 300"]
    alike = replace(failed, initiating_rank=None, timeline=tuple(moment("originator", r, T0 + r) for r in range(1024)))
    assert lanes(timeline_figure(alike)) == [f"1,024 ranks: {ROLES['originator']}"]
    many = [moment("victim", r, T0, host=f"n{r}") for r in range(MAX_LANES * 4)]
    assert len(lanes(timeline_figure(replace(failed, timeline=tuple(many))))) <= MAX_LANES


def test_no_rank_is_drawn_as_first_without_evidence(failed: Diagnosis) -> None:
    """Where the diagnosis names none, neither drawing nor words do."""
    figure = timeline_figure(replace(run_of(8, 3, failed), initiating_rank=None))
    assert "first" not in " ".join(lanes(figure)) + figure.text


def test_without_stamps_the_axis_says_order(failed: Diagnosis) -> None:
    """Lines without stamps stand in their order, and the axis says that it is no time."""
    figure = timeline_figure(replace(failed, timeline=(moment("originator", 3), moment("victim", 0), moment("victim", 1))))
    axis = figure.spec["layout"]["xaxis"]
    assert "no time stamps" in axis["title"]["text"]
    assert axis.get("type") != "date"
    assert sorted(x for trace in figure.spec["data"] for x in trace["x"]) == [1, 2, 3]


def test_a_line_without_a_stamp_stands_beside_the_axis_of_time(failed: Diagnosis) -> None:
    """It gets no invented time: it stands left of the first stamp, under a label."""
    told = replace(failed, timeline=(moment("originator", 3), moment("victim", 0, T0 + 5), moment("victim", 1, T0 + 9)))
    figure = timeline_figure(told)
    originator = next(trace for trace in figure.spec["data"] if trace.get("name") == ROLES["originator"])
    assert originator["x"][0] < min(x for trace in figure.spec["data"] if trace is not originator for x in trace["x"])
    assert "no stamp" in labels(figure)


def test_marks_without_a_stamp_do_not_hide_each_other(failed: Diagnosis) -> None:
    """What a launcher says of the rank that failed first stands beside its error, not upon it, and after it."""
    moments = (moment("originator", 3), moment("victim", 0, T0 + 5), moment("victim", 1, T0 + 9), moment("confirmation", 3))
    figure = timeline_figure(replace(failed, timeline=moments))
    error, report = (next(t for t in figure.spec["data"] if t.get("name") == ROLES[role]) for role in ("originator", "confirmation"))
    waits = [x for t in figure.spec["data"] if t.get("name") == ROLES["victim"] for x in t["x"]]
    assert error["y"] == report["y"]
    assert error["x"][0] < report["x"][0] < min(waits)


def test_one_process_has_one_lane(failed: Diagnosis) -> None:
    """A run without ranks shows what it recovered from before it failed; its title speaks of no ranks."""
    told = replace(failed, initiating_rank=None, timeline=(moment("recovered", None, T0), moment("originator", None, T0 + 60)))
    figure = timeline_figure(told)
    assert len(lanes(figure)) == 1
    assert figure.title == "What happened"
    assert figure.text == "Error of its own. Recovered."


def test_hover_text_is_escaped(failed: Diagnosis) -> None:
    """plotly reads tags in labels: those of a log, a host or a path come out as text."""
    bad = "<a href='https://evil.example'>x</a><b>"
    moments = (moment("originator", 3, T0, what=bad, host=bad), Moment("victim", bad, Source(bad, 1, bad), None, bad, T0 + 1))
    text = json.dumps(timeline_figure(replace(failed, timeline=moments)).spec)
    assert "<a" not in text
    assert "&lt;a href" in text


def test_roles_are_told_apart_on_light_and_on_dark() -> None:
    """Every role has a symbol of its own and 3:1 contrast against both themes' paper (WCAG 2.2, 1.4.11)."""

    def luminance(colour: str) -> float:
        parts = [int(part, 16) / 255 for part in re.findall("..", colour.lstrip("#"))]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert set(LOOKS) == set(ROLES)
    assert len({symbol for _, symbol, _ in LOOKS.values()}) == len(LOOKS)
    for colour, _, _ in LOOKS.values():
        assert 1.05 / (luminance(colour) + 0.05) >= 3, colour
        assert (luminance(colour) + 0.05) / (luminance("#212121") + 0.05) >= 3, colour


@pytest.mark.parametrize("ranks", [2, 8, 1024])
def test_specs_are_plain_json_that_plotly_knows(failed: Diagnosis, ranks: int) -> None:
    """Every property is one of plotly's schema; no NaN, no object of ours."""
    figure = timeline_figure(run_of(ranks, 1, failed))
    plotly.graph_objects.Figure(json.loads(json.dumps(figure.spec, allow_nan=False)))


def test_a_click_on_a_mark_shows_its_lines(book: Workbook, failed: Diagnosis) -> None:
    """The view has the same as a table; a mark's message chooses its row, whose line is marked among its neighbours."""
    view = book.diagnosis.timeline
    view.show(run_of(8, 3, failed))
    assert view.layout.display == ""
    assert view.table.chosen == -1
    assert view.table.title == "The same as a table: 8 lines"
    view.plot._handle_custom_msg({"chosen": 0}, [])
    assert view.table.chosen == 0
    heading, lines = view.table.details[0]
    assert heading == f"rank 3, {ROLES['originator']}: rank3.log:7"
    assert lines == [["before", False], ["the line itself", True], ["after", False]]
    for wrong in (99, -1, "0", None):
        view.plot._handle_custom_msg({"chosen": wrong}, [])
    assert view.table.chosen == 0


def test_a_run_without_a_timeline_shows_none(book: Workbook) -> None:
    """A single failure without a history leaves no empty plot; the findings still follow."""
    assert book.diagnosis.timeline.layout.display == "none"
    assert "Findings" in book.diagnosis.findings.value
    assert "What failed first" in book.diagnosis.page.value
