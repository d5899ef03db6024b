"""The checklist: what the evidence ticks, what people say of it, and that nothing of theirs is lost."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from diag_kit import checklist as module
from diag_kit.checklist import Checklist
from diag_kit.errors import StateError
from diag_kit.evidence.facts import Source
from diag_kit.findings import Diagnosis, Finding, Missing, Statement

LINE = Source("rank3.log", 10233, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.48 GiB")
SERIES = Missing("memory-series", "memory after each micro-step", "print torch.cuda.memory_allocated()")


def check(id: str, **more):
    """A check of an entry."""
    parts = {"causes": (), "action": f"do {id}", "expect": "seen", "cost": "minutes", "disturbs": False,
             "confirmed_by": None, "refuted_by": None, "because": "why"}  # fmt: skip
    return SimpleNamespace(id=id, **parts | more)


@pytest.fixture(autouse=True)
def entries(monkeypatch):
    """One entry with three checks."""
    checks = (
        check("quadratic", causes=("attention-quadratic",), confirmed_by={"length_exponent": {"ge": 1.8}},
              refuted_by={"length_exponent": {"le": 1.2}}),
        check("other-cause", causes=("variable-shape-peak",)),
        check("shared", disturbs=True),
    )  # fmt: skip
    entry = SimpleNamespace(id="activation-memory-spike", checks=checks)
    monkeypatch.setattr(module, "load_entries", lambda: (entry,))


def finding(cause="attention-quadratic", verdict="likely", **more) -> Finding:
    """A finding with one line for it and one fact missing."""
    parts = {"for_": (Statement("the request is heads × length²", LINE),), "missing": (SERIES,)} | more
    return Finding(cause, "activation-memory-spike", f"Title of {cause}", verdict, **parts)


def diagnosis(*findings: Finding, missing=()) -> Diagnosis:
    """A diagnosis of these findings."""
    return Diagnosis("gpu-oom", "it ran out", None, None, "", (), findings, tuple(missing), "", {}, content_key="k1")


def listed(*findings: Finding, figures=None, missing=()) -> Checklist:
    """The checklist of these findings."""
    return Checklist.from_diagnosis(diagnosis(*findings, missing=missing), figures or {})


def ids(checklist: Checklist, kind: str) -> list[str]:
    """Ids of the items of a kind."""
    return [item.id for item in checklist if item.kind == kind]


def test_evidence_ticks_its_lines():
    """Each line for a finding is an item confirmed by the evidence, and shows path, line and words."""
    item = next(iter(listed(finding())))
    assert (item.evidence.state, item.evidence.by) == ("confirmed", "evidence")
    assert (str(item.sources[0]), item.sources[0].text) == ("rank3.log:10233", LINE.text)


def test_a_line_against_stands_on_the_list():
    """What speaks against a finding is an item too, says so, and is true by the evidence."""
    checklist = listed(finding(against=(Statement("fused attention ran", LINE),)))
    [against] = ids(checklist, "against")
    assert checklist[against].action == "Against it: fused attention ran"
    assert checklist.current(against).state == "confirmed"


def test_checks_of_the_entry_follow_the_cause():
    """Only the checks that name the cause, or none, are listed, with what they cost and whether they disturb."""
    checklist = listed(finding())
    assert ids(checklist, "check") == [
        "activation-memory-spike/check/quadratic",
        "activation-memory-spike/check/shared",
    ]
    assert checklist["activation-memory-spike/check/shared"].disturbs


@pytest.mark.parametrize(
    ("figures", "state"),
    [({"length_exponent": 2.0}, "confirmed"), ({"length_exponent": 1.0}, "refuted"), ({"length_exponent": 1.5}, "todo"),
     ({}, "todo")],
)  # fmt: skip
def test_figures_decide_a_check(figures, state):
    """A check's conditions tick it either way; a figure that isn't known leaves it to a person."""
    checklist = listed(finding(), figures=figures)
    assert checklist.current("activation-memory-spike/check/quadratic").state == state


def test_conditions_that_contradict_decide_nothing(monkeypatch):
    """A check whose both conditions hold stays open."""
    both = check("both", confirmed_by={"growth": "none"}, refuted_by={"growth": "none"})
    entry = SimpleNamespace(id="activation-memory-spike", checks=(both,))
    monkeypatch.setattr(module, "load_entries", lambda: (entry,))
    assert listed(finding(), figures={"growth": "none"}).current("activation-memory-spike/check/both").state == "todo"


def test_missing_facts_are_asked_once():
    """A fact that two findings and the question itself want is one item, at the best finding, for both causes."""
    checklist = listed(finding(), finding("variable-shape-peak", "possible"), missing=[SERIES])
    [item_id] = ids(checklist, "missing")
    assert checklist[item_id].causes == ("attention-quadratic", "variable-shape-peak")
    assert checklist[item_id].how == SERIES.how


def test_nothing_is_to_do_for_a_ruled_out_cause():
    """A ruled-out finding shows its lines and asks for no work."""
    checklist = listed(finding(verdict="ruled-out"))
    assert ids(checklist, "check") == ids(checklist, "missing") == []
    assert ids(checklist, "for")


def test_universal_items_come_with_any_finding():
    """Four items hold for every failure; a run without a finding has none."""
    assert len(ids(listed(finding()), "universal")) == 4
    assert list(listed()) == []


def test_ids_do_not_depend_on_position():
    """The same item keeps its id where findings change places."""
    one, two = finding(), finding("fragmentation", "possible")
    assert {item.id for item in listed(one, two)} == {item.id for item in listed(two, one)}


def test_a_person_overrules_the_evidence_and_both_stay():
    """The person's mark counts; the evidence's is still shown; taking it back restores the evidence's."""
    checklist = listed(finding())
    [item] = ids(checklist, "for")
    checklist.mark(item, "refuted", "Ada", "that log is from another run")
    assert checklist.current(item).by == "Ada"
    assert [mark.by for mark in checklist.marks(item)] == ["evidence", "Ada"]
    checklist.clear(item, "Ada")
    assert checklist.current(item).by == "evidence"


def test_two_people_keep_their_marks():
    """A mark replaces its author's earlier one and leaves another's; the latest counts."""
    checklist = listed(finding())
    item = "universal/reproduce"
    checklist.mark(item, "confirmed", "Ada", when="2026-01-01T10:00:00")
    checklist.mark(item, "refuted", "Grace", when="2026-01-01T11:00:00")
    checklist.mark(item, "not-applicable", "Ada", when="2026-01-01T12:00:00")
    assert [(mark.by, mark.state) for mark in checklist.marks(item)] == [
        ("Grace", "refuted"),
        ("Ada", "not-applicable"),
    ]
    assert checklist.progress()["not-applicable"] == 1


def test_every_change_is_told():
    """What listens hears each mark and each mark taken back, and nothing on a restore."""
    checklist, heard = listed(finding()), []
    checklist.on_change = lambda *change: heard.append(change)
    mark = checklist.mark("universal/reproduce", "confirmed", "Ada")
    checklist.restore([mark])
    checklist.clear("universal/reproduce", "Ada")
    checklist.clear("universal/reproduce", "Ada")
    assert heard == [("universal/reproduce", "Ada", mark), ("universal/reproduce", "Ada", None)]


@pytest.mark.parametrize(
    ("item", "state", "by", "says"),
    [("no/such", "todo", "Ada", "no item"), ("universal/reproduce", "done", "Ada", "use one of"),
     ("universal/reproduce", "todo", " ", "type yours"), ("universal/reproduce", "todo", "evidence", "type yours")],
)  # fmt: skip
def test_a_wrong_mark_is_one_clear_line(item, state, by, says):
    """An unknown item or state, or a mark without a name, is refused and says what to do."""
    with pytest.raises(StateError, match=says) as caught:
        listed(finding()).mark(item, state, by)
    assert "\n" not in str(caught.value)


def test_round_trip_keeps_everything():
    """JSON and back gives the same list, marks of people and of evidence included."""
    checklist = listed(finding(), figures={"length_exponent": 2})
    checklist.mark("universal/reproduce", "confirmed", "Ada", "seed 7 </script>")
    again = Checklist.from_json(json.loads(json.dumps(checklist.to_json())))
    assert again.to_json() == checklist.to_json()


def test_marks_of_vanished_items_are_kept():
    """A mark on an item that a newer version doesn't list survives a restore and a round trip."""
    checklist = listed(finding())
    checklist.restore([{"item": "old/check/x", "state": "confirmed", "by": "Ada", "note": "n", "when": "2026"}])
    again = Checklist.from_json(checklist.to_json())
    assert [mark.note for mark in again.orphans] == ["n"]


@pytest.mark.parametrize("damage", [{"schema": "other"}, {"groups": [{}]}, {"groups": None}])
def test_a_damaged_document_is_one_clear_line(damage):
    """A document that isn't a checklist is refused in one line."""
    with pytest.raises(StateError, match=r"^(?!.*\n)"):
        Checklist.from_json(listed(finding()).to_json() | damage)
