"""The encyclopedia in a page: found as one types, opened at once, safe whatever an entry holds."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from diag_kit import lab
from diag_kit.errors import EntryError
from diag_kit.failures import entry, load_entries
from diag_kit.workbook import Workbook, open_entries, places
from diag_kit.workbook.entries_view import PARTS, EntriesView, page_of, part_of, titles
from diag_kit.workbook.html import render
from diag_kit.workbook.lab_runs import NO_TORCH, Recorded, Runs, recorded
from diag_kit.workbook.lab_view import LabCard, LabView
from diag_kit.workbook.markdown import code, inline, markdown
from diag_kit.workbook.state import WorkbookState

HOSTILE = "<img src=x onerror=alert(1)> `</code><script>` **<b>** [x](javascript:alert(1)) [y](https://a.b/\"onclick=1)"
ENTRY = "gradient-accumulation-memory-spike"


class Strange(HTMLParser):
    """Tags, attributes and addresses that no template writes."""

    TAGS = frozenset(
        (*("article", "header", "div", "section", "button", "h3", "h4", "p", "span", "code", "b", "ul", "ol", "li"),
         *("dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "pre", "a", "br", "strong", "em", "small"))
    )

    @classmethod
    def in_(cls, html: str) -> list[str]:
        parser = cls()
        parser.found = []
        parser.feed(html)
        return parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag] * (tag not in self.TAGS)
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name.startswith("on") or name == "style"
                       or (name == "href" and value and not value.startswith("https://"))]  # fmt: skip


def found(view: EntriesView) -> list[str]:
    return [item["id"] for group in view.finder.rows for item in group["items"]]


def ask(page, what: str, of: str) -> None:
    """A reader's click on a button of a page, as it arrives."""
    page._handle_custom_msg({"ask": what, "of": of}, [])


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """A session in which nothing was measured, and no record is kept."""
    monkeypatch.setattr("diag_kit.workbook.lab_view.recorded", dict)
    return Runs()


OUTCOME = lab.Outcome("retained-graph", "conditional", "deferred keeps 8 MiB a micro-step.", "micro-steps",
                      (lab.Line("deferred", (1, 2), (8 << 20, 16 << 20)), lab.Line("each", (1, 2), (2 << 20, 2 << 20))),
                      (lab.Row("deferred", 8 << 20, "a micro-step"),), "cpu", "2.13.0", 1.5)  # fmt: skip


def test_the_list_follows_each_letter() -> None:
    """Without a query all entries stand under what they read like; with one, those found, best first, and a count."""
    view = open_entries()
    assert sorted(found(view)) == sorted(titles())
    for typed in ("re", "retain", "retain_graph"):
        view.finder.query = typed
        assert ENTRY in found(view)
    assert view.finder.status.startswith(f"{len(found(view))} entr")
    view.finder.query = "fragmnetation"
    assert found(view)[0] == "fragmentation"
    assert "for “fragmentation”" in view.finder.status
    view.finder.query = "zebra"
    assert (found(view), view.finder.status) == ([], "No entry speaks of it.")
    view.finder.query = ""
    assert len(found(view)) == len(titles())


def test_an_entry_opens_and_leads_to_others() -> None:
    """A row and a link open an entry in the same place, and the list shows which; an unknown id changes nothing."""
    view = open_entries("fragmentation")
    view.finder._handle_custom_msg({"chosen": ENTRY}, [])
    assert view.entry.id == view.finder.chosen == ENTRY
    ask(view.entry.page, "entry", "fragmentation")
    assert view.finder.chosen == "fragmentation"
    view.finder._handle_custom_msg({"chosen": "no-such"}, [])
    ask(view.entry.page, "entry", "no-such")
    assert view.entry.id == "fragmentation"
    with pytest.raises(EntryError, match="no-such"):
        open_entries("no-such")


def test_an_entry_is_made_once() -> None:
    """Opening the same entry again renders nothing, and opening one parses no other."""
    page_of.cache_clear()
    view = EntriesView(WorkbookState())
    for id in (ENTRY, "fragmentation", ENTRY, "fragmentation"):
        view.read(id)
    assert page_of.cache_info().misses <= 3  # these two, and the first that it opened on
    assert page_of.cache_info().hits >= 2


@pytest.mark.parametrize("id", titles())
def test_every_entry_is_shown_whole(id: str) -> None:
    """Each part has its tab; every claim, fix, question, source and framework of the entry is on the page."""
    one, shown = entry(id), page_of(id)
    for part, title in PARTS:
        assert f'aria-controls="part-{part}">{title}<' in shown
        assert f'id="part-{part}"' in shown
    for text in (*(c.truth for c in one.causes), *(r.url for r in one.references), *(f for fix in one.fixes for f in fix.code if fix.remedy)):
        assert str(text).replace("&", "&amp;") in shown
    assert shown.count('class="dk-claim"') == len(one.causes) + len(one.claims)
    assert shown.count('role="tabpanel"') == len(re.findall(r'role="tab"', shown))
    assert Strange.in_(shown) == []


def test_hostile_text_in_an_entry_is_text() -> None:
    """Whatever an entry holds, in whichever section, stands on the page as text."""
    bad = entry(ENTRY)
    one = type(bad)(bad.id, bad.path, bad.head, f"## Mechanism\n\n{HOSTILE}\n\n* {HOSTILE}\n\n| {HOSTILE} |\n|---|\n| {HOSTILE} |\n\n```\n{HOSTILE}\n```\n")
    for name in ("title", "summary", "quick_answer"):
        one.__dict__[name] = HOSTILE
    one.__dict__["symptoms"] = tuple(replace(s, see=HOSTILE, why=HOSTILE) for s in bad.symptoms)
    one.__dict__["causes"] = tuple(replace(c, claim=HOSTILE, condition=HOSTILE) for c in bad.causes)
    one.__dict__["fixes"] = tuple(replace(f, action=HOSTILE, code={"pytorch": HOSTILE}, cost=HOSTILE) for f in bad.fixes)
    one.__dict__["references"] = tuple(replace(r, url="javascript:alert(1)") for r in bad.references)
    shown = part_of(one, "")
    assert "onerror=alert" in shown
    assert Strange.in_(shown) == []
    assert "<img" not in render("lab_outcome.html", o=replace(OUTCOME, says=HOSTILE), quiet=False)
    assert "<img" not in render("lab_rows.html", rows=(lab.Row(HOSTILE, 1, HOSTILE),), quiet=False)


def test_markdown_is_a_small_subset() -> None:
    """Paragraphs, lists, tables, code and links come out as such, and nothing else does."""
    text = "One\ntwo `x < y`.\n\n* a **b**\n  c\n* d\n\n| h |\n|---|\n| 1 |\n\n```python\nif a < 1: pass\n```\n\n[t](https://e.org/p)"
    shown = markdown(text)
    assert "<p>One two <code>x &lt; y</code>.</p>" in shown
    assert "<ul><li>a <strong>b</strong> c</li><li>d</li></ul>" in shown
    assert "<th>h</th>" in shown and "<td>1</td>" in shown
    assert '<a href="https://e.org/p" target="_blank" rel="noopener noreferrer">t</a>' in shown
    assert '<span class="dk-c-k">if</span>' in shown and "&lt;" in shown
    assert inline("`**a**`") == "<code>**a**</code>"
    assert "dk-c-" in code('{"a": 1}') and "dk-c-" in code("def f(): pass")


def test_scripts_set_markup_only_from_the_templates() -> None:
    """The list sets text alone; the page sets what the kernel's templates made, in one place."""
    finder, page = ((places.STATIC / name).read_text(encoding="utf-8") for name in ("finder.js", "page.js"))
    assert "innerHTML" not in finder
    assert page.count("innerHTML") == 1 and 'innerHTML = model.get("value")' in page


def test_a_finding_leads_to_its_entry_and_to_its_experiments(book: Workbook) -> None:
    """Read opens the entry below the findings, See it happen its experiment in it; Close hides both, and the report
    names them.
    """
    book.state.open(next(s.path for s in places.samples() if s.path.name == "accumulation-spike"))
    view, finding = book.diagnosis, book.state.diagnosis.findings[0]
    assert f'data-ask="entry" data-of="{finding.entry}">Read: ' in view.findings.value
    assert view.reader.layout.display == "none"
    ask(view.findings, "entry", finding.entry)
    assert (view.reader.layout.display, view.reader.entry.id) == ("", finding.entry)
    (asked, *_) = re.findall(r'data-ask="experiment" data-of="([^"]+)">See it happen: ', view.findings.value)
    ask(view.findings, "experiment", asked)
    assert view.reader.entry.page.part == "claims"
    assert asked.endswith(view.reader.entry.lab.slot.children[0].experiment.id)
    view.reader.shut.click()
    assert view.reader.layout.display == "none"
    ask(view.findings, "experiment", "../../etc/passwd")
    assert view.reader.layout.display == "none"
    markdown_report, html_report = book.report.write(["md", "html"])
    for text in (markdown_report.read_text(encoding="utf-8"), html_report.read_text(encoding="utf-8")):
        assert f"diag-kit entries {finding.entry}" in text
        assert f"diag-kit lab {asked.partition('/')[2]}" in text


def test_the_browser_opens_on_the_first_finding_until_one_chooses(book: Workbook) -> None:
    """What the open run is about is in front; what a reader chose stays when another run is opened."""
    assert book.entries.entry.id == book.state.diagnosis.findings[0].entry
    book.entries.finder._handle_custom_msg({"chosen": "fragmentation"}, [])
    book.state.open(next(s.path for s in places.samples() if s.path.name == "accumulation-spike"))
    assert book.entries.entry.id == "fragmentation"


def test_a_card_shows_a_claim_and_then_what_was_measured(session: Runs) -> None:
    """Before a run: claim, what to look at, code. After it: verdict, plot, bytes; a problem is one line."""
    card = LabCard("retained-graph", WorkbookState(), session)
    assert card.experiment.claim.split(",")[0] in card.head.value
    assert "dk-c-" in card.head.value and "measure" in card.head.value
    assert (card.outcome.value, card.plot.layout.display) == ("", "none")
    session.outcomes["retained-graph"] = OUTCOME
    session._tell()
    assert "it depends" in card.outcome.value and "8 MiB" in card.outcome.value
    assert "deferred 8.0 MiB to 16.0 MiB; each stays at 2.0 MiB" in card.plot.alt
    assert "8.0 MiB" in card.figures.value
    assert card.button.description == "Run it again"
    session.outcomes["retained-graph"] = replace(OUTCOME, verdict=None, problem="its <process> ended")
    session._tell()
    assert "Not measured: its &lt;process&gt; ended" in card.line.value
    assert card.outcome.value == ""


def test_what_was_measured_before_is_quiet_until_ones_own(session: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record says where it is from, in a quieter style; a run of one's own takes its place."""
    monkeypatch.setattr("diag_kit.workbook.lab_view.recorded", lambda: {"retained-graph": Recorded(OUTCOME, "a laptop, cpu, torch 2.9")})
    card = LabCard("retained-graph", WorkbookState(), session)
    assert "Measured before: a laptop" in card.line.value
    assert "dk-quiet" in card.outcome.value
    session.outcomes["retained-graph"] = OUTCOME
    session._tell()
    assert "Measured here on cpu" in card.line.value
    assert "dk-quiet" not in card.outcome.value


def test_at_your_sizes_follows_the_settings(session: Runs) -> None:
    """What an effect comes to is of the settings as they stand, by the memory model."""
    state = WorkbookState()
    card = LabCard("retained-graph", state, session)
    assert "At an example" in card.sizes.value
    before = card.sizes.value
    state.start_from(model="Llama-3 8B", seq_len=4096, micro_batch=4, grad_accum=8)
    assert "At your sizes" in card.sizes.value and "4,096" in card.sizes.value
    assert card.sizes.value != before


def test_the_truth_table_fills_line_by_line(session: Runs) -> None:
    """Each experiment of the entry has a line; an outcome fills its own, and a card opens and closes below."""
    view = LabView(WorkbookState(), session).about(entry(ENTRY))
    n = len(view.experiments)
    assert view.table.value.count("not yet") == n > 1
    session.outcomes["retained-graph"] = OUTCOME
    session.running, session.waiting = "kept-outputs", ("optimizer-state",)
    session._tell()
    assert view.table.value.count("not yet") == n - 3
    assert all(text in view.table.value for text in ("it depends", "running", "waits"))
    assert view.stop.layout.display == ""
    ask(view.table, "experiment", "retained-graph")
    assert [card.experiment.id for card in view.slot.children] == ["retained-graph"]
    ask(view.table, "experiment", "retained-graph")
    assert view.slot.children == ()


def test_without_torch_a_run_is_one_line(session: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card says what to install; nothing is started."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    card = LabCard("retained-graph", WorkbookState(), session)
    card.button.click()
    assert NO_TORCH in card.line.value
    assert not session.busy


def test_a_run_is_measured_in_a_process_of_its_own(session: Runs) -> None:
    """Pressing the button measures for real: verdict, bytes and torch's version come from the child."""
    pytest.importorskip("torch")
    card = LabCard("kept-outputs", WorkbookState(), session)
    card.button.click()
    own = session.outcomes["kept-outputs"]
    assert (own.verdict, own.problem) == ("false", None)
    assert "Measured here" in card.line.value
    assert json.loads(card.plot.spec)["data"]


def test_a_run_that_is_stopped_leaves_nothing(session: Runs) -> None:
    """Stopped before it ended, nothing is shown as measured, and nothing is left running."""
    pytest.importorskip("torch")

    async def walk_away() -> None:
        session.start([one.id for one in lab.experiments()])
        session.stop()
        while session.busy:
            await asyncio.sleep(0.05)

    asyncio.run(walk_away())
    assert not session.outcomes
    for thread in [one for one in threading.enumerate() if one.name == "diag-kit lab"]:
        thread.join(30)
        assert not thread.is_alive()


def test_records_that_are_damaged_are_none(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is not as it should be is not shown; a whole one is, with its machine."""
    folder = tmp_path / "data" / "measured"
    folder.mkdir(parents=True)
    monkeypatch.setattr(places, "CHECKOUT", tmp_path)
    for text in ("", "[]", '{"outcomes": [{}]}', '{"outcomes": 3}'):
        (folder / "lab_claims.json").write_text(text)
        recorded.cache_clear()
        assert recorded() == {}
    (folder / "lab_claims.json").write_text(json.dumps({"machine": "a laptop", "outcomes": [OUTCOME.to_json()]}))
    recorded.cache_clear()
    assert recorded()["retained-graph"].where == "a laptop, cpu, torch 2.13.0"
    recorded.cache_clear()


def test_every_entry_id_that_a_page_links_is_there() -> None:
    """No link leads nowhere."""
    for id in titles():
        for linked in re.findall(r'data-ask="entry" data-of="([^"]+)"', page_of(id)):
            assert linked in titles()
    assert {one.entry for one in lab.experiments()} <= {one.id for one in load_entries()}
