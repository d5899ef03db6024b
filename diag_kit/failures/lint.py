"""The lint of the encyclopedia: what is wrong with entries, one line for each fault, with file and place.

`read_entry` and `Entry.validate` refuse what the engine can't use. This module asks for more, and never stops at the
first fault: links that lead nowhere, code that does not parse, sections left empty, texts too long to be read by
somebody who is tired. An entry whose status is draft may have empty sections.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from ..errors import EntryError
from . import FOLDER, HEADINGS, SECTIONS, Entry, conditions, read_entry
from . import records as r

Fault = tuple[str, str]
"""Place in the entry, and what is wrong there."""

PYTHON = ("pytorch", "trainer", "accelerate", "lightning")
"""Frameworks whose code is Python, and nothing else."""
MOST_CHARACTERS = {"summary": 320, "quick_answer": 640, "title": 60}
MOST_OF_ONE = 560
"""Characters of any other text of the head, code and examples apart."""
MOST_WORDS = 420
"""Words under one heading of the body."""

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_UNIQUE = {"causes": "id", "checks": "id", "fixes": "id", "references": "url", "lookalikes": "entry", "questions": "q"}
"""Section -> what tells its items apart."""


def check(folder: Path = FOLDER, experiments: Collection[str] | None = None) -> tuple[str, ...]:
    """Faults of all entries of a folder, ``file: place: what is wrong``, in the files' order.

    ``experiments``: ids that the lab has; None where they are not to be looked at.
    """
    entries, found = [], []
    for path in sorted(folder.glob("*.md")):
        try:
            entries.append(read_entry(path))
        except (EntryError, UnicodeDecodeError) as error:
            found.append(str(error) if str(error).startswith(path.name) else f"{path.name}: {error}")
    known = {entry.id for entry in entries}
    owners: dict[str, str] = {}
    for entry in entries:
        found += (f"{entry.path}: {place}: {what}" for place, what in _faults(entry, known, experiments, owners))
    return tuple(" ".join(line.split()) for line in found)


def _faults(
    entry: Entry, known: set[str], experiments: Collection[str] | None, owners: dict[str, str]
) -> Iterator[Fault]:
    unread = False
    for name in SECTIONS:
        try:
            getattr(entry, name)
        except EntryError as error:
            unread = True
            yield name, str(error).removeprefix(f"{entry.path}: ").removeprefix(f"{name}: ")
    if unread:  # what follows holds sections against each other
        return
    try:
        entry.validate()
    except EntryError as error:
        yield "causes", str(error).removeprefix(f"{entry.path}: ")
    for cause in entry.causes:
        if (owner := owners.setdefault(cause.id, entry.id)) != entry.id:
            yield f"cause {cause.id}", f"already belongs to {owner}"
    yield from _links(entry, known)
    yield from _experiments(entry, experiments)
    yield from _signs(entry)
    yield from _code(entry)
    yield from _examples(entry)
    yield from _lengths(entry)
    if entry.status != "draft":
        yield from _whole(entry)


def _links(entry: Entry, known: set[str]) -> Iterator[Fault]:
    for place, ids in (("related", entry.related), ("lookalikes", [look.entry for look in entry.lookalikes])):
        for id in ids:
            if id == entry.id:
                yield place, "the entry names itself"
            elif id not in known:
                yield place, f"no entry {id!r}; there are {', '.join(sorted(known))}"
    for id, times in Counter(entry.related).items():
        if times > 1:
            yield "related", f"{id} stands there {times} times"
    for reference in entry.references:
        if not re.fullmatch(r"https://[^\s/]+\.[^\s/]+/\S*", reference.url):
            yield "references", f"{reference.url!r} is not the https address of a page"
    for section, key in _UNIQUE.items():
        for value, times in Counter(getattr(item, key) for item in getattr(entry, section)).items():
            if times > 1:
                yield section, f"{value} stands there {times} times"


def _experiments(entry: Entry, experiments: Collection[str] | None) -> Iterator[Fault]:
    said: tuple[r.Cause | r.Claim, ...] = (*entry.causes, *entry.claims)
    for one in said:
        if experiments is not None and one.experiment is not None and one.experiment not in experiments:
            yield f"claim {one.claim!r}", f"the lab has no experiment {one.experiment!r}"


def _signs(entry: Entry) -> Iterator[Fault]:
    for signature in entry.signatures:
        place = f"signature {signature.cause}"
        if not signature.for_:
            yield place, "no sign for it"
        for sign in (*signature.for_, *signature.against):
            if not sign.when:
                yield place, f"no condition: {sign.because!r}"
            for name in sorted(set(_PLACEHOLDER.findall(sign.because)) - conditions.figures_in(sign.when)):
                yield place, f"{{{name}}} is shown, but its condition does not read it"
        asked = [need for need in entry.needs if not need.causes or signature.cause in need.causes]
        if sum(need.unless is not None for need in asked) < 2:
            yield place, "fewer than two needs that the evidence can answer would settle it"


def _code(entry: Entry) -> Iterator[Fault]:
    for fix in entry.fixes:
        if not fix.code:
            yield f"fix {fix.id}", "no code"
        for framework, code in fix.code.items():
            try:
                if framework in PYTHON:
                    ast.parse(code)
                elif code.lstrip().startswith("{"):
                    json.loads(code)
            except ValueError as error:  # of JSON
                yield f"fix {fix.id}: {framework}", f"is not JSON: {error}"
            except SyntaxError as error:
                yield f"fix {fix.id}: {framework}", f"line {error.lineno} does not parse: {error.msg}"


def _examples(entry: Entry) -> Iterator[Fault]:
    own = {cause.id for cause in entry.causes} or {"undetermined"}  # an entry that only explains settles no cause
    for side, examples in (("match", entry.examples.match), ("no_match", entry.examples.no_match)):
        if not examples:
            yield "examples", f"no text under {side}"
        for example in examples:
            if example.cause not in own:
                yield "examples", f"{example.cause} under {side} is not a cause of this entry"
            if side == "match" and not example.verdict:
                yield "examples", f"the text for {example.cause} under {side} promises no verdict"


def _lengths(entry: Entry) -> Iterator[Fault]:
    for place, text in _texts(entry):
        most = MOST_CHARACTERS.get(place, MOST_OF_ONE)
        if len(text) > most:
            yield place, f"{len(text)} characters, {most} at most: {text[:40]!r}"
    for heading, text in entry.reading.items():
        if (words := len(text.split())) > MOST_WORDS:
            yield heading, f"{words} words, {MOST_WORDS} at most"


def _texts(entry: Entry) -> Iterator[tuple[str, str]]:
    """(section, text) of all that a person reads in the head; code and examples apart."""
    for name in SECTIONS:
        value = getattr(entry, name)
        for item in value if isinstance(value, tuple) and not hasattr(value, "_fields") else (value,):
            if isinstance(item, str):
                yield name, item
            elif name not in ("signatures", "examples"):
                yield from ((name, text) for key in item.__slots__ if isinstance(text := getattr(item, key), str))


def _whole(entry: Entry) -> Iterator[Fault]:
    """What an entry that is not a draft must not leave out."""
    optional = ("claims",) if entry.causes else ("causes", "claims", "signatures", "needs")
    for name in SECTIONS:
        if name not in optional and not getattr(entry, name):
            yield name, f"empty, in an entry that is {entry.status}"
    for place, text in _texts(entry):
        if not text:
            yield place, f"an empty text, in an entry that is {entry.status}"
    for heading in HEADINGS:
        if not entry.reading.get(heading):
            yield heading, f"missing or empty, in an entry that is {entry.status}"
