"""Figures: plain values under fixed names, each with the source that it was derived from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import origin, series
from .facts import Source
from .frames import Place


@dataclass(slots=True)
class Figures:
    """Values by name, the source of each, and the facts that they came from."""

    origin: origin.Origin
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    place: Place = field(default_factory=Place)
    growth: series.Growth | None = None

    def put(self, source: Source | None, **values: Any) -> None:
        """Add figures that are known, all from one source."""
        for name, value in values.items():
            if value is not None:
                self.values[name] = value
                if source is not None:
                    self.sources[name] = source
