"""What stands beside a failed run, a good run or reproductions: plain records, JSON beside the contract's keys."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from .evidence.facts import Source


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting or version that is not the same in the good run, or that only one of the two states.

    Attributes:
        name: canonical name of the setting, or ``torch version``.
        failed, good: the values; None on the side that states none, as is its source.
        bears: whether a run's memory depends on it.
        raises: whether this change raises memory; None where that is not known.
        predicted_bytes: what the memory model says this change alone does to the peak.
        follows: another difference entails it, such as a batch its effective batch.
    """

    name: str
    failed: Any
    good: Any
    failed_source: Source | None
    good_source: Source | None
    bears: bool = False
    raises: bool | None = None
    predicted_bytes: int | None = None
    follows: bool = False

    @property
    def counts(self) -> bool:
        """Whether it is known to differ, and stands for itself."""
        return self.failed_source is not None and self.good_source is not None and not self.follows


@dataclass(frozen=True, slots=True)
class Beside:
    """One series of memory in both runs, at the same steps. Sizes in bytes; differences are failed less good.

    Attributes:
        steps: how many steps both show; ``difference_bytes`` is the median over them, None without one.
        parted_step: the first at which they are apart by more than ``noise_bytes``, what good steps differ by anyway.
        failed_peak_bytes, good_peak_bytes: the highest reading of each run over all of its steps.
        text: the same in words.
    """

    text: str
    metric: str | None = None
    failed_rank: int | None = None
    good_rank: int | None = None
    steps: int = 0
    difference_bytes: int | None = None
    noise_bytes: int | None = None
    parted_step: int | None = None
    parted_micro_step: int | None = None
    parted_bytes: int | None = None
    failed_peak_bytes: int | None = None
    good_peak_bytes: int | None = None
    failed_source: Source | None = None
    good_source: Source | None = None


@dataclass(frozen=True, slots=True)
class OnlyHere:
    """A line that the good run does not have, once numbers and paths are taken out.

    ``count``: lines like it; ``after``: it stands after the failure, and may follow from it.
    """

    text: str
    count: int
    after: bool
    source: Source


@dataclass(frozen=True, slots=True)
class Comparison:
    """A good run beside the failed one.

    Attributes:
        good: the paths of the good run. ``doubt`` says why it proves nothing, empty where it does.
        alike: settings and versions that both state alike.
        differences: memory's first, in the order to try them in; then those that one run alone states.
        predicted_bytes: what all changed settings together do to the predicted peak; ``assumed`` were not stated.
        lines: lines that only the failed run has, nearest to the failure first; ``read``: what they were looked for in.
        verdict: what all this says, in words.
        order: names of the differences in the order to undo them in, one at a time.
    """

    good: tuple[str, ...]
    doubt: str
    alike: int
    differences: tuple[Difference, ...]
    predicted_bytes: int | None
    assumed: tuple[str, ...]
    memory: Beside
    lines: tuple[OnlyHere, ...]
    read: str
    verdict: str
    order: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = _plain(self)
        return document


@dataclass(frozen=True, slots=True)
class Tick:
    """What reproductions say of a check: ``state`` as on the checklist, the words, and the line that shows it."""

    state: str
    text: str
    source: Source


@dataclass(frozen=True, slots=True)
class Again:
    """One execution of a reproduction.

    Attributes:
        verdict: the script's own word, empty where it was ended from outside; ``says`` what it means for the run.
        where: device and ``host``. small: scaled down. change: the one variable that was changed, as ``name=value``.
        peak_bytes, predicted_bytes: the highest allocated, and what closed forms predict for what it ran with.
        growth_bytes: per micro-step, 0 where it does not grow, None where it can't tell; ``predicted_growth_bytes``.
    """

    verdict: str
    says: str
    where: str
    host: str
    small: bool
    change: str
    phase: str
    asked_bytes: int | None
    peak_bytes: int | None
    predicted_bytes: int | None
    growth_bytes: int | None
    predicted_growth_bytes: int | None
    source: Source


@dataclass(frozen=True, slots=True)
class Repeats:
    """All reproductions, and what they settle: ``ticks`` by figure, as conditions of entries name it."""

    runs: tuple[Again, ...]
    ticks: tuple[tuple[str, Tick], ...]

    def tick(self, figure: str) -> Tick | None:
        """What is settled under this name, if anything."""
        return dict(self.ticks).get(figure)

    def to_json(self) -> dict[str, Any]:
        return {"runs": _plain(self.runs), "settled": {name: _plain(tick) for name, tick in self.ticks}}


def _plain(value: Any) -> Any:
    """A record as JSON has it: names of fields, places as places."""
    if isinstance(value, Source):
        return value.to_json()
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return [_plain(inner) for inner in value] if isinstance(value, tuple) else value
