"""A diagnosis in about a dozen lines, for a terminal over ssh: what stopped the run, why, and what to do next."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from ..beside import Comparison, Repeats
from ..checklist import heading
from ..findings import Diagnosis, Finding
from ..units import format_bytes
from .words import (
    CLOSE,
    FITS,
    arithmetic,
    beside_rows,
    clean,
    continued,
    coverage_text,
    family_text,
    fit_of,
    is_command,
    place_text,
)

LABEL = 10
SHOWN = 3
NARROWEST = 36
_COLOURS = {"bold": "1", "dim": "2", "confirmed": "1;31", "likely": "33", "possible": "36", "ruled-out": "2"}
_KEPT_TOGETHER = re.compile(r"(?<=\d) (?=[KMGT]?i?B\b)|(?<=—) ")


def render(diagnosis: Diagnosis, *, width: int = 80, color: bool = False) -> str:
    """The diagnosis as text, no line wider than ``width`` unless a word is (a path or an option is never broken)."""
    page = _Page(max(width, NARROWEST), color)
    page.say(_plain(f"{family_text(diagnosis).upper()}. {diagnosis.summary}"), style="bold")
    page.lines.append("")
    if failure := diagnosis.failure:
        page.field("where", " — ".join(filter(None, (place_text(failure), str(failure.source)))))
    page.field("sizes", arithmetic(diagnosis))
    if diagnosis.figures.get("growth") != "insufficient":
        page.field("growth", diagnosis.growth)
    if diagnosis.collateral:
        count = max(diagnosis.collateral_count, len({one.rank for one in diagnosis.collateral}))
        page.field("others", f"{_waited(count)}: {diagnosis.collateral[0].what}")
    standing = [finding for finding in diagnosis.findings if finding.verdict != "ruled-out"]
    for number, finding in enumerate(standing[:SHOWN]):
        page.finding(finding, whole=number == 0)
    page.field("", _rest(len(standing) - SHOWN, len(diagnosis.findings) - len(standing)))
    if diagnosis.comparison:
        page.beside(diagnosis.comparison)
    if diagnosis.repeats:
        page.again(diagnosis.repeats)
    if diagnosis.missing:
        what, how = diagnosis.missing[0].what.rstrip("."), diagnosis.missing[0].how
        page.field("missing", what if is_command(how) else f"{what}: {how}")
        page.command("", how if is_command(how) else "")
    repeated = diagnosis.missing and diagnosis.missing[0].how in diagnosis.next_action
    action = "Get the missing fact above; it would settle it." if repeated else diagnosis.next_action
    page.field("next", action, style="bold")
    page.command("restart", diagnosis.restart or "")
    page.field("read", "; ".join([coverage_text(diagnosis.coverage), *(diagnosis.coverage.get("notes") or ())[:1]]))
    return "\n".join(page.lines).strip("\n") + "\n"


def render_estimate(document: Mapping[str, Any], *, width: int = 100) -> str:
    """The memory of one optimizer step in about a dozen lines: the peak, what it is made of, whether it fits, and what
    would make it fit; then lengths and size where the document of ``diag-kit estimate`` holds them.
    """
    page = _Page(max(width, NARROWEST), color=False)
    capacity, band = document["settings"]["capacity_bytes"], document["band_bytes"]
    fit = fit_of((band[0], band[1]), document["device_bytes"], capacity)
    fits = {FITS: "fits", CLOSE: "fits, but for the upper end of its band", "": "no capacity was given"}.get(fit, fit)
    engine = {"trace": "traced", "formula": "by closed forms"}[document["method"]]
    size = {name: format_bytes(value) for name, value in document.items() if name.endswith("_bytes") and name[0] != "b"}
    low, high = (format_bytes(end) for end in band)
    where = f"in phase {document['peak_phase']} ({engine})"
    page.field("peak", f"{size['peak_allocated_bytes']} allocated, {where}; {fits}")
    page.field("device", f"about {size['device_bytes']}, between {low} and {high}")
    page.field("steady", f"{size['steady_state_bytes']} between steps")
    if document["headroom_bytes"] is not None:
        phase = document["headroom_phase"]
        by = {"eval": "evaluation at the training's batch", "checkpoint": "saving"}.get(phase)
        decides = f"; {by} decides, with {format_bytes(document['peak_by_phase'][phase])} allocated" if by else ""
        page.field("headroom", f"{size['headroom_bytes']}{decides}")
    parts = sorted(document["components_at_peak"].items(), key=lambda part: -part[1])
    page.lines += [f"  {name.replace('_', ' '):18} {format_bytes(n):>12}" for name, n in parts if n]
    _plan_lines(page, document)
    if "lengths" in document:
        _length_lines(page, document["lengths"])
    if "size" in document:
        page.field("size", document["size"]["text"])
    assumed = document["assumptions"]
    for number, said in enumerate(assumed[:3]):
        page.field("" if number else "assumed", said)
    if len(assumed) > 3:
        page.field("", f"and {len(assumed) - 3} assumptions more (--json lists them)")
    return "\n".join(page.lines)


def _plan_lines(page: _Page, document: Mapping[str, Any]) -> None:
    """What would make it fit, or save most; the largest shapes that fit."""
    combinations, largest = document.get("combinations", ()), document.get("largest", {})
    for number, one in enumerate(combinations):
        what = one["action"].replace("; ", " · ")
        told = f"in {format_bytes(one['device_bytes'])}: {what}. Cost: {one['cost']}"
        page.field("" if number else "would fit", told)
    if document["fits"] is False and not combinations:
        searched = document.get("searched", {}).get("most", 1)
        none = "nothing: no three changes known here suffice together"
        unasked = "not searched: give --traced-remedies (minutes)"
        page.field("would fit", none if searched else unasked)
    elif document["fits"] is None:
        best = sorted(document.get("remedies", ()), key=lambda one: -one["saves_bytes"])[:SHOWN]
        saved = "; ".join(f"{one['action']} {format_bytes(one['saves_bytes'])}" for one in best if one["saves_bytes"])
        page.field("saves", saved)
    length, batch, shape = largest.get("seq_len"), largest.get("micro_batch"), document["settings"]
    said = [f"length {length:,} at batch {shape['micro_batch']:,}"] if length else []
    said += [f"batch {batch:,} at length {shape['seq_len']:,}"] if batch else []
    page.field("largest", "; ".join(said))


def _length_lines(page: _Page, found: Mapping[str, Any]) -> None:
    unit = f"{found['samples']:,} samples, half up to {found['median']:,} and 99 % up to {found['p99']:,} tokens"
    page.field("lengths", f"{unit}, longest {found['longest']:,}; batches {found['rule']}")
    if found["longest_fit"] is None:
        return
    if not found["bad_batches"]:
        page.field("", "every batch of an epoch fits")
        return
    chance, bad = found["chance_per_batch"], found["bad_batches"]
    share = f"{chance:.2g}" if chance < 0.01 else f"{chance:.0%}"
    page.field(
        "",
        f"{found['too_long']:,} samples are longer than {found['longest_fit']:,}, the longest that fits: chance of one "
        f"in a batch {share}, about {bad:,.0f} of {found['batches']:,} batches in every epoch, the first expected in "
        f"step {found['first_step']:,.0f}",
    )
    for cut in found["cuts"]:
        lost = f"{cut['samples']:,} samples ({cut['share']:.2%}), or {cut['tokens_if_cut']:,} tokens if they are cut"
        page.field("", f"a {cut['what']} of {cut['value']:,} drops {lost if cut['samples'] else 'nothing'}")
    for note in found["notes"]:
        page.field("", f"({note})")


def _waited(count: int) -> str:
    return "1 rank only reports it" if count == 1 else f"{count:,} ranks only report it"


def _rest(weaker: int, ruled_out: int) -> str:
    said = [f"{weaker} weaker" if weaker > 0 else "", f"{ruled_out} ruled out" if ruled_out else ""]
    return f"and {', '.join(filter(None, said))}" if any(said) else ""


def _plain(text: str, limit: int = 500) -> str:
    return " ".join(clean(text, limit).split())


class _Page:
    """Lines with a column of labels on the left."""

    def __init__(self, width: int, color: bool) -> None:
        self.width, self.color = width, color
        self.lines: list[str] = []

    def say(self, text: str, label: str = "", *, style: str = "", label_style: str = "dim") -> None:
        """A paragraph behind its label; the lines after the first stand under the text."""
        whole = _KEPT_TOGETHER.sub("\xa0", text)
        rows = textwrap.wrap(whole, self.width - len(label), break_long_words=False, break_on_hyphens=False)
        for number, row in enumerate(rows):
            head = " " * len(label) if number else self._painted(label, label_style)
            self.lines.append(head + self._painted(row.replace("\xa0", " "), style))

    def field(self, label: str, text: str, style: str = "") -> None:
        """A labelled paragraph; nothing where there is no text."""
        self.say(_plain(text), label.ljust(LABEL), style=style)

    def finding(self, finding: Finding, *, whole: bool) -> None:
        """Verdict and title, then the first line for; where ``whole``, the first against too."""
        self.say(_plain(heading(finding)), finding.verdict.ljust(LABEL), style="bold", label_style=finding.verdict)
        reasons = [("+", said) for said in finding.for_[:1]]
        if whole or not reasons:
            reasons += [("−", said) for said in finding.against[:1]]
        for sign, said in reasons:
            file_name = re.split(r"[/\\]", str(said.source))[-1]
            self.say(_plain(f"{said.text} ({file_name})"), " " * LABEL + f"{sign} ")

    def beside(self, comparison: Comparison) -> None:
        """The good run: what the comparison says, the first differences, memory, the line nearest to the failure."""
        self.field("beside", f"{', '.join(comparison.good)}: {comparison.verdict}")
        several = len(comparison.order) > 1 or bool(comparison.doubt)
        for row in [row for row in beside_rows(comparison) if row["where"] and row["good_where"]][
            : SHOWN if several else 0
        ]:
            change = f" ({row['predicted']})" if row["predicted"] else ""
            self.say(_plain(f"{row['name']} {row['failed']}, there {row['good']}{change}", 200), " " * LABEL + "· ")
        if comparison.memory.metric or not comparison.doubt:
            self.say(_plain(f"memory: {comparison.memory.text}"), " " * LABEL + "· ")
        for line in [line for line in comparison.lines if not line.after][:1]:
            self.say(_plain(f"only here: {line.text} ({line.source})", 200), " " * LABEL + "· ")

    def again(self, repeats: Repeats) -> None:
        """What reproductions settle; else what they say, the first few."""
        settled = [f"{tick.state}: {tick.text}" for _, tick in repeats.ticks]
        said = [f"{one.where}{f', {one.change}' if one.change else ''}: {one.says}" for one in repeats.runs]
        for number, text in enumerate((settled or list(dict.fromkeys(said)))[:SHOWN]):
            self.field("" if number else "again", text)

    def command(self, label: str, command: str) -> None:
        """A shell command that can still be copied: broken only at spaces outside quotes, with a backslash."""
        rows = continued(_plain(command, 4000), self.width - LABEL)
        for number, row in enumerate(rows):
            self.lines.append(self._painted(("" if number else label).ljust(LABEL), "dim") + row)

    def _painted(self, text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self.color and style else text
