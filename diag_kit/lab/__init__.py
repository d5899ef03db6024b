"""The lab: small torch experiments that measure whether an entry's claims are so, on this machine.

Nothing here imports torch; `run` does so in a process of its own. `experiments` lists what there is, `carry` says what
an effect comes to at a run's own sizes, by the memory model.
"""

from __future__ import annotations

from importlib import import_module

from ..memory.settings import Settings
from .catalog import chosen, experiment, module
from .records import SCHEMA, Carried, Experiment, LabError, Line, Outcome, Row
from .running import run

import_module(
    f"{__name__}.experiments"
)  # sets the folder as an attribute, once; from here on the name is the function's
from .catalog import experiments  # noqa: E402

__all__ = [
    "SCHEMA", "Carried", "Experiment", "LabError", "Line", "Outcome", "Row", "carry", "chosen", "experiment",
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
