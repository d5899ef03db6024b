"""Facts: what the evidence states, and where. Frozen, without behaviour beyond their own shape.

A fact never changes after it is made and always knows its source. What facts mean is worked out downstream
(``derived``, ``diagnosis``); nothing downstream reads a file again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FAMILIES = ("gpu-oom", "host-oom", "shared-memory", "not-memory", "ok", "undetermined")
PHASES = (
    "load",
    "forward",
    "loss",
    "backward",
    "optimizer",
    "eval",
    "checkpoint",
    "generate",
    "data",
    "comm",
    "unknown",
)
ROLES = ("originator", "victim", "teardown", "confirmation", "recovered", "advisory", "context")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact stands: a file as the user named it, a line counted by ``\\n`` from 1, its text and neighbours."""

    path: str
    line: int | None = None
    text: str = ""
    context: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "line": self.line}

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Root of every fact. ``rank`` is the global rank where the evidence states it."""

    source: Source
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Fact):
    """Something that happened to the run: an allocation that failed, a kill, a timeout, an exception.

    Attributes:
        kind: dotted name of the grammar, such as ``torch.oom`` or ``nccl.timeout``.
        family: one of FAMILIES if this event, standing alone, stopped the run.
        role: one of ROLES. ``originator`` may have begun the failure; ``victim`` waited for another; ``teardown`` is a
            launcher cleaning up; ``confirmation`` reports a failure that began elsewhere (a root-cause block, an exit
            code); ``recovered`` was survived; ``advisory`` is a warning; ``context`` only informs.
        message: the line's own words.
        figures: sizes as stated, named as in the contract (``tried_to_allocate_bytes`` ...).
        time: seconds since the epoch, where the line carries a time stamp; below ``text.YEARLESS_END`` it has no year
            and is comparable with its like alone.
    """

    kind: str
    family: str
    role: str = "originator"
    message: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    device: int | str | None = None
    host: str | None = None
    pid: int | None = None
    local_rank: int | None = None
    exitcode: int | None = None
    time: float | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback, outermost first in its list.

    Attributes:
        path, line, function: of the program.
        code: the source line, where shown.
        log_line: the line of the log on which the frame stands.
    """

    path: str
    line: int | None
    function: str
    code: str = ""
    log_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceback(Fact):
    """A traceback in any of its drawings. ``end_line`` is the line of the exception's message."""

    frames: tuple[Frame, ...]
    exception: str = ""
    message: str = ""
    end_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Fact):
    """A setting of the run under its canonical name (``micro_batch``, ``seq_len``, ``grad_accum`` ...)."""

    name: str
    value: Any
    raw: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint(Fact):
    """Memory at one moment.

    Attributes:
        metric: ``allocated``, ``peak_allocated``, ``reserved``, ``peak_reserved``, ``used`` or ``host_used``.
        value_bytes: bytes; a series that starts at zero by construction has ``relative=True``.
        step, micro_step: as logged; None where the line does not say.
        series: name of the column or grammar that the point belongs to.
        seq_len: sequence length in force at this point, where the line or the lines above say.
        label: the moment in the writer's own words, where it has no step ("after creating fp16 partitions").
        time: seconds, on one clock within a series; since the epoch where the evidence has dates.
        device: index of the GPU, where the evidence states it; not a rank.
    """

    metric: str
    value_bytes: int
    step: int | None = None
    micro_step: int | None = None
    series: str = ""
    relative: bool = False
    seq_len: int | None = None
    label: str = ""
    time: float | None = None
    device: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory(Fact):
    """What a tool (nvidia-smi, rocm-smi, a framework at start) says of one device, or of one process on it.

    Attributes:
        device: index as the tool counts, which ``CUDA_VISIBLE_DEVICES`` may have renumbered for the run.
        used_bytes, total_bytes, free_bytes: of the device; with ``pid``, ``used_bytes`` is of that process.
        pid, process: whose memory it is; None where it is the device's own sum.
    """

    device: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    pid: int | None = None
    process: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory(Fact):
    """Memory of a host, or what bounds it.

    Attributes:
        of: ``host``, ``swap``, ``shm`` (/dev/shm), ``job`` (a scheduler's, container's or control group's).
        total_bytes: what there is; of a job, its limit.
        used_bytes: in use; of a job, the most it used.
        available_bytes: what a new process could get.
    """

    of: str = "host"
    total_bytes: int | None = None
    used_bytes: int | None = None
    available_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Fact):
    """A sign that the run moved on: a step, an epoch, an iteration. ``total`` where shown."""

    step: int
    total: int | None = None
    what: str = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Fact):
    """A process of the job: which rank it is, as far as one line tells.

    Attributes:
        pid: process id on its host; None where only a rank and its place on the node are told.
        local_rank: rank on its node.
        device: index of its CUDA device, as the process itself counts.
        of: members of the communicator that ``rank`` counts in; None where it counts in the whole job.
        launched: a launcher counts it among its own children.
    """

    pid: int | None = None
    host: str | None = None
    local_rank: int | None = None
    device: int | None = None
    of: int | None = None
    launched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World(Fact):
    """How many ranks the job has, as one line tells; ``nodes`` where it says so.

    ``least`` marks a count that others may exceed: a communicator's members, the processes of one node.
    """

    size: int
    nodes: int | None = None
    least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Fact):
    """The command that started the run, as the log shows it."""

    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Fact):
    """Segments of an allocator snapshot summed up: what is free, and in which pieces."""

    reserved_bytes: int
    allocated_bytes: int
    largest_free_block_bytes: int
    free_in_split_segments_bytes: int
    segments: int
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition(Fact):
    """One record of what a reproduction printed: of a second run, never of the failed one.

    Attributes:
        record: ``start``, ``built``, ``micro-step``, ``optimizer``, ``oom``, ``error``, ``peaks`` or ``verdict``.
        run: the execution that it is of; a screen's line and its copy in a file have the same.
        said: the record's fields, as printed.
    """

    record: str
    run: str
    said: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileCoverage:
    """What was read of one file, and what was not.

    Attributes:
        kind: log, table, settings, empty, binary or unread.
        ranks: those that its lines, read as a log, come from.
        whole: every line was parsed; else the neighbourhoods of what parsers look for, out of all bytes.
    """

    path: str
    size_bytes: int
    read_bytes: int
    kind: str
    notes: tuple[str, ...] = field(default=())
    ranks: frozenset[int] = field(default=frozenset())
    whole: bool = True
