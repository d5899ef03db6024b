"""Views without a kernel: set traits, read traits."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import pytest

from diag_kit.diagnosis import diagnose
from diag_kit.errors import EntryError
from diag_kit.findings import Diagnosis
from diag_kit.memory.formulas import estimate
from diag_kit.reproduction import commands
from diag_kit.units import format_bytes
from diag_kit.workbook import Walk, Workbook, places, workbook
from diag_kit.workbook.diagnosis_view import page, part_of
from diag_kit.workbook.state import WorkbookState
from tests.reproduction.runs import printed


def spec(book: Workbook, plot: str) -> dict:
    return json.loads(book.what_if.plots[plot].spec)


def drawn_text(book: Workbook, plot: str) -> str:
    return " ".join(a["text"] for a in spec(book, plot)["layout"]["annotations"])


def test_a_slider_moves_plots_words_and_verdict(book: Workbook) -> None:
    """Moving one control redraws from the new settings, in the drawing, in its text alternative and beside it."""
    book.what_if.controls["seq_len"].value = 2048
    assert "2,048 tokens" in drawn_text(book, "length")
    assert "At 2,048 tokens" in book.what_if.words["length"].value
    assert "At 2,048 tokens" in book.what_if.plots["length"].alt
    assert "against the run as logged" in book.what_if.verdict.value


def test_controls_say_where_their_value_comes_from(book: Workbook) -> None:
    """From the evidence with its line, assumed, or changed by hand; back again on reset."""
    controls = book.what_if.controls
    assert (controls["seq_len"].origin, controls["seq_len"].assumed) == ("settings.yaml:3", False)
    assert (controls["optimizer"].origin, controls["optimizer"].assumed) == ("assumed", True)
    controls["seq_len"].value = 2048
    assert (controls["seq_len"].origin, controls["seq_len"].assumed) == ("changed", True)
    book.what_if.reset.click()
    assert (controls["seq_len"].value, controls["seq_len"].origin) == (4096, "settings.yaml:3")


def test_a_choice_changes_the_estimate(book: Workbook) -> None:
    """A fused kernel takes the attention scores out of the stack."""
    names = [trace.get("name") for trace in spec(book, "step")["data"]]
    assert "attention scores" in names
    book.what_if.controls["attention"].value = "flash"
    assert "attention scores" not in [trace.get("name") for trace in spec(book, "step")["data"]]


def test_model_by_name_and_by_number(book: Workbook) -> None:
    """A published shape fills the numbers; a changed number makes it the run's own again."""
    view = book.what_if
    view.model.value = "Llama-3 8B"
    assert view.shape["hidden"].value == 4096
    view.shape["n_layers"].value = 8
    assert book.state.settings.model.n_layers == 8
    assert view.model.value == "own"


def test_a_refused_value_is_one_line_and_the_control_goes_back(book: Workbook) -> None:
    """Settings that no model can have leave plots as they were and say why."""
    before = book.what_if.plots["step"].spec
    book.what_if.shape["heads"].value = 0
    assert "dk-error" in book.what_if.verdict.value
    assert book.what_if.shape["heads"].value == 32
    assert book.what_if.plots["step"].spec == before


def test_what_ifs_are_kept_and_forgotten(book: Workbook) -> None:
    """The button to forget says how many are kept, and is there only where some are."""
    view = book.what_if
    assert view.forget.layout.display == "none"
    view.keep.click()
    assert (view.forget.description, view.forget.layout.display) == ("Forget the 1 kept", "")
    view.forget.click()
    assert book.state.explored == []
    assert view.forget.layout.display == "none"


def test_remedies_and_numbers_follow(book: Workbook) -> None:
    """The tables beside the plots carry GiB and formulas, and follow the controls."""
    assert "Use a fused attention kernel" in book.what_if.plan.remedies.value
    assert "GiB" in book.what_if.plan.remedies.value
    book.what_if.controls["attention"].value = "flash"
    assert "Use a fused attention kernel" not in book.what_if.plan.remedies.value
    assert "<code>" in book.what_if.numbers.value


def test_tables_wait_until_a_control_rests(book: Workbook) -> None:
    """On a kernel's loop a burst of moves draws each plot but makes the tables once, after the last."""

    async def moves() -> tuple[str, str]:
        before = book.what_if.plan.remedies.value
        for length in (1024, 2048, 8192):
            book.what_if.controls["seq_len"].value = length
        during = book.what_if.plan.remedies.value
        assert before == during
        await asyncio.sleep(0.5)
        return during, book.what_if.plan.remedies.value

    during, after = asyncio.run(moves())
    assert during != after


def test_samples_open_by_choice(book: Workbook) -> None:
    """Choosing a sample opens it; opening something else clears the choice."""
    sample = next(s for s in places.samples() if s.title == "Healthy run")
    book.evidence.sample.value = str(sample.path)
    assert book.state.diagnosis.family == "ok"
    assert "Open: healthy-run" in book.evidence.status.value
    book.evidence.text.value = "CUDA out of memory. Tried to allocate 20.00 MiB"
    book.evidence.open_text.click()
    assert book.evidence.sample.value == ""
    assert "Open: pasted text" in book.evidence.status.value


def test_a_path_opens_by_button_and_by_enter(book: Workbook, run: Path) -> None:
    """Both ways read the path; an empty one says what to type."""
    book.evidence.path.value = str(run / "train.log")
    book.evidence.open_path.click()
    assert book.state.evidence == (str(run / "train.log"),)
    book.evidence.path.value = str(run)
    book.evidence.path._handle_custom_msg({"event": "submit"}, [])
    assert book.state.evidence == (str(run),)
    book.evidence.path.value = " "
    book.evidence.open_path.click()
    assert "type the path" in book.evidence.status.value


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda p: p / "gone.log", "no such file"),
        (lambda p: ((p / "empty.log").write_text("") and p) or p / "empty.log", "is empty"),
        (lambda p: (p / "core").write_bytes(bytes(range(256)) * 64) and p / "core", "core"),
        (lambda p: (p / "void").mkdir() or p / "void", "holds no files"),
    ],
)
def test_bad_input_is_one_line(book: Workbook, tmp_path: Path, make, told: str) -> None:
    """A missing path, an empty file, a binary and an empty folder each give one line, and the page stays as it was."""
    before = book.diagnosis.page.value
    book.evidence.path.value = str(make(tmp_path))
    book.evidence.open_path.click()
    status = book.evidence.status.value
    assert told in status
    assert 'role="alert"' in status
    assert "Traceback" not in status
    assert book.diagnosis.page.value == before


def test_uploads_are_read_and_large_ones_refused(book: Workbook) -> None:
    """A small upload opens under its name; a large one is refused before it is read."""
    file = {"name": "u.log", "type": "", "size": 46, "content": b"CUDA out of memory. Tried to allocate 2.00 GiB",
            "last_modified": datetime(2026, 1, 1, tzinfo=UTC)}  # fmt: skip
    book.evidence.upload.value = (file,)
    assert "Open: u.log" in book.evidence.status.value
    book.evidence.upload.value = ({**file, "size": 10 * 1024**2},)
    assert "too much to upload" in book.evidence.status.value


def test_small_evidence_shows_no_bar(book: Workbook, run: Path) -> None:
    """What is read at once flashes no bar, even where a loop runs, and is there when the click returns."""
    told: list[str] = []
    book.evidence.progress.layout.observe(lambda change: told.append(change.new), "display")

    async def click() -> None:
        book.evidence.path.value = str(run / "train.log")
        book.evidence.open_path.click()

    asyncio.run(click())
    assert book.state.evidence == (str(run / "train.log"),)
    assert "" not in told


def test_files_are_listed_with_what_was_not_read_first(book: Workbook, run: Path) -> None:
    """Each file with how much of it was read and why not all; a file that was not read leads, in its own colour."""
    (run / "snapshot.pickle").write_bytes(b"\x80\x04" + bytes(range(256)) * 8)
    (run / "<b>.log").write_text("step 1\n")
    book.state.open(run)
    files = book.evidence.files
    assert files.title == "5 files: 1 not read, 4 read whole"
    assert files.rows[0][:2] == ["snapshot.pickle", "not read"]
    assert "not opened" in files.rows[0][-1]
    assert files.tones == ["dk-bad", "", "", "", ""]
    assert "<b>.log" in [row[0] for row in files.rows]  # the table sets text, never markup
    assert book.evidence.files.layout.display == ""
    assert workbook().evidence.files.layout.display == "none"


def test_no_view_of_rows_writes_markup() -> None:
    """The scripts that show a log's text never parse it as HTML."""
    source = (places.STATIC / "table.js").read_text(encoding="utf-8")
    assert not [word for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write") if word in source]


def test_log_text_is_escaped() -> None:
    """Markup in a log is text on the page, in its message and in its context, and control characters are shown."""
    state = WorkbookState()
    hostile = "<img src=x onerror=alert(1)> \x1b[31m"
    state.open(text=f"{hostile}\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB {hostile}\n{hostile}\n")
    shown = page(state.diagnosis)
    assert "<img" not in shown
    assert "&lt;img src=x" in shown
    assert "\x1b" not in shown


def test_diagnosis_shows_the_message_in_numbers(book: Workbook) -> None:
    """What failed first, the line in its context, how the message divides the device, and the arithmetic in words."""
    shown = book.diagnosis.page.value
    assert "train.log:9" in shown
    assert "<mark>torch.OutOfMemoryError" in shown
    for size in ("74.00 GiB", "2.10 GiB"):
        assert size in shown
    assert "softmax" in shown


def sample(title: str) -> Diagnosis:
    """The diagnosis of a bundled sample."""
    state = WorkbookState()
    state.open(next(s.path for s in places.samples() if s.title == title))
    return state.diagnosis


def test_the_next_step_comes_with_the_command_that_it_needs() -> None:
    """What is missing is asked for at the top, with its command, each step on a line; a command stands there once."""
    diagnosis = sample("Accumulation spike")
    first, command = diagnosis.missing[0].what, escape(diagnosis.missing[0].how, quote=True)
    top = part_of(diagnosis, "failure")
    assert first[1:] in top  # its first letter may stand inside a sentence
    assert top.replace("&#39;", "&#x27;").count(command) == 1
    assert top.count("<div>Then: ") == top.count("<div>Verify: ") == 1
    settle = f"Get the fact that would settle it: {first}. How: {diagnosis.missing[0].how}"
    top = part_of(replace(diagnosis, next_action=settle), "failure")
    assert top.replace("&#39;", "&#x27;").count(command) == 1


def test_findings_are_told_apart_by_their_cause() -> None:
    """Several causes share an entry: each stands under its own name, and an entry's name is not said twice."""
    diagnosis = sample("Activation spike")
    shown = part_of(diagnosis, "findings")
    assert "Attention quadratic (Activation memory spike)" in shown
    assert "Activations too large (Activation memory spike)" in shown
    assert "Model states too large (Model" not in shown
    assert "data-name=\"Saves\"" in shown
    fixes = tuple(replace(fix, saves_bytes=None) for fix in diagnosis.findings[0].fixes)
    bare = replace(diagnosis, findings=(replace(diagnosis.findings[0], fixes=fixes),))
    assert "Saves" not in part_of(bare, "findings")  # a column that nothing fills


def test_ranks_that_waited_are_counted_and_not_listed_twice() -> None:
    """The card says who failed first and why; who only reported it stands in the timeline alone."""
    top = part_of(sample("Many ranks"), "failure")
    assert "Rank 3 failed first: " in top
    assert "rank0.log" not in top
    assert "failed first" not in part_of(sample("Accumulation spike"), "failure").replace("What failed first", "")


def test_a_run_that_did_not_fail_has_no_failure_card() -> None:
    """No empty boxes where there is nothing to show."""
    state = WorkbookState()
    state.open(next(s.path for s in places.samples() if s.title == "Healthy run"))
    shown = page(state.diagnosis)
    assert "What failed first" not in shown
    assert "arithmetic" not in shown


def test_checklist_marks_reach_the_state_under_a_name(book: Workbook) -> None:
    """A mark from the board is kept under the board's name; the status line counts it."""
    board = book.checklist.board
    item = next(item for item in book.state.checklist if item.evidence is None)
    before = board.status
    board.who = "Ada"
    board._handle_custom_msg({"item": item.id, "state": "confirmed", "note": "flat after step 2"}, [])
    mark = book.state.checklist.current(item.id)
    assert (mark.state, mark.note, mark.by) == ("confirmed", "flat after step 2", "Ada")
    assert board.marks[item.id]["by"] == "Ada"
    assert board.status != before


def test_a_mark_without_a_name_is_refused_in_one_line(book: Workbook) -> None:
    """The board says what is missing and shows the state as it was."""
    board = book.checklist.board
    item = next(item for item in book.state.checklist if item.evidence is None)
    board.who = ""
    board._handle_custom_msg({"item": item.id, "state": "confirmed", "note": ""}, [])
    assert "name" in board.status
    assert board.marks[item.id]["state"] == "todo"


def test_evidence_ticks_items_with_their_line(book: Workbook) -> None:
    """Items that the log settles carry the state, the file and line, and the line itself."""
    items = [item for group in book.checklist.board.groups for item in group["items"]]
    ticked = [item for item in items if item["evidence"] and item["where"]]
    assert ticked
    assert all(item["line"] for item in ticked)


def test_the_reproduction_script_is_written_beside_the_report(book: Workbook, tmp_path: Path) -> None:
    """The button saves it, shows where, both commands and what was assumed; without evidence it says so in one line."""
    book.checklist.script.click()
    path, shown = tmp_path / "diag-kit-report" / "reproduce.py", book.checklist.written.value
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
    assert str(path) in shown and all(escape(command) in shown for command in commands(path))
    assert "whether activations are checkpointed" in shown and "alice" not in path.read_text(encoding="utf-8")
    path.write_text("mine")
    book.checklist.script.click()
    assert "name another file" in book.checklist.written.value and path.read_text() == "mine"
    empty = workbook()
    empty.checklist.script.click()
    assert "open evidence first" in empty.checklist.written.value


def test_a_reproduction_beside_the_logs_ticks_the_board(run: Path) -> None:
    """Its line stands on the item that it settles; what people marked before is found again."""
    before = diagnose(run)
    (run / "again.log").write_text(printed(before, asked="8.00 GiB"))
    book = workbook(run)
    items = [item for group in book.checklist.board.groups for item in group["items"]]
    ticked = next(item for item in items if item["id"] == "universal/reproduce")
    assert ticked["evidence"]["state"] == "confirmed" and ticked["where"].startswith("again.log:")
    assert "NVIDIA A100 of node-a" in book.checklist.again.value and "again.log:" in book.checklist.again.value
    assert book.state.diagnosis and book.state.diagnosis.content_key == before.content_key


def test_report_is_written_in_three_forms(book: Workbook, tmp_path: Path) -> None:
    """Export writes HTML with live plots, Markdown and JSON, says where, and offers each for download."""
    book.what_if.controls["seq_len"].value = 2048
    book.what_if.keep.click()
    book.report.export.click()
    folder = tmp_path / "diag-kit-report"
    assert {path.name for path in folder.iterdir()} == {"diagnosis.html", "diagnosis.md", "diagnosis.json"}
    assert str(folder) in book.report.status.value
    assert [link.name for link in book.report.links.children] == ["diagnosis.html", "diagnosis.md", "diagnosis.json"]
    html = (folder / "diagnosis.html").read_text(encoding="utf-8")
    assert "Peak against sequence length" in html
    document = json.loads((folder / "diagnosis.json").read_text(encoding="utf-8"))
    assert document["what_if"]["explored"][0]["settings"]["seq_len"] == 2048
    assert "home/alice" not in html


def test_report_is_unredacted_only_when_asked(book: Workbook, tmp_path: Path) -> None:
    """The switch decides, and the status line says which it was."""
    book.report.redact.value = False
    book.report.export.click()
    assert "home/alice" in (tmp_path / "diag-kit-report" / "diagnosis.md").read_text(encoding="utf-8")
    assert "unredacted" in book.report.status.value


def test_report_says_in_one_line_why_it_cannot_be_written(book: Workbook, tmp_path: Path) -> None:
    """A folder that can't be made, no form chosen, nothing open: one line each, no links."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    book.report.folder.value = str(blocked / "below")
    book.report.export.click()
    assert "be made (Not a directory)" in book.report.status.value
    for box in book.report.formats.values():
        box.value = False
    book.report.export.click()
    assert "choose at least one form" in book.report.status.value
    empty = workbook()
    empty.report.export.click()
    assert "open evidence first" in empty.report.status.value
    assert empty.report.links.children == ()


def test_an_unreadable_run_leaves_a_working_page(tmp_path: Path) -> None:
    """`workbook` on a missing run says so in the evidence view; everything else is there."""
    book = workbook(tmp_path / "gone")
    assert "no such file" in book.evidence.status.value
    assert json.loads(book.what_if.plots["step"].spec)["data"]


@pytest.mark.parametrize("sample", [s.title for s in places.samples()])
def test_every_sample_opens(sample: str) -> None:
    """Each bundled run gives a page without an error."""
    book = workbook(next(s.path for s in places.samples() if s.title == sample))
    assert book.state.diagnosis is not None
    assert "dk-error" not in book.evidence.status.value


def test_an_example_model_says_that_it_is_one(book: Workbook, tmp_path: Path) -> None:
    """Without a model the page says so, opens the choice, marks the headline, and the report holds no what-if."""
    book.state.open(text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB")
    view, folder = book.what_if, tmp_path / "diag-kit-report"
    assert "No model in the evidence" in view.verdict.value
    assert "Example: " in view.verdict.value
    assert view.model_box.selected_index == 0
    (written,) = book.report.write(["md"])
    assert "What if" not in written.read_text(encoding="utf-8")
    view.model.value = "Llama-3 8B"
    assert "No model in the evidence" not in view.verdict.value
    assert "Example: " not in view.verdict.value
    book.report.write(["md"])
    assert "as last set: another model" in (folder / "diagnosis.md").read_text(encoding="utf-8")


def test_fits_close_or_not_in_words_that_add_up(book: Workbook) -> None:
    """What is on the card is set against the capacity; between the two ends of what may be needed it is close."""
    view, state = book.what_if, book.state
    low, high = estimate(state.settings).band_bytes
    on_card = estimate(state.settings).device_bytes
    for capacity, word, tone in (
        (high + 1, "fits", "good"), ((on_card + high) // 2, "close", "warn"), (low - 1, "does not fit", "bad"),
    ):  # fmt: skip
        state.change(capacity_bytes=capacity)
        assert f'dk-{tone}">about {format_bytes(on_card)} on the card: <b>{word}</b>' in view.verdict.value
    assert f"{format_bytes(on_card - low + 1)} over {format_bytes(low - 1)}" in view.verdict.value
    assert '<b class="dk-' in view.plan.remedies.value


def test_plots_in_a_report_say_which_settings_they_show(book: Workbook) -> None:
    """As it ran, or what was last set; a measured series carries its own title."""
    (md,) = book.report.write(["md"])
    assert "**Peak against sequence length, as it ran**" in md.read_text(encoding="utf-8")
    book.what_if.controls["seq_len"].value = 1024
    book.report.write(["md"])
    assert "sequence length, as last set: sequence length 1,024**" in md.read_text(encoding="utf-8")


def test_a_walk_shows_the_entry_and_starts_from_its_settings() -> None:
    """The parts of an entry are views; a what-if starts from the settings given, says so, and goes back to them."""
    walk = Walk("gradient-accumulation-memory-spike")
    for part, told in (("answer", "Quick answer"), ("claims", "it depends"), ("checks", "Costs"), ("fixes", "Undo")):
        assert told in getattr(walk, part).children[0].value
    view = walk.what_if(model="Llama-3 8B", grad_accum=8, backward="deferred")
    assert (view.model.value, view.controls["backward"].value) == ("Llama-3 8B", "deferred")
    assert view.controls["grad_accum"].origin == "this page"
    view.controls["grad_accum"].value = 2
    assert "against the start" in view.verdict.value
    view.reset.click()
    assert view.controls["grad_accum"].value == 8
    with pytest.raises(EntryError, match="no-such-entry"):
        Walk("no-such-entry")


def test_what_decides_comes_first(book: Workbook) -> None:
    """Three open checks or missing facts of the best finding lead; nothing is listed twice, and they are counted."""
    board = book.checklist.board
    first, *rest = board.groups
    assert board.lead == len(first["items"]) == 3
    assert {item["kind"] for item in first["items"]} <= {"check", "missing"}
    ids = [item["id"] for group in board.groups for item in group["items"]]
    assert sorted(ids) == sorted(item.id for item in book.state.checklist)
    assert not rest[0]["title"].startswith("What decides")
    assert board.status.startswith("0 of 3 that decide settled")
    board.who = "Ada"
    board._handle_custom_msg({"item": first["items"][0]["id"], "state": "confirmed", "note": ""}, [])
    assert board.status.startswith("1 of 3 that decide settled")


def test_a_long_message_is_shown_whole_and_a_cut_neighbour_ends_at_a_word() -> None:
    """The message's own line is not cut where its neighbours are; those end in an ellipsis."""
    state = WorkbookState()
    near = "word " * 200
    state.open(
        text=f"{near}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {'more ' * 100}end"
    )
    shown = page(state.diagnosis)
    assert "more end</mark>" in shown
    assert "word …" in shown
    assert "w …" not in shown


def test_a_hedged_family_says_perhaps() -> None:
    """What an exit code alone suggests is no firmer on the page than in the report."""
    state = WorkbookState()
    state.open(text="step 3\nKilled\n")
    assert "Perhaps host out of memory" in page(state.diagnosis)
