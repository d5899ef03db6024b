"""What the lab says: an experiment, what was measured, the outcome, and what it means at another run's sizes.

Sizes are bytes. ``x`` of a line is a number of micro-steps, steps, tokens or sequences, as ``x_title`` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import DiagKitError

SCHEMA = "diag_kit.lab/1"
VERDICTS = ("true", "false", "conditional")
DEVICES = ("auto", "cpu", "cuda")


class LabError(DiagKitError):
    """An experiment is asked for that isn't there, or a device that isn't."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A claim and the code that measures it.

    Attributes:
        entry, cause: ids of the failure entry and of the cause that the claim is about; ``cause`` may be empty.
        claim: the textbook's sentence. expect: what to look at in the lines.
        code: source of the measured code, as it stands in the experiment's file.
        processes: 2 where ranks are started beside the lab's own process.
    """

    id: str
    title: str
    entry: str
    cause: str
    claim: str
    expect: str
    code: str = ""
    processes: int = 1

    def to_json(self) -> dict[str, Any]:
        """As ``diag-kit lab --list --json`` gives it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes over ``x``; both have the same length."""

    label: str
    x: tuple[float, ...]
    bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure with its name and what to make of it."""

    label: str
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """What an experiment measured; judging takes nothing else. ``figures``: named bytes or counts beside the lines."""

    x_title: str
    lines: tuple[Line, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    def line(self, label: str) -> Line:
        """The line of that label; KeyError where none is."""
        found = {line.label: line for line in self.lines}
        return found[label]


@dataclass(frozen=True, slots=True)
class Judged:
    """What the measured bytes say of the claim: the verdict, one or two sentences with the numbers, the figures."""

    verdict: str
    says: str
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """An experiment's result. Where it could not be run, ``verdict`` is None and ``problem`` says why in one line.

    Attributes:
        device: what it ran on, such as ``cpu``. torch: its version; empty where none was found.
        figures: named bytes or counts that were measured beside the lines.
        seconds: from start to end. cpu_seconds: of the processor, ranks included; the import of torch is in neither
            (but for ranks, which import their own within ``seconds``). importing_seconds: of the processor, what the
            lab's process took to import torch and warm up, once for all its outcomes.
    """

    experiment: str
    verdict: str | None
    says: str
    x_title: str = ""
    lines: tuple[Line, ...] = ()
    rows: tuple[Row, ...] = ()
    device: str = ""
    torch: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    problem: str | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    importing_seconds: float = 0.0

    @property
    def measured(self) -> Measured:
        """What the verdict was judged from."""
        return Measured(self.x_title, self.lines, self.figures)

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON; `from_json` reads it back equal."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Outcome:
        """An outcome from what `to_json` wrote.

        Raises:
            LabError: it is no such document.
        """
        values = {name: value for name, value in document.items() if name != "schema"}
        try:
            if document.get("schema") != SCHEMA or values["verdict"] not in (*VERDICTS, None):
                raise LabError(f"outcome: schema or verdict unknown; expected {SCHEMA} and {', '.join(VERDICTS)}")
            lines = tuple(Line(o["label"], tuple(o["x"]), tuple(o["bytes"])) for o in values.pop("lines"))
            rows = tuple(Row(**row) for row in values.pop("rows"))
            return cls(**values, lines=lines, rows=rows)
        except (KeyError, TypeError, AttributeError) as error:
            raise LabError(f"outcome: not as {SCHEMA} has it ({error})") from None


@dataclass(frozen=True, slots=True)
class Carried:
    """What the measured effect comes to at a run's own sizes; ``method``: the engine that says so."""

    label: str
    bytes: int
    note: str
    method: str = "formula"
