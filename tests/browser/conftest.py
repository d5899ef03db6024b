"""JupyterLab as the launcher starts it, and a real Chromium that may talk to it alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diag_kit.workbook import launch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKEN = "journey"
WAIT_MS = 60_000  # a loaded runner with two cores takes its time
READY = """async () => {
  const app = window.jupyterapp; await app.restored;
  const panel = app.shell.currentWidget;
  await panel.context.ready; await panel.sessionContext.ready; await panel.sessionContext.session?.kernel?.info;
}"""


def find_chromium() -> str | None:
    """The browser: $DIAG_KIT_CHROMIUM, else what the system has."""
    names = (os.environ.get("DIAG_KIT_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


@pytest.fixture(scope="module")  # Playwright keeps an event loop running, which tests after it must not find
def browser() -> Iterator[Browser]:
    """A headless Chromium. Where none is found the journeys are skipped, out loud; under CI=true that is a failure."""
    path = find_chromium()
    if path is None:
        line = "NO BROWSER FOUND: the workbook's journeys did not run; install chromium or set DIAG_KIT_CHROMIUM"
        pytest.fail(line, pytrace=False) if os.environ.get("CI") == "true" else pytest.skip(line)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)
    flags = ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium has none for root
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=flags)
        yield made
        made.close()


@dataclass
class Lab:
    """A running server. ``open`` opens a fresh copy of the workbook on a page."""

    base: str
    work: Path
    start: Path
    blocked: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)

    def open(self, page: Page, notebook: str = "workbook.ipynb") -> None:
        """The notebook in its own document; it runs by itself, as nothing of it ran before."""
        copy = launch.working_copy(notebook, self.work)
        page.goto(f"{self.base}/doc/tree/{copy.name}?token={TOKEN}&reset", wait_until="domcontentloaded")
        self.ready(page)

    def hear(self, text: str, stack: str | None = None) -> None:
        """Keep an error of the console, unless it is JupyterLab's own: about its debugger when a kernel restarts, or an
        answer that a reload cut off, read by none of the widgets' modules, which come from blobs.
        """
        cut_off = text == "Unexpected end of JSON input" and stack is not None and "blob:" not in stack
        if not (cut_off or text.startswith("Could not restore the debugger state")):
            self.console.append(f"{text} {stack or ''}".strip())

    def ready(self, page: Page) -> None:
        """Wait on the application's own promises; what the page shows comes later than it looks."""
        page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context?.ready")
        page.evaluate(READY)


@pytest.fixture
def lab(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A server with its own data folder, started in ``tmp_path``."""
    work = tmp_path / "data" / "workbook"
    work.mkdir(parents=True)
    monkeypatch.setenv("DIAG_KIT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    port = launch._free_port()
    command = [*launch.command(work, port), "--expose-app-in-browser"]
    log_file = tmp_path / "server.log"
    with log_file.open("w") as log:
        server = subprocess.Popen(
            command, env=launch.environment(work, TOKEN, None), cwd=work, stdout=log, stderr=log, start_new_session=True
        )
        try:
            launch._wait_until_up(server, port, TOKEN, log_file)
            yield Lab(f"http://127.0.0.1:{port}", work, tmp_path)
        finally:
            launch._stop(server)


@pytest.fixture
def page(browser: Browser, lab: Lab) -> Iterator[Page]:
    """A page that can reach the server and nothing else; at the end nothing else was tried, and no error was logged."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, accept_downloads=True)

    def gate(route) -> None:
        if route.request.url.startswith((lab.base, "data:", "blob:", "file:")):
            route.continue_()
        else:
            lab.blocked.append(route.request.url)
            route.abort()

    context.route("**/*", gate)
    made = context.new_page()
    made.set_default_timeout(WAIT_MS)
    made.on("console", lambda message: message.type == "error" and lab.hear(message.text))
    made.on("pageerror", lambda error: lab.hear(error.message, error.stack or ""))
    yield made
    with contextlib.suppress(Exception):
        context.close()
    assert not lab.blocked, f"requests left this machine: {lab.blocked[:3]}"
    assert not lab.console, f"errors in the console: {lab.console[:3]}"
