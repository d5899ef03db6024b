"""A good run beside the one that is open: a path or an upload, and the table of what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets as w

from ..diagnosis import diagnose
from ..errors import DiagKitError, EvidenceError
from ..findings import Diagnosis
from ..report.words import beside_rows
from ..units import format_bytes
from . import places
from .controls import field
from .evidence_view import UPLOAD_BYTES
from .html import render
from .state import WorkbookState


def compare(state: WorkbookState, *paths: str | Path, text: str | None = None) -> None:
    """Diagnose what is open again, against a good run; the what-if stays as it is.

    Raises:
        DiagKitError: in one line, what can't be used and what to do; nothing changes then.
    """
    if state.diagnosis is None:
        raise EvidenceError("open the failed run first, then name a good one to compare it with")
    good = [places.start_folder() / Path(path).expanduser() for path in paths]
    diagnosis = diagnose(*state.evidence, text=state.text, against=good, against_text=text)
    settings, explored = state.settings, state.explored
    state.show(diagnosis, [Path(path) for path in state.evidence], state.label, state.text)
    state.settings, state.explored = settings, explored
    state._tell("what_if", "explored")


class ComparisonView(w.VBox):
    """One field for the good run, one line that says what came of it, and the comparison."""

    def __init__(self, state: WorkbookState) -> None:
        self.state = state
        self.path = w.Text(placeholder="a log or folder of a run that ended well")
        self.compare = w.Button(description="Compare", tooltip="Hold the open run against this one")
        self.upload = w.FileUpload(description="or upload its log", multiple=True, layout=w.Layout(width="auto"))
        self.status, self.page = w.HTML(), w.HTML()
        line = w.HBox([self.path, self.compare, self.upload]).add_class("dk-line")
        super().__init__([field("Compare with a good run", line), self.status, self.page])
        self.add_class("dk").add_class("dk-stack")
        self.compare.on_click(lambda _: self._open_path())
        self.path.on_msg(self._on_enter)
        self.upload.observe(lambda _: self._open_upload(), "value")
        state.on("evidence", self._show)
        self._show()

    def _on_enter(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        if message.get("event") == "submit":
            self._open_path()

    def _open_path(self) -> None:
        if path := self.path.value.strip():
            self._open(path)
        else:
            self.say("type the path of a log or folder that a good run left", error=True)

    def _open_upload(self) -> None:
        files = self.upload.value
        size = sum(file["size"] for file in files)
        if size > UPLOAD_BYTES:
            self.say(f"{format_bytes(size)} is too much to upload; give its path instead", error=True)
        elif files:
            self._open(text="\n".join(bytes(file["content"]).decode("utf-8", "replace") for file in files))

    def _open(self, *paths: str, text: str | None = None) -> None:
        try:
            compare(self.state, *paths, text=text)
        except DiagKitError as error:
            self.say(str(error), error=True)

    def _show(self) -> None:
        self.say("")
        self.layout.display = "" if self.state.diagnosis else "none"
        self.page.value = page(self.state.diagnosis) if self.state.diagnosis else ""

    def say(self, line: str, *, error: bool = False) -> None:
        """Show one line, read aloud; nothing where it is empty."""
        self.status.value = render("status.html", line=line, error=error, notes=()) if line else ""


def page(diagnosis: Diagnosis) -> str:
    """The comparison as HTML, all of it escaped; empty without a good run."""
    compared = diagnosis.comparison
    return render("comparison.html", c=compared, rows=beside_rows(compared)) if compared else ""
