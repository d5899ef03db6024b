"""The confirmation checklist of a diagnosis: plain state, no widgets.

What the log already shows is ticked by ``evidence`` with the line that shows it; what is left is for a person to
confirm, refute or set aside with a note. A person can overrule the evidence: both marks stay visible. Items are known
by ids that come from what they ask, never from their position, so that marks find their items again after a restart
or an update.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from .beside import Repeats, Tick
from .errors import StateError
from .evidence.facts import Source
from .failures import load_entries
from .failures.conditions import figures_in, holds
from .findings import Diagnosis, Finding, Missing

SCHEMA = "diag_kit.checklist/1"
STATES = ("todo", "confirmed", "refuted", "not-applicable")
EVIDENCE = "evidence"

UNIVERSAL = (
    ("reproduce", "Reproduce the failure from a clean checkpoint with a fixed seed.",
     "It fails again in the same phase, with a request of the same size.", "one run up to the failing step"),
    ("signals-present", "Check that each signal listed for the cause is present in this run.",
     "Every line listed above is found, at the place given.", "minutes, reading only"),
    ("one-variable", "Change one variable at a time, and write down each result.",
     "Only the variable that the cause names moves the peak.", "one short run for each variable"),
    ("fix-removes-symptom", "Apply the targeted fix and run on to the next validation pass.",
     "The symptom is gone or clearly smaller within one validation pass.", "one run up to validation"),
)  # fmt: skip
"""What every failure is held to, whatever its cause: id, action, expected result, cost."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Who says what of an item. ``by`` is ``evidence`` or a person's name, ``when`` ISO 8601 in UTC."""

    item: str
    state: str
    by: str
    note: str = ""
    when: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to know before the cause is called established; it is confirmed where what it says is so.

    Attributes:
        kind: ``for`` or ``against`` (a line of the evidence), ``check`` (a step of the entry), ``missing`` (a fact to
            get) or ``universal``.
        causes: the findings that it bears on, best first; empty for a universal item and for a general question.
        how: the command or step, where ``action`` alone doesn't say.
        disturbs: doing it touches the running job.
        sources: the lines that show it; empty unless ticked from the evidence.
        evidence: what the evidence says of it, if anything.
    """

    id: str
    kind: str
    action: str
    causes: tuple[str, ...] = ()
    expect: str = ""
    how: str = ""
    cost: str = ""
    because: str = ""
    disturbs: bool = False
    sources: tuple[Source, ...] = ()
    evidence: Mark | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Items under one heading: a finding's, or those that belong to no single cause (``cause`` is empty)."""

    cause: str
    title: str
    verdict: str
    items: tuple[Item, ...]


def heading(finding: Finding) -> str:
    """A finding's name for people: its cause in words, then its entry, since several causes share an entry.

    >>> heading(Finding("graph-retention", "gradient-accumulation-memory-spike", "Accumulation spike", "likely"))
    'Graph retention (Accumulation spike)'
    """
    words = finding.cause.replace("-", " ").capitalize()
    return finding.title if finding.cause == "undetermined" or words == finding.title else f"{words} ({finding.title})"


class Checklist:
    """Groups of items, and the marks that people set on them.

    ``on_change(item_id, by, mark)`` is called after every change, with None for a mark that was taken back; a caller
    hangs the saving there.
    """

    def __init__(self, groups: Iterable[Group], *, content_key: str = "", marks: Iterable[Mark] = ()) -> None:
        self.groups = tuple(groups)
        self.content_key = content_key
        self.on_change: Callable[[str, str, Mark | None], None] | None = None
        self._items = {item.id: item for item in self}
        self._marks: dict[str, dict[str, Mark]] = {}
        self.restore(marks)

    def __iter__(self) -> Iterator[Item]:
        return (item for group in self.groups for item in group.items)

    def __getitem__(self, item_id: str) -> Item:
        return self._items[item_id]

    @classmethod
    def from_diagnosis(cls, diagnosis: Diagnosis, figures: Mapping[str, Any] | None = None) -> Checklist:
        """The list for this diagnosis. ``figures`` decide the checks' conditions; the diagnosis' own by default."""
        figures = diagnosis.figures if figures is None else figures
        again = diagnosis.repeats
        groups = [
            Group(finding.cause, heading(finding), finding.verdict, tuple(_items_of(finding, figures, again)))
            for finding in diagnosis.findings
        ]
        if diagnosis.missing:
            groups.append(Group("", "Settle the question", "", tuple(_ask(missing) for missing in diagnosis.missing)))
        if diagnosis.findings:
            standing = [Item(f"universal/{key}", "universal", action, expect=expect, cost=cost,
                             **_repeated(f"universal/{key}", key, again))
                        for key, action, expect, cost in UNIVERSAL]  # fmt: skip
            groups.append(Group("", "Before the cause is called established", "", tuple(standing)))
        return cls(_once(groups), content_key=diagnosis.content_key)

    def current(self, item_id: str) -> Mark:
        """The mark that counts: the latest by a person, else the evidence's, else ``todo``."""
        marks = self.marks(item_id)
        return marks[-1] if marks else Mark(item_id, "todo", "")

    def marks(self, item_id: str) -> tuple[Mark, ...]:
        """All marks on an item, the evidence's first, then people's in order of time."""
        item = self._items.get(item_id)
        own = (item.evidence,) if item and item.evidence else ()
        return own + tuple(sorted(self._marks.get(item_id, {}).values(), key=lambda mark: mark.when))

    def mark(self, item_id: str, state: str, by: str, note: str = "", when: str | None = None) -> Mark:
        """Set a person's mark; it replaces that person's earlier one on the item, never another's.

        Raises:
            StateError: no such item or state, or the person gave no name.
        """
        if item_id not in self._items:
            raise StateError(f"the checklist has no item {item_id!r}; reload the evidence to see its items")
        if state not in STATES:
            raise StateError(f"{state!r} is not a state of a check; use one of {', '.join(STATES)}")
        if not by.strip() or by.strip() == EVIDENCE:
            raise StateError("a mark needs the name of who sets it; type yours first")
        stamp = when or datetime.now(UTC).isoformat(timespec="milliseconds")
        mark = Mark(item_id, state, by.strip(), note.strip(), stamp)
        self._marks.setdefault(item_id, {})[mark.by] = mark
        if self.on_change:
            self.on_change(item_id, mark.by, mark)
        return mark

    def clear(self, item_id: str, by: str) -> None:
        """Take back a person's mark on an item, so that the evidence's or another's counts again."""
        if self._marks.get(item_id, {}).pop(by.strip(), None) and self.on_change:
            self.on_change(item_id, by.strip(), None)

    def restore(self, marks: Iterable[Mark | Mapping[str, str]]) -> None:
        """Put saved marks back, without calling ``on_change``. Marks of items that are gone stay in `orphans`."""
        for saved in marks:
            mark = saved if isinstance(saved, Mark) else Mark(**saved)
            self._marks.setdefault(mark.item, {})[mark.by] = mark

    @property
    def orphans(self) -> tuple[Mark, ...]:
        """People's marks on items that this list doesn't have, such as those of an older version's checks."""
        return tuple(mark for item, by in self._marks.items() if item not in self._items for mark in by.values())

    def progress(self) -> dict[str, int]:
        """How many items stand in each state."""
        counts = dict.fromkeys(STATES, 0)
        for item in self:
            counts[self.current(item.id).state] += 1
        return counts

    def to_json(self) -> dict[str, Any]:
        """The whole list with its marks; `from_json` gives an equal list back."""
        return {"schema": SCHEMA, "content_key": self.content_key, "progress": self.progress(),
                "groups": [{"cause": group.cause, "title": group.title, "verdict": group.verdict,
                            "items": [self._item_json(item) for item in group.items]} for group in self.groups],
                "orphans": [mark.to_json() for mark in self.orphans]}  # fmt: skip

    def _item_json(self, item: Item) -> dict[str, Any]:
        return {"id": item.id, "kind": item.kind, "action": item.action, "causes": list(item.causes),
                "expect": item.expect, "how": item.how, "cost": item.cost, "because": item.because,
                "disturbs": item.disturbs, "state": self.current(item.id).state,
                "sources": [source.to_json() | {"text": source.text} for source in item.sources],
                "marks": [mark.to_json() for mark in self.marks(item.id)]}  # fmt: skip

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Checklist:
        """The list that `to_json` wrote.

        Raises:
            StateError: the document is not a checklist of this version.
        """
        if document.get("schema") != SCHEMA:
            raise StateError(f"not a saved checklist: schema {document.get('schema')!r}, expected {SCHEMA!r}")
        try:
            marks = [Mark(**mark) for mark in document["orphans"]]
            groups = []
            for group in document["groups"]:
                items = []
                for saved in group["items"]:
                    said = [Mark(**mark) for mark in saved["marks"]]
                    marks += [mark for mark in said if mark.by != EVIDENCE]
                    items.append(_item_from_json(saved, next((mark for mark in said if mark.by == EVIDENCE), None)))
                groups.append(Group(group["cause"], group["title"], group["verdict"], tuple(items)))
        except (KeyError, TypeError) as error:
            raise StateError(f"the saved checklist is damaged near {error}; walk the list again") from None
        return cls(groups, content_key=document["content_key"], marks=marks)


def _item_from_json(saved: Mapping[str, Any], evidence: Mark | None) -> Item:
    words = {key: saved[key] for key in ("id", "kind", "action", "expect", "how", "cost", "because", "disturbs")}
    return Item(**words, causes=tuple(saved["causes"]), evidence=evidence,
                sources=tuple(Source(s["path"], s["line"], s["text"]) for s in saved["sources"]))  # fmt: skip


_SETTLED_BY = {"reproduce": "reproduced", "one-variable": "reproduced_one_variable"}
"""What every failure is held to -> the name under which reproductions settle it."""
_SCRIPT = "diag-kit reproduce RUN writes a script for one GPU; lay its output beside the logs and diagnose again"


def _repeated(item_id: str, key: str, repeats: Repeats | None) -> dict[str, Any]:
    """What reproductions say of a universal item: its mark with the line, or in words what is not enough for one."""
    if key not in _SETTLED_BY:
        return {}
    if repeats is None:
        return {"how": _SCRIPT}
    if tick := repeats.tick(_SETTLED_BY[key]):
        return {"sources": (tick.source,), "evidence": Mark(item_id, tick.state, EVIDENCE, tick.text)}
    said = [f"{one.where}{f', {one.change}' if one.change else ''}: {one.says}" for one in repeats.runs]
    return {"how": f"{_SCRIPT}. So far: {'; '.join(dict.fromkeys(said))}"}


def _items_of(finding: Finding, figures: Mapping[str, Any], repeats: Repeats | None) -> Iterator[Item]:
    """A finding's items: lines of the evidence, then, unless the evidence rules it out, what is left to do."""
    for kind, sign, statements in (("for", "", finding.for_), ("against", "Against it: ", finding.against)):
        for said in statements:
            item_id = f"{finding.cause}/{kind}/{_digest(said.text, said.source.line, said.source.text)}"
            yield Item(item_id, kind, sign + said.text, (finding.cause,), sources=(said.source,),
                       evidence=Mark(item_id, "confirmed", EVIDENCE))  # fmt: skip
    if finding.verdict == "ruled-out":
        return
    for entry in load_entries():
        if entry.id != finding.entry:
            continue
        for check in entry.checks:
            if check.causes and finding.cause not in check.causes:
                continue
            item_id = f"{entry.id}/check/{check.id}"
            mark = _verdict(item_id, check, figures)
            tick = _tick_of(check, repeats) if mark and repeats else None
            mark = replace(mark, note=tick.text) if mark and tick else mark
            yield Item(item_id, "check", check.action, (finding.cause,), expect=check.expect, cost=check.cost,
                       because=check.because, disturbs=check.disturbs, evidence=mark,
                       sources=(tick.source,) if tick else ())  # fmt: skip
    yield from (_ask(missing, finding.cause) for missing in finding.missing)


def _verdict(item_id: str, check: Any, figures: Mapping[str, Any]) -> Mark | None:
    """What the figures say of a check; nothing where they say both, or neither."""
    confirmed = bool(check.confirmed_by) and holds(check.confirmed_by, figures)
    refuted = bool(check.refuted_by) and holds(check.refuted_by, figures)
    if confirmed == refuted:
        return None
    return Mark(item_id, "confirmed" if confirmed else "refuted", EVIDENCE, "from the figures that the evidence states")


def _tick_of(check: Any, repeats: Repeats) -> Tick | None:
    """The reproduction's word that a check's condition reads, if it reads one."""
    read = figures_in(check.confirmed_by) | figures_in(check.refuted_by)
    return next((tick for name, tick in repeats.ticks if name in read), None)


def _ask(missing: Missing, *causes: str) -> Item:
    item_id = f"missing/{missing.kind}/{_digest(missing.what)}"
    return Item(item_id, "missing", missing.what, causes, how=missing.how)


def _once(groups: Iterable[Group]) -> list[Group]:
    """Each item where it first stands, with every cause that asks for it; groups left empty are dropped."""
    groups = list(groups)
    causes: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for item in group.items:
            known = causes.get(item.id, ())
            causes[item.id] = known + tuple(cause for cause in item.causes if cause not in known)
    seen: set[str] = set()
    kept = []
    for group in groups:
        items = []
        for item in group.items:
            if item.id not in seen:
                seen.add(item.id)
                items.append(replace(item, causes=causes[item.id]))
        if items:
            kept.append(replace(group, items=tuple(items)))
    return kept


def _digest(*parts: Any) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "replace")).hexdigest()[:10]
