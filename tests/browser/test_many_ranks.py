"""A run of many ranks in a real browser: who failed first, the lines that say so, and a slow read that is ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Lab
from .test_journey import NAMELESS, WIDER_THAN_PAGE

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

SLOW = """
import time
from diag_kit.errors import StopReading
from diag_kit.workbook import state

def slow(*paths, text=None, on_progress=None, real=state.diagnose):
    if on_progress is None:
        return real(*paths, text=text)
    try:
        for done in range(1, 2400):
            on_progress("rank5.log", done << 20, 2400 << 20)
            time.sleep(0.05)
    except StopReading:
        pass
    return real(text="step 1\\n[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\\n")

state.diagnose = slow
"""


@pytest.fixture
def slow_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels whose reader takes two minutes over a large run, and honours an early end."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "slow.py").write_text(SLOW, encoding="utf-8")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def test_a_run_of_many_ranks(slow_kernel: None, lab: Lab, page: Page) -> None:
    """The timeline names who failed first; a mark and a row show their lines; files are found; a slow read is ended."""
    from playwright.sync_api import expect

    lab.open(page)
    status = page.locator(".dk-status").first
    expect(status).to_contain_text("Open: accumulation-spike")
    sample = page.locator(".dk-evidence select")
    sample.select_option(label=sample.locator("option", has_text="Many ranks").text_content())
    expect(status).to_contain_text("Open: many-ranks")

    timeline = page.locator(".dk-timeline")
    expect(timeline.locator(".ytick", has_text="rank 3 failed first")).to_be_visible()
    expect(timeline.get_by_role("img", name="What happened, rank by rank. Rank 3 failed first")).to_be_visible()
    star = timeline.locator(".scatterlayer .trace.scatter:last-child .points path").first
    star.scroll_into_view_if_needed()
    at = star.bounding_box()
    page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    expect(timeline.locator(".hoverlayer")).to_contain_text("rank3.log")
    page.mouse.down()
    page.mouse.up()
    lines = timeline.get_by_label("Lines of the log")
    expect(lines).to_contain_text("rank 3, error of its own: rank3.log")
    expect(lines.locator("mark")).to_contain_text("OutOfMemoryError")

    timeline.get_by_text("The same as a table").click()
    row = timeline.get_by_role("row", name="rank 0")
    row.first.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(lines.locator("mark")).to_contain_text("Watchdog")
    expect(row.first.get_by_role("button")).to_be_focused()

    files = page.locator(".dk-table", has_text="11 files")
    files.get_by_text("11 files: 11 read whole").click()
    files.get_by_label("Find by name").fill("rank3")
    expect(files.locator("tbody tr")).to_have_count(1)
    expect(files.get_by_role("status")).to_contain_text("1 of 1 found, of 11")
    assert page.evaluate(NAMELESS) == []
    for width in (1440, 700):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"() => !({WIDER_THAN_PAGE})().length")

    with (lab.start / "large.log").open("wb") as large:
        large.truncate(9 << 20)
    path = page.get_by_placeholder("train.log, or the folder that the run left")
    path.fill(str(lab.start / "large.log"))
    path.press("Enter")
    bar = page.get_by_role("progressbar", name="Reading the evidence")
    expect(bar).to_be_visible()
    expect(page.locator(".dk-progress")).to_contain_text("rank5.log")
    expect(page.locator(".dk-summary")).to_contain_text("Rank 3")
    page.get_by_role("button", name="Stop and judge what was read").click()
    expect(status).to_contain_text("Open: large.log")
    expect(bar).to_be_hidden()
    expect(page.locator(".dk-summary")).to_contain_text("2.00 GiB")
