"""The Jupyter workbook: views over plain state. ``workbook(run)`` is the page, ``open_workbook()`` the notebook's,
``Walk(entry)`` the guided walk through an entry, ``open_entries()`` the encyclopedia alone.

The names load on first use: the launcher lives here too, and must be able to say that JupyterLab is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .page import Workbook, open_entries, open_workbook, workbook
    from .walk import Walk

__all__ = ["Walk", "Workbook", "open_entries", "open_workbook", "workbook"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import page, walk

        return getattr(walk if name == "Walk" else page, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
