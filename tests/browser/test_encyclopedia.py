"""From a word to an entry, and from its claim to a measurement, in a real browser by keyboard where one can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import Lab

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def test_from_a_word_to_a_measurement(page: Page, lab: Lab) -> None:
    """Type, walk the list with the arrows, open, change the part, read the code of another framework, run an
    experiment: its verdict and its plot stand in the page, and a finding opens the same card with what was measured.
    """
    from playwright.sync_api import expect

    pytest.importorskip("torch")
    lab.open(page)
    box = page.get_by_label("Find in the encyclopedia")
    box.scroll_into_view_if_needed()
    box.press_sequentially("gradient accum")
    rows = page.locator(".dk-finder-list button")
    expect(rows.first).to_contain_text("Gradient accumulation memory spike")
    box.press("ArrowDown")
    page.keyboard.press("Enter")
    entry = page.locator(".dk-entry-box")
    expect(entry.get_by_role("heading", name="Gradient accumulation memory spike")).to_be_visible()

    entry.get_by_role("tab", name="Fix").click()
    trainer = entry.get_by_role("tab", name="Hugging Face Trainer").first
    trainer.click()
    expect(trainer).to_have_attribute("aria-selected", "true")
    expect(entry.get_by_role("tabpanel").filter(has_text="Trainer").first).to_be_visible()
    entry.get_by_role("tab", name="Fix").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(entry.get_by_role("tab", name="Is it so?")).to_be_focused()

    entry.get_by_role("button", name="Open: Outputs kept for metrics").click()
    card = entry.locator(".dk-lab", has_text="Outputs kept for metrics")
    card.get_by_role("button", name="Run it here").click()
    expect(card.locator(".dk-lab-verdict")).to_contain_text("false")
    expect(card).to_contain_text("Measured here on")
    expect(card.locator(".dk-plot .main-svg").first).to_be_visible()
    expect(entry.locator(".dk-lab-table tr", has_text="harmless")).to_contain_text("false")

    finding = page.locator(".dk-finding").first
    finding.get_by_role("button", name="Read: Gradient accumulation memory spike").click()
    reader = page.locator(".dk-reader").first
    expect(reader.get_by_role("heading", name="Gradient accumulation memory spike")).to_be_visible()
    reader.get_by_role("button", name="Close", exact=True).click()
    expect(reader).to_be_hidden()
