"""The lab: small torch experiments that measure whether an entry's claims are so, on this machine.

Nothing here imports torch; `run` does so in a process of its own. `experiments` lists what there is, `carry` says what
an effect comes to at a run's own sizes, by the memory model.
"""

from __future__ import annotations

from ..memory.settings import Settings
from . import experiments as _folder  # noqa: F401 - first: loaded later it would take the function's place below
from .catalog import experiment, experiments, module
from .records import SCHEMA, Carried, Experiment, LabError, Line, Outcome, Row
from .running import run

__all__ = [
    "SCHEMA", "Carried", "Experiment", "LabError", "Line", "Outcome", "Row", "carry", "experiment",
    "experiments", "run",
]  # fmt: skip


def carry(id: str, settings: Settings) -> tuple[Carried, ...]:
    """What the experiment's effect comes to at these settings, by closed forms; nothing is run.

    Raises:
        LabError: no experiment of that id.
        SettingsError: no closed form covers the model.
    """
    experiment(id)
    found: tuple[Carried, ...] = module(id).carry(settings)
    return found
