"""The micro-batches of a window, which notice each that is taken, and last until the loop's first backward."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .survey import Survey

MOST = 32
"""Micro-steps after which the first window stops waiting for a backward."""


class Batches:
    """What the loop iterates over. A window that ends before the loop's backward shows its graph as kept for good; so,
    where the survey ``waits``, the first window goes on until backward has run, and the others are as long.
    """

    def __init__(self, survey: Survey) -> None:
        self.book = survey.book
        self._survey = survey
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return self._survey.count

    def __next__(self) -> Any:
        self._survey.pulled(sys._getframe(1))
        if self._next >= self._survey.count and not self._waits():
            self._next = 0  # a loop that goes over its batches again starts anew
            raise StopIteration
        self._next += 1
        self.book.begin_step()
        return self._drawn(self._next - 1)

    def __getitem__(self, at: int) -> Any:
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        self._survey.pulled(sys._getframe(1))
        self.book.begin_step()
        return self._drawn(at % len(self))

    def _drawn(self, at: int) -> Any:
        batches = self._survey.job.batches
        return batches[at % len(batches)]

    def _waits(self) -> bool:
        survey, book = self._survey, self.book
        if not survey.waits or book.window > 1:
            return False
        if book.backwards:
            if self._next > survey.count:
                survey.count = survey.first_backward = self._next
            return False
        return self._next < MOST
