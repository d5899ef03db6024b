"""Export: the report as HTML, Markdown and JSON, redacted unless asked otherwise; where it was saved, and links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets as w

from ..errors import DiagKitError
from ..report import write
from ..units import format_bytes
from . import places
from .controls import Download, field
from .figures import Figure
from .html import render
from .state import LABELS, WorkbookState

FORMATS = {"html": ("HTML: one file, opens offline", "text/html"), "md": ("Markdown", "text/markdown"),
           "json": ("JSON", "application/json")}  # fmt: skip


class ReportView(w.VBox):
    """Choices, a button, and what came of it. ``figures`` gives the plots to put into the HTML."""

    def __init__(self, state: WorkbookState, figures: Any) -> None:
        self.state, self._figures = state, figures
        self.formats = {
            suffix: w.Checkbox(value=True, description=title, indent=False) for suffix, (title, _) in FORMATS.items()
        }
        redact = "Redact names, hosts, addresses, paths and secrets"
        self.redact = w.Checkbox(value=True, description=redact, indent=False, layout=w.Layout(width="auto"))
        self.folder = w.Text(value=str(places.report_folder()))
        self.export = w.Button(description="Export report", button_style="primary")
        self.status = w.HTML("<div role='status'></div>")
        self.links = w.HBox().add_class("dk-line")
        self.export.on_click(lambda _: self._export())
        place = w.HBox([self.folder, self.export]).add_class("dk-line")
        forms = w.HBox([*self.formats.values()]).add_class("dk-report")
        super().__init__([forms, self.redact, field("Save in folder", place), self.status, self.links])
        self.add_class("dk").add_class("dk-stack")

    def _export(self) -> None:
        suffixes = [suffix for suffix, box in self.formats.items() if box.value]
        try:
            written = self.write(suffixes)
        except DiagKitError as error:
            self.status.value, self.links.children = render("line.html", line=str(error)), ()
            return
        self.status.value = render("saved.html", written=written, redacted=self.redact.value)
        self.links.children = [
            Download(name=path.name, mime=FORMATS[path.suffix[1:]][1], content=path.read_bytes()) for path in written
        ]

    def write(self, suffixes: list[str]) -> list[Path]:
        """Write the report in each form; returns the files.

        Raises:
            DiagKitError: nothing is open, no form is chosen, or the folder can't be written to.
        """
        state = self.state
        if state.diagnosis is None:
            raise DiagKitError("open evidence first: there is nothing to report yet")
        if not suffixes:
            raise DiagKitError("choose at least one form: HTML, Markdown or JSON")
        folder = places.start_folder() / Path(self.folder.value).expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiagKitError(f"{folder}: can't be made ({error.strerror}); choose another folder") from error
        paths = [folder / f"diagnosis.{suffix}" for suffix in suffixes]
        what_if: dict[str, Any] | None = {
            "logged": state.logged.to_json(), "explored": state.explored, "settings": state.settings.to_json(),
        }  # fmt: skip
        drawn: list[Figure] = self._figures()
        if "model" not in state.origins and not state.touched:  # an example that nobody looked at is no finding
            what_if, drawn = None, [figure for figure in drawn if figure.measured]
        for path in paths:
            write(path, state.diagnosis, state.checklist, what_if, redact=self.redact.value,
                  plots=[{"title": titled(f, state), "spec": f.spec, "text": f.text} for f in drawn])  # fmt: skip
        return paths


def titled(figure: Figure, state: WorkbookState) -> str:
    """A plot's title with the settings that it shows: as it ran, or what was last set."""
    if figure.measured:
        return figure.title
    now, start = state.settings, state.logged
    changes = ["another model"] if now.model != start.model else []
    changes += [
        f"{label} {_shown(name, value)}"
        for name, label in LABELS.items()
        if (value := getattr(now, name)) != getattr(start, name)
    ]
    shows = f"as last set: {', '.join(changes)}" if changes else "as it ran"
    return f"{figure.title}, {'an example model, ' if state.example else ''}{shows}"


def _shown(name: str, value: Any) -> str:
    if name == "capacity_bytes":
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
