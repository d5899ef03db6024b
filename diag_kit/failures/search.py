"""Search in the encyclopedia: an index over what people read of each entry, built once and small.

A word of the query finds every word that begins with it, and, where none does, those that begin with its own beginning
("growing" finds "growth"). Words joined by a hyphen must stand side by side. An entry must have all words; where none
has, those that have most of them are given. What is found in a title weighs more than what stands in a paragraph, and a
word that is in every entry ("memory") next to nothing.

>>> [hit.entry.id for hit in search("fragmentation").hits][0]
'fragmentation'
>>> search("fragmnetation").suggestion
'fragmentation'
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache

from . import Entry, load_entries

_TOKEN = re.compile(r"[a-z0-9]+")
_WORD = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_SENTENCE = re.compile(r"(?<=[.:;?!]) +")
_COMMON = frozenset([
    "a", "an", "and", "are", "as", "at", "be", "by", "do", "does", "during", "each", "every", "for", "from", "has",
    "have", "how", "i", "if", "in", "is", "it", "its", "my", "of", "on", "or", "out", "such", "that", "the", "then",
    "there", "this", "to", "until", "was", "what", "when", "where", "which", "while", "why", "with",
])  # fmt: skip
_LONGEST = 200
"""Characters of a query that are read."""
_SHORTEST, _CUT = 4, 3
"""A word that nothing begins with is tried shorter, by so many letters at most, down to this length."""
_LEAST_SHARE = 0.4
"""Where no entry has all words: the share of them, by weight, that one must have."""
EXACT, BEGINS, ALIKE = 1.0, 0.7, 0.4


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry that was found; ``line`` is the sentence that has most of the words, ``where`` the part it stands in."""

    entry: Entry
    score: float
    where: str
    line: str


@dataclass(frozen=True, slots=True)
class Found:
    """Entries, best first.

    ``whole``: each has all words. ``unknown``: words that stand nowhere. ``suggestion``: where nothing was found, a
    query that finds something.
    """

    hits: tuple[Hit, ...] = ()
    whole: bool = True
    unknown: tuple[str, ...] = ()
    suggestion: str = ""


@dataclass(slots=True)
class _Passage:
    owner: int
    where: str
    weight: float
    text: str
    spaced: str = field(init=False)

    def __post_init__(self) -> None:
        self.spaced = f" {' '.join(tokens(self.text))} "


def tokens(text: str) -> list[str]:
    """Its words and numbers, in small letters.

    >>> tokens("PYTORCH_CUDA_ALLOC_CONF: 4.00 GiB")
    ['pytorch', 'cuda', 'alloc', 'conf', '4', '00', 'gib']
    """
    return _TOKEN.findall(text.lower())


def passages(entry: Entry) -> Iterator[tuple[str, float, str]]:
    """Part, weight and text of everything that is searched."""
    yield "title", 10, f"{entry.title}. {entry.id}"
    yield "summary", 6, entry.summary
    yield "quick answer", 5, entry.quick_answer
    for cause in entry.causes:
        yield "cause", 8, cause.id
        yield "cause", 4, f"{cause.claim} {cause.condition}"
        yield "cause", 3, cause.mechanism
    for claim in entry.claims:
        yield "claim", 4, f"{claim.claim} {claim.condition}"
    for symptom in entry.symptoms:
        yield "symptom", 5, f"{symptom.see} {symptom.why}"
    for question in entry.questions:
        yield "question", 4, f"{question.q} {question.a}"
    for text in entry.affected:
        yield "affected", 2, text
    for heading, text in entry.reading.items():
        for paragraph in text.split("\n\n"):
            yield heading.lower(), 2, paragraph


class Index:
    """Words of entries -> the passages that they stand in."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self._passages = [
            _Passage(number, where, weight, " ".join(text.split()))
            for number, entry in enumerate(self.entries)
            for where, weight, text in passages(entry)
        ]
        self._postings: dict[str, set[int]] = {}
        for number, passage in enumerate(self._passages):
            for token in passage.spaced.split():
                self._postings.setdefault(token, set()).add(number)
        self._vocabulary = sorted(self._postings)

    def search(self, query: str) -> Found:
        """What the query finds; nothing for a query without words."""
        asked = list(dict.fromkeys(_WORD.findall(query[:_LONGEST].lower())))
        asked = [word for word in asked if word not in _COMMON] or asked
        if len(asked) > 1 and not any(word.startswith("kill") for word in asked):  # whose OOM it is, the kernel's says
            asked = list(dict.fromkeys("memory" if word == "oom" else word for word in asked))
        found = {word: self._find(tokens(word)) for word in asked}
        unknown = tuple(word for word in asked if not found[word])
        worth = {word: math.log((1 + len(self.entries)) / len({self._passages[n].owner for n in places}))
                 for word, places in found.items() if places}  # fmt: skip
        hits = []
        for number, entry in enumerate(self.entries):
            best = {word: max((self._passages[n].weight * how for n, how in found[word].items()
                               if self._passages[n].owner == number), default=0) for word in worth}  # fmt: skip
            has = [word for word, weight in best.items() if weight]
            if has:
                score = sum(best[word] * worth[word] for word in has)
                hits.append((len(has) == len(asked), sum(worth[w] for w in has), score, number, entry))
        whole = any(all_words for all_words, *_ in hits)
        if whole:
            hits = [hit for hit in hits if hit[0]]
        else:  # what stands nowhere weighs as much as the rarest word
            needed = _LEAST_SHARE * (sum(worth.values()) + len(unknown) * math.log(1 + len(self.entries)))
            hits = [hit for hit in hits if hit[1] >= needed]
        hits.sort(key=lambda hit: (-hit[2], hit[4].id))
        given = tuple(Hit(entry, score, *self._line(number, found)) for _, _, score, number, entry in hits)
        return Found(given, whole or not given, unknown, "" if given else self._suggest(asked, unknown))

    def _find(self, words: list[str]) -> dict[int, float]:
        """Passages that have these words side by side, the last perhaps only begun, and how well."""
        if len(words) == 1:
            return self._find_one(words[0])
        phrase = f" {' '.join(words)}"
        near = self._postings.get(words[0], set())
        return {n: EXACT if f"{phrase} " in self._passages[n].spaced else BEGINS
                for n in near if phrase in self._passages[n].spaced}  # fmt: skip

    def _find_one(self, word: str) -> dict[int, float]:
        places = dict.fromkeys(self._postings.get(word, ()), EXACT)
        for cut in range(_CUT + 1):
            beginning = word[: len(word) - cut]
            if cut and len(beginning) < _SHORTEST:
                break
            for token in self._beginning_with(beginning):
                for n in self._postings[token]:
                    places.setdefault(n, ALIKE if cut else BEGINS)
            if places:
                break
        return places

    def _beginning_with(self, beginning: str) -> Iterator[str]:
        at = bisect_left(self._vocabulary, beginning)
        while at < len(self._vocabulary) and self._vocabulary[at].startswith(beginning):
            yield self._vocabulary[at]
            at += 1

    def _line(self, owner: int, found: dict[str, dict[int, float]]) -> tuple[str, str]:
        """The part and the sentence that hold most of what was asked; of equals the weightiest, but not the title."""
        marks = {n: sum(places.get(n, 0) for places in found.values())
                 for n in set().union(*found.values()) if self._passages[n].owner == owner}  # fmt: skip
        best = max(marks, key=lambda n: (self._passages[n].weight < 8, marks[n], self._passages[n].weight, -n))
        passage = self._passages[best]
        if passage.weight >= 8:  # a name alone says nothing new
            return "summary", _SENTENCE.split(self.entries[owner].summary)[0]
        begun = [word[:_SHORTEST] for asked in found for word in tokens(asked)]
        sentences = _SENTENCE.split(passage.text)
        counts = [sum(any(t.startswith(b) for t in tokens(one)) for b in begun) for one in sentences]
        return passage.where, sentences[counts.index(max(counts))]

    def _suggest(self, asked: list[str], unknown: tuple[str, ...]) -> str:
        """The query with its unknown words as the entries spell them, where that finds something."""
        spelt: list[str] = []
        for word in asked:
            if word not in unknown and "-" in word:
                spelt.append(word)
                continue
            close = get_close_matches(word, [entry.id for entry in self.entries], 1, 0.8)
            parts = [self._near(part) for part in tokens(word)]
            if not close and not all(part and len(part) >= _SHORTEST for part in parts):
                return ""
            spelt += close or [part for part in parts if part]
        again = " ".join(spelt)
        return again if again and again != " ".join(asked) and self.search(again).hits else ""

    def _near(self, word: str) -> str | None:
        if any(how > ALIKE for how in self._find_one(word).values()):
            return word
        return next(iter(get_close_matches(word, self._vocabulary, 1, 0.75)), None)


@cache
def _index() -> Index:
    return Index(load_entries())


def search(query: str) -> Found:
    """What the query finds in this package's entries, which are read and indexed once."""
    return _index().search(query)


def named(query: str) -> Entry | None:
    """The entry of that id, of that title, or that owns the cause of that id; None where it is a search."""
    wanted = " ".join(query.lower().split())
    for one in load_entries():
        if wanted in (one.id, one.title.lower()) or wanted in (cause.id for cause in one.causes):
            return one
    return None
