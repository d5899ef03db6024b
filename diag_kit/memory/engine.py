"""Which engine answers: a trace of the run's own model where there is one and torch is installed, else closed forms."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError, UnshardableError
from . import formulas
from .estimates import Estimate, Lead, Progress
from .settings import Settings

if TYPE_CHECKING:
    from .exact import Exact, Traced
    from .program import Point

MOST_MODELS = 32
"""Models whose programs stay in memory."""


class Traces:
    """The trace as an engine. Programs are kept for the life of the object; the models only of what was asked last."""

    method = "trace"

    def __init__(self, on_progress: Progress | None = None) -> None:
        self.on_progress = on_progress
        self._models: OrderedDict[str, Exact] = OrderedDict()
        self._unshardable: dict[str, str] = {}

    def estimate(self, s: Settings) -> Estimate:
        """The whole estimate; reserved bytes by replaying the allocator."""
        from .traced import traced_estimate

        return self._said(s, traced_estimate(*self.traced(s), s))

    def sketch(self, s: Settings) -> Estimate:
        """The same without the replay, for a slider on the move: reserved bytes are a share of the allocated."""
        from .traced import traced_estimate

        return self._said(s, traced_estimate(*self.traced(s), s, replayed=False))

    def peak_bytes(self, s: Settings) -> int:
        """Its peak_allocated_bytes alone."""
        from .traced import peak_bytes

        return peak_bytes(*self.traced(s), s)

    def longest(self, s: Settings) -> int | None:
        """The most tokens that the model has positions for; None without a limit."""
        return self.traced(s)[0].longest

    def has(self, s: Settings) -> bool:
        """Whether these settings are answered at once, by a program in memory or a kept one: without a trace."""
        try:
            return self.exact(s).knows(s)
        except (ImportError, SettingsError):  # no numpy; a split that no trace describes
            return False

    def curve(self, s: Settings, lengths: Sequence[int]) -> list[Lead] | None:
        """Peak, its phase and what made it at each of these lengths; None where that would need a trace."""
        from .traced import leads

        at = [s.with_(seq_len=n) for n in lengths]
        exact = self.exact(s)
        return leads([exact.at(one) for one in at], s) if all(exact.knows(one) for one in at) else None

    def exact(self, s: Settings) -> Exact:
        """The programs of these settings' model, on one rank: as if alone, or sharded where that is traced."""
        from .exact import Exact, identity, refuse

        refuse(s)
        s = self._alone(s)
        name = identity(s)
        if name not in self._models:
            for other in self._models.values():
                other.release()
            self._models[name] = Exact(s, self.on_progress)
            if len(self._models) > MOST_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(name)
        return self._models[name]

    def _said(self, s: Settings, found: Estimate) -> Estimate:
        from .exact import identity

        said = self._unshardable.get(identity(s)) if self._unshardable else None
        return found.but(said) if said else found

    def traced(self, s: Settings) -> tuple[Traced, Point]:
        """The program that covers these settings, traced where none is there, and the point."""
        from .exact import identity

        try:
            return self.exact(s).at(s)
        except UnshardableError as e:
            self._unshardable[identity(s)] = str(e)
            return self.traced(s)

    def _alone(self, s: Settings) -> Settings:
        from .exact import identity
        from .sharing import by_trace, local

        if by_trace(s):
            return local(s, traced=False) if identity(s) in self._unshardable else s
        return local(s)


class Known(Traces):
    """The trace as an engine that answers only what it has a program for; SettingsError for what it would trace."""

    def __init__(self, traces: Traces) -> None:
        super().__init__()
        self._models, self._unshardable = traces._models, traces._unshardable

    def traced(self, s: Settings) -> tuple[Traced, Point]:
        """The program that covers these settings, and the point."""
        if not self.has(s):
            raise SettingsError("not traced: another structure of the model; ask for traced remedies")
        return super().traced(s)


_TRACES = Traces()


def missing_for_trace() -> str:
    """The first library that a trace needs and is not installed; empty where all are."""
    return next((name for name in ("torch", "numpy", "transformers") if find_spec(name) is None), "")


def refusal(s: Settings) -> str:
    """Why no trace describes these settings, in one line; empty where one does."""
    try:
        from .exact import refuse

        refuse(s)
    except ImportError:
        return "numpy is not installed"
    except SettingsError as error:
        return str(error)
    return ""


def engine(s: Settings, on_progress: Progress | None = None) -> Traces | None:
    """The trace where ``s.method`` asks for it, or leaves it open and it can answer; None where closed forms are meant.

    SettingsError where a trace is asked for and can't be had, or where nothing else could answer.
    """
    if s.method == "formula":
        return None
    absent = missing_for_trace()
    needs = s.method == "trace" or (s.exact is not None and s.exact.uncovered)
    if absent and needs:
        what = s.exact.where if s.exact and s.exact.uncovered else "settings.method trace"
        raise SettingsError(f"{what}: needs {absent}, which is not installed; pip install 'diag-kit[torch]'")
    why = refusal(s)
    if why and needs:
        raise SettingsError(why)
    if why or absent:
        return None
    _TRACES.on_progress = on_progress
    return _TRACES


def estimate(settings: Settings | Mapping[str, Any], on_progress: Progress | None = None) -> Estimate:
    """Memory of one optimizer step of a run with these settings.

    By a trace of the run's own model where it can be had, else by closed forms; ``Estimate.method`` says which.

    Args:
        settings: a Settings, or the document of one as JSON would hold it. SettingsError where that is wrong.
        on_progress: told what is traced, how many traces are done, how many are meant.
    """
    s = settings if isinstance(settings, Settings) else Settings.from_json(settings)
    traces = engine(s, on_progress)
    if traces is None:
        return formulas.estimate(s)
    try:
        return traces.estimate(s)
    except SettingsError as e:
        if s.method == "trace" or (s.exact and s.exact.uncovered):
            raise
        return formulas.estimate(s).but(f"by formula, since a trace failed: {e}")
