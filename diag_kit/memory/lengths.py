"""What a column of sequence lengths does to memory under a sampler's batch rule: which batches won't fit, how likely an
epoch meets one, what removes them and what that drops.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from ..errors import SettingsError
from .column import Stream, read_column
from .documents import MOST_COUNT
from .formulas import device_limit
from .plan import FORMULAS, LONGEST, Engine, largest, longest_that
from .settings import Settings

RULES = ("fixed", "grouped", "token-budget", "packed")
BINS = 24


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many samples have each length, in tokens (or whatever the column counts; ``unit`` says)."""

    counts: dict[int, int]
    unit: str = "tokens"

    @property
    def samples(self) -> int:
        return sum(self.counts.values())

    @property
    def tokens(self) -> int:
        return sum(length * n for length, n in self.counts.items())

    def quantile(self, share: float) -> int:
        """The least length that at least this share of the samples does not exceed."""
        wanted, seen = math.ceil(share * self.samples), 0
        for length in sorted(self.counts):
            seen += self.counts[length]
            if seen >= wanted:
                return length
        return max(self.counts)

    def beyond(self, length: int) -> Lengths:
        """Those that are longer."""
        return Lengths({one: n for one, n in self.counts.items() if one > length}, self.unit)


@dataclass(frozen=True, slots=True)
class Bin:
    """Samples of lengths ``low`` to ``high``: how many, their tokens, the peak of a batch whose longest is ``high``."""

    low: int
    high: int
    samples: int
    tokens: int
    peak_bytes: int
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Cut:
    """What removes the batches that don't fit, and what it drops.

    ``tokens_if_cut``: lost where long samples are cut to ``value``; ``tokens_if_left_out``: where they are left out.
    """

    what: str
    value: int
    samples: int
    share: float
    tokens_if_cut: int
    tokens_if_left_out: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the lengths mean for memory, per rank, an epoch being each sample once without replacement.

    Attributes:
        longest_fit: the longest sample whose batch fits; None without a capacity, 0 where none fits.
        too_long: samples beyond it. batches: of an epoch; bad_batches: expected number of them that don't fit.
        chance_per_batch, chance_per_epoch: of meeting one. first_step: expected optimizer step of the first, from 1.
        cuts: what removes them.
    """

    rule: str
    samples: int
    tokens: int
    shortest: int
    median: int
    p99: int
    longest: int
    longest_fit: int | None
    too_long: int
    batches: int
    bad_batches: float
    chance_per_batch: float
    chance_per_epoch: float
    first_step: float | None
    bins: tuple[Bin, ...]
    cuts: tuple[Cut, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document under ``lengths`` of ``diag-kit estimate --json``."""
        return asdict(self)


def parse_rule(text: str) -> tuple[str, int]:
    """``fixed``, ``grouped``, ``packed`` or ``token-budget:N``, with N (0 where there is none)."""
    name, _, budget = text.partition(":")
    if name not in RULES or (name == "token-budget") != bool(budget):
        raise SettingsError(f"--batching: {text!r:.60} is not one of fixed, grouped, packed, token-budget:N")
    if budget and not (re.fullmatch(r"\d{1,10}", budget) and 1 <= int(budget) <= MOST_COUNT):
        raise SettingsError(f"--batching: token-budget takes a whole number from 1, got {budget!r:.40}")
    return name, int(budget or 0)


def read(stream: Stream, where: str, column: str | None = None) -> Lengths:
    """The lengths in a file; see `column.read_column`."""
    return Lengths(*read_column(stream, where, column))


def outlook(s: Settings, lengths: Lengths, rule: str = "fixed", engine: Engine | None = None) -> Outlook:
    """Which batches of an epoch will not fit, how likely one is, and what would remove them.

    ``rule``: ``fixed``, micro_batch samples at random, padded to their longest; ``grouped``, the same of like length;
    ``token-budget:N``, samples of like length, as many as N tokens hold with padding, at least one; ``packed``, all
    samples cut into blocks of seq_len.
    """
    engine = engine or FORMULAS
    name, budget = parse_rule(rule)
    notes = [] if lengths.unit == "tokens" else [f"the column counts {lengths.unit}, not tokens"]
    if name == "packed":
        return _packed(s, lengths, rule, engine, notes)
    limit, total, data = device_limit(s), lengths.samples, s.parallelism.data
    present = sorted(lengths.counts)

    def batch(length: int) -> int:
        return max(1, budget // max(length, 1)) if budget else s.micro_batch

    def peak(length: int) -> int:
        return engine.peak_bytes(s.with_(seq_len=max(length, 1), micro_batch=batch(length)))

    fit = None if math.isinf(limit) else _longest_fit(present, peak, limit, batch, budget)
    bad = lengths.beyond(fit) if fit is not None else Lengths({})
    if name == "token-budget":
        of = {length: -(-n // batch(length)) for length, n in lengths.counts.items()}
        batches, expected = sum(of.values()), float(sum(of[length] for length in bad.counts))
        chance, step = expected / batches, _first(batches, round(expected), data * s.grad_accum)
        notes.append("batches of like length, in random order")
    else:
        whole, rest = divmod(total, s.micro_batch)
        batches, chance = whole + bool(rest), _meets(total, bad.samples, s.micro_batch)
        expected = whole * chance + _meets(total, bad.samples, rest)
        step = _first(total, bad.samples, s.micro_batch * data * s.grad_accum)
    if name == "grouped":
        expected = float(-(-bad.samples // s.micro_batch))
        chance, step = expected / batches, 1.0
        notes.append("batches of like length, the longest first, as transformers' sampler takes them")
    return Outlook(
        rule, total, lengths.tokens, present[0], lengths.quantile(0.5), lengths.quantile(0.99), present[-1], fit,
        bad.samples, batches, expected, chance, float(bool(bad.samples)), step if bad.samples else None,
        tuple(_bins(lengths, peak, None if fit is None else limit)),
        _cuts(s, lengths, fit, engine) if fit is not None and bad.samples else (), tuple(notes),
    )  # fmt: skip


def _longest_fit(
    present: list[int], peak: Callable[[int], int], limit: float, batch: Callable[[int], int], budget: int
) -> int:
    """The longest length up to which every batch fits: within one batch size the peak grows with the length."""
    held = 0
    for size, group in groupby(present, key=batch):
        last = max(group)
        if peak(last) > limit:
            low = max(held, budget // (size + 1)) if budget else held

            def holds(n: int, low: int = low) -> bool:
                return peak(low + n) <= limit

            more = longest_that(holds, last - low)
            return low + more if more else held
        held = last
    return held


def _meets(total: int, bad: int, size: int) -> float:
    """Chance that ``size`` of ``total`` samples, drawn without replacement, hold one of ``bad``: hypergeometric."""
    size = min(size, total)
    if bad == 0:
        return 0.0
    if bad + size > total:
        return 1.0
    choose = math.lgamma(total - bad + 1) - math.lgamma(total - bad - size + 1)
    return -math.expm1(choose - math.lgamma(total + 1) + math.lgamma(total - size + 1))


def _first(total: int, bad: int, size: int) -> float:
    """Expected step, from 1, of the first of ``bad`` among ``total`` in random order, ``size`` in a step."""
    if not bad:
        return math.inf
    steps = -(-total // size)
    if steps <= 100_000:
        return math.fsum(1 - _meets(total, bad, k * size) for k in range(steps))
    return (total + 1) / (bad + 1) / size + (size - 1) / (2 * size)


def _bins(lengths: Lengths, peak: Callable[[int], int], limit: float | None) -> Iterator[Bin]:
    """Up to 24 bins of equal width in length, empty ones left out."""
    longest = max(lengths.counts)
    width = max(1, -(-longest // BINS))
    grouped: dict[int, list[int]] = {}
    for length in sorted(lengths.counts):
        grouped.setdefault(max(length - 1, 0) // width, []).append(length)
    for place, held in grouped.items():
        high = min((place + 1) * width, longest)
        bytes_ = peak(high)
        samples = sum(lengths.counts[length] for length in held)
        tokens = sum(length * lengths.counts[length] for length in held)
        yield Bin(place * width + 1, high, samples, tokens, bytes_, None if limit is None else bytes_ <= limit)


def _cut(what: str, value: int, lengths: Lengths, cap: int) -> Cut:
    gone = lengths.beyond(cap)
    return Cut(what, value, gone.samples, gone.samples / lengths.samples, gone.tokens - cap * gone.samples, gone.tokens)


def _cuts(s: Settings, lengths: Lengths, fit: int, engine: Engine) -> tuple[Cut, ...]:
    """A cap on length under the rule as it is; a token budget, which drops only what does not fit alone."""
    cuts = [_cut("length cap", fit, lengths, fit)] if fit else []
    alone = largest(s.with_(micro_batch=1), "seq_len", engine) or 0
    present = sorted(length for length in lengths.counts if 0 < length <= alone)
    if present and alone > fit:
        budget, step = LONGEST, -(-len(present) // 128)
        for start in range(0, len(present), step):
            part = present[start : start + step]
            most = largest(s.with_(seq_len=part[-1]), "micro_batch", engine) or 0
            budget = min(budget, (most + 1) * part[0] - 1)
        cuts.append(_cut("token budget", budget, lengths, alone))
    return tuple(cuts)


def _packed(s: Settings, lengths: Lengths, rule: str, engine: Engine, notes: list[str]) -> Outlook:
    """All batches have one shape, whatever the lengths: all fit or none does."""
    peak, limit = engine.peak_bytes(s), device_limit(s)
    blocks = -(-lengths.tokens // s.seq_len)
    batches = -(-blocks // (s.micro_batch * s.parallelism.data))
    fits = None if math.isinf(limit) else peak <= limit
    longer = lengths.beyond(s.seq_len).samples
    notes = [*notes, f"{longer:,} samples are longer than a block of {s.seq_len:,} and are split or cut"]
    most = largest(s, "seq_len", engine) if fits is False else None
    bad = batches if fits is False else 0
    return Outlook(
        rule, lengths.samples, lengths.tokens, min(lengths.counts), lengths.quantile(0.5), lengths.quantile(0.99),
        max(lengths.counts), None if fits is None else s.seq_len if fits else most or 0, lengths.samples if bad else 0,
        batches, float(bad), float(bool(bad)), float(bool(bad)), 1.0 if bad else None,
        (Bin(s.seq_len, s.seq_len, blocks, lengths.tokens, peak, fits),),
        (Cut("block length", most, 0, 0.0, 0, 0),) if most else (), tuple(notes),
    )  # fmt: skip
