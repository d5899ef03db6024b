"""Notebooks carry no outputs and no logic, and each runs from top to bottom."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_is_stripped(path: Path) -> None:
    """No outputs, execution counts or widget state; cell ids that a person chose, so that they stay."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert "widgets" not in notebook.metadata
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(notebook))
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all((cell_id.islower() and not cell_id.isalnum()) or cell_id.isalpha() for cell_id in ids)


def test_holds_no_logic(path: Path) -> None:
    """Cells of one to three lines, source hidden; no function, loop or condition: logic is in the package."""
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert len([line for line in cell.source.splitlines() if line]) <= 3, cell.id
        assert cell.metadata.get("jupyter", {}).get("source_hidden"), cell.id
        banned = ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.If | ast.Try
        assert not any(isinstance(node, banned) for node in ast.walk(ast.parse(cell.source))), cell.id


def test_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs without an error and without a word on standard error."""
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=180,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable
    client.execute()
    said = [
        o
        for cell in code_cells(notebook)
        for o in cell.outputs
        if o.output_type == "error" or o.get("name") == "stderr"
    ]
    assert not said
