"""The project's own files agree with each other, and the core stands without torch and Jupyter."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONDA_NAMES = {"torch": "pytorch"}
"""Where conda-forge has another name than PyPI; all others are alike."""


def _split(requirement: str) -> tuple[str, str]:
    """Name in lower case, and the bounds without blanks."""
    name, bounds = re.fullmatch(r"([\w.-]+)\s*(.*)", requirement.strip()).groups()
    return name.lower(), bounds.replace(" ", "")


def _conda() -> dict[str, str]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    return dict(_split(line) for line in environment["dependencies"] if isinstance(line, str))


def test_environment_in_step() -> None:
    """environment.yml names each dependency of the core, workbook and torch tiers, with the same bounds, no other."""
    tiers = PROJECT["project"]["optional-dependencies"]
    wanted = dict(_split(line) for line in PROJECT["project"]["dependencies"] + tiers["workbook"] + tiers["torch"])
    wanted = {CONDA_NAMES.get(name, name): bounds for name, bounds in wanted.items()}
    assert _conda() == wanted | {"python": PROJECT["project"]["requires-python"], "pip": ""}


def test_environment_installs_the_project_in_place() -> None:
    """pip is told to install the checkout with the accelerators of the scan, and nothing more."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert [line for line in environment["dependencies"] if isinstance(line, dict)] == [{"pip": ["-e .[fast]"]}]


def test_lock_covers_every_tier() -> None:
    """requirements.lock pins each direct dependency to a version that pyproject.toml admits, and names no address."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = dict(line.lower().split("==") for line in text.splitlines() if line and not line.startswith("#"))
    tiers = PROJECT["project"]["optional-dependencies"]
    direct = PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]
    for requirement in itertools.chain(direct, *tiers.values()):
        name, bounds = _split(requirement)
        if requirement.startswith(PROJECT["project"]["name"]):
            continue
        lowest = re.match(r">=([\d.]+)", bounds)[1]
        assert _version(pins[name]) >= _version(lowest), requirement
    assert "://" not in text


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """make as a person calls it, also where make runs the tests."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, env=outer, check=False)


def test_every_make_target_has_a_line_of_help() -> None:
    """make alone lists every target that a person may call, each with what it is for."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY:(.*)$", makefile, re.M)[1].split()) - {"have-python"}
    shown = _make().stdout
    assert {line.split()[1] for line in shown.splitlines()} == targets
    assert {"help", "workbook", "test", "lint", "benchmarks", "clean"} <= targets
    assert all(len(line.split(maxsplit=2)) == 3 for line in shown.splitlines())


def test_old_or_absent_python_is_one_line() -> None:
    """A Python that is not there ends in one clear line on standard error, without set-up."""
    asked = _make("workbook", "PYTHON=/no/such/python")
    told = [line for line in asked.stderr.splitlines() if not line.startswith("make")]
    assert asked.returncode and len(told) == 1 and "/no/such/python: not found" in told[0]


def test_setup_refuses_an_old_python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Python 3.10 is refused by name and version, with what to type instead, before anything is touched."""
    venv = _setup_module()
    monkeypatch.setattr(venv.sys, "version_info", (3, 10, 4))
    monkeypatch.setattr(venv, "create", lambda over: pytest.fail("made a .venv"))
    assert venv.main(["workbook"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "3.11 or newer" in said and "3.10" in said and "make workbook PYTHON=" in said


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple:
    """The set-up script over an empty checkout, with pip recorded rather than run."""
    venv = _setup_module()
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(venv, "ROOT", tmp_path)
    monkeypatch.setattr(venv, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(venv, "STAMP", tmp_path / ".venv" / "made-from.json")
    monkeypatch.setattr(venv, "LOCK", tmp_path / "requirements.lock")
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(venv, "pip", lambda *arguments: calls.append(arguments))

    def create(over: bool) -> None:
        calls.append(("create",))
        (tmp_path / ".venv").mkdir(exist_ok=True)

    monkeypatch.setattr(venv, "create", create)
    monkeypatch.setattr(venv, "runs", lambda version: (tmp_path / ".venv").is_dir())
    return venv, calls


def test_second_setup_does_nothing(setup: tuple) -> None:
    """A .venv that is up to date is left alone; a changed lock brings it up to date without making it anew."""
    venv, calls = setup
    assert venv.main(["test"]) == 0 and calls[0] == ("create",)
    calls.clear()
    assert venv.main(["test"]) == 0 and venv.main(["workbook"]) == 0 and calls == []
    with venv.LOCK.open("a", encoding="utf-8") as lock:
        lock.write("new-package==1.0\n")
    assert venv.main(["workbook"]) == 0 and calls and ("create",) not in calls


def test_setup_starts_anew_when_it_must(setup: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Python, another kind, or an interpreter that does not run: .venv is made anew."""
    venv, calls = setup
    venv.main(["workbook"])
    for change in ("python", "kind", "broken"):
        calls.clear()
        if change == "python":
            monkeypatch.setattr(venv.sys, "version", "3.12.0 (main)")
        if change == "broken":
            monkeypatch.setattr(venv, "runs", lambda version: False)
        assert venv.main(["workbook"] if change != "kind" else ["workbook", "--over"]) == 0
        assert calls[0] == ("create",), change


def test_workbook_installs_no_torch(setup: tuple) -> None:
    """Over an engineer's own packages pip gets ranges, no pins, no torch; the pinned workbook gets no torch either."""
    venv, calls = setup
    venv.main(["workbook"])
    assert not any("torch" in argument for call in calls for argument in call)
    calls.clear()
    venv.main(["workbook", "--over"])
    only = "--only-binary=hyperscan,ahocorasick_rs,isal,backports.zstd"
    assert calls == [("create",), ("-e", ".[workbook]"), (only, "-e", ".[fast]")]
    calls.clear()
    venv.main(["workbook"])
    assert calls == []  # a plain call keeps what was chosen
    venv.main(["test"])
    assert any(call[-1].startswith("torch==") for call in calls)


def test_workbook_does_without_accelerators(setup: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a system has no build of what makes large logs fast, the workbook is set up all the same."""
    venv, _ = setup
    real = venv.pip

    def pip(*arguments: str) -> None:
        if arguments[-1] == ".[fast]":
            raise subprocess.CalledProcessError(1, ["pip"])
        real(*arguments)

    monkeypatch.setattr(venv, "pip", pip)
    assert venv.main(["workbook"]) == 0


def _setup_module():  # type: ignore[no-untyped-def]
    import importlib.util

    spec = importlib.util.spec_from_file_location("setup_venv", ROOT / ".ci" / "venv.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_core_needs_neither_torch_nor_jupyter() -> None:
    """With only the core's dependencies to be found, the package imports and diagnoses a log."""
    program = f"""
import sys
CORE = {{"yaml", "jinja2", "markupsafe", "platformdirs"}}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in CORE | {{"diag_kit", "_yaml"}}:
            raise ModuleNotFoundError(f"not in the core: {{name}}", name=name)
sys.meta_path.insert(0, Refuse())
from diag_kit.cli import main
sys.exit(main(["diagnose", {str(ROOT / "data/samples/accumulation-spike")!r}, "--json"]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert '"schema": "diag_kit.diagnosis/1"' in done.stdout


def test_wheel_carries_what_is_not_python(tmp_path: Path) -> None:
    """An installed wheel has the entries, templates, scripts, notebooks and samples."""
    import zipfile

    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "diag_kit").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert package <= names
    assert "diag_kit/workbook/samples/INDEX.json" in names
    assert {f"diag_kit/workbook/notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")} <= names


def test_license() -> None:
    """The licence is Apache-2.0 in the text and in the metadata."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_changelog() -> None:
    """CHANGELOG.md is in Keep-a-Changelog form and has a section for this version or for what is unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[([^\]]+)\]", text, re.M)
    assert text.startswith("# Changelog\n") and "keepachangelog.com" in text
    assert {"Unreleased", PROJECT["project"]["version"]} & set(sections)
    kinds = set(re.findall(r"^### (.*)$", text, re.M))
    assert kinds and kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
