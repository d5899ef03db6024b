"""Make .venv fit for use, or leave it alone when it already is.

usage: PYTHON .ci/venv.py workbook|test [--over]

``workbook`` and ``test`` take the versions of requirements.lock; ``test`` adds the test tools and PyTorch. ``--over``
builds over the packages of the interpreter that runs this file: its torch and its owner's code stay visible, nothing
that it has is replaced while it satisfies our lower bounds, and no torch is installed. A later plain ``workbook`` keeps
such a .venv; ``test`` makes it anew.

A stamp inside .venv says what it was made from. It is made anew when another Python, folder or kind is asked for or
when it does not run, and brought up to date when the project's files changed. Every Python 3 can read this file, so
that an old one is refused in one line. Environment: PIP_ARGS and TORCH_ARGS are passed on to pip (for all packages,
for PyTorch alone).
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

NEEDED = (3, 11)
TIERS = ("workbook", "test")
"""Each has what the one before it has."""
ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "made-from.json"
LOCK = ROOT / "requirements.lock"
BUILD_TOOLS = ["hatchling", "editables"]
"""What an editable install of this project is built with; pinned in the lock like the rest."""


def main(arguments):
    """Exit status 0 when .venv is ready; otherwise one line says what is wrong and what to do."""
    if not arguments or arguments[0] not in TIERS or arguments[1:] not in ([], ["--over"]):
        return complain("usage: python .ci/venv.py {} [--over]".format("|".join(TIERS)))
    tier, over = arguments[0], len(arguments) > 1
    if sys.version_info < NEEDED:
        return complain(
            "diag-kit needs Python {}.{} or newer, {} is {}.{}; name another: make {} PYTHON=/path/to/python".format(
                *NEEDED, sys.executable, *sys.version_info[:2], tier
            )
        )
    wanted = {"python": sys.version, "prefix": sys.prefix, "root": str(ROOT), "over": over}
    made = stamp()
    if tier == "workbook" and not over and made.get("over") and runs(made.get("python")):
        # A plain call keeps the packages that were chosen before.
        over, wanted = True, {**wanted, "over": True, "python": made.get("python"), "prefix": made.get("prefix")}
    files = [ROOT / "pyproject.toml", Path(__file__)] + ([] if over else [LOCK])
    inputs = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
    # One without a stamp, of a set-up cut short or made by hand, is completed rather than thrown away.
    same = {key: made.get(key) for key in wanted} == wanted if made else not over and bare()
    usable = same and runs(wanted["python"])
    if usable and made.get("tier") == TIERS[-1]:
        tier = TIERS[-1]  # it has more than asked for, and keeps it
    if usable and made.get("inputs") == inputs and made.get("tier") == tier:
        return 0
    kind = "over {}".format(wanted["prefix"]) if over else "pinned versions"
    print("Setting up .venv ({}, {}); the first time takes a few minutes.".format(tier, kind), file=sys.stderr)
    try:
        if not usable:
            say("making an empty environment")
            create(over)
        STAMP.unlink(missing_ok=True)
        install(tier, over)
    except subprocess.CalledProcessError as error:
        step = " ".join(str(part) for part in error.cmd[1:4])
        return complain("set-up stopped at '{} ...' (status {}); its message is above".format(step, error.returncode))
    except OSError as error:
        return complain("{}: {}; .venv can't be made there".format(error.filename or VENV, error.strerror))
    STAMP.write_text(json.dumps({**wanted, "inputs": inputs, "tier": tier}, indent=1) + "\n", encoding="utf-8")
    return 0


def stamp():
    """What .venv was made from; empty where it has no readable stamp."""
    try:
        made = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return made if isinstance(made, dict) else {}


def python():
    """The interpreter of .venv."""
    return VENV / "bin" / "python"


def runs(version):
    """Whether .venv's interpreter starts, is of this version, and finds the project."""
    check = "import sys, pip, diag_kit; sys.exit(sys.version != sys.argv[1])"
    try:
        command = [str(python()), "-c", check, str(version)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def bare():
    """Whether .venv stands on its own packages."""
    try:
        return "include-system-site-packages = false" in (VENV / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return False


def create(over):
    """An empty .venv; over the packages of this interpreter, or bare."""
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    shutil.rmtree(VENV, ignore_errors=True)
    command = [sys.executable, "-m", "venv", *(["--system-site-packages"] if over else []), str(VENV)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.stderr.write(made.stdout + made.stderr)
        raise subprocess.CalledProcessError(made.returncode, command)
    if over and sys.prefix != sys.base_prefix:
        # A venv over a venv sees the base interpreter's packages only: add those of the one that was named.
        names = ("site-packages", "dist-packages")
        theirs = [path for path in map(Path, sys.path) if path.name in names and path.is_dir()]
        site = next((VENV / "lib").glob("python*/site-packages"))
        lines = ["import site; site.addsitedir({!r})".format(str(path)) for path in theirs]
        (site / "over.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def install(tier, over):
    """The packages of this tier, and the project itself in place."""
    project = ".[{}]".format(tier)
    if over:
        say("installing what the {} needs and that interpreter has not".format(tier))
        pip("-e", project)
        accelerate(tier)
        return
    pinned = ["-c", str(LOCK)]
    say("installing the build tools")
    pip(*pinned, *BUILD_TOOLS)
    if tier == "test":
        locked = LOCK.read_text(encoding="utf-8").splitlines()
        torch = next(line for line in locked if line.startswith("torch=="))
        trained = [line for line in locked if line.startswith(("transformers==", "accelerate==", "lightning=="))]
        say("installing {}: the largest part, a few minutes".format(torch.split()[0].replace("==", " ")))
        pip(*pinned, *shlex.split(os.environ.get("TORCH_ARGS", "")), torch)
        pip(*pinned, *trained)  # the last two run the code that entries show
    say("installing JupyterLab, {}and diag-kit itself".format("the test tools " if tier == "test" else "plotly "))
    pip(*pinned, "--no-build-isolation", "-e", project)
    accelerate(tier, *pinned, "--no-build-isolation")


def accelerate(tier, *arguments):
    """What reads gigabytes faster, where this system has builds of it; the workbook does without where it has not."""
    if tier == "test":
        return  # has it among its tools
    try:
        pip("--only-binary=hyperscan,ahocorasick_rs,isal,backports.zstd", *arguments, "-e", ".[fast]")
    except subprocess.CalledProcessError:
        say("no accelerators of the scan for this system: large logs will be read by the standard library, slower")


def pip(*arguments):
    """Run .venv's pip; its own messages pass through."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    more = shlex.split(os.environ.get("PIP_ARGS", ""))
    subprocess.run([str(python()), "-m", "pip", "install", *quiet, *more, *arguments], cwd=str(ROOT), check=True)


def say(line):
    """One step of the set-up, on standard error as all that is no result."""
    print("  " + line, file=sys.stderr, flush=True)


def complain(line):
    """One line on standard error; exit status 2."""
    print(line, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
