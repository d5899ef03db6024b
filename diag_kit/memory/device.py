"""What depends on the device: which attention kernel ``sdpa`` picks, and what the process holds outside tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from ..units import MIB
from .settings import Settings

_T = TypeVar("_T")
_CAPABILITIES = tuple(
    (re.compile(names), version)
    for names, version in (
        (r"P100", (6, 0)),
        (r"\bP4(?:0|\b)|GTX ?10\d0|10[678]0 ?TI|\bP6000|TITAN XP?\b", (6, 1)),
        (r"V100|TITAN V", (7, 0)),
        (r"\bT4|GTX ?16\d0|(?:RTX ?)?20[678]0|TITAN RTX|QUADRO RTX|RTX [4568]000 QUADRO", (7, 5)),
        (r"\bL4(?:0S?)?\b|(?:RTX ?)?40[5-9]0|ADA", (8, 9)),
        (r"\bA(?:2|10G?|16|40)\b|A[2456][05]00|(?:RTX ?)?30[5-9]0", (8, 6)),
        (r"G?H(?:100|200|800|20)|GH200", (9, 0)),
        (r"G?B300", (10, 3)),
        (r"G?B[12]00", (10, 0)),
        (r"GB10\b", (12, 1)),
        (r"(?:RTX ?)?50[5-9]0|RTX PRO|BLACKWELL", (12, 0)),
    )
)
"""Names of GPUs -> compute capability (NVIDIA's list of CUDA GPUs). The first that fits holds; others count as A100."""

CONTEXT_BYTES: dict[str, tuple[int, int]] = {
    "T4": (141 * MIB, 141 * MIB),
    "V100": (300 * MIB, 1343 * MIB),
    "": (140 * MIB, 1024 * MIB),
}
"""GPU -> lowest and highest bytes of CUDA context and loaded kernels, as published.

T4: 140.875 MiB (fitcheck-llm, torch 2.10 and 2.14, lazy loading). V100: up to 1343 MiB (transformers performance guide
of 2022, eager loading). Otherwise the 140 MiB to 1 GiB that published measurements and the NAIRR guide span."""

CONTEXT_PER_MULTIPROCESSOR_BYTES = 3 * MIB
"""Of a context before any kernel is loaded: 555 MiB on an RTX PRO 6000 with 188 and 107 MiB on an RTX 4060 Ti with 34
(llama.cpp#23604), 426 MiB on an RTX 6000 Ada with 142 (unsloth-zoo#1053), 256 MiB on an RTX 3090 with 82
(InvokeAI#9413): 2.95 to 3.15 MiB each. It is the lowest that a GPU of ``MULTIPROCESSORS`` holds."""

MULTIPROCESSORS = {
    "A100": 108, "H100": 132, "H200": 132, "H20": 78, "B200": 148, "A10G": 80, "A10": 72, "A6000": 84, "L40": 142,
    "L4": 58, "6000 ADA": 142, "PRO 6000": 188, "3090": 82, "4090": 128, "5090": 170,
}  # fmt: skip
"""GPU -> streaming multiprocessors (NVIDIA's data sheets); the first name that stands in the GPU's name holds."""

COMMUNICATOR_BYTES = 688 * MIB
"""Of NCCL's buffers for one process group at the most, for collectives: 544 MiB with 2 and 688 MiB with more of 4 A100
on NVLink (nccl#964): 4 MiB for each channel and connection (nccl#285, nccl#1450), so next to nothing over few PCIe
channels. All-to-all connects all pairs: 3.3 GB on 8 H100 (nccl#1685)."""

WORKSPACE_BYTES = {9: 32 * MIB, 10: 32 * MIB, 12: 32 * MIB}
"""Major compute capability -> cuBLAS workspace, else 8 MiB + 128 KiB; allocated through the caching allocator at the
first product, and shared with cuBLASLt (``parseChosenWorkspaceSize`` in aten/src/ATen/cuda/CublasHandlePool.cpp)."""
HANDLES = 2
"""cuBLAS handles, each with a workspace, of a run that trains: autograd's backward has a thread of its own. Traces of
eleven published T4 runs lack one workspace, to 0.2 MiB where rounding plays no part, when only the first is counted."""

RESERVED_OVER_ALLOCATED = (1.0, 1.04, 1.49)
"""Peak reserved over peak allocated: the least possible, what a full device needs, the most seen with room to spare.

Of 88 published rows that state both, the lowest have 1.03 to 1.04 (an 80 GB device filled to 98 %), the median 1.17.
The allocator gives cached blocks back before it fails, so whether a run fits is decided near the low end; 1.49 is the
most of the 54 rows measured on one T4 (fitcheck-llm)."""


def capability(gpu: str | None) -> tuple[int, int]:
    """Compute capability of a GPU by its name, as drivers print it or people write it; an A100's where unknown."""
    name = (gpu or "A100").upper()
    return next((version for pattern, version in _CAPABILITIES if pattern.search(name)), (8, 0))


def attention_kernel(s: Settings) -> str:
    """``eager``, ``flash``, ``efficient`` or ``math``: the kernel that runs, ``sdpa`` as torch picks on this GPU.

    Source: torch's ``sdp_utils``: flash needs 16-bit operands and compute capability 8.0; else the memory-efficient
    kernel runs, but for bf16 before 8.0. On a CPU flash runs unless dropout is on, which falls to the math path.
    """
    if s.attention != "sdpa":
        return s.attention
    if s.device == "cpu":
        return "math" if s.dropout else "flash"
    old = capability(s.gpu) < (8, 0)
    if old and s.precision.endswith("bf16"):
        return "math"
    return "efficient" if old or s.precision == "fp32" else "flash"


def context_bytes(s: Settings) -> tuple[int, int]:
    """Lowest and highest bytes of the CUDA context on this GPU, and of NCCL's buffers; nothing on a CPU."""
    if s.device == "cpu":
        return 0, 0
    low, high = _by_gpu(CONTEXT_BYTES, s.gpu)
    if processors := _by_gpu(MULTIPROCESSORS | {"": 0}, s.gpu):
        low = processors * CONTEXT_PER_MULTIPROCESSOR_BYTES
    p = s.parallelism
    groups = (p.tensor > 1) + (p.pipeline > 1) + (p.world_size > p.tensor * p.pipeline)
    return low, high + groups * COMMUNICATOR_BYTES


def workspace_bytes(s: Settings) -> int:
    """Bytes of the matrix library's workspaces inside the caching allocator."""
    return 0 if s.device == "cpu" else HANDLES * WORKSPACE_BYTES.get(capability(s.gpu)[0], 8 * MIB + 128 * 1024)


def _by_gpu(table: Mapping[str, _T], gpu: str | None) -> _T:
    return next((value for name, value in table.items() if name and name in (gpu or "A100").upper()), table[""])
