"""What an engineer does with the workbook, in a real browser. No sleeps: every wait is on a promise or a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from .conftest import Lab

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

WIDER_THAN_PAGE = """() => [...document.querySelectorAll(".jp-WindowedPanel-outer, .jp-OutputArea-output")]
  .filter((el) => el.scrollWidth > el.clientWidth + 1).map((el) => el.className)"""
NAMELESS = """() => [...document.querySelectorAll(".dk :is(input, select, textarea, button, [role=img], [role=slider])")]
  .filter((el) => el.checkVisibility() && el.type !== "file")
  .filter((el) => !(el.ariaLabel || el.labels?.length || el.textContent.trim() || el.title || el.placeholder))
  .map((el) => el.outerHTML.slice(0, 120))"""


def labels(page: Page, plot: int) -> str:
    """The text of a plot's own annotations, as they stand in the drawing."""
    return " ".join(page.locator(".dk-what-if .dk-plot").nth(plot).locator(".annotation-text").all_text_contents())


def test_from_evidence_to_report(page: Page, lab: Lab) -> None:
    """Open, choose a sample, move a slider by keyboard, tick a check, reload, restart: all is found again; then export."""
    from playwright.sync_api import expect

    lab.open(page)
    status = page.locator(".dk-status").first
    expect(status).to_contain_text("Open: accumulation-spike")
    expect(page.locator(".dk-summary")).to_contain_text("GPU memory")

    sample = page.locator(".dk-evidence select")
    choice = sample.locator("option", has_text="Activation spike:").text_content()
    sample.select_option(label=choice)
    expect(status).to_contain_text("Open: activation-spike")

    slider = page.get_by_role("slider", name="Sequence length")
    before = slider.get_attribute("aria-valuetext")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(slider).not_to_have_attribute("aria-valuetext", before)
    tokens = slider.get_attribute("aria-valuetext")
    expect(page.locator(".dk-what-if .dk-plot").nth(1).locator(".annotation-text", has_text=tokens)).to_be_visible()
    expect(page.locator(".dk-figure", has_text="Peak against sequence length").first).to_contain_text(f"At {tokens}")

    page.get_by_label("Your name").fill("Ada")
    page.get_by_label("Your name").press("Enter")
    item = page.locator("fieldset.dk-item:has(> .dk-item-marks)").first
    action = item.locator("legend").text_content()
    item.get_by_label("confirmed").check()
    item.get_by_label("Note on").fill("seen on two nodes")
    item.get_by_label("Note on").press("Enter")
    expect(item.locator("small")).to_have_text("by Ada")
    settled = page.locator(".dk-board-head .dk-status").text_content()

    def all_is_there() -> None:
        expect(status).to_contain_text("Open: activation-spike")
        expect(page.get_by_role("slider", name="Sequence length")).to_have_attribute("aria-valuetext", tokens)
        expect(page.locator(".dk-what-if .dk-plot").nth(1).locator(".annotation-text", has_text=tokens)).to_be_visible()
        marked = page.locator("fieldset.dk-item", has_text=action.strip("✓"))
        expect(marked.get_by_label("confirmed")).to_be_checked()
        expect(marked.get_by_label("Note on")).to_have_value("seen on two nodes")
        expect(page.locator(".dk-board-head .dk-status")).to_have_text(settled)

    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.reload(wait_until="domcontentloaded")
    lab.ready(page)
    all_is_there()

    page.evaluate(
        "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
    )
    lab.ready(page)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    all_is_there()

    page.get_by_role("button", name="Export report").click()
    expect(page.get_by_role("link", name="diagnosis.html")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="diagnosis.json").click()
    document = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert document["what_if"]["settings"]["seq_len"] == int(tokens.split()[0].replace(",", ""))
    notes = [
        mark["note"] for group in document["checklist"]["groups"] for item in group["items"] for mark in item["marks"]
    ]
    assert "seen on two nodes" in notes

    page.goto((lab.start / "diag-kit-report" / "diagnosis.html").as_uri())
    expect(page.locator(".main-svg").first).to_be_visible()
    expect(page.locator("body")).to_contain_text("seen on two nodes")


def test_bad_input_is_one_line_and_nothing_is_lost(page: Page, lab: Lab) -> None:
    """A wrong path and a too large upload say so in one line; the diagnosis that was open stays."""
    from playwright.sync_api import expect

    lab.open(page)
    summary = page.locator(".dk-summary").text_content()
    path = page.get_by_placeholder("train.log, or the folder that the run left")
    path.fill("no/such/folder")
    path.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("no such file or folder")

    page.get_by_text("Paste text, or upload a small file").click()
    large = lab.start / "large.log"
    large.write_bytes(b"x" * (11 * 1024**2))
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload a log").click()
    chooser.value.set_files(large)
    expect(page.get_by_role("alert")).to_contain_text("too much to upload")
    expect(page.locator(".dk-summary")).to_have_text(summary)

    page.get_by_placeholder("Paste the log").fill("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")
    page.get_by_role("button", name="Read pasted text").click()
    expect(page.locator(".dk-status").first).to_contain_text("Open: pasted text")


def test_page_fits_and_follows_the_theme(page: Page, lab: Lab) -> None:
    """Every control has a name, nothing scrolls sideways at any width, plots take the theme's ink, code stays hidden."""
    from playwright.sync_api import expect

    lab.open(page)
    expect(page.locator(".dk-what-if .dk-plot .main-svg").first).to_be_visible()
    expect(page.locator(".dk-board fieldset").first).to_be_visible()
    assert page.evaluate(NAMELESS) == []
    for width in (1440, 1000, 700):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"() => !({WIDER_THAN_PAGE})().length")
    expect(page.locator(".jp-CodeCell .jp-InputArea-editor").first).to_be_hidden()

    ink = "() => getComputedStyle(document.querySelector('.dk-what-if .dk-plot .ytitle')).fill"
    light = page.evaluate(ink)
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function(f"(light) => ({ink})() !== light", arg=light)
