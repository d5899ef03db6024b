"""The diagnosis as a page: what failed first, the message's arithmetic, findings line by line, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import ipywidgets as w

from ..checklist import heading
from ..findings import Diagnosis, Missing
from ..report import fixes, words
from ..report.experiments import shown_by
from ..report.page import FRAMEWORKS
from ..units import format_bytes
from .controls import Page
from .entries_view import Reader, titles
from .html import render
from .state import WorkbookState
from .timeline_view import TimelineView


class Part(NamedTuple):
    """A share of the device's memory as the message has it. ``basis``: stated, or how it was worked out."""

    kind: str
    name: str
    size: str
    share: float
    basis: str


PARTS = (
    ("allocated", "Allocated by this process's tensors", "allocated_bytes", "stated"),
    ("cached", "Reserved by PyTorch, not allocated", "cached_bytes", "reserved − allocated"),
    ("other", "Other processes", "other_process_bytes", "stated"),
    ("unaccounted", "The rest outside PyTorch: contexts, libraries", "unaccounted_bytes", "total − free − the above"),
    ("free", "Free on the device", "free_bytes", "stated"),
)  # fmt: skip


def parts_of(figures: Mapping[str, Any]) -> list[Part]:
    """How the message divides the device; empty where it states no capacity."""
    total = figures.get("total_bytes")
    if not total:
        return []
    sizes = {kind: figures.get(key) for kind, _, key, _ in PARTS}
    sizes["other"] = sizes["other"] or None
    if sizes["unaccounted"] is not None:
        sizes["unaccounted"] = max(sizes["unaccounted"] - (sizes["other"] or 0), 0)
    return [
        Part(kind, name, format_bytes(size), max(size, 0) / total, basis)
        for kind, name, _, basis in PARTS
        if (size := sizes[kind]) is not None
    ]


class DiagnosisView(w.VBox):
    """Shows the state's diagnosis."""

    def __init__(self, state: WorkbookState) -> None:
        self.state = state
        self.page, self.timeline, self.findings = w.HTML(), TimelineView(state), Page()
        self.reader = Reader(state)
        super().__init__([self.page, self.timeline, self.findings, self.reader])
        self.findings.on_msg(lambda _page, message, _buffers: self.reader.ask(message))
        self.add_class("dk").add_class("dk-stack")
        state.on("evidence", self._show)
        state.on("reading", self._show_reading)
        self._show()

    def _show_reading(self) -> None:
        if self.state.diagnosis is None:
            self._show()

    def _show(self) -> None:
        diagnosis, wait = self.state.diagnosis, "Reading." if self.state.reading else "Open evidence above."
        self.timeline.show(diagnosis)
        self.reader.hide()
        self.page.value, self.findings.value = (
            map(partial(part_of, diagnosis), ("failure", "findings"))
            if diagnosis
            else (f"<p class='dk-status'>{wait}</p>", "")
        )


def asked_of(diagnosis: Diagnosis) -> Missing | None:
    """What the next step needs first, where its line names that without the command that gets it."""
    first = next(iter(diagnosis.missing), None)
    said = diagnosis.next_action  # where it may begin inside a sentence, with a small letter
    return first if first and first.what[1:] in said and first.how and first.how not in said else None


def page(diagnosis: Diagnosis) -> str:
    """The diagnosis as HTML; all that came from a log is escaped."""
    return part_of(diagnosis, "failure") + part_of(diagnosis, "findings")


def part_of(diagnosis: Diagnosis, part: str) -> str:
    """One part of that page: ``failure``, what comes above the timeline, or ``findings``, what comes below."""
    return render(
        "diagnosis.html", shown_by=shown_by, entries=titles(), d=diagnosis, part=part,
        family=words.family_text(diagnosis), verdicts=words.VERDICTS,
        findings=list(zip(diagnosis.findings, fixes.once(diagnosis.findings), strict=True)),
        code=partial(fixes.ordered, own=fixes.framework(diagnosis)), frameworks=FRAMEWORKS,
        parts=parts_of(diagnosis.figures) if diagnosis.failure else [], arithmetic=words.arithmetic(diagnosis),
        place=words.place(diagnosis.failure) if diagnosis.failure else [], first=words.initiating_text(diagnosis),
        heading=heading, steps=words.steps_of(diagnosis.next_action), asked=asked_of(diagnosis),
    )  # fmt: skip
