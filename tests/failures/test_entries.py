"""The encyclopedia as a whole: every entry keeps the rules, and a bad one is refused in one clear line."""

import ast
import json
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from diag_kit import failures
from diag_kit.diagnosis import diagnose, judge
from diag_kit.errors import EntryError
from diag_kit.evidence.run import load_run
from diag_kit.failures import conditions, lint
from diag_kit.failures.records import CAUSES, FRAMEWORKS, Need, read
from diag_kit.memory import plan
from diag_kit.memory.settings import Settings

ENTRIES = failures.load_entries()
WHOLE = ("gradient-accumulation-memory-spike", "activation-memory-spike")
SIBLINGS = [entry for entry in ENTRIES if entry.id not in WHOLE]
FOLDER = Path(failures.__file__).parent
each = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)


@each
def test_every_section_reads(entry):
    """All sections parse, causes and signatures agree, items name causes of their own entry, headings are in order."""
    entry.validate()


@pytest.mark.parametrize("entry", SIBLINGS, ids=lambda entry: entry.id)
def test_a_sibling_is_whole(entry):
    """Each entry beside the two whole ones diagnoses, explains and fixes by itself: a sense of the claim, what tells its
    lookalikes, three steps to confirm it, remedies with code, what to watch, from one GPU to a thousand, two examples on
    each side, a worked example.
    """
    assert entry.status in ("reviewed", "reproduced")
    assert len(entry.symptoms) >= 3
    assert len(entry.affected) >= 3
    assert len(entry.lookalikes) >= 3
    assert len(entry.checks) >= 3
    assert entry.fixes
    assert {name for fix in entry.fixes for name in fix.code} & {"pytorch", "trainer"}
    assert len(entry.prevention) >= 2
    assert any("alert" in sign for sign in entry.fingerprint)
    assert [one.gpus for one in entry.scale] == ["1", "2-8", "8-64", "64-1,000"]
    assert len(entry.questions) >= 3
    assert len(entry.references) >= 2
    assert len(entry.examples.match) >= 2
    assert len(entry.examples.no_match) >= 2
    assert list(entry.reading) == list(failures.HEADINGS)


@pytest.mark.parametrize("entry", SIBLINGS, ids=lambda entry: entry.id)
def test_a_sibling_is_short(entry):
    """The body fits two pages."""
    assert len(entry.body.split()) <= 700


def test_equals_stand_in_the_order_of_the_causes():
    """Which of two equally supported causes comes first does not depend on the names of their files."""
    text = "RuntimeError: CUDA error: out of memory"
    found = [finding.cause for finding in diagnose(text=text).findings]
    backwards = judge(load_run([], text=text), tuple(reversed(ENTRIES)))
    assert [finding.cause for finding in backwards.findings] == found
    assert len(found) >= 3


def test_each_cause_has_one_entry():
    """Every cause of the contract is explained by exactly one entry."""
    assert Counter(s.cause for e in ENTRIES for s in e.signatures) == Counter(CAUSES)


@each
def test_links_lead_somewhere(entry):
    """Related entries and lookalikes exist and are not the entry itself; references are web addresses."""
    ids = {one.id for one in ENTRIES} - {entry.id}
    assert {*entry.related, *(look.entry for look in entry.lookalikes)} <= ids
    assert entry.references
    assert all(reference.url.startswith("https://") for reference in entry.references)


def signs(entry):
    """All signs of an entry."""
    return [sign for s in entry.signatures for sign in (*s.for_, *s.against)]


@each
def test_a_reason_states_only_what_its_condition_knows(entry):
    """Every placeholder of a reason is a figure that its condition reads, so that it is known when it is shown."""
    for sign in signs(entry):
        names = set(re.findall(r"\{([^{}]+)\}", sign.because))
        assert names <= conditions.figures_in(sign.when), sign
        assert sign.when, f"a sign needs a condition: {sign}"


@each
def test_every_cause_can_be_found_and_asked_for(entry):
    """A cause has a sign for it, and two facts at least that would settle it, each dropped once the evidence has it."""
    for signature in entry.signatures:
        assert signature.for_
        asked = [n for n in entry.needs if not n.causes or signature.cause in n.causes]
        assert sum(need.unless is not None for need in asked) >= 2, signature.cause


@each
def test_examples_stand_on_both_sides(entry):
    """At least one text that must match and one that must not, for causes of this entry; an entry that only explains
    shows texts in which no cause is settled.
    """
    own = {cause.id for cause in entry.causes} or {"undetermined"}
    assert entry.examples.match
    assert entry.examples.no_match
    assert {e.cause for e in (*entry.examples.match, *entry.examples.no_match)} <= own
    assert all(example.verdict for example in entry.examples.match)


@each
def test_code_is_code(entry):
    """Code for PyTorch and the Trainer compiles; JSON for DeepSpeed parses; a fix shows at least one framework."""
    for fix in entry.fixes:
        assert fix.code, fix.id
        for framework, code in fix.code.items():
            if framework in lint.PYTHON:
                ast.parse(code)
            elif framework == "deepspeed" and code.startswith("{"):
                json.loads(code)


@each
def test_savings_are_settings(entry):
    """What a fix saves is a change that the memory model can make."""
    run = Settings.from_json({"model": {
        "n_layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 256, "gated_ffn": True, "vocab": 1000,
        "tied_embeddings": False}, "micro_batch": 4})  # fmt: skip
    for fix in entry.fixes:
        if fix.saves:
            plan.saves(run, fix.saves)


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_entries_promise_all(name):
    """Code for every framework, a smoke test, a fix that says it saves nothing, false claims with what was measured."""
    entry = failures.entry(name)
    assert {framework for fix in entry.fixes for framework in fix.code} == set(FRAMEWORKS)
    smoke = {framework for fix in entry.fixes if fix.id == "smoke-test" for framework in fix.code}
    assert smoke >= set(FRAMEWORKS) - {"accelerate"}
    assert any(fix.saves is None and "saves no" in fix.cost for fix in entry.fixes)
    false = [claim for claim in entry.claims if claim.truth == "false"]
    assert len(false) >= 3
    assert all(claim.measured for claim in entry.claims)
    assert {check.id for check in entry.checks} >= {"one-variable", "toy", "fresh-node"}
    assert len(entry.scale) == 4
    document = entry.to_json()
    assert set(document) >= {
        "schema", "id", "title", "status", "summary", "quick_answer", "mechanism", "causes", "symptoms", "affected",
        "checks", "fixes", "prevention", "fingerprint", "scale", "perspectives", "questions", "references", "related",
    }  # fmt: skip
    assert document["schema"] == "diag_kit.entry/1"
    assert set(document["causes"][0]) >= {"cause", "claim", "truth", "condition", "experiment"}
    assert set(document["perspectives"]) == {"executive", "engineer", "on_call"}
    json.dumps(document)


def test_list_document():
    """The line of an entry in the list of all has the contract's five keys."""
    for entry in ENTRIES:
        assert list(entry.to_summary()) == ["id", "title", "status", "summary", "causes"]


def test_loading_is_cheap(monkeypatch):
    """Of each entry the signatures alone are parsed, once; what people read stays text until it is asked for."""
    parsed = []
    load = failures.yaml.load
    monkeypatch.setattr(failures.yaml, "load", lambda text, loader: parsed.append(text) or load(text, loader))
    entries = failures.load_folder(FOLDER)
    assert len(parsed) == len(entries)
    assert all(text.startswith("signatures:") for text in parsed)
    assert all(set(vars(entry)) - {"id", "path", "head", "body"} == {"signatures"} for entry in entries)


def test_unknown_names_are_refused_with_what_there_is():
    """A wrong entry id lists the known ones."""
    with pytest.raises(EntryError, match="fragmentation"):
        failures.entry("fragmentaton")


def test_a_cause_is_explained_where_it_is_judged():
    explained = {sign.cause: entry.id for entry in failures.load_folder(FOLDER) for sign in entry.signatures}
    assert explained["process-memory-cap"] == "memory-cap"


# --- the test of the test: a bad entry is refused, in one line that names the fault ---------------------------------

GOOD = (FOLDER / "shared-memory.md").read_text(encoding="utf-8")


def refusal(tmp_path, old, new, name="shared-memory.md"):
    """The error's text after one change to a good entry."""
    assert GOOD.count(old) >= 1, old
    (tmp_path / name).write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(EntryError) as refused:
        [entry.validate() for entry in failures.load_folder(tmp_path)]
    text = str(refused.value)
    assert "\n" not in text
    assert text.startswith(name)
    return text


def test_the_good_entry_passes(tmp_path):
    """The unchanged entry is accepted, so that each refusal below is due to its change."""
    (tmp_path / "shared-memory.md").write_text(GOOD, encoding="utf-8")
    (entry,) = failures.load_folder(tmp_path)
    entry.validate()


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("id: shared-memory\ntitle", "id: shm\ntitle", "shm"),
        ("status: reviewed", "status: perfect", "perfect"),
        ("quick_answer:", "quick_anwser:", "quick_anwser"),
        ("prevention:\n- Check the size of /dev/shm at start-up.\n", "", "prevention"),
        ("strength: weak", "strength: certain", "certain"),
        ("kind: host-memory", "kind: host-ram", "host-ram"),
        ("{events: {has: dataloader.bus-error}}", "{event: {has: dataloader.bus-error}}", "unknown figure 'event'"),
        ("{events: {has: exit.sigbus}}", "{events: {contains: exit.sigbus}}", "contains"),
        ("- cause: shared-memory\n  for", "- cause: shm\n  for", "shm"),
        ("- cause: shared-memory\n  for", "- cause: host-oom\n  for", "host-oom"),
        ('  truth: "true"', "  truth: true", "True"),
        ("  undo: restart with the default\n", "", "undo"),
        ("  cost: seconds\n  disturbs: false", "  cost: seconds\n  disturbs: maybe", "maybe"),
        ("pytorch: |", "torch: |", "torch"),
        ("## Mechanism", "## How it works", "Mechanism"),
        ('    because: "the device ran out of memory"', "    because: [", "not YAML"),
        ("---\nid", "id", "two '---' lines"),
    ],
)
def test_a_bad_entry_is_refused(tmp_path, old, new, word):
    """Each broken rule is named: order, missing or unknown key, vocabulary, figure, operator, type, heading."""
    assert word in refusal(tmp_path, old, new)


def test_two_entries_can_not_share_a_cause(tmp_path):
    """The second entry that claims a cause is refused, and the first is named."""
    (tmp_path / "host.md").write_text(GOOD.replace("id: shared-memory\ntitle", "id: host\ntitle", 1), encoding="utf-8")
    assert "already belongs to host" in refusal(tmp_path, "Data workers", "Workers")


def test_records_say_what_they_take():
    """An unknown key of a record is answered with the keys there are."""
    with pytest.raises(EntryError, match="known are " + ", ".join(f.name for f in fields(Need))):
        read(Need, {"kind": "full-log", "what": "x", "how": "y", "who": "z"})
