"""What stops a run and is not memory, though memory words may stand near: assertions, bad hardware, NaN, other
exceptions.

* ``CUDA error: uncorrectable ECC error encountered``, Xid lines: hardware.
* ``CUDA error: device-side assert triggered``, ``an illegal memory access was encountered``: the program.
* ``triton...OutOfResources: out of resource: shared memory, Required: N, Hardware limit: M``, ptxas' ``uses too much
  shared data (0x10000 bytes, 0xc000 max)``, ``too many resources requested for launch``: on-chip memory of a kernel,
  as flash attention meets it with large heads on small cards.
* ``Received Signals.SIGHUP death signal``, ``SignalException: Process 9 got signal: 1``: the launcher's terminal went.
* a run that stops itself over NaN or infinity (``Loss is nan, stopping training``, ``Minimum loss scale reached``,
  ``Current loss scale already at minimum``); ``Segmentation fault``; any other uncaught exception.

Also the ends that are no failure: ``Training completed``, ``Training finished``, ``{'train_runtime': ...}``, an epoch's
end. An empty result means that none of these was printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..facts import Event
from ..text import Window

LITERALS = (
    "ECC error",
    "device-side assert",
    "Assertion `",
    "illegal memory access",
    "cudaErrorIllegalAddress",
    "OutOfResources",
    "too much shared data",
    "too many resources requested",
    "stopping",
    "oss scale already at minimum",
    "Minimum loss scale reached",
    "Segmentation fault",
    "out of resource",
    "unspecified launch failure",
    "is not a number",
    "SIGHUP death",
    "got signal: 1",
    "Error",
    "Exception",
    "Interrupt",
    "train_runtime",
    "NVRM: Xid",
    "raining complete",
    "exits successfully",
    "raining finished",
    "inished training",
    "raining done",
    "fell off the bus",
    "* Acc@1",
    "saved",
    "training takes",
    " done",
    " finished",
    " complete",
)

_KINDS = (
    (
        "hardware.ecc",
        "originator",
        re.compile(r"uncorrectable (?:ECC|NVLink) error|fell off the bus|NVRM: Xid .{0,60}: (?:48|63|64|74|79|92|94|95)\b"),
    ),
    ("triton.out-of-resources", "originator", re.compile(r"OutOfResources: |out of resource: ")),
    (
        "cuda.kernel-resources",
        "originator",
        re.compile(r"uses too much shared data|too many resources requested for launch"),
    ),
    ("cuda.assert", "originator", re.compile(r"device-side assert triggered|\.cuh?:\d{1,15}:.* Assertion `.*` failed")),
    (
        "cuda.illegal-access",
        "originator",
        re.compile(r"illegal memory access was encountered|cudaErrorIllegalAddress|unspecified launch failure"),
    ),
    (
        "nan-loss",
        "originator",
        re.compile(r"^(?:[\w.]*(?:Error|Exception): )(?=.*(?:\bnan\b|\bNaN\b|\binf(?:inite)?\b|not a number))"),
    ),
    (
        "nan-loss",
        "originator",
        re.compile(
            r"\bloss (?:is|was|became) (?:nan|[+-]?inf\w*)\b.{0,20}stopping|(?:oss scale already at minimum|Minimum loss scale reached)",
            re.I,
        ),
    ),
    (
        "terminal.hangup",
        "originator",
        re.compile(r"\b(?:Received (?:Signals\.)?SIGHUP death signal|SignalException: Process \d{1,10} got signal: 1$)"),
    ),
    (
        "crash.segfault",
        "originator",
        re.compile(r"Segmentation fault(?: \(core dumped\)|$)|Fatal Python error: Segmentation fault"),
    ),
    (
        "epoch-end",
        "context",
        re.compile(
            r"EPOCH \d{1,15} training takes|^\s*\*\s+Acc@1|(?:checkpoint|model|ckpt\S*|weights)\b.{0,40}\bsaved\b|^[Ee]poch \d{1,15} (?:done|finished|complete)"
        ),
    ),
    (
        "finished",
        "context",
        re.compile(
            r"'train_runtime'|[Tt]raining (?:is )?(?:complete|completed|finished|done)\b|[Ff]inished training|Process \d{1,15} exits successfully"
        ),
    ),
)
_ON_CHIP = re.compile(r"Required: (\d{1,15}), Hardware limit: (\d{1,15})")
_PLAIN = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?P<name>[A-Z]\w*(?:Error|Exception|Interrupt))\b(?::\s?(?P<text>.*))?$")
_MEMORY = re.compile(
    r"[Oo]ut of memory|_OUT_OF_|Invalid buffer size|</torch_|allocate shared|bad_alloc|OutOfMemory|OOM|MemoryError|ResourceExhausted|RESOURCE_EXHAUSTED|would exceed allowed memory|CUBLAS_STATUS|CUDNN_STATUS"
    r"|cuDNN algorithm|DataLoader worker|allocate|cache blocks|KV cache|desired GPU memory|mem-fraction-static|batch size found|DistBackendError|ncclRemoteError|ChildFailedError|TorchScript interpreter"
    r"|Timeout|ncclUnhandled"
)


def parse(window: Window) -> Iterator[Event]:
    """Events of family not-memory, and ``finished``."""
    for index, line in enumerate(window.lines):
        text = line.text
        if not any(literal in text for literal in LITERALS):
            continue
        for kind, role, pattern in _KINDS:
            if pattern.search(text):
                yield _event(window, index, kind, role)
                break
        else:
            found = _PLAIN.match(text)
            if found and not _MEMORY.search(text):
                yield _event(window, index, "python.exception", "originator")


def _event(window: Window, index: int, kind: str, role: str) -> Event:
    line = window.lines[index]
    chip = _ON_CHIP.search(line.text) if kind == "triton.out-of-resources" else None
    return window.event(
        index,
        kind=kind,
        family="ok" if role == "context" else "not-memory",
        role=role,
        message=line.text.strip()[:500],
        figures={"required_smem_bytes": int(chip[1]), "limit_smem_bytes": int(chip[2])} if chip else {},
    )
