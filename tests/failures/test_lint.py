"""The lint finds what is wrong with an entry, names file and place in one line each, and finds nothing in ours."""

import pytest

from diag_kit import cli, failures
from diag_kit.failures import lint

NAME = "activation-memory-spike.md"
GOOD = (failures.FOLDER / NAME).read_text(encoding="utf-8")
EXPERIMENTS = {one.experiment for entry in failures.load_entries() for one in (*entry.causes, *entry.claims)}
OTHERS = [path for path in failures.FOLDER.glob("*.md") if path.name != NAME]


def test_no_entry_has_a_fault():
    """Keys, ids, links, sources, code, examples, lengths and empty sections of every entry are in order."""
    assert not lint.check()


@pytest.fixture
def faults(tmp_path):
    """Faults of the folder of all entries after changes to one."""

    def found(*changes):
        text = GOOD
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new, 1)
        for path in OTHERS:
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / NAME).write_text(text, encoding="utf-8")
        lines = lint.check(tmp_path, EXPERIMENTS)
        assert all("\n" not in line for line in lines)
        return [line.removeprefix(NAME + ": ") for line in lines if line.startswith(NAME + ": ")]

    return found


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("related:\n- logits-loss-peak", "related:\n- logits-and-loss", "related: no entry 'logits-and-loss'"),
        ("related:\n- logits-loss-peak", "related:\n- activation-memory-spike", "related: the entry names itself"),
        ("related:\n- logits-loss-peak", "related:\n- fragmentation", "related: fragmentation stands there 2 times"),
        ("- entry: kv-cache", "- entry: kv", "lookalikes: no entry 'kv'"),
        ("- entry: kv-cache", "- entry: fragmentation", "lookalikes: fragmentation stands there 2 times"),
        ("https://arxiv.org/abs/2205.14135", "http://arxiv.org/abs/2205.14135", "references: 'http://arxiv.org"),
        ("https://arxiv.org/abs/2205.14135", "https://arxiv.org/abs/2205.05198", "stands there 2 times"),
        ("- id: toy\n", "- id: fresh-node\n", "checks: fresh-node stands there 2 times"),
        ("experiment: attention-length", "experiment: nobody", "the lab has no experiment 'nobody'"),
        ("batch = tokenizer(texts,", "batch = tokenizer(texts,,", "fix cap-length: pytorch: line 1 does not parse"),
        ('{"bf16": {"enabled": true}}', '{"bf16": {"enabled": True}}', "fix half-precision: deepspeed: is not JSON"),
        ("pytorch: |\n      keep", "jax: |\n      keep", "fixes: failurefix cap-boxes: 'jax' is not one of"),
        ("power {length_exponent}; only", "power {length_exponant}; only", "{length_exponant} is shown"),
        ("{length_exponent: {ge: 1.8}}\n    strength", "{length_exponant: {ge: 1.8}}\n    strength", "unknown figure"),
        (
            "  executive: >-\n    The model fits; single inputs do not.",
            "  executive: >-\n    " + "Long. " * 120,
            "perspectives: ",
        ),
        ("title: Activation memory spike", "titel: Activation memory spike", "look at titel"),
        ("id: activation-memory-spike\n", "id: spike\n", "name the file after it"),
        ("    verdict: likely\n", "", "promises no verdict"),
        ("## In production", "## On call", "headings"),
        ("## Worked example", "## Worked Example", "Worked example: missing or empty"),
        ("- Transformers with variable-length input\n", "- ''\n", "affected: an empty text"),
        ("status: reviewed", "status: final", "status: 'final' is not one of"),
        (
            "- cause: schedule-phase-change\n  for:",
            "- cause: schedule-phase-change\n  pro:",
            "signatures: signature schedule-phase-change",
        ),
    ],
)
def test_each_fault_is_named_with_its_place(faults, old, new, told):
    """One change to a good entry brings the line that tells of it."""
    lines = faults((old, new))
    assert any(told in line for line in lines), lines


def test_all_faults_are_told(faults):
    """The lint does not stop at the first fault."""
    lines = faults(
        ("- entry: kv-cache", "- entry: kv"), ("https://arxiv", "http://arxiv"), ("- id: toy\n", "- id: fresh-node\n")
    )
    assert len(lines) == 3


def test_the_good_entry_has_none(faults):
    """The unchanged entry is clean, so that each fault above is due to its change."""
    assert not faults()


def test_a_draft_may_be_unfinished(faults):
    """Empty sections are faults of a reviewed entry only."""
    cut = ("affected:\n- Transformers", "affected: []\n#- Transformers")
    rest = [
        (f"\n- {line}", f"\n#- {line}") for line in ("Attention layers without", "Dynamic batch", "Long-context fine")
    ]
    assert any("affected: empty" in line for line in faults(cut, *rest))
    assert not faults(cut, *rest, ("status: reviewed", "status: draft"))


def test_a_long_body_is_told(faults):
    """A section of the body that nobody reads to its end is a fault."""
    assert any("words" in line for line in faults(("## In production\n", "## In production\n" + "word " * 500)))


def test_a_file_that_is_no_text_is_told(tmp_path):
    """Bytes that are not UTF-8 are a fault of that file."""
    (tmp_path / "bad.md").write_bytes(b"---\n\xff\n---\n")
    (line,) = lint.check(tmp_path)
    assert line.startswith("bad.md: ")


def test_the_command_tells_all_faults(capsys, monkeypatch):
    """`diag-kit entries --check` prints each fault on a line and ends with 2; without faults it says so and ends with 0."""
    monkeypatch.setattr(lint, "check", lambda experiments: ("a.md: related: no entry 'b'", "c.md: title: long"))
    assert cli.main(["entries", "--check"]) == 2
    assert capsys.readouterr().err.splitlines() == ["a.md: related: no entry 'b'", "c.md: title: long"]
    monkeypatch.setattr(lint, "check", lambda experiments: () if "retained-graph" in experiments else ("no lab",))
    assert cli.main(["entries", "--check"]) == 0
    assert "no fault" in capsys.readouterr().out
