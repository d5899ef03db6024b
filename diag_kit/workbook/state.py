"""What a page knows, without a widget: the evidence, its diagnosis, the what-if, the checklist. Views listen to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checklist import Checklist, Mark
from ..diagnosis import diagnose
from ..errors import DiagKitError, StateError
from ..findings import Diagnosis
from ..history import History
from ..memory.settings import Settings, from_run
from ..units import GIB
from . import places
from .rest import AtRest

if TYPE_CHECKING:
    import pandas as pd

MODELS: Mapping[str, Mapping[str, Any]] = {
    "GPT-2 124M": dict(n_layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072, gated_ffn=False, vocab=50257, tied_embeddings=True),
    "Llama-3.2 1B": dict(n_layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, gated_ffn=True, vocab=128256, tied_embeddings=True),
    "Llama-3 8B": dict(n_layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated_ffn=True, vocab=128256, tied_embeddings=False),
    "Llama-2 13B": dict(n_layers=40, hidden=5120, heads=40, kv_heads=40, ffn=13824, gated_ffn=True, vocab=32000, tied_embeddings=False),
    "Llama-3 70B": dict(n_layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, gated_ffn=True, vocab=128256, tied_embeddings=False),
}  # fmt: skip
"""Shapes to assume where the evidence names no model, from the models' published ``config.json`` files."""

ASSUMED_MODEL = "Llama-3.2 1B"
ASSUMED_CAPACITY_BYTES = 80 * GIB


class WorkbookState:
    """One page's state. ``on(what, call)`` listens to ``evidence``, ``what_if``, ``checklist`` or ``notice``.

    Attributes:
        diagnosis: of the evidence now open; None before any is.
        label: what is open, as a person would name it.
        logged: the run's settings as the evidence states them, gaps assumed; ``origins`` names where each stands, and
            holds no name that is assumed.
        settings: the what-if, ``logged`` at first.
        explored: what-ifs that a person kept, for the report.
        notice: what could not be kept or read, in one line; empty where all is well.
    """

    def __init__(self, history: History | None = None) -> None:
        self.notice = ""
        try:
            self.history = history or History()
        except StateError as error:
            self.history, self.notice = None, str(error)
        self.diagnosis: Diagnosis | None = None
        self.label = ""
        self.logged = self.settings = assumed_settings({})
        self.origins: dict[str, str] = {}
        self.explored: list[dict[str, Any]] = []
        self.checklist: Checklist | None = None
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._save_soon = AtRest(self.save_now)

    def on(self, what: str, call: Callable[[], None]) -> None:
        self._listeners.setdefault(what, []).append(call)

    def _tell(self, *whats: str) -> None:
        for what in whats:
            for call in self._listeners.get(what, []):
                call()

    def open(
        self, *paths: str | Path, text: str | None = None, label: str = "", on_progress: Callable[..., None] | None = None
    ) -> None:
        """Diagnose evidence and show it. Where it can't be read, what was open stays.

        Raises:
            DiagKitError: in one line, what can't be used and what to do.
        """
        resolved = [places.start_folder() / Path(p).expanduser() for p in paths]
        diagnosis = diagnose(*resolved, text=text, on_progress=on_progress)
        self.save_now()
        self.diagnosis = diagnosis
        self.label = label or ", ".join(p.name for p in resolved) or "pasted text"
        self.logged, self.origins = prefill(diagnosis)
        self.settings, self.explored = self.logged, []
        self.checklist = Checklist.from_diagnosis(diagnosis)
        self._keep(self._restore, tuple(map(str, resolved)))
        self._tell("evidence", "what_if", "checklist")

    def _restore(self, evidence: tuple[str, ...]) -> None:
        key, history = self.diagnosis.content_key, self.history
        self.checklist.restore(history.marks(key))
        self.checklist.on_change = lambda item, by, mark: self._keep(
            lambda: history.save_mark(key, mark.to_json()) if mark else history.drop_mark(key, item, by)
        )
        if saved := history.what_if(key):
            self.explored = saved.get("explored", [])
            self.settings = Settings.from_json(saved["settings"])
        history.save_diagnosis(key, self.diagnosis.to_json(), evidence)

    def _keep(self, act: Callable[..., None], *args: Any) -> None:
        """Read or write history; what fails is said once and stops nothing."""
        notice = ""
        if self.history is None:
            return
        try:
            act(*args)
        except (DiagKitError, KeyError, TypeError) as error:
            notice = str(error)
        if notice != self.notice:
            self.notice = notice
            self._tell("notice")

    def change(self, **changes: Any) -> None:
        """Set what-if settings; a value the memory model refuses raises `SettingsError` and changes nothing."""
        self.settings = self.settings.with_(**changes)
        self._tell("what_if")
        self._save_soon()

    def reset(self) -> None:
        """Back to the run as the evidence has it."""
        self.settings = self.logged
        self._tell("what_if")
        self._save_soon()

    def explore(self, note: Mapping[str, Any]) -> None:
        """Keep this what-if for the report."""
        self.explored = [*self.explored, dict(note)]
        self._tell("explored")
        self.save_now()

    def mark(self, item: str, state: str, by: str, note: str = "") -> None:
        """Set a person's mark; a bare ``todo`` takes it back, so that the evidence's counts again.

        Raises:
            StateError: no name was given.
        """
        if self.checklist is None:
            return
        if state == "todo" and not note.strip():
            self.checklist.clear(item, by)
        else:
            self.checklist.mark(item, state, by, note)
        self._tell("checklist")

    def current(self, item: str) -> Mark:
        return self.checklist.current(item)

    def save_now(self) -> None:
        """Keep the what-if. Marks are kept as they are set."""
        self._save_soon.cancel()
        if self.diagnosis is not None:
            document = {"settings": self.settings.to_json(), "explored": self.explored}
            self._keep(lambda: self.history.save_what_if(self.diagnosis.content_key, document))

    def series(self) -> pd.DataFrame:
        """The memory that the evidence measured, one row a reading: rank, step, micro_step, metric, bytes, where."""
        import pandas as pd

        points = self.diagnosis.points if self.diagnosis else ()
        rows = [(p.rank, p.step, p.micro_step, p.metric, p.value_bytes, str(p.source)) for p in points]
        return pd.DataFrame(rows, columns=["rank", "step", "micro_step", "metric", "bytes", "where"])

    def start_on(self) -> Sequence[str]:
        """The evidence to open first: what was opened last since the command, else its run, else a bundled sample."""
        run, started = os.environ.get(places.RUN), os.environ.get(places.STARTED)
        if started and self.history:
            last = next(iter(self.history.past(1)), None)
            if last and last.when > started and last.evidence and all(Path(p).exists() for p in last.evidence):
                return last.evidence
        if run:
            return (run,)
        return tuple(str(sample.path) for sample in places.samples()[:1])


def assumed_settings(known: Mapping[str, Any]) -> Settings:
    """Settings of a run that names no model: a published shape near its size in its place."""
    settings, _ = from_run({**known, "model": MODELS[ASSUMED_MODEL]})
    assert settings is not None, "a whole model leaves nothing missing"
    return settings


def prefill(diagnosis: Diagnosis) -> tuple[Settings, dict[str, str]]:
    """The run's settings and where each is stated. A name that is not in the second is assumed."""
    known = {name: value for name, (value, _) in diagnosis.settings.items()}
    origins = {name: str(source) for name, (_, source) in diagnosis.settings.items()}
    if diagnosis.failure and "capacity_bytes" not in known:
        if total := diagnosis.failure.facts.get("total_bytes"):
            known["capacity_bytes"], origins["capacity_bytes"] = total, str(diagnosis.failure.source)
    known.setdefault("capacity_bytes", ASSUMED_CAPACITY_BYTES)
    settings, _ = from_run(known)
    if settings is None:
        origins.pop("model", None)
        settings = assumed_settings(known)
    if diagnosis.figures.get("growth") == "per-micro-step" and "backward" not in known:
        settings = settings.with_(backward="deferred")
        origins["backward"] = "from growth per micro-step"
    return settings, origins
