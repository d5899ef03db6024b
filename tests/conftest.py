"""What every test gets: a data folder of its own, so that no test reads or writes the user's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

DATA = "DIAG_KIT_DATA"
PROGRAMS = "DIAG_KIT_CACHE"


@pytest.fixture(scope="session", autouse=True)
def _session_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that outlive one test get a temporary data folder too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA, str(tmp_path_factory.mktemp("session-data")))
        # Traced once for all workers of a run; another run traces anew.
        base = tmp_path_factory.getbasetemp()
        patch.setenv(PROGRAMS, str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "programs"))
        yield


@pytest.fixture(autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty data folder of this test; outside ``tmp_path``, whose content stays the test's own."""
    folder = tmp_path_factory.mktemp("data")
    monkeypatch.setenv(DATA, str(folder))
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser journeys run in one worker: they share a browser and a server."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.xdist_group("browser"))
