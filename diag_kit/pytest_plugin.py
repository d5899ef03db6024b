"""pytest's side of ``guard``: the fixture ``memory_guard`` and the marker ``memory_budget``.

    def test_training_keeps_nothing(memory_guard):
        memory_guard.no_graph_retention(lambda: train_step(model, batch))

    @pytest.mark.memory_budget("256 MiB")
    def test_longest_batch():
        train_step(model, longest_batch)

It loads with pytest wherever diag-kit is installed, and imports torch only in tests that ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import guard
from .errors import DiagKitError


class MemoryGuard:
    """``guard``'s two assertions, under shorter names."""

    no_graph_retention = staticmethod(guard.assert_no_graph_retention)
    peak_below = staticmethod(guard.assert_peak_below)


@pytest.fixture
def memory_guard() -> MemoryGuard:
    """Assertions on memory: ``no_graph_retention(...)`` and ``peak_below(budget, ...)``, as calls or blocks."""
    return MemoryGuard()


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "memory_budget(size): fail when what the test allocates passes size, as '2 GiB'")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """Run a test that has a budget within it."""
    __tracebackhide__ = True
    marker = item.get_closest_marker("memory_budget")
    if marker is None:
        return (yield)
    if len(marker.args) + len(marker.kwargs) == 0:
        raise DiagKitError(f"{item.nodeid}: memory_budget without a size; write @pytest.mark.memory_budget('2 GiB')")
    with guard.assert_peak_below(*marker.args, **marker.kwargs):
        return (yield)
