"""The Jupyter workbook: views over plain state. ``workbook(run)`` is the page, ``open_workbook()`` the notebook's.

The names load on first use: the launcher lives here too, and must be able to say that JupyterLab is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .page import Workbook, open_workbook, workbook

__all__ = ["Workbook", "open_workbook", "workbook"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import page

        return getattr(page, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
