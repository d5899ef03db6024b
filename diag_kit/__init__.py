"""diag_kit: diagnose training runs that died of memory.

>>> import diag_kit
>>> diag_kit.diagnose(text="RuntimeError: CUDA error: device-side assert triggered").family
'not-memory'

The names below are the whole public surface; each loads its module when first used, so that importing the package costs
nothing and needs neither torch nor Jupyter.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "diagnose": "diagnosis",
    "load_run": "evidence.run",
    "estimate": "memory.engine",
    "Settings": "memory.settings",
    "entries": "failures",
    "Checklist": "checklist",
    "write_report": "report",
    "DiagKitError": "errors",
}
_AS = {"entries": "load_entries", "write_report": "write"}
__all__ = [
    "Checklist",
    "DiagKitError",
    "Settings",
    "__version__",
    "diagnose",
    "entries",
    "estimate",
    "load_run",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), _AS.get(name, name))
