"""The encyclopedia in a terminal: the list of entries, what a search found, and one entry to read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..findings import cause_fits
from .page import FRAMEWORKS
from .words import TRUTHS, clean, value_text

if TYPE_CHECKING:
    from ..failures import Entry
    from ..failures.records import FailureFix
    from ..failures.search import Found

WIDTH = 100
_COLOURS = {"bold": "1", "dim": "2", "true": "32", "false": "31", "conditional": "33"}
_BULLET = "· "


def listing(entries: Sequence[Entry], *, width: int = WIDTH, color: bool = False) -> str:
    """All entries under what their failure reads like: title, status, summary, and the id that shows each."""
    page = _Page(width, color)
    for title, group in grouped(entries):
        page.heading(title)
        for one in group:
            page.name(one.title, f"{one.id} · {one.status}")
            page.text(_short(_first(one.summary), page.width - 4), "    ")
    page.gap()
    page.text("diag-kit entries ID shows one; diag-kit entries WORDS looks for words in all of them.", style="dim")
    return page.render()


def found_text(query: str, found: Found, *, width: int = WIDTH, color: bool = False) -> str:
    """What a search found, best first, each with the sentence that answers it."""
    page = _Page(width, color)
    n = len(found.hits)
    near = "" if found.whole else "; none has all of the words, these come nearest"
    page.text(f"{n} {'entry' if n == 1 else 'entries'} for {clean(query, 80)!r}{near}", style="dim")
    for hit in found.hits:
        page.name(hit.entry.title, hit.entry.id)
        page.text(f"{hit.where}: {_short(hit.line)}", "    ")
    return page.render()


def grouped(entries: Iterable[Entry]) -> list[tuple[str, list[Entry]]]:
    """Entries by what their failure reads like: the first family that all of an entry's causes can belong to."""
    groups = (("Reads as GPU out of memory", ("gpu-oom",)), ("Host and shared memory", ("host-oom", "shared-memory")),
              ("Not memory, though it reads so", ("not-memory",)))  # fmt: skip
    found: dict[str, list[Entry]] = {title: [] for title, _ in groups}
    rest: list[Entry] = []
    for one in entries:
        fits = (title for title, families in groups for family in families
                if one.causes and all(cause_fits(cause.id, family) for cause in one.causes))  # fmt: skip
        found.get(next(fits, ""), rest).append(one)
    return [(title, group) for title, group in [*found.items(), ("Explains others", rest)] if group]


def entry_text(one: Entry, framework: str = "pytorch", *, width: int = WIDTH, color: bool = False) -> str:
    """An entry to read: the answer first, what is true of each claim, signs, checks, fixes with code, sources.

    Args:
        one: the entry.
        framework: whose code to print; a fix without it says for whom there is some.
        width: columns; only code and addresses may be longer.
        color: whether the terminal takes colours.
    """
    page = _Page(width, color)
    page.line(one.title.upper(), "bold")
    page.text(f"{one.id} · {one.status}", style="dim")
    page.gap()
    page.text(one.quick_answer, "  ")
    page.heading("Claims, and what is so")
    said = [(cause.claim, cause.truth, cause.condition, cause.experiment, "") for cause in one.causes]
    said += [(claim.claim, claim.truth, claim.condition, claim.experiment, claim.measured) for claim in one.claims]
    for claim, truth, condition, experiment, measured in said:
        page.text(claim, f"{TRUTHS[truth].upper():12}", " " * 12, label_style=truth)
        page.text(condition, " " * 12)
        page.text(f"Measured: {measured}" if measured else "", " " * 12, style="dim")
        page.text(f"See it: diag-kit lab {experiment}" if experiment else "", " " * 12, style="dim")
    page.heading("What one sees, and why")
    for symptom in one.symptoms:
        page.text(symptom.see, f"  {_BULLET}", "    ")
        page.text(symptom.why, "    ", style="dim")
    page.heading("To confirm")
    for number, check in enumerate(one.checks, 1):
        page.text(check.action, f"{number:3}. ", "     ")
        page.text(f"Expect: {check.expect}", "     ", style="dim")
        cost = f"Costs {check.cost}; {'disturbs the run' if check.disturbs else 'leaves the run alone'}."
        page.text(cost, "     ", style="dim")
    page.heading(f"To mend, with code for {FRAMEWORKS.get(framework, framework)}")
    for number, fix in enumerate((fix for fix in one.fixes if fix.remedy), 1):
        page.fix(number, fix, framework)
    page.heading("Sources")
    for reference in one.references:
        page.line(f"  {reference.url}")
        page.text(reference.supports, "    ", style="dim")
    if one.related:
        page.heading("See also")
        page.text(", ".join(one.related), "  ")
    page.gap()
    others = "Mechanism, scale, perspectives and questions: diag-kit workbook, under Entries, or --json."
    page.text(others, style="dim")
    return page.render()


def _short(text: str, limit: int = 180) -> str:
    return textwrap.shorten(clean(text), limit, placeholder=" …")


def _first(text: str) -> str:
    return text.split(". ")[0].rstrip(".") + "."


class _Page:
    """Lines no wider than asked, with styles where colours are wanted."""

    def __init__(self, width: int, color: bool) -> None:
        self.width, self.color = max(40, min(width, WIDTH)), color
        self.lines: list[str] = []

    def render(self) -> str:
        return "\n".join(self.lines).strip("\n")

    def gap(self) -> None:
        self.lines.append("")

    def line(self, text: str, style: str = "") -> None:
        """One line as it is, however long."""
        self.lines.append(self._painted(clean(text), style))

    def heading(self, text: str) -> None:
        self.gap()
        self.line(text, "bold")

    def name(self, title: str, after: str) -> None:
        """A title with what follows it in a quieter tone, on a line of their own or on two."""
        if len(title) + len(after) + 4 <= self.width:
            self.lines.append(f"  {self._painted(clean(title), 'bold')}  {self._painted(clean(after), 'dim')}")
        else:
            self.lines += [f"  {self._painted(clean(title), 'bold')}", f"    {self._painted(clean(after), 'dim')}"]

    def text(
        self, text: str, first: str = "", rest: str | None = None, *, style: str = "", label_style: str = ""
    ) -> None:
        """A paragraph behind ``first``, its further lines behind ``rest``; nothing where there is no text."""
        rest = first if rest is None else rest
        rows = textwrap.wrap(" ".join(clean(text).split()), self.width - len(rest), break_long_words=False,
                             break_on_hyphens=False)  # fmt: skip
        for number, row in enumerate(rows):
            head = rest if number else self._painted(first, label_style)
            self.lines.append(head + self._painted(row, style))

    def fix(self, number: int, fix: FailureFix, framework: str) -> None:
        """A remedy: what to do, what it saves and costs, its code, how to undo and verify it."""
        if number > 1:
            self.gap()
        self.text(fix.action, f"{number:3}. ", "     ", style="bold")
        setting = f" In settings: {value_text(fix.saves)}; diag-kit estimate says what it saves." if fix.saves else ""
        self.text(f"Costs {fix.cost.rstrip('.')}.{setting}", "     ", style="dim")
        code = fix.code.get(framework)
        if code is None and fix.code:
            own, others = FRAMEWORKS.get(framework, framework), ", ".join(FRAMEWORKS.get(n, n) for n in fix.code)
            self.text(f"No code for {own}; there is some for {others}.", "     ", style="dim")
        for row in (code or "").rstrip().splitlines():
            self.line(f"       {row}")
        self.text(f"Undo: {fix.undo}", "     ", style="dim")
        self.text(f"Verify: {fix.verify}", "     ", style="dim")

    def _painted(self, text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self.color and style and text.strip() else text
