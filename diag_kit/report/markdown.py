"""The report as Markdown, for an issue or a chat: the same page as the HTML, with nothing of a log acting as markup.

Words are escaped, lines of the evidence stand in code spans or in fences longer than any run of backticks in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .lists import WHOLE

_MARKUP = re.compile(r"[\\`*\[\]<>|~$&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=!)(?=\[)")
_START = re.compile(r"^(\d+)(?=[.)](?:\s|$))|^(?=[#+=-])")


def escape(text: str) -> str:
    """Text as one paragraph's worth of Markdown that shows it as it is.

    >>> escape("a_b *c* <b> | 1"), escape("# not a heading"), escape("1. not a list")
    ('a_b \\\\*c\\\\* \\\\<b\\\\> \\\\| 1', '\\\\# not a heading', '1\\\\. not a list')
    """
    escaped = _MARKUP.sub(lambda found: f"\\{found[0]}", " ".join(text.split()))
    return _START.sub(lambda found: f"{found[1] or ''}\\", escaped)


def code(text: str) -> str:
    """Text as a code span, which nothing in it can end.

    >>> code("a `b` c"), code("")
    ('`` a `b` c ``', '')
    """
    text = " ".join(text.split())
    ticks = _longest_run(text) + 1
    pad = " " if ticks > 1 else ""
    return f"{'`' * ticks}{pad}{text}{pad}{'`' * ticks}" if text else ""


def fence(lines: Iterable[str]) -> list[str]:
    """Lines as a code block, which nothing in them can end."""
    text = "\n".join(lines)
    ticks = "`" * max(3, _longest_run(text) + 1)
    return [f"{ticks}text", *text.split("\n"), ticks, ""]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of cells that are already Markdown; code spans in cells may hold no bar, so theirs is escaped."""
    body = ["| " + " | ".join(cell or " " for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *body, ""]


def render_markdown(page: Mapping[str, Any], plots: Sequence[Mapping[str, Any]] = ()) -> str:
    """Markdown of a page from `page.build`."""
    parts = (_top(page), _failed(page), _findings(page), _beside(page), _again(page), _what_if(page, plots),
             _checklist(page), _read(page))  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line for part in parts for line in part)).strip("\n") + "\n"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _cell_code(text: str) -> str:
    return code(text).replace("|", "\\|")


def _top(page: Mapping[str, Any]) -> list[str]:
    lines = [f"# {escape(page['summary'])}", "", f"**{page['title']}.** diag-kit report, {page['created']}.", ""]
    if page["findings"]:
        first = page["findings"][0]
        lines += [f"**{first['verdict']}**: {escape(first['title'])}. That is to say, {first['meaning']}.", ""]
    if page["meaning"]:
        lines += [f"{'So' if first['verdict'] == 'confirmed' else 'If so'}: {escape(page['meaning'])}", ""]
    lines += ["## Do this next", "", *map(_step, page["next_action"])]
    if page["restart"]:
        lines += ["Restart line:", "", *fence([page["restart"]])]
    if page["missing"]:
        lines += ["## What would settle it", "", *_asked(page["missing"]), ""]
    return lines


def _step(text: str) -> str:
    return (f"How: {code(text[5:])}" if text.startswith("How: ") else escape(text)) + "\n"


def _asked(missing: Iterable[Mapping[str, str]]) -> list[str]:
    return [f"- {escape(one['what']).rstrip('.')}: {code(one['how'])}" for one in missing]


def _failed(page: Mapping[str, Any]) -> list[str]:
    failed = page["failed"]
    if not failed:
        return []
    lines = ["## What failed first", "", *(f"- {label}: **{escape(text)}**" for label, text in failed["place"]), ""]
    if page["initiating"]:
        lines += [escape(page["initiating"]), ""]
    lines += [f"{code(failed['evidence']['where'])}:", "", *fence([failed["evidence"]["text"]])]
    if page["arithmetic"]:
        lines += [f"The message's own arithmetic: {escape(page['arithmetic'])}.", ""]
    if page["bar"]:
        lines += table(["device memory", "size"], [(part["label"], part["size"]) for part in page["bar"]["parts"]])
    if page["growth"]:
        lines += [f"Growth: {escape(page['growth'])}", ""]
    if page["timeline"]:
        listed = [(escape(one["when"]), escape(one["who"]), one["word"], escape(one["what"]),
                   _cell_code(one["evidence"]["where"])) for one in page["timeline"]["rows"]]  # fmt: skip
        lines += ["### What happened, rank by rank", "", escape(page["timeline"]["text"]), "",
                  *table(["when", "who", "what kind", "what", "where"], listed)]  # fmt: skip
    return lines


def _findings(page: Mapping[str, Any]) -> list[str]:
    if not page["findings"] and not page["ruled_out"]:
        return []
    lines = ["## Findings", ""]
    for finding in (*page["findings"], *page["ruled_out"]):
        lines += [f"### {finding['verdict']}: {escape(finding['title'])}", "",
                  f"{code(finding['cause'])}: {finding['meaning']}.", "", escape(finding["claim"]), ""]  # fmt: skip
        lines += [f"Read: {code('diag-kit entries ' + finding['entry'])}", ""] if finding["entry"] else []
        for one in finding["experiments"]:
            lines += [f"See it happen: {code('diag-kit lab ' + one['id'])} ({escape(one['title'])})", ""]
        for label in ("for", "against"):
            if finding[label]:
                lines += [
                    f"**{label.capitalize()}**",
                    "",
                    *(line for said in finding[label] for line in _statement(said)),
                    "",
                ]
        if finding["missing"]:
            lines += ["**Missing**", "", *_asked(finding["missing"]), ""]
        if finding["fixes"]:
            lines += ["**Fixes**", "", *_fixes(finding["fixes"])]
            lines += [f"Savings are predicted by {escape(finding['basis'])}.", ""] if finding["basis"] else []
        if finding["fixes_above"]:
            lines += ["**Fixes printed above**", ""]
            lines += [f"- {escape(one['action'])} (see {escape(one['under'])})" for one in finding["fixes_above"]] + [
                ""
            ]
    return lines


def _statement(said: Mapping[str, Any]) -> list[str]:
    evidence = said["evidence"]
    shown = "" if said["again"] else f" {code(evidence['text'])}"
    lines = [f"- {escape(said['text'])}", f"  {code(evidence['where'])}{shown}".rstrip()]
    if evidence["context"] and not said["again"]:
        near = fence(f"{'>' if one['here'] else ' '} {one['text']}" for one in evidence["context"])
        lines += ["", *(f"  {line}".rstrip() for line in near)]
    return lines


def _fixes(fixes: Iterable[Mapping[str, Any]]) -> list[str]:
    rows, codes = [], []
    for fix in fixes:
        action, cost, undo = (escape(fix[name]) for name in ("action", "cost", "undo"))
        rows.append((action, fix["saves"], cost, _cell_code(fix["verify"]), undo))
        for framework, text in fix["code"][:1]:  # the run's own; HTML folds the others
            codes += [f"{action.rstrip('.')}, {escape(framework)}:", "", *fence([text])]
    return table(["action", "saves at the peak", "cost", "verify by", "undo"], rows) + codes


def _again(page: Mapping[str, Any]) -> list[str]:
    if not page["again"]:
        return []
    rows = [
        (escape(row["where"]), escape(row["change"]), f"{escape(row['verdict'])}: {escape(row['says'])}", row["peak"],
         row["growth"], _cell_code(row["source"]))
        for row in page["again"]
    ]  # fmt: skip
    head = ["where", "what", "came of it", "highest allocated", "per micro-step", "line"]
    return ["## Reproductions", "", "Second runs, of the settings alone.", "", *table(head, rows)]


def _beside(page: Mapping[str, Any]) -> list[str]:
    beside = page["beside"]
    if not beside:
        return []
    lines = ["## Beside the good run", "", f"{code(beside['good'])}: {escape(beside['verdict'])}", ""]
    if beside["rows"]:
        rows = [
            (escape(row["name"]), *(f"{escape(row[one])} {_cell_code(row[where])}".strip() for one, where in _SIDES),
             row["predicted"])
            for row in beside["rows"]
        ]  # fmt: skip
        lines += table(["what", "this run", "the good run", "predicted at the peak"], rows)
    lines += [f"Stated alike by both: {beside['alike']}. Memory: {escape(beside['memory'])}.", ""]
    if beside["lines"]:
        lines += [f"Lines of this run alone (looked for in {beside['read']}), the nearest to the failure first:", ""]
        lines += [f"- {code(one['where'])} {code(one['text'])} ({one['count']})" for one in beside["lines"]]
    return [*lines, ""]


_SIDES = (("failed", "where"), ("good", "good_where"))


def _what_if(page: Mapping[str, Any], plots: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["## What if", ""] if page["what_if"] or plots else []
    if page["what_if"]:
        rows = [(escape(label), *map(escape, cells)) for label, cells in page["what_if"]["rows"]]
        lines += table(["", *page["what_if"]["columns"]], rows)
    lines += [f"- **{escape(plot['title'])}**: {escape(plot['text'])}" for plot in plots]
    return [*lines, ""]


def _checklist(page: Mapping[str, Any]) -> list[str]:
    checklist = page["checklist"]
    if not checklist:
        return []
    lines = ["## Checklist", "", f"{checklist['progress']}.", ""]
    for group in checklist["groups"]:
        verdict = f"{group['verdict']}: " if group["verdict"] else ""
        lines += [f"### {verdict}{escape(group['title'])}", ""]
        for item in group["checks"]:
            lines.append(f"- [{' ' if item['state'] == 'todo' else 'x'}] **{item['word']}**: {escape(item['action'])}")
            lines += [f"  - expect: {escape(item['expect'])}"] if item["expect"] else []
            lines += [f"  - how: {code(item['how'])}"] if item["how"] else []
            lines += [f"  - {code(one['where'])} {code(one['text'])}".rstrip() for one in item["evidence"]]
            lines += [f"  - {_mark(mark)}" for mark in item["marks"]]
        lines.append("")
    if checklist["orphans"]:
        lines += ["### Marks on items that this version does not list", ""]
        lines += [f"- {code(mark['item'])}: {_mark(mark)}" for mark in checklist["orphans"]]
    return [*lines, ""]


def _mark(mark: Mapping[str, Any]) -> str:
    when = f", {escape(mark['when'])} UTC" if mark["when"] else ""
    note = f": {escape(mark['note'])}" if mark["note"] else ""
    return f"{escape(mark['word'])} by {escape(mark['by'])}{when}{note}"


def _read(page: Mapping[str, Any]) -> list[str]:
    lines = ["## Evidence read", "", f"{page['coverage']}.", "", *(f"- {escape(note)}" for note in page["notes"]), ""]
    partly = [one for one in page["files"]["rows"] if one["status"] != WHOLE]
    if partly:
        rows = [(_cell_code(one["path"]), f"{one['read']} of {one['size']}", escape(one["note"])) for one in partly]
        lines += [f"{page['files']['text']}.", "", *table(["not read whole", "read", "why not"], rows)]
    if page["settings"]:
        rows = [(escape(one["name"]), escape(one["value"]), _cell_code(one["where"])) for one in page["settings"]]
        lines += ["### Settings that the evidence states", "", *table(["setting", "value", "where"], rows)]
    lines += ["---", "", escape(page["redaction"]), ""]
    if page["versions"]:
        lines += [f"Made with {', '.join(f'{name} {version}' for name, version in page['versions'])}."]
    return lines
