"""Choose evidence: a bundled sample, a path on this machine, pasted text, or a small upload."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

import ipywidgets as w

from ..errors import DiagKitError
from ..report.lists import PART, UNREAD, files_in_order, files_text, ranges, status_of
from ..report.words import clean, coverage_text
from ..units import format_bytes
from . import places
from .controls import Table, field
from .html import render
from .state import WorkbookState

PATH_LIMIT = 400
UPLOAD_BYTES = 9 * 1024**2  # a server with Jupyter's own limit drops a 10 MiB message without a word
BAR_AFTER_SECONDS = 0.3
"""What takes no longer shows no bar."""
TONES = {UNREAD: "dk-bad", PART: "dk-warn"}


class EvidenceView(w.VBox):
    """Four ways in, one line that says what came of it, and what was read of each file."""

    def __init__(self, state: WorkbookState) -> None:
        self.state = state
        samples = [(f"{sample.title}: {sample.teaser}", str(sample.path)) for sample in places.samples()]
        self.sample = w.Dropdown(options=[("Choose one …", ""), *samples])
        self.path = w.Text(placeholder="train.log, or the folder that the run left")
        self.open_path = w.Button(description="Open", tooltip="Read this file or folder")
        self.text = w.Textarea(placeholder="Paste the log, from the first sign of trouble to its end", rows=8)
        self.open_text = w.Button(description="Read pasted text")
        self.upload = w.FileUpload(description="Upload a log, up to 9 MB", multiple=True, layout=w.Layout(width="auto"))
        self.bar, self.status = w.HTML(), w.HTML()
        self.stop = w.Button(description="Stop and judge what was read")
        self.progress = w.HBox([self.bar, self.stop], layout=w.Layout(display="none")).add_class("dk-progress")
        named = ("File", "Read", "Size", "Bytes read", "Kind", "Ranks", "Why not, or what else")
        columns = [{"label": name, "number": name in ("Size", "Bytes read")} for name in named]
        self.files = Table(columns=columns, find="Find by name, kind or note")
        paste = w.VBox([self.text, w.HBox([self.open_text, self.upload]).add_class("dk-line")]).add_class("dk-stack")
        more = w.Accordion([paste], titles=("Paste text, or upload a small file",))
        path = w.HBox([self.path, self.open_path]).add_class("dk-line")
        ways = w.GridBox([field("A bundled sample", self.sample), field("A file or folder on this machine", path)])
        ways.add_class("dk-evidence")
        folds = w.HBox([self.files, more]).add_class("dk-folds")
        super().__init__([ways, self.progress, w.VBox([self.status, folds])])
        self.add_class("dk").add_class("dk-stack")

        self._showing = False
        self.sample.observe(self._open_sample, "value")
        self.open_path.on_click(lambda _: self._open_path())
        self.path.on_msg(self._on_enter)
        self.open_text.on_click(lambda _: self._open_text())
        self.upload.observe(lambda _: self._open_upload(), "value")
        self.stop.on_click(lambda _: self.state.stop())
        state.on("evidence", self._show)
        state.on("notice", self._show)
        state.on("reading", self._show_reading)
        self._show()
        self._show_files()
        state.on("evidence", self._show_files)

    def _open_sample(self, change: Any) -> None:
        if change.new and not self._showing:
            self._open(change.new)

    def _on_enter(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        if message.get("event") == "submit":
            self._open_path()

    def _open_path(self) -> None:
        if path := self.path.value.strip():
            self._open(path)
        else:
            self.say("type the path of a log, or of the folder that the run left", error=True)

    def _open_text(self) -> None:
        self._open(text=self.text.value, label="pasted text")

    def _open_upload(self) -> None:
        files = self.upload.value
        if not files:
            return
        size = sum(file["size"] for file in files)
        if size > UPLOAD_BYTES:
            self.say(f"{format_bytes(size)} is too much to upload; give its path instead", error=True)
            return
        text = "\n".join(bytes(file["content"]).decode("utf-8", "replace") for file in files)
        self._open(text=text, label=", ".join(file["name"] for file in files))

    def _open(self, *paths: str, **given: Any) -> None:
        try:
            self.state.open(*paths, wait=False, **given)
        except DiagKitError as error:
            self.say(str(error), error=True)

    def _show_reading(self) -> None:
        """The bar, once there was something to wait for; the line, read aloud, only says that it began and ended."""
        reading, shown = self.state.reading, self.progress.layout.display == ""
        if reading is None:
            self.progress.layout.display = "none"
            if self.state.problem:
                self.say(self.state.problem, error=True)
            elif shown:
                self._show()
            return
        seconds = monotonic() - reading.since
        if seconds < BAR_AFTER_SECONDS:
            return
        done, total = min(reading.done, reading.total), reading.total
        self.bar.value = render(
            "progress.html", percent=100 * done // total if total else 0, done=done, total=total, path=reading.path,
            speed=format_bytes(done / seconds), stopping=reading.stopping,
        )  # fmt: skip
        self.stop.disabled = reading.stopping
        if not shown:
            self.progress.layout.display = ""
            self.say("Reading; what was open before stays until this is read." if self.state.diagnosis else "Reading.")

    def _show_files(self) -> None:
        diagnosis = self.state.diagnosis
        files = files_in_order(diagnosis.files) if diagnosis else []
        self.files.layout.display = "" if files else "none"
        rows = [
            [clean(file.path, PATH_LIMIT), status_of(file), [format_bytes(file.size_bytes), file.size_bytes],
             [format_bytes(file.read_bytes), file.read_bytes], file.kind,
             [ranges(file.ranks), min(file.ranks, default=-1)], clean("; ".join(file.notes), PATH_LIMIT)]
            for file in files
        ]  # fmt: skip
        self.files.fill(files_text(files), rows, tones=[TONES.get(status_of(file), "") for file in files])

    def _show(self) -> None:
        if self.state.diagnosis is None:
            self.say("Reading." if self.state.reading else "Nothing is open yet.")
            return
        self._show_sample()
        read = self.state.diagnosis.coverage
        notes = [*read.get("notes", ()), *([self.state.notice] if self.state.notice else [])]
        self.say(f"Open: {self.state.label} · {coverage_text(read)} read", notes=notes)

    def _show_sample(self) -> None:
        """The list names the sample that is open, if one is."""
        self._showing = True
        open_now = self.state.evidence[0] if len(self.state.evidence) == 1 else ""
        self.sample.value = open_now if open_now in [path for _, path in self.sample.options] else ""
        self.sample.tooltip = next((text for text, path in self.sample.options if path == self.sample.value), "")
        self._showing = False

    def say(self, line: str, *, error: bool = False, notes: Sequence[str] = ()) -> None:
        """Show one line, read aloud; an error at once."""
        self.status.value = render("status.html", line=line, error=error, notes=notes)
