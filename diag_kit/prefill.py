"""The settings that a what-if starts from: what the evidence states, a published shape where it names no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import DiagKitError
from .evidence.facts import MemoryPoint
from .findings import Diagnosis
from .memory.settings import Settings, from_run
from .units import GIB, format_bytes

_SHAPE = ("n_layers", "hidden", "heads", "kv_heads", "ffn", "gated_ffn", "vocab", "tied_embeddings")
MODELS: Mapping[str, Mapping[str, Any]] = {
    name: dict(zip(_SHAPE, numbers, strict=True))
    for name, *numbers in (
        ("GPT-2 124M", 12, 768, 12, 12, 3072, False, 50257, True),
        ("Llama-3.2 1B", 16, 2048, 32, 8, 8192, True, 128256, True),
        ("Llama-3 8B", 32, 4096, 32, 8, 14336, True, 128256, False),
        ("Llama-2 13B", 40, 5120, 40, 40, 13824, True, 32000, False),
        ("Llama-3 70B", 80, 8192, 64, 8, 28672, True, 128256, False),
    )
}
"""Shapes to assume where the evidence names no model, from the models' published ``config.json`` files."""

ASSUMED_MODEL = "Llama-3.2 1B"
ASSUMED_CAPACITY_BYTES = 80 * GIB


def assumed_settings(known: Mapping[str, Any]) -> Settings:
    """Settings of a run that names no model: a published shape in its place."""
    settings, missing = from_run({**known, "model": MODELS[ASSUMED_MODEL]})
    if settings is None:
        raise AssertionError(f"a whole model leaves nothing to ask for, yet: {missing}")
    return settings


def failing_point(diagnosis: Diagnosis) -> MemoryPoint | None:
    """The reading whose sequence length a what-if starts from: the failing step's, else the longest's."""
    failing = diagnosis.figures.get("failing_length")
    points = [point for point in diagnosis.points if point.seq_len and (not failing or point.seq_len == failing)]
    return max(points, key=lambda point: point.seq_len or 0, default=None)


def _configured(s: Settings, diagnosis: Diagnosis, roots: Sequence[Path]) -> Settings | None:
    """The settings with the model's own ``config.json`` in place of its numbers, where that is what stated them."""
    where = Path(diagnosis.settings["model"][1].path)
    if where.name != "config.json":
        return None
    for root in roots:
        places = (root, root / where, root.parent / where)
        path = next((p for p in places if p.name == where.name and p.is_file()), None)
        try:
            exact = path and s.with_(model={"hf_config": str(path)})
        except DiagKitError:  # a configuration that no trace and no closed form takes
            continue
        if exact and exact.exact and not exact.exact.uncovered and exact.model.n_layers == s.model.n_layers:
            return exact
    return None


def prefill(diagnosis: Diagnosis, roots: Sequence[Path] = ()) -> tuple[Settings, dict[str, str], str]:
    """The run's settings, where each is stated, and what was taken off the capacity, in words.

    ``roots``: what was read, where the model's ``config.json`` is looked for. A name that is not in the second is
    assumed. A sequence length that no setting states is that of the failing step
    in the measured series.
    """
    known = {name: value for name, (value, _) in diagnosis.settings.items()}
    origins = {name: str(source) for name, (_, source) in diagnosis.settings.items()}
    if "seq_len" not in known and (point := failing_point(diagnosis)):
        known["seq_len"], origins["seq_len"] = point.seq_len, str(point.source)
    total = diagnosis.failure.facts.get("total_bytes") if diagnosis.failure else None
    if total and diagnosis.failure and "capacity_bytes" not in known:
        known["capacity_bytes"], origins["capacity_bytes"] = total, str(diagnosis.failure.source)
    known.setdefault("capacity_bytes", ASSUMED_CAPACITY_BYTES)
    settings, _ = from_run(known)
    if settings is None:
        origins.pop("model", None)
        settings = assumed_settings(known)
    elif exact := _configured(settings, diagnosis, roots):
        settings = exact
    if diagnosis.figures.get("growth") == "per-micro-step" and "backward" not in known:
        settings = settings.with_(backward="deferred")
        origins["backward"] = "growth per micro-step"
    note, held, whole = "", diagnosis.figures.get("other_process_bytes") or 0, settings.capacity_bytes
    if whole and 0 < held < whole:
        settings = settings.with_(capacity_bytes=whole - held)
        note = f"{format_bytes(whole)} less {format_bytes(held)} that other processes hold"
    return settings, origins, note
