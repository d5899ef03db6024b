"""What differs between a fake tensor on the CPU and a tensor on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..settings import Settings


@dataclass
class Emulation:
    """What was taken while it lasted: one entry for each attention call."""

    kernels: list[Any] = field(default_factory=list)


@contextmanager
def as_cuda(settings: Settings) -> Iterator[Emulation]:
    """Operators allocate as on the settings' device while this lasts."""
    yield Emulation()
