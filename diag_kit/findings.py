"""What a diagnosis says: findings with their evidence, and what is missing. Plain records, JSON by the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .beside import Comparison, Repeats
from .evidence.facts import FileCoverage, MemoryPoint, Source

SCHEMA = "diag_kit.diagnosis/1"
LISTED = {"originator": 80, "victim": 60, "teardown": 20, "confirmation": 25, "recovered": 10, "advisory": 5}
"""Roles of moments in the order of the timeline, and how many of each the JSON lists: 200 in all."""
VERDICTS = ("confirmed", "likely", "possible", "ruled-out")

CONTRACT_FACTS = (
    "tried_to_allocate_bytes",
    "total_bytes",
    "free_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "reserved_unallocated_bytes",
    "process_in_use_bytes",
    "other_process_in_use_bytes",
    "private_pools_bytes",
    "allowed_bytes",
    "device",
)

_GPU, _HOST, _OTHER = frozenset({"gpu-oom"}), frozenset({"host-oom", "shared-memory"}), frozenset({"not-memory"})
CAUSES: dict[str, frozenset[str]] = (
    dict.fromkeys(
        (
            "grad-accumulation-buffer",
            "attention-quadratic",
            "long-sequence-outlier",
            "variable-shape-peak",
            "activations-too-large",
            "logits-loss-peak",
            "model-states-too-large",
            "optimizer-state-first-step",
            "resume-duplicate-states",
            "eval-peak",
            "kv-cache",
            "fragmentation",
            "other-process",
            "all-ranks-on-gpu0",
            "imbalance-across-ranks",
            "comm-buffer",
            "cuda-context-or-library-workspace",
            "process-memory-cap",
            "single-allocation-limit",
            "oversized-single-request",
            "schedule-phase-change",
        ),
        _GPU,
    )
    | dict.fromkeys(("host-oom", "shared-memory"), _HOST)
    | dict.fromkeys(("hardware", "preempted", "not-memory"), _OTHER)
    | {
        "graph-retention": _GPU | _HOST,
        "tensor-accumulation": _GPU | _HOST,
        "checkpoint-peak": _GPU | _HOST,
        "pinned-host-memory": _GPU | _HOST,
        "misreported": _GPU | _OTHER,
    }
)
"""Causes of the contract, and the families of failure that each can explain: what is kept or gathered can fill the host
too.
"""


def cause_fits(cause: str, family: str) -> bool:
    """Whether a cause can explain a failure of that family; an undetermined one may have any cause."""
    return family == "undetermined" or family in CAUSES.get(cause, frozenset())


@dataclass(frozen=True, slots=True)
class Statement:
    """One line for or against a finding, with the place that says so."""

    text: str
    source: Source

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "source": self.source.to_json()}


@dataclass(frozen=True, slots=True)
class Missing:
    """A fact that would settle the question. ``kind`` from the contract, ``how`` a command or step."""

    kind: str
    what: str
    how: str

    def to_json(self) -> dict[str, str]:
        return {"kind": self.kind, "what": self.what, "how": self.how}


@dataclass(frozen=True, slots=True)
class Fix:
    """A remedy. ``saves_bytes`` is predicted for this run, None where the run's settings don't allow it.

    ``peak_bytes`` is the predicted peak with the fix. ``code`` maps a framework's name to the lines that apply it.
    """

    action: str
    saves_bytes: int | None
    cost: str
    verify: str
    undo: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    basis: str = ""
    peak_bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "action": self.action,
            "saves_bytes": self.saves_bytes,
            "peak_bytes": self.peak_bytes,
            "cost": self.cost,
            "verify": self.verify,
            "undo": self.undo,
            "code": dict(self.code),
            "basis": self.basis,
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause, how firmly the evidence supports it, and line by line why."""

    cause: str
    entry: str
    title: str
    verdict: str
    for_: tuple[Statement, ...] = ()
    against: tuple[Statement, ...] = ()
    missing: tuple[Missing, ...] = ()
    fixes: tuple[Fix, ...] = ()
    claim: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "entry": self.entry,
            "title": self.title,
            "verdict": self.verdict,
            "claim": self.claim,
            "for": [s.to_json() for s in self.for_],
            "against": [s.to_json() for s in self.against],
            "missing": [m.to_json() for m in self.missing],
            "fixes": [f.to_json() for f in self.fixes],
        }


@dataclass(frozen=True, slots=True)
class Failure:
    """What stopped the run, memory or not: where, when, and the sizes as stated."""

    source: Source
    rank: int | None = None
    device: int | str | None = None
    host: str | None = None
    step: int | None = None
    micro_step: int | None = None
    phase: str = "unknown"
    operation: str | None = None
    time: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        facts = {name: self.facts.get(name) for name in CONTRACT_FACTS if name != "device"}
        facts["other_process_in_use_bytes"] = list(self.facts.get("other_process_in_use_bytes") or [])
        facts["device"] = self.device
        facts |= {k: v for k, v in self.facts.items() if k not in facts}
        return {
            "rank": self.rank,
            "device": self.device,
            "host": self.host,
            "step": self.step,
            "micro_step": self.micro_step,
            "phase": self.phase,
            "operation": self.operation,
            "time": self.time,
            "message": self.message,
            "facts": facts,
            "source": self.source.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Collateral:
    """A rank that only reports the failure of another."""

    rank: int | None
    what: str
    source: Source

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "what": self.what, "source": self.source.to_json()}


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the failure's timeline: what a rank did or reported.

    Attributes:
        role: originator, victim, teardown, confirmation, recovered or advisory.
        time: seconds since the epoch as stamped, None where the stamp has no year; ``began`` is earlier where the line
            says how long it had waited.
        count: equal lines of this rank that this one stands for.
    """

    role: str
    what: str
    source: Source
    rank: int | None = None
    host: str | None = None
    time: float | None = None
    began: float | None = None
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        names = ("role", "what", "rank", "host", "time", "began", "count")
        return {**{name: getattr(self, name) for name in names}, "source": self.source.to_json()}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole answer. ``settings`` and ``points`` carry on to the what-if and the plots; they aren't findings.

    Attributes:
        settings: canonical name -> (value, Source) of what the evidence states about the run.
        points: memory by step, as read.
        restart: the run's own launch line with a smaller micro-batch, or None where its syntax is not known.
        collateral: ranks that only report the failure, cut where there are many; ``collateral_count`` counts
            all those ranks.
        content_key: hash of the evidence's content, the key under which checklist state is kept.
        figures: the derived figures that conditions of entries read.
        timeline: what ranks did and reported around the failure, in order; `LISTED` of them stand in the JSON.
        timeline_left_out: role -> moments beyond those that ``timeline`` keeps; the originator is never among them.
        files: what was read of each file, and what was not.
        comparison: with a run that ended well, where one was given.
        repeats: what reproductions printed, where their output was read with the run's; never part of the failure.
        hedged: the family rests on a sign that something else can explain, such as an exit code alone.
    """

    family: str
    summary: str
    failure: Failure | None
    initiating_rank: int | None
    initiating_reason: str
    collateral: tuple[Collateral, ...]
    findings: tuple[Finding, ...]
    missing: tuple[Missing, ...]
    next_action: str
    coverage: Mapping[str, Any]
    settings: Mapping[str, tuple[Any, Source]] = field(default_factory=dict)
    points: tuple[MemoryPoint, ...] = ()
    restart: str | None = None
    growth: str = ""
    content_key: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    hedged: bool = False
    collateral_count: int = 0
    timeline: tuple[Moment, ...] = ()
    timeline_left_out: Mapping[str, int] = field(default_factory=dict)
    files: tuple[FileCoverage, ...] = ()
    comparison: Comparison | None = None
    repeats: Repeats | None = None

    def to_json(self) -> dict[str, Any]:
        """The document of ``diag-kit diagnose --json``. ``comparison`` holds the fields of `Comparison`, null without a
        good run; ``timeline_left_out`` counts by role what a long ``timeline`` does not list.
        """
        listed = [m for role, most in LISTED.items() for m in [m for m in self.timeline if m.role == role][:most]]
        left_out = Counter(m.role for m in self.timeline) + Counter(self.timeline_left_out)
        left_out -= Counter(m.role for m in listed)
        return {
            "schema": SCHEMA,
            "family": self.family,
            "summary": self.summary,
            "failure": self.failure.to_json() if self.failure else None,
            "initiating_rank": self.initiating_rank,
            "initiating_reason": self.initiating_reason,
            "collateral": [c.to_json() for c in self.collateral],
            "collateral_count": self.collateral_count,
            "findings": [f.to_json() for f in self.findings],
            "missing": [m.to_json() for m in self.missing],
            "next_action": self.next_action,
            "restart": self.restart,
            "growth": self.growth,
            "settings": {
                name: {"value": value, "source": source.to_json()} for name, (value, source) in self.settings.items()
            },
            "coverage": dict(self.coverage),
            "timeline": [moment.to_json() for moment in listed],
            "timeline_left_out": dict(left_out),
            "comparison": self.comparison.to_json() if self.comparison else None,
            "reproductions": self.repeats.to_json() if self.repeats else None,
        }
