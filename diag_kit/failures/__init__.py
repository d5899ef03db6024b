"""The encyclopedia of failures: one Markdown file for each entry, knowledge as data.

An entry is a YAML head between ``---`` lines, which the diagnosis reads, and a Markdown body under fixed headings,
which people read. A section of the head is parsed when it is first asked for, so that a diagnosis loads only the
signatures. To add an entry, add a file; ``records`` says what each section holds, ``conditions`` what a sign may ask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ..errors import EntryError
from . import records as r

SECTIONS = (
    "id", "title", "status", "summary", "quick_answer", "causes", "claims", "symptoms", "affected", "signatures",
    "needs", "lookalikes", "checks", "fixes", "prevention", "fingerprint", "scale", "perspectives", "questions",
    "references", "related", "examples",
)  # fmt: skip
"""Keys of the head, all of them, in this order."""

HEADINGS = ("Mechanism", "In production", "Worked example")
"""Headings of the body, in this order; the first must be there."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TOP_KEY = re.compile(r"\n([a-z_]+):")  # a literal first: five times as fast as ^ with MULTILINE
_HEADING = re.compile(r"^## +(.+?) *$", re.MULTILINE)
FOLDER = Path(__file__).parent
"""Where the entries of this package are."""

T = TypeVar("T")


class _Section(cached_property[T]):
    """A section of the head, parsed and turned into records when first asked for."""

    def __init__(self, convert: Callable[[Any], T]) -> None:
        super().__init__(lambda entry: entry.read(str(self.attrname), convert))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise EntryError(f"expected text, found {value!r}")
    return value.strip()


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, value or ()))


def _many(kind: type[T]) -> Callable[[Any], tuple[T, ...]]:
    return lambda value: tuple(r.read(kind, item) for item in value or ())


def _one(kind: type[T]) -> Callable[[Any], T]:
    return lambda value: r.read(kind, value)


@dataclass(frozen=True, eq=False)
class Entry:
    """One failure. ``head`` holds each section's YAML text, ``body`` the Markdown below it."""

    id: str
    path: str
    head: Mapping[str, str]
    body: str

    title = _Section(_text)
    status = _Section(r.word(*r.STATUSES))
    summary = _Section(_text)
    quick_answer = _Section(_text)
    causes = _Section(_many(r.Cause))
    claims = _Section(_many(r.Claim))
    symptoms = _Section(_many(r.Symptom))
    affected = _Section(_texts)
    signatures = _Section(_many(r.Signature))
    needs = _Section(_many(r.Need))
    lookalikes = _Section(_many(r.Lookalike))
    checks = _Section(_many(r.Check))
    fixes = _Section(_many(r.FailureFix))
    prevention = _Section(_texts)
    fingerprint = _Section(_texts)
    scale = _Section(_many(r.Scale))
    perspectives = _Section(_one(r.Perspectives))
    questions = _Section(_many(r.Question))
    references = _Section(_many(r.Reference))
    related = _Section(_texts)
    examples = _Section(_one(r.Examples))

    def read(self, name: str, convert: Callable[[Any], T]) -> T:
        """A section through its converter.

        Raises:
            EntryError: the section breaks a rule; the text names file and section.
        """
        try:
            return convert(yaml.load(self.head[name], _LOADER)[name])  # noqa: S506  the safe loader, in C where built
        except yaml.YAMLError as error:
            raise EntryError(f"{self.path}: {name} is not YAML: {' '.join(str(error).split())}") from None
        except (EntryError, TypeError) as error:
            raise EntryError(f"{self.path}: {name}: {error}") from None

    @cached_property
    def mechanism(self) -> str:
        """The body's text under its first heading."""
        return self.reading["Mechanism"]

    @cached_property
    def reading(self) -> Mapping[str, str]:
        """Heading -> Markdown of the body."""
        parts = _HEADING.split(self.body)
        return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))

    def to_summary(self) -> dict[str, Any]:
        """The entry's line in the list of all."""
        return {"id": self.id, "title": self.title, "status": self.status, "summary": self.summary,
                "causes": [cause.id for cause in self.causes]}  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The document of one entry, ``diag_kit.entry/1``."""
        many = ("claims", "symptoms", "lookalikes", "checks", "fixes", "scale", "questions", "references")
        document: dict[str, Any] = {
            "schema": "diag_kit.entry/1", "id": self.id, "title": self.title, "status": self.status,
            "summary": self.summary, "quick_answer": self.quick_answer, "mechanism": self.mechanism,
            "causes": [{"cause": cause["id"], **cause} for cause in map(asdict, self.causes)],
            "affected": list(self.affected), "prevention": list(self.prevention),
            "fingerprint": list(self.fingerprint), "perspectives": asdict(self.perspectives),
            "related": list(self.related), "reading": dict(self.reading),
        }  # fmt: skip
        return document | {name: [asdict(one) for one in getattr(self, name)] for name in many}

    def validate(self) -> None:
        """Read every section and hold the parts against each other.

        Raises:
            EntryError: the first rule that the entry breaks.
        """
        for name in SECTIONS:
            getattr(self, name)
        own = sorted(cause.id for cause in self.causes)
        signed = sorted(signature.cause for signature in self.signatures)
        if signed != own:
            raise EntryError(f"{self.path}: causes are {', '.join(own)}; signatures are of {', '.join(signed)}")
        items: tuple[r.Need | r.Check | r.FailureFix, ...] = (*self.needs, *self.checks, *self.fixes)
        for item in items:
            if strange := sorted(set(item.causes) - set(own)):
                name = item.kind if isinstance(item, r.Need) else item.id
                raise EntryError(f"{self.path}: {name} names a cause that is not this entry's: {', '.join(strange)}")
        headings = _HEADING.findall(self.body)
        if headings[:1] != [HEADINGS[0]] or headings != [h for h in HEADINGS if h in headings]:
            raise EntryError(f"{self.path}: headings {headings} are not {', '.join(HEADINGS)} in this order")


def read_entry(path: Path) -> Entry:
    """An entry from its file; sections are split here and parsed when asked for.

    Raises:
        EntryError: no head, keys missing, unknown or out of order, or an id that is not the file's name.
    """
    start, fence, rest = path.read_text(encoding="utf-8").partition("---\n")
    head, closing, body = rest.partition("\n---\n")
    if start or not fence or not closing:
        raise EntryError(f"{path.name}: an entry starts with a YAML head between two '---' lines")
    pieces = _TOP_KEY.split("\n" + head)
    keys = pieces[1::2]
    if keys != list(SECTIONS):
        wrong = [k for k in keys if k not in SECTIONS] or [k for k in SECTIONS if k not in keys] or ["the order"]
        raise EntryError(f"{path.name}: look at {', '.join(wrong)}; the head has, in order: {', '.join(SECTIONS)}")
    id = pieces[2].strip()  # plain text by rule, so that listing entries parses no YAML
    if id != path.stem:
        raise EntryError(f"{path.name}: id is {id!r}; name the file after it")
    sections = {key: f"{key}:{text}\n" for key, text in zip(keys, pieces[2::2], strict=True)}
    return Entry(id, path.name, sections, body)


def load_folder(folder: Path) -> tuple[Entry, ...]:
    """All entries of a folder, by id.

    Raises:
        EntryError: an entry can't be read, or two entries claim the same cause.
    """
    entries = tuple(read_entry(path) for path in sorted(folder.glob("*.md")))
    owner: dict[str, str] = {}
    for one in entries:
        for signature in one.signatures:
            if owner.setdefault(signature.cause, one.id) != one.id:
                raise EntryError(f"{one.path}: cause {signature.cause} already belongs to {owner[signature.cause]}")
    return entries


@cache
def load_entries() -> tuple[Entry, ...]:
    """The entries of this package, read once."""
    return load_folder(FOLDER)


def entry(id: str) -> Entry:
    """The entry of that name.

    Raises:
        EntryError: there is none; the text lists those there are.
    """
    by_id = {one.id: one for one in load_entries()}
    if id not in by_id:
        raise EntryError(f"no entry {id!r}; there are {', '.join(by_id)}")
    return by_id[id]
