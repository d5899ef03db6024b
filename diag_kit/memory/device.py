"""What depends on the device: which attention kernel ``sdpa`` picks, and what the process holds outside tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ..units import MIB
from .settings import Settings

_T = TypeVar("_T")
_BEFORE_AMPERE = ("T4", "V100", "P100", "P40", "P4", "1080", "2080", "TITAN", "RTX 5000", "RTX 6000 QUADRO")

CONTEXT_BYTES: dict[str, tuple[int, int]] = {
    "T4": (141 * MIB, 141 * MIB),
    "V100": (300 * MIB, 1343 * MIB),
    "": (140 * MIB, 1024 * MIB),
}
"""GPU -> lowest and highest bytes of CUDA context and loaded kernels, as published.

T4: 140.875 MiB (fitcheck-llm, torch 2.10 and 2.14, lazy loading). V100: up to 1343 MiB (transformers performance guide
of 2022, eager loading). Otherwise the 140 MiB to 1 GiB that published measurements and the NAIRR guide span."""

WORKSPACE_BYTES = {"H100": 32 * MIB, "H200": 32 * MIB, "B200": 32 * MIB, "": 8 * MIB + 128 * 1024}
"""cuBLAS workspace, allocated through the caching allocator at the first product (cuBLAS manual; pytorch#95668)."""

RESERVED_OVER_ALLOCATED = (1.0, 1.04, 1.49)
"""Peak reserved over peak allocated: the least possible, what a full device needs, the most seen with room to spare.

Of 88 published rows that state both, the lowest have 1.03 to 1.04 (an 80 GB device filled to 98 %), the median 1.17.
The allocator gives cached blocks back before it fails, so whether a run fits is decided near the low end; 1.49 is the
most of the 54 rows measured on one T4 (fitcheck-llm)."""


def attention_kernel(s: Settings) -> str:
    """``eager``, ``flash``, ``efficient`` or ``math``: the kernel that runs, ``sdpa`` as torch picks on this GPU.

    Source: torch's ``sdp_utils``: flash needs 16-bit operands and compute capability 8.0; else the memory-efficient
    kernel runs. On a CPU the flash kernel runs unless dropout is on, which falls to the math path.
    """
    if s.attention != "sdpa":
        return s.attention
    if s.device == "cpu":
        return "math" if s.dropout else "flash"
    old = any(name in (s.gpu or "A100").upper() for name in _BEFORE_AMPERE)
    return "efficient" if old or s.precision == "fp32" else "flash"


def context_bytes(s: Settings) -> tuple[int, int]:
    """Lowest and highest bytes of the CUDA context on this GPU; nothing on a CPU."""
    return (0, 0) if s.device == "cpu" else _by_gpu(CONTEXT_BYTES, s.gpu)


def workspace_bytes(s: Settings) -> int:
    """Bytes of the matrix library's workspace inside the caching allocator."""
    return 0 if s.device == "cpu" else _by_gpu(WORKSPACE_BYTES, s.gpu)


def _by_gpu(table: Mapping[str, _T], gpu: str | None) -> _T:
    return next((value for name, value in table.items() if name and name in (gpu or "A100").upper()), table[""])
