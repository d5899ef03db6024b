"""A diagnosis as the page that people read: plain nested text, in order, ready to redact and to render.

HTML and Markdown render the same page. Every word comes from the diagnosis, the checklist or what was explored.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from ..beside import Comparison
from ..checklist import EVIDENCE, Checklist, Item, heading
from ..evidence.facts import Source
from ..failures import load_entries
from ..findings import Diagnosis, Finding, Fix, Missing, Statement
from ..memory.formulas import estimate
from ..memory.settings import Settings
from ..units import format_bytes
from .experiments import shown_by
from .fixes import Shown, framework, once, ordered
from .lists import ROLES, files_in_order, files_text, gathered, ranges, status_of, timed, timeline_rows, timeline_text
from .words import (
    STATES,
    VERDICTS,
    again_rows,
    arithmetic,
    beside_rows,
    clean,
    continued,
    coverage_text,
    family_text,
    figure_text,
    fit_of,
    initiating_text,
    lines_around,
    place,
    steps_of,
    value_text,
)

LINE_LIMIT = 1200
CONTEXT_LIMIT = 400
COMMAND_WIDTH = 42
MAX_ROWS = 60
"""Files that the page lists; what it leaves out it counts."""
FRAMEWORKS = {"pytorch": "PyTorch", "trainer": "Hugging Face Trainer", "accelerate": "Accelerate",
              "lightning": "Lightning", "deepspeed": "DeepSpeed",
              "megatron": "Megatron-LM", "inference": "inference server"}  # fmt: skip


def build(
    diagnosis: Diagnosis, checklist: Checklist | None, what_if: Mapping[str, Any] | None, *, versions: bool
) -> dict[str, Any]:
    """The page as nested mappings and lists of text. ``what_if`` as described at `diag_kit.report.write`."""
    failure, own = diagnosis.failure, framework(diagnosis)
    findings = [_finding(one, shown, own, diagnosis.missing) for one, shown in
                zip(diagnosis.findings, once(diagnosis.findings), strict=True)]  # fmt: skip
    return {
        "family": diagnosis.family,
        "title": family_text(diagnosis),
        "summary": clean(diagnosis.summary),
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "verdicts": VERDICTS,
        "meaning": _meaning(diagnosis.findings),
        "next_action": steps_of(clean(diagnosis.next_action) or "Nothing needs to be done."),
        "restart": "\n".join(continued(clean(diagnosis.restart or ""), COMMAND_WIDTH)),
        "missing": [{"what": clean(m.what), "how": clean(m.how)} for m in diagnosis.missing],
        "failed": None if failure is None else {
            "place": [(label, clean(text, CONTEXT_LIMIT)) for label, text in place(failure)] + _time(failure.time),
            "message": clean(failure.message, LINE_LIMIT),
            "evidence": _evidence(failure.source),
            "figures": [(_figure_name(name), clean(figure_text(name, value))) for name, value in failure.facts.items()
                        if value is not None],
        },
        "arithmetic": arithmetic(diagnosis),
        "bar": _bar(diagnosis.figures),
        "growth": clean(diagnosis.growth),
        "initiating": initiating_text(diagnosis),
        "timeline": _timeline(diagnosis),
        "findings": [one for one in findings if one["verdict"] != "ruled-out"],
        "ruled_out": [one for one in findings if one["verdict"] == "ruled-out"],
        "beside": _beside(diagnosis.comparison) if diagnosis.comparison else None,
        "again": again_rows(diagnosis.repeats) if diagnosis.repeats else [],
        "what_if": _what_if(what_if) if what_if else None,
        "checklist": _checklist(checklist) if checklist else None,
        "settings": [{"name": clean(name, CONTEXT_LIMIT), "value": clean(value_text(value), CONTEXT_LIMIT),
                      "where": clean(str(source), CONTEXT_LIMIT)}
                     for name, (value, source) in diagnosis.settings.items()],
        "coverage": coverage_text(diagnosis.coverage),
        "notes": [clean(str(note), CONTEXT_LIMIT) for note in diagnosis.coverage.get("notes") or ()],
        "files": _files(diagnosis),
        "versions": list(made_with().items()) if versions else [],
    }  # fmt: skip


def made_with() -> dict[str, str]:
    """Versions of what made the report. torch's comes from its package's metadata; it isn't imported."""
    found = {"diag-kit": _version("diag-kit"), "Python": platform.python_version(), "torch": _version("torch"),
             "system": f"{platform.system()} {platform.machine()}"}  # fmt: skip
    return {name: version for name, version in found.items() if version}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _time(stamp: float | None) -> list[tuple[str, str]]:
    return [] if stamp is None else [("time", datetime.fromtimestamp(stamp, UTC).strftime("%Y-%m-%d %H:%M:%S"))]


def _timeline(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """The moments, many alike as one, with their places on an axis of time in percent."""
    rows, first = timeline_rows(diagnosis), diagnosis.initiating_rank
    if not rows:
        return None
    stamps = [time for row in rows for time in (row.began, row.time) if time is not None] if timed(rows) else []
    scale = 100 / (max(stamps) - min(stamps)) if stamps else 0
    listed = [{"role": row.role, "word": ROLES[row.role], "who": row.who, "when": row.when, "what": row.what,
               "evidence": _evidence(row.source), "start": None if row.time is None or not stamps else
               f"{scale * ((row.began or row.time) - min(stamps)):.2f}",
               "wait": f"{scale * ((row.time or 0) - (row.began or row.time or 0)):.2f}"}
              for row in gathered(rows, first)]  # fmt: skip
    return {"text": timeline_text(rows, first, diagnosis.timeline_left_out), "rows": listed, "drawn": bool(stamps)}


def _files(diagnosis: Diagnosis) -> dict[str, Any]:
    files = files_in_order(diagnosis.files)
    rows = [{"path": clean(one.path, CONTEXT_LIMIT), "status": status_of(one), "size": format_bytes(one.size_bytes),
             "read": format_bytes(one.read_bytes), "kind": clean(one.kind), "ranks": ranges(one.ranks),
             "note": clean("; ".join(one.notes), CONTEXT_LIMIT)} for one in files[:MAX_ROWS]]  # fmt: skip
    return {"text": files_text(files), "rows": rows, "more": len(files) - len(rows)}


def _figure_name(name: str) -> str:
    return clean(name.removesuffix("_bytes").replace("_", " "), CONTEXT_LIMIT)


def _meaning(findings: Iterable[Finding]) -> str:
    """The entry's words for those who decide, where the first finding is at least likely."""
    first = next(iter(findings), None)
    if first is None or first.verdict not in ("confirmed", "likely"):
        return ""
    return next((one.perspectives.executive for one in load_entries() if one.id == first.entry), "")


def _evidence(source: Source) -> dict[str, Any]:
    """A line with its neighbours. ``here`` marks the line itself among them."""
    context = [{"text": clean(line.text, LINE_LIMIT if line.here else CONTEXT_LIMIT), "here": line.here}
               for line in lines_around(source)]  # fmt: skip
    return {"where": clean(str(source), CONTEXT_LIMIT), "text": clean(source.text, LINE_LIMIT).strip(),
            "context": context if len(context) > 1 else []}  # fmt: skip


def _statements(said: Iterable[Statement]) -> list[dict[str, Any]]:
    """Statements with their lines; a line that stands just above is not shown again (``again``)."""
    shown, above = [], None
    for one in said:
        shown.append({"text": clean(one.text, LINE_LIMIT), "evidence": _evidence(one.source),
                      "again": one.source == above})  # fmt: skip
        above = one.source
    return shown


def _finding(finding: Finding, shown: Shown, own: str, above: Iterable[Missing]) -> dict[str, Any]:
    """A finding; what it misses that stands at the top of the page (``above``) is not asked for again."""
    return {
        "cause": finding.cause, "title": clean(heading(finding)), "verdict": finding.verdict,
        "meaning": VERDICTS[finding.verdict], "claim": clean(finding.claim), "entry": clean(finding.entry),
        "experiments": [{"id": one.id, "title": clean(one.title)} for one in shown_by(finding)],
        "for": _statements(finding.for_), "against": _statements(finding.against),
        "missing": [{"what": clean(one.what), "how": clean(one.how)} for one in finding.missing
                    if one not in above],
        "fixes": [_fix(fix, own) for fix in shown.fixes],
        "fixes_above": [{"action": clean(action).rstrip("."), "under": clean(under)} for action, under in shown.above],
        "basis": "; ".join(dict.fromkeys(clean(fix.basis) for fix in shown.fixes if fix.basis)),
    }  # fmt: skip


def _fix(fix: Fix, own: str) -> dict[str, Any]:
    saves = "not predicted" if fix.saves_bytes is None else format_bytes(fix.saves_bytes)
    if fix.saves_bytes is not None and fix.peak_bytes is not None:
        saves += f", to a peak of {format_bytes(fix.peak_bytes)}"
    code = [(FRAMEWORKS.get(name, clean(name)), clean(lines).rstrip()) for name, lines in ordered(fix.code, own)]
    return {"action": clean(fix.action), "saves": saves, "cost": clean(fix.cost), "verify": clean(fix.verify),
            "undo": clean(fix.undo), "code": code}  # fmt: skip


def _bar(figures: Mapping[str, Any]) -> dict[str, Any] | None:
    """The device's memory in parts that add up to its total, and the request on the same scale."""
    total, asked = figures.get("total_bytes"), figures.get("request_bytes")
    parts = [(kind, label, figures.get(name)) for kind, label, name in (
        ("allocated", "allocated by PyTorch", "allocated_bytes"), ("cached", "cached, not allocated", "cached_bytes"),
        ("outside", "outside the allocator", "unaccounted_bytes"), ("free", "free", "free_bytes"))]  # fmt: skip
    sizes = [size for _, _, size in parts if size is not None and size >= 0]
    if not total or asked is None or len(sizes) < len(parts):
        return None
    whole = sum(sizes)
    return {
        "parts": [{"kind": kind, "label": label, "size": format_bytes(size), "percent": f"{100 * size / whole:.2f}"}
                  for (kind, label, _), size in zip(parts, sizes, strict=True)],
        "request": {"size": format_bytes(asked), "percent": f"{min(100.0, 100 * asked / whole):.2f}",
                    "beyond": asked > total},
        "total": format_bytes(total),
    }  # fmt: skip


def _beside(comparison: Comparison) -> dict[str, Any]:
    """The good run beside this one: the verdict, the differences as rows, memory, and the lines of this run alone."""
    sources = filter(None, (comparison.memory.failed_source, comparison.memory.good_source))
    return {
        "good": clean(", ".join(comparison.good), LINE_LIMIT), "verdict": clean(comparison.verdict),
        "rows": beside_rows(comparison), "alike": f"{comparison.alike:,}", "memory": clean(comparison.memory.text),
        "memory_where": ", ".join(clean(str(source), CONTEXT_LIMIT) for source in sources),
        "assumed": clean(", ".join(comparison.assumed)), "read": comparison.read,
        "lines": [{"text": clean(one.text, LINE_LIMIT), "where": clean(str(one.source), CONTEXT_LIMIT),
                   "count": f"{one.count:,}{', after the failure' if one.after else ''}"} for one in comparison.lines],
    }  # fmt: skip


def _what_if(what_if: Mapping[str, Any]) -> dict[str, Any]:
    """Settings side by side: those in which the columns differ, then what the memory model says of each."""
    documents = [("as it ran", what_if.get("logged"))]
    documents += [
        (f"explored {number}", one["settings"]) for number, one in enumerate(what_if.get("explored") or (), 1)
    ]
    last = what_if.get("settings")
    documents.append(("last set", last if last not in [document for _, document in documents] else None))
    columns = [(title, Settings.from_json(document)) for title, document in documents if document]
    estimates = [estimate(settings).to_json() for _, settings in columns]
    flat = [_flat(settings.to_json()) for _, settings in columns]
    names = [name for name in dict.fromkeys(name for one in flat for name in one)
             if len(flat) == 1 or len({one.get(name) for one in flat}) > 1]  # fmt: skip
    rows = [(name.replace("_", " "), [one.get(name, "none") for one in flat]) for name in names]
    for label, key in (("peak allocated", "peak_allocated_bytes"), ("peak reserved", "peak_reserved_bytes"),
                       ("on the device", "device_bytes"), ("headroom", "headroom_bytes")):  # fmt: skip
        rows.append((label, [format_bytes(one[key]) for one in estimates]))
    rows.append(("peak in", [one["peak_phase"] for one in estimates]))
    fits = [fit_of(tuple(one["band_bytes"]), one["device_bytes"], settings.capacity_bytes)
            for one, (_, settings) in zip(estimates, columns, strict=True)]  # fmt: skip
    rows.append(("verdict", [fit or "capacity unknown" for fit in fits]))
    assumptions = dict.fromkeys(text for one in estimates for text in one["assumptions"])
    return {"columns": [title for title, _ in columns],
            "rows": [(clean(label), [clean(cell, CONTEXT_LIMIT) for cell in cells]) for label, cells in rows],
            "assumptions": [clean(text) for text in assumptions]}  # fmt: skip


def _flat(settings: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": text for inner, text in _flat(value).items()}
        elif value is not None:
            flat[name] = value_text(value)
    return flat


def _checklist(checklist: Checklist) -> dict[str, Any]:
    progress = [f"{count} {STATES[state]}" for state, count in checklist.progress().items() if count]
    return {
        "progress": ", ".join(progress),
        "groups": [{"title": clean(group.title), "verdict": group.verdict,
                    "checks": [_item(checklist, item) for item in group.items]} for group in checklist.groups],
        "orphans": [_mark(one.state, one.by, one.note, one.when) | {"item": one.item} for one in checklist.orphans],
    }  # fmt: skip


def _item(checklist: Checklist, item: Item) -> dict[str, Any]:
    current = checklist.current(item.id)
    return {
        "state": current.state, "word": STATES[current.state], "action": clean(item.action, LINE_LIMIT),
        "expect": clean(item.expect), "how": clean(item.how), "cost": clean(item.cost), "disturbs": item.disturbs,
        "because": clean(item.because),
        "evidence": [{"where": clean(str(source), CONTEXT_LIMIT), "text": clean(source.text, CONTEXT_LIMIT).strip()}
                     for source in item.sources],
        "marks": [_mark(one.state, one.by, one.note, one.when) | {"counts": one == current}
                  for one in checklist.marks(item.id)],
    }  # fmt: skip


def _mark(state: str, by: str, note: str, when: str) -> dict[str, Any]:
    return {"word": STATES.get(state, clean(state)), "by": "the evidence" if by == EVIDENCE else clean(by, 100),
            "note": clean(note), "when": clean(when)[:16].replace("T", " ")}  # fmt: skip
