"""What a reproduction's output settles, and what it does not: a second run is never taken for the failed one, and
nothing is claimed that it can't show. GPU output is restated here in the format's own lines.
"""

import json

import pytest

from diag_kit.checklist import Checklist
from diag_kit.diagnosis import diagnose
from diag_kit.evidence.facts import Progress, Repetition, Source
from diag_kit.evidence.second_runs import second_runs, set_apart
from diag_kit.report import render
from diag_kit.report.terminal import render as terminal
from tests.effort import costs_less
from tests.reproduction.runs import SAMPLES, beside, printed, sample

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 31.00 GiB. GPU 5 has a total capacity of 79.15 GiB of "
    "which 2.10 GiB is free.\n"
)


@pytest.fixture
def folder(tmp_path):
    return sample("accumulation-spike", tmp_path)


def item(diagnosis, item_id):
    return next(one for one in Checklist.from_diagnosis(diagnosis) if one.id == item_id)


SETTLES = [
    ("the same phase and size", {}, "confirmed"),
    ("the same, with settings assumed", {"assumed": ["backward"]}, "confirmed"),
    ("on the same card it ran through", {"verdict": "not reproduced"}, "refuted"),
    ("another phase", {"phase": "optimizer"}, None),
    ("another size", {"asked": "2.00 GiB"}, None),
    ("ran through, with settings assumed", {"verdict": "not reproduced", "assumed": ["seq_len"]}, None),
    ("ran through, without the run's sharding", {"verdict": "not reproduced", "left_out": ["parallelism"]}, None),
    ("ran through on a larger card", {"verdict": "not reproduced", "total_bytes": 85 << 30}, None),
    ("on a larger card held to the run's size", {"total_bytes": 85 << 30, "cap_bytes": 42294690447}, "confirmed"),
    ("beside other processes", {"others_bytes": 5 << 30}, None),
    ("another failure", {"failure": "0123456789ab"}, None),
    ("one variable changed", {"change": {"attention": "eager"}}, None),
    ("scaled down", {"small": True}, None),
    ("scaled down, ran through", {"small": True, "verdict": "not reproduced"}, None),
    ("on a CPU", {"device": "cpu"}, None),
    ("failed otherwise", {"verdict": "failed otherwise"}, None),
    ("ended from outside", {"verdict": ""}, None),
]


@pytest.mark.parametrize(("said", "tick"), [case[1:] for case in SETTLES], ids=[case[0] for case in SETTLES])
def test_what_settles_whether_it_fails_again(folder, said, tick):
    """Only the run's own size on a clean card of its size, in phase and size alike, confirms; only nothing assumed
    refutes; for the rest the item stays open and says why.
    """
    before = diagnose(folder)
    after = beside(folder, printed(before, said.pop("verdict", "reproduced"), **said))
    for name in ("universal/reproduce", "gradient-accumulation-memory-spike/check/reproduce"):
        mark = item(after, name).evidence
        assert (mark.state if mark else None) == tick
        if tick:
            assert item(after, name).sources[0].path == "again-0.log" and "node-a" in mark.note
    assert tick or "node-a" in item(after, "universal/reproduce").how
    assert after.figures.get("reproduced") == {"confirmed": True, "refuted": False, None: None}[tick]


def test_a_second_run_is_never_the_failed_one(folder):
    """Failure, family, findings and the key of what people marked are what they were without the output; the same where
    it stands at the end of the run's own log, ended or not, with torch's own words in between.
    """
    before = diagnose(folder)
    start, *rest = printed(before).splitlines(keepends=True)
    noisy = start + "per_device_train_batch_size: 64\n" + OOM + "step 999 | allocated 70.1 GiB\n" + "".join(rest)
    after = beside(folder, noisy)
    assert (after.failure, after.family, after.content_key) == (before.failure, before.family, before.content_key)
    assert after.settings == before.settings and after.points == before.points and after.growth == before.growth
    assert [f.cause for f in after.findings] == [f.cause for f in before.findings]
    assert any("again-0.log: a reproduction's output" in note for note in after.coverage["notes"])
    (folder / "again-0.log").unlink()
    log = folder / "train.log"
    own = log.read_bytes()
    for text in (noisy, start + OOM + "Killed\n"):
        log.write_bytes(own + text.encode())
        after = diagnose(folder)
        assert after.failure.to_json() == before.failure.to_json()
        assert (after.family, after.growth, len(after.repeats.runs)) == (before.family, before.growth, 1)


def test_a_reproduction_alone_is_no_failed_run(tmp_path):
    """Its out-of-memory, with nothing of the run beside it, names no cause and no failure."""
    only = tmp_path / "again.log"
    only.write_text(printed(diagnose(SAMPLES / "accumulation-spike")).replace("verdict id", OOM + "diag-kit-repro verdict id"))
    found = diagnose(only)
    assert found.failure is None and found.family == "undetermined" and not found.repeats.ticks
    assert all(finding.verdict == "possible" for finding in found.findings)


def test_a_healthy_run_stays_healthy(tmp_path):
    """A reproduction that ran out of memory makes no failure of a run that ended well."""
    folder = sample("healthy-run", tmp_path)
    assert beside(folder, printed(diagnose(folder), phase="forward")).family == "ok"


ELSEWHERE = [
    ({"host": "node-b", "gpu": "GPU-77e1c052"}, "reproduced", "confirmed"),
    ({"host": "node-b", "gpu": "GPU-77e1c052"}, "not reproduced", "refuted"),
    ({}, "reproduced", None),
    ({"host": "node-b", "gpu": "GPU-77e1c052", "small": True}, "not reproduced", None),
    ({"host": "node-b", "gpu": "GPU-77e1c052", "total_bytes": 85 << 30}, "not reproduced", None),
    ({"host": "node-b", "gpu": "GPU-77e1c052", "settings": {"seq_len": 512}}, "not reproduced", None),
]


@pytest.mark.parametrize(("said", "verdict", "tick"), ELSEWHERE)
def test_the_same_on_another_node_or_not(folder, said, verdict, tick):
    """Two outputs of one script from two devices of one size tell; one device twice, or unequal runs, do not."""
    before = diagnose(folder)
    after = beside(folder, printed(before), printed(before, verdict, run="b2", **said))
    mark = item(after, "gradient-accumulation-memory-spike/check/fresh-node").evidence
    assert (mark.state if mark else None) == tick
    assert not tick or ("node-a" in mark.note and "node-b" in mark.note)


VARIABLES = [
    ([("backward", "each-micro-batch", 8), ("attention", "eager", 38)], "confirmed"),
    ([("backward", "each-micro-batch", 38), ("attention", "eager", 38)], "refuted"),
    ([("backward", "each-micro-batch", 8), ("attention", "eager", 12)], None),
    ([("attention", "eager", 12)], None),
]


@pytest.mark.parametrize(("changes", "tick"), VARIABLES)
def test_one_variable_at_a_time(folder, changes, tick):
    """Confirmed where what the cause's fixes change moves the peak and another variable does not; refuted where it does
    not move; else the results stand in the table.
    """
    before = diagnose(folder)
    base = printed(before, "not reproduced", peak=38 << 30)
    runs = [
        printed(before, "not reproduced", run=f"c{number}", peak=gib << 30, change={name: value})
        for number, (name, value, gib) in enumerate(changes)
    ]
    after = beside(folder, base, *runs)
    mark = item(after, "universal/one-variable").evidence
    assert (mark.state if mark else None) == tick
    assert [one.change for one in after.repeats.runs] == ["", *(f"{name}={value}" for name, value, _ in changes)]


def test_screen_and_file_of_one_execution_are_one(folder):
    """The same id in a log and in JSON lines is one run, told once."""
    before = diagnose(folder)
    text = printed(before)
    rows = []
    for line in text.splitlines():
        record, fields = line.split(" id=a1 ")
        said = {}
        at, decoder = 0, json.JSONDecoder()
        while at < len(fields):
            name = fields[at : fields.index("=", at)]
            said[name], at = decoder.raw_decode(fields, at + len(name) + 1)
            at += 1
        rows.append(json.dumps({"record": record, "id": "a1", **said}))
    (folder / "again.jsonl").write_text("\n".join(rows) + "\n")
    after = beside(folder, text)
    assert len(after.repeats.runs) == 1 and after.figures["reproduced"] is True
    (folder / "again-0.log").unlink()
    alone = diagnose(folder)
    assert alone.figures["reproduced"] is True and alone.failure == before.failure and alone.points == before.points


def test_wrong_and_cut_records_claim_nothing(folder):
    """Numbers as words, lists as numbers, deep nesting, NaN, a cut line, no start: no traceback, no tick."""
    before = diagnose(folder)
    good = printed(before)
    deep = "[" * 5000
    texts = [
        good.replace('"assumed"', "assumed").replace("assumed=[]", f"assumed={deep}"),
        good.replace("small=false", 'small="no"'),
        good.replace('device="NVIDIA A100"', "device=7"),
        good.replace('phase="forward"', "phase=NaN"),
        good[: good.index("total_bytes") + 15],
        "".join(good.splitlines(keepends=True)[1:]),
        '{"record": "diag-kit-repro start", "id": "a1", "settings": ' + deep + "\n",
        '{"record": "diag-kit-repro start", "id": {"a": 1}}\n{"record": ["diag-kit-repro "], "id": "ff"}\n',
    ]
    for text in texts:
        after = beside(folder, text)
        assert not (after.repeats and after.repeats.ticks), text[:200]
        assert after.failure == before.failure


def test_reports_show_it_escaped_and_redacted(folder):
    """Table in Markdown and HTML, lines in the terminal, JSON; a hostile device stays text, the host an alias."""
    before = diagnose(folder)
    after = beside(folder, printed(before, device="<img src=x onerror=alert(1)>", host="secret-node-17"))
    checklist = Checklist.from_diagnosis(after)
    pages = {suffix: render(suffix, after, checklist) for suffix in (".html", ".md", ".json")}
    assert all("secret-node-17" not in page and "Reproductions" in page for page in list(pages.values())[:2])
    assert "<img src=x" not in pages[".html"] and "secret-node-17" not in pages[".json"]
    assert "secret-node-17" in render(".md", after, checklist, redact=False)
    document = json.loads(render(".json", after, redact=False))["diagnosis"]["reproductions"]
    assert document["settled"]["reproduced"]["state"] == "confirmed" and document["runs"][0]["asked_bytes"] == 12 << 20
    assert "confirmed: <img" in terminal(after, width=400)


def test_records_are_put_together_by_execution(folder):
    """Each execution appended to one file stands for itself."""
    before = diagnose(folder)
    after = beside(folder, printed(before) + printed(before, "not reproduced", run="b2", host="node-b"))
    assert [one.verdict for one in after.repeats.runs] == ["reproduced", "not reproduced"]
    assert second_runs([]) == ()


def test_a_run_without_a_step_refutes_nothing(folder):
    """It ran through nothing: with no step, or none stated, the question stays open."""
    before = diagnose(folder)
    for steps in ("steps=0", "steps=-1", "stops=3", 'steps="3"'):
        after = beside(folder, printed(before, "not reproduced").replace("steps=3", steps))
        assert "reproduced" not in after.figures and item(after, "universal/reproduce").evidence is None


@pytest.mark.parametrize("at", [0, 0.3])
def test_a_line_like_a_record_hides_no_failure(folder, at):
    """A start that no end follows, at the log's head or amid its lines, takes nothing from the run."""
    before, log = diagnose(folder), folder / "train.log"
    lines = log.read_text().splitlines(keepends=True)
    lines.insert(int(at * len(lines)), printed(before, ""))
    log.write_text("".join(lines))
    after = diagnose(folder)
    assert (after.family, after.failure.facts) == (before.family, before.failure.facts)


def test_thousands_of_executions_are_kept_apart_in_passing():
    """Each line is looked up among the executions, not held against every one."""
    facts = [
        fact
        for n in range(5000)
        for fact in (
            Repetition(source=Source("again.log", 3 * n + 1), record="start", run=f"{n:x}"),
            Progress(source=Source("again.log", 3 * n + 2), step=n),
        )
    ]
    facts += [Progress(source=Source("train.log", n), step=n) for n in range(1, 4)]
    assert len(set_apart(facts)) == 5003
    assert costs_less(lambda: set_apart(facts), 6)
