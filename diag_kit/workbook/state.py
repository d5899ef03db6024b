"""What a page knows, without a widget: the evidence, its diagnosis, the what-if, the checklist. Views listen to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..checklist import Checklist
from ..diagnosis import diagnose
from ..errors import DiagKitError, StateError, StopReading
from ..findings import Diagnosis
from ..history import History
from ..memory.settings import Settings
from ..prefill import ASSUMED_CAPACITY_BYTES, ASSUMED_MODEL, MODELS, assumed_settings, prefill
from . import places
from .measured import Line, comparison

if TYPE_CHECKING:
    import pandas as pd

LABELS = {
    "seq_len": "sequence length", "micro_batch": "micro-batch", "grad_accum": "accumulation",
    "attention": "attention kernel", "checkpointing": "checkpointing", "backward": "backward",
    "precision": "precision", "optimizer": "optimizer", "capacity_bytes": "GPU capacity",
}  # fmt: skip
"""Settings that the what-if moves -> their names for people."""


def is_looping() -> bool:
    """Whether the kernel's loop runs, on which something can come later."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class AtRest:
    """Calls once, ``seconds`` after it was last asked to, on the kernel's own loop; at once where no loop runs.

    A transaction or a table for each move of a slider would cost more than the move.
    """

    def __init__(self, call: Callable[[], None], seconds: float = 0.3) -> None:
        self._call, self._seconds = call, seconds
        self._waiting: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._call()
            return
        self.cancel()
        self._waiting = loop.call_later(self._seconds, self.now)

    def now(self) -> None:
        """Call at once if a call is waited for."""
        if self._waiting:
            self.cancel()
            self._call()

    def cancel(self) -> None:
        """Forget the call that is waited for."""
        if self._waiting:
            self._waiting.cancel()
        self._waiting = None


OnProgress = Callable[[str, int, int], None]
QUICK_BYTES, QUICK_FILES = 8 << 20, 200
"""Evidence up to here is read before a cell ends; more is read in a thread, beside a bar."""
LOOK_SECONDS = 0.15


class Reading:
    """One reading of evidence, in a thread of its own.

    Attributes:
        path, done, total: as last reported: the file that is read, bytes read, bytes of all files.
        since: when it began, on the monotonic clock.
        stopping: set to True it ends at the next report, and what was read is judged.
        diagnosis, error: what came of it once ``thread`` has ended, one of the two.
    """

    def __init__(self, read: Callable[[OnProgress], Diagnosis]) -> None:
        self.path, self.done, self.total, self.since, self.stopping = "", 0, 0, monotonic(), False
        self.diagnosis: Diagnosis | None = None
        self.error = ""
        self._read = read
        self.thread = Thread(target=self._run, name="diag-kit reading", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.diagnosis = self._read(self._report)
        except StopReading:
            self.error = "reading was stopped before there was anything to judge"
        except DiagKitError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 (a thread's error would reach nobody)
            self.error = f"reading failed ({type(error).__name__}: {str(error)[:200]}); point at fewer files"

    def _report(self, path: str, done: int, total: int) -> None:
        self.path, self.done, self.total = path, done, total
        if self.stopping:
            raise StopReading("stopped by a person")


def is_large(paths: Sequence[Path]) -> bool:
    """Whether reading may take longer than a cell should; looks at no more files than it takes to tell."""
    size = count = 0
    for root in paths:
        for path in (root,) if root.is_file() else root.rglob("*"):
            try:
                size, count = size + path.stat().st_size, count + 1
            except OSError:  # whoever reads it says so
                continue
            if size > QUICK_BYTES or count > QUICK_FILES:
                return True
    return False


class WorkbookState:
    """One page's state. ``on`` listens to ``evidence``, ``reading``, ``what_if``, ``explored``, ``checklist`` or
    ``notice``.

    Attributes:
        diagnosis: of the evidence now open; None before any is.
        evidence: the paths that are open; empty for pasted text. ``label`` names them for a person.
        start_name: what the what-if starts from, in words.
        logged: the run's settings as the evidence states them, gaps assumed; ``origins`` names where each stands, and
            holds no name that is assumed.
        settings: the what-if, ``logged`` at first.
        capacity_note: what was taken off the card's capacity, in words; empty where nothing was.
        compared: where the evidence and the prediction for ``logged`` part, a line each.
        explored: what-ifs that a person kept, for the report.
        reading: what is being read in a thread; None while nothing is. ``problem``: why the last one came to nothing.
        notice: what could not be kept or read back, in one line; empty where all is well.
    """

    def __init__(self) -> None:
        self.notice = ""
        self.history: History | None = None
        try:
            self.history = History()
        except StateError as error:
            self.notice = str(error)
        self.diagnosis: Diagnosis | None = None
        self.evidence: tuple[str, ...] = ()
        self.text: str | None = None
        self.label, self.start_name, self.problem = "", "the run as logged", ""
        self.reading: Reading | None = None
        self._wanted: tuple[Sequence[Path], str] = (), ""
        self.logged = self.settings = assumed_settings({"capacity_bytes": ASSUMED_CAPACITY_BYTES})
        self.origins: dict[str, str] = {}
        self.capacity_note, self.compared = "", tuple[Line, ...]()
        self.explored: list[dict[str, Any]] = []
        self.checklist = Checklist(())
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._save_soon = AtRest(self.save_now)

    def on(self, what: str, call: Callable[[], None]) -> None:
        """Call ``call`` after each change of ``what``."""
        self._listeners.setdefault(what, []).append(call)

    def _tell(self, *whats: str) -> None:
        for what in whats:
            for call in self._listeners.get(what, []):
                call()

    def open(
        self,
        *paths: str | Path,
        text: str | None = None,
        label: str = "",
        wait: bool = True,
    ) -> None:
        """Diagnose evidence and show it. Where it can't be read, what was open stays.

        Without ``wait``, large evidence is read in a thread and shown when that ends, on the loop that runs now; a
        reading that was under way is dropped for it. Without a loop this waits.

        Raises:
            DiagKitError: in one line, what can't be used and what to do.
        """
        resolved = [places.start_folder() / Path(p).expanduser() for p in paths]
        try:
            loop = None if wait or text is not None or not is_large(resolved) else asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None:
            self.show(diagnose(*resolved, text=text), resolved, label, text)
            self._tell("reading")
            return
        self._drop()
        self._wanted = resolved, label
        self.reading = Reading(lambda report: diagnose(*resolved, on_progress=report))
        self._look(loop, self.reading)

    def _look(self, loop: asyncio.AbstractEventLoop, reading: Reading) -> None:
        """Show how far a reading is, and what came of it."""
        if reading is not self.reading:
            return
        if reading.thread.is_alive():
            self._tell("reading")
            loop.call_later(LOOK_SECONDS, self._look, loop, reading)
        else:
            self.wait()

    def wait(self) -> None:
        """Wait until what is being read is read, and show it; for a notebook that runs without a person."""
        if (reading := self.reading) is None:
            return
        reading.thread.join()
        self.reading, self.problem = None, reading.error
        try:
            if reading.diagnosis:
                self.show(reading.diagnosis, *self._wanted)
        except DiagKitError as error:
            self.problem = str(error)
        self._tell("reading")

    def stop(self) -> None:
        """End the reading early: what was read is judged."""
        if self.reading:
            self.reading.stopping = True
            self._tell("reading")

    def _drop(self) -> None:
        """End the reading, and whatever comes of it is not shown."""
        if self.reading:
            self.reading.stopping = True
        self.reading, self.problem = None, ""

    def show(self, diagnosis: Diagnosis, resolved: Sequence[Path], label: str, text: str | None = None) -> None:
        """Show a diagnosis of what was read from these paths or that text."""
        self._drop()
        self.save_now()
        self.text = text
        self.diagnosis, self.evidence = diagnosis, tuple(map(str, resolved))
        self.label = label or ", ".join(p.name for p in resolved)
        self.logged, self.origins, self.capacity_note = prefill(diagnosis, resolved)
        self.compared = ()
        if "model" in self.origins:
            assumed = [label for name, label in LABELS.items() if name not in self.origins]
            self.compared = tuple(comparison(diagnosis, self.logged, assumed))
        self.settings, self.explored = self.logged, []
        self.checklist = Checklist.from_diagnosis(diagnosis)
        self._keep(lambda history: self._restore(history, diagnosis))
        self._tell("evidence", "what_if", "explored", "checklist")

    @property
    def example(self) -> bool:
        """Whether the what-if is of a model that neither the evidence nor a person named."""
        return "model" not in self.origins and self.settings.model == self.logged.model

    @property
    def touched(self) -> bool:
        """Whether a person changed or kept something of the what-if."""
        return bool(self.explored) or self.settings != self.logged

    def _restore(self, history: History, diagnosis: Diagnosis) -> None:
        key = diagnosis.content_key
        self.checklist.restore(history.marks(key))
        self.checklist.on_change = lambda item, by, mark: self._keep(
            lambda kept: kept.save_mark(key, mark.to_json()) if mark else kept.drop_mark(key, item, by)
        )
        history.save_diagnosis(key, diagnosis.to_json(), self.evidence)
        if saved := history.what_if(key):
            self.explored = saved.get("explored", [])
            self.settings = Settings.from_json(saved["settings"])

    def _keep(self, act: Callable[[History], None]) -> None:
        """Read or write history; what fails is said in ``notice`` and stops nothing."""
        if self.history is None:
            return
        notice = ""
        try:
            act(self.history)
        except (DiagKitError, KeyError, TypeError) as error:
            notice = str(error)
        if notice != self.notice:
            self.notice = notice
            self._tell("notice")

    def change(self, **changes: Any) -> None:
        """Set what-if settings; a value that the memory model refuses raises `SettingsError` and changes nothing."""
        self.settings = self.settings.with_(**changes)
        self._tell("what_if")
        self._save_soon()

    def start_from(self, model: str = ASSUMED_MODEL, **settings: Any) -> None:
        """Without evidence: settings to start from, over a published shape by its name in ``MODELS``."""
        self.logged = self.settings = self.logged.with_(model=dict(MODELS[model]), **settings)
        self.origins = dict.fromkeys(("model", *settings), "this page")
        self.start_name = "the start"
        self._tell("evidence", "what_if")

    def reset(self) -> None:
        """Back to the run as the evidence has it."""
        self.settings = self.logged
        self._tell("what_if")
        self._save_soon()

    def explore(self) -> None:
        """Keep the settings as they stand for the report."""
        self.explored = [*self.explored, {"settings": self.settings.to_json()}]
        self._tell("explored")
        self.save_now()

    def forget_explored(self) -> None:
        """Keep no what-if for the report."""
        self.explored = []
        self._tell("explored")
        self.save_now()

    def mark(self, item: str, state: str, by: str, note: str = "") -> None:
        """Set a person's mark; a bare ``todo`` takes it back, so that the evidence's counts again.

        Raises:
            StateError: no name was given.
        """
        if state == "todo" and not note.strip():
            self.checklist.clear(item, by)
        else:
            self.checklist.mark(item, state, by, note)
        self._tell("checklist")

    def save_now(self) -> None:
        """Keep the what-if. Marks are kept as they are set."""
        self._save_soon.cancel()
        if self.diagnosis is not None:
            key, document = self.diagnosis.content_key, {"settings": self.settings.to_json(), "explored": self.explored}
            self._keep(lambda history: history.save_what_if(key, document))

    def series(self) -> pd.DataFrame:
        """The memory that the evidence measured, one row a reading: rank, step, micro_step, metric, bytes, where."""
        import pandas as pd

        points = self.diagnosis.points if self.diagnosis else ()
        rows = [(p.rank, p.step, p.micro_step, p.metric, p.value_bytes, str(p.source)) for p in points]
        return pd.DataFrame(rows, columns=["rank", "step", "micro_step", "metric", "bytes", "where"])

    def start_on(self) -> tuple[str, ...]:
        """The evidence to open first: what was opened last since the command, else its run, else a bundled sample."""
        run, started = os.environ.get(places.RUN), os.environ.get(places.STARTED)
        if started and self.history:
            last = next(iter(self.history.past(1)), None)
            if last and last.when > started and last.evidence and all(Path(p).exists() for p in last.evidence):
                return last.evidence
        return (run,) if run else tuple(str(sample.path) for sample in places.samples()[:1])
