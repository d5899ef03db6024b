"""What the README says is so: its commands exist, its folders are there, its numbers are those that the code gives today."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The text between the README's two markers of that name."""
    return README.split(f"<!-- {name} -->\n")[1].split(f"<!-- /{name} -->")[0]


def test_first_screen_is_a_sentence_a_picture_and_two_commands():
    """What a newcomer sees first says what it is, shows it, and how to start; little else."""
    screen = README.split("\n---\n")[0]
    assert "make workbook" in screen and "make test" in screen and "](data/workbook.png)" in screen
    assert len(screen.splitlines()) <= 20
    assert (ROOT / "data/workbook.png").stat().st_size < 400_000


def test_closed_forms_table_is_todays():
    """The published peaks beside the predictions are what the benchmark prints now, row by row."""
    spec = importlib.util.spec_from_file_location("closed_forms", ROOT / "benchmarks/closed_forms.py")
    closed_forms = importlib.util.module_from_spec(spec)
    sys.modules["closed_forms"] = closed_forms
    spec.loader.exec_module(closed_forms)
    groups, table = closed_forms.markdown(list(closed_forms.rows())).split("\n\n")
    assert block("closed-forms").strip() == groups.strip()
    assert block("closed-forms-rows").strip() == table.strip()


def test_every_folder_of_the_map_exists_and_every_room_is_on_it():
    """The map names what is there, and misses no room of the package."""
    named = set(re.findall(r"`((?:diag_kit|notebooks|data|tests|benchmarks)[\w/]*/?)`", README))
    assert all((ROOT / name).exists() for name in named), named
    rooms = {path.name for path in (ROOT / "diag_kit").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert all(f"diag_kit/{room}/" in README for room in rooms if room != "__pycache__"), rooms


def test_commands_of_the_readme_exist():
    """Every command that the README names answers to --help."""
    for command in sorted(set(re.findall(r"`diag-kit (\w+)", README))):
        done = subprocess.run([sys.executable, "-m", "diag_kit.cli", command, "--help"], capture_output=True, text=True)
        assert done.returncode == 0, command
