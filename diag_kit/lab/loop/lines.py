"""Watches holders while the user's code runs, line by line, and notes the line after which one had changed."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import Any

from .reach import Node
from .source import Site, is_users


class Watch:
    """Holders to watch. A variable of a function is found in its source rather than here.

    ``lines``: by path, where each was stored into most often.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._wanted = {node.path() for node in nodes}
        self._keys = {node.key for node in nodes}
        self._places: dict[str, tuple[Any, Any, Any]] = {}
        self._marks: dict[str, tuple[int, ...]] = {}
        self._seen: dict[str, dict[Site, int]] = {}
        self._last: Site | None = None
        self._old: Any = None
        self._on = False
        self.found_all = not self._wanted

    @property
    def lines(self) -> dict[str, Site]:
        """The line of each path."""
        return {path: max(sites, key=lambda site: sites[site]) for path, sites in self._seen.items()}

    def find(self, places: Sequence[Node]) -> None:
        """Take up the objects that stand at the wanted places now."""
        for node in places:
            if node.key in self._keys and (path := node.path()) in self._wanted and path not in self._places:
                within = node.parent.value if node.parent is not None else None
                if node.edge == "attribute" or (node.edge == "item" and isinstance(within, dict)):
                    self._places[path] = (within, node.key, node.value)
                elif isinstance(node.value, list | dict | set | deque):
                    self._places[path] = (None, None, node.value)
                else:
                    continue
                self._changed(path)
        self.found_all = True

    def start(self, frame: FrameType) -> None:
        """Watch from here on, in this frame and its callers and all that they call."""
        if self._on or not self._places:
            return
        self._on, self._old = True, sys.gettrace()
        above: FrameType | None = frame
        while above is not None:
            if is_users(above.f_code.co_filename):
                above.f_trace = self._trace
            above = above.f_back
        self._last = Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        sys.settrace(self._trace)

    def stop(self) -> None:
        """Watch no longer, and let go of the objects."""
        if self._on:
            sys.settrace(self._old)
            self._on = False
        self._places.clear()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not self._on or not is_users(code.co_filename):
            return None
        self._check()
        if event == "return":
            back = frame.f_back
            if back is not None and is_users(back.f_code.co_filename):
                self._last = Site(back.f_code.co_filename, back.f_lineno, back.f_code.co_qualname)
        else:
            self._last = Site(code.co_filename, frame.f_lineno, code.co_qualname)
        return self._trace

    def _check(self) -> None:
        for path in self._places:
            if self._changed(path) and self._last is not None:
                seen = self._seen.setdefault(path, {})
                seen[self._last] = seen.get(self._last, 0) + 1

    def _changed(self, path: str) -> bool:
        """Whether a place differs from when it was last looked at: another object, or one with other contents."""
        within, key, value = self._places[path]
        if within is not None:
            held = within if isinstance(within, dict) else getattr(within, "__dict__", {})
            value = held.get(key, held.get("_buffers", {}).get(key) if held is not within else None)
        mark: tuple[int, ...] = (id(value),)
        if isinstance(value, list | deque | dict | set):
            last = None if isinstance(value, set) else next(reversed(value), None)
            mark = (id(value), len(value), id(value.get(last) if isinstance(value, dict) else last))
        old, self._marks[path] = self._marks.get(path), mark
        return old is not None and old != mark
