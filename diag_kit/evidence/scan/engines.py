"""Which literals stand in a block of bytes: one question, several engines, one answer.

hyperscan (BSD, through MIT-licensed bindings) asks for all literals at once at more than a gigabyte a second;
ahocorasick_rs (Apache-2.0) at some hundred megabytes; the standard library looks for one literal after the other. What
is done with a literal that is present is the same code for all of them (``hits``), so that they can't differ in what
they find. An engine is chosen by what is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

Present = Callable[[memoryview], set[int]]
"""Positions, in the list of literals, of those that stand in a block; a literal that is absent is never named."""
Prepare = Callable[[tuple[bytes, ...]], Present]


class Engine(Protocol):
    """``name``; ``speed`` is the rough rate in bytes a second, by which work is cut and shared; ``prepare`` raises
    ImportError where the library is absent.
    """

    name: str
    speed: int

    def prepare(self, literals: Sequence[bytes]) -> Present: ...


class Hyperscan:
    """All literals in one automaton; each is reported once for a block."""

    name, speed = "hyperscan", 400_000_000

    def prepare(self, literals: Sequence[bytes]) -> Present:
        import hyperscan

        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        once = [hyperscan.HS_FLAG_SINGLEMATCH] * len(literals)
        patterns = [b"".join(rb"\x%02x" % byte for byte in literal) for literal in literals]
        database.compile(expressions=patterns, ids=list(range(len(literals))), elements=len(literals), flags=once)

        def present(block: memoryview) -> set[int]:
            found: set[int] = set()
            database.scan(block, match_event_handler=lambda which, *_: found.add(which))  # type: ignore[type-var]
            return found

        return present


class AhoCorasick:
    """All literals in one automaton, every occurrence reported."""

    name, speed = "ahocorasick_rs", 150_000_000

    def prepare(self, literals: Sequence[bytes]) -> Present:
        import ahocorasick_rs

        automaton = ahocorasick_rs.BytesAhoCorasick(literals, implementation=ahocorasick_rs.Implementation.DFA)
        return lambda block: {which for which, *_ in automaton.find_matches_as_indexes(block, overlapping=True)}


class Standard:
    """``bytes.find`` for one literal after the other: nothing to install."""

    name, speed = "standard library", 15_000_000

    def prepare(self, literals: Sequence[bytes]) -> Present:
        def present(block: memoryview) -> set[int]:
            data = bytes(block)
            return {which for which, literal in enumerate(literals) if literal in data}

        return present


ENGINES: tuple[Engine, ...] = (Hyperscan(), AhoCorasick(), Standard())
"""Fastest first. The last one is always there."""


def preparer(name: str | None = None) -> Prepare:
    """What readies the first engine that works, or the one of that name, for literals."""
    return lambda literals: prepared(literals, name)[1]


@lru_cache(maxsize=32)
def prepared(literals: tuple[bytes, ...], name: str | None = None) -> tuple[Engine, Present]:
    """The first engine that is installed and works, or the one of that name, ready for these literals."""
    reason: Exception | None = None
    for engine in ENGINES:
        if name in (None, engine.name):
            try:
                present = engine.prepare(literals)
                if not literals or 0 in present(memoryview(b" " + literals[0])):
                    return engine, present
            except Exception as error:  # noqa: BLE001 (each library fails in its own way where it doesn't fit)
                reason = error  # absent, too old, or built for another processor
    raise LookupError(f"no engine {name!r}: {reason or 'unknown'}")


