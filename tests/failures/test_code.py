"""The code of every fix for PyTorch, the Trainer, accelerate and Lightning is run: on a CPU, with a small model."""

import ast
import importlib.util
import warnings

import pytest

from diag_kit.failures import load_entries

stage = pytest.importorskip("tests.failures.stage", reason="runs with torch, transformers and accelerate")

RUN = ("pytorch", "trainer", "accelerate", "lightning")
BLOCKS = [
    pytest.param(framework, code, id=f"{entry.id}/{fix.id}/{framework}")
    for entry in load_entries() for fix in entry.fixes for framework, code in fix.code.items() if framework in RUN
]  # fmt: skip


def imported(code):
    """Top names of the modules that a block imports."""
    nodes = list(ast.walk(ast.parse(code)))
    found = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return found | {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A tiny model that loads by its path."""
    return stage.saved(tmp_path_factory.mktemp("model"))


@pytest.fixture
def perform(model_folder, tmp_path, monkeypatch):
    """Run a block on the stage; what it made."""

    def play(code, **more):
        if needs := sorted(imported(code) & set(stage.ABSENT)):
            if missing := [name for name in needs if importlib.util.find_spec(name) is None]:
                pytest.skip(f"parsed, not run: {', '.join(missing)} is not installed")
        space = stage.names(model_folder, tmp_path) | more
        before = dict(stage.os.environ)
        monkeypatch.chdir(tmp_path)
        try:
            with warnings.catch_warnings(), stage.one_rank(code, space, tmp_path, monkeypatch), stage.on_cpu(monkeypatch):
                warnings.simplefilter("ignore")
                return stage.run(code, space, tmp_path)
        finally:
            stage.os.environ.clear()
            stage.os.environ.update(before)

    return play


@pytest.mark.parametrize(("framework", "code"), BLOCKS)
def test_the_code_of_a_fix_runs(framework, code, perform):
    """The block runs as it stands; what it defines trains, checks or samples here."""
    perform(code)
