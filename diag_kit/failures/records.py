"""The records of an entry, frozen, and how each is read from the entry's YAML head.

One record for each kind of item of a section. A record is built from a mapping by `read`, which refuses unknown keys,
missing keys and words outside the fixed vocabularies, in one line that names the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from ..errors import EntryError
from . import conditions

STATUSES = ("draft", "reviewed", "reproduced")
STRENGTHS = ("decisive", "strong", "weak")
TRUTHS = ("true", "false", "conditional")
VERDICTS = ("confirmed", "likely", "possible", "ruled-out")
FRAMEWORKS = ("pytorch", "trainer", "accelerate", "lightning", "deepspeed", "megatron", "inference")
MISSING_KINDS = (
    "full-traceback", "oom-message", "full-log", "batch-shapes", "training-settings", "model-config", "training-code",
    "memory-series", "memory-snapshot", "gpu-processes", "gpu-capacity", "other-rank-logs", "host-memory",
    "kernel-log", "versions", "hardware-counters", "reproduction",
)  # fmt: skip
CAUSES = (
    "attention-quadratic", "long-sequence-outlier", "variable-shape-peak", "activations-too-large",
    "schedule-phase-change", "checkpoint-peak", "comm-buffer", "imbalance-across-ranks", "eval-peak", "fragmentation",
    "graph-retention", "grad-accumulation-buffer", "host-oom", "pinned-host-memory", "kv-cache", "tensor-accumulation",
    "logits-loss-peak", "model-states-too-large", "optimizer-state-first-step", "resume-duplicate-states",
    "not-memory", "misreported", "hardware", "preempted", "other-process", "all-ranks-on-gpu0", "process-memory-cap",
    "cuda-context-or-library-workspace", "oversized-single-request", "single-allocation-limit", "shared-memory",
)  # fmt: skip
"""All causes of the contract. Those that the evidence supports equally stand in this order in a diagnosis, however the
entries are called.
"""

Cond = Mapping[str, Any]


def _condition(value: Cond | None) -> Cond | None:
    conditions.check(value)
    return value


def word(*known: str) -> Callable[[Any], str]:
    """A converter that takes only these words."""

    def convert(value: Any) -> str:
        if value not in known:
            raise EntryError(f"{value!r} is not one of {', '.join(known)}")
        return str(value)

    return convert


def _causes(value: Any) -> tuple[str, ...]:
    return tuple(word(*CAUSES)(cause) for cause in value)


def _code(value: Mapping[str, str]) -> Mapping[str, str]:
    for framework in value:
        word(*FRAMEWORKS)(framework)
    return value


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of the contract that this entry explains. ``truth`` judges the textbook ``claim``, in quotes."""

    id: str = field(metadata={"convert": word(*CAUSES)})
    claim: str
    mechanism: str
    truth: str = field(metadata={"convert": word(*TRUTHS)})
    condition: str
    experiment: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A textbook claim that is not a cause, with what was measured of it."""

    claim: str
    truth: str = field(metadata={"convert": word(*TRUTHS)})
    condition: str
    measured: str
    experiment: str | None


@dataclass(frozen=True, slots=True)
class Symptom:
    """What one sees, and why."""

    see: str
    why: str


@dataclass(frozen=True, slots=True)
class Sign:
    """A condition that speaks for or against a cause. ``because`` may hold ``{figure}`` placeholders."""

    when: Cond = field(metadata={"convert": _condition})
    strength: str = field(metadata={"convert": word(*STRENGTHS)})
    because: str


def _signs(value: Any) -> tuple[Sign, ...]:
    return tuple(read(Sign, one) for one in value)


@dataclass(frozen=True, slots=True)
class Signature:
    """The signs of one cause; ``for_`` and ``against`` stand as ``for`` and ``against`` in the head."""

    cause: str = field(metadata={"convert": word(*CAUSES)})
    for_: tuple[Sign, ...] = field(metadata={"convert": _signs})
    against: tuple[Sign, ...] = field(default=(), metadata={"convert": _signs})


@dataclass(frozen=True, slots=True)
class Need:
    """Evidence that would settle the question; dropped where ``unless`` holds. No ``causes``: all of the entry."""

    kind: str = field(metadata={"convert": word(*MISSING_KINDS)})
    what: str
    how: str
    causes: tuple[str, ...] = field(default=(), metadata={"convert": _causes})
    unless: Cond | None = field(default=None, metadata={"convert": _condition})


@dataclass(frozen=True, slots=True)
class Lookalike:
    """Another entry that looks the same, and the tell that separates them."""

    entry: str
    tell: str


@dataclass(frozen=True, slots=True)
class Check:
    """A step of the confirmation checklist. No ``causes``: all of the entry."""

    id: str
    action: str
    expect: str
    cost: str
    disturbs: bool
    because: str
    causes: tuple[str, ...] = field(default=(), metadata={"convert": _causes})
    confirmed_by: Cond | None = field(default=None, metadata={"convert": _condition})
    refuted_by: Cond | None = field(default=None, metadata={"convert": _condition})


@dataclass(frozen=True, slots=True)
class FailureFix:
    """A remedy. ``saves`` is a change of settings for the memory model, None where it saves no device memory.

    ``when`` says for which run it is meant: it comes first where that holds, and is left out where it does not.
    ``remedy`` is false for what pages advise although it saves nothing; a diagnosis does not offer it.
    """

    id: str
    action: str
    saves: Mapping[str, Any] | None
    cost: str
    undo: str
    verify: str
    code: Mapping[str, str] = field(metadata={"convert": _code})
    causes: tuple[str, ...] = field(default=(), metadata={"convert": _causes})
    when: Cond | None = field(default=None, metadata={"convert": _condition})
    remedy: bool = True


@dataclass(frozen=True, slots=True)
class Scale:
    """How the failure looks on that many GPUs."""

    gpus: str
    looks_like: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question that readers ask, and its answer."""

    q: str
    a: str


@dataclass(frozen=True, slots=True)
class Reference:
    """A public page and the statement that it supports."""

    url: str
    supports: str


@dataclass(frozen=True, slots=True)
class Perspectives:
    """The same failure for three readers."""

    executive: str
    engineer: str
    on_call: str


@dataclass(frozen=True, slots=True)
class Example:
    """Log text that must (or must not) lead to a cause; ``verdict`` is what the diagnosis must say of it."""

    text: str
    cause: str = field(metadata={"convert": word(*CAUSES, "undetermined")})
    verdict: str | None = field(default=None, metadata={"convert": word(*VERDICTS)})


def _examples(value: Any) -> tuple[Example, ...]:
    return tuple(read(Example, one) for one in value)


@dataclass(frozen=True, slots=True)
class Examples:
    """Texts that must match, and texts that must not."""

    match: tuple[Example, ...] = field(metadata={"convert": _examples})
    no_match: tuple[Example, ...] = field(metadata={"convert": _examples})


Record = TypeVar("Record")


def read(kind: type[Record], data: Any) -> Record:
    """A record from a mapping of the head.

    Raises:
        EntryError: not a mapping, a key too many or too few, or a value that the record can't take.
    """
    if not isinstance(data, Mapping):
        raise EntryError(f"{kind.__name__.lower()}: expected a mapping, found {data!r}")
    known = {f.name.rstrip("_"): f for f in fields(kind)}  # type: ignore[arg-type]
    wrong = [f"unknown key {key!r}" for key in data if key not in known]
    wrong += [f"missing key {key!r}" for key, f in known.items() if key not in data and f.default is MISSING]
    name = next((str(data[key]) for key in ("id", "cause", "kind", "entry", "when", "see", "q") if key in data), "")
    if wrong:
        raise EntryError(f"{kind.__name__.lower()} {name}: {', '.join(wrong)}; known are {', '.join(known)}")
    try:
        return kind(**{known[key].name: _convert(known[key], value) for key, value in data.items()})
    except EntryError as error:
        raise EntryError(f"{kind.__name__.lower()} {name}: {error}") from None


def _convert(spec: Any, value: Any) -> Any:
    if "convert" in spec.metadata:
        return spec.metadata["convert"](value)
    optional = spec.type.endswith("| None")
    expected = str if spec.type.startswith("str") else bool if spec.type == "bool" else Mapping
    if not isinstance(value, expected) and not (optional and value is None):
        raise EntryError(f"{spec.name} is {value!r}, expected {expected.__name__}")
    return value.strip() if isinstance(value, str) else value
