"""The lab on this machine: each claim beside what is measured of it, and what measuring costs.

    python benchmarks/lab.py              # runs all, prints a line each
    python benchmarks/lab.py --write      # and writes data/measured/lab_claims.json and lab_claims.md
    python benchmarks/lab.py kept-loss    # these only

Promised: each experiment takes under 5 s of the processor and the whole lab under 90 s, the import of torch apart. Exit
status 1 where that is not so, or where an experiment could not be run.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
from pathlib import Path

from diag_kit import lab
from diag_kit.lab import Outcome

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured"
EACH_S, ALL_S = 5.0, 90.0


def table(outcomes: list[Outcome]) -> str:
    """The truth table in Markdown."""
    ran = outcomes[0]
    lines = [
        "# What the lab measured",
        "",
        f"torch {ran.torch} on {ran.device}, {platform.machine()}, Python {platform.python_version()}; written by",
        "`benchmarks/lab.py --write`. `diag-kit lab` measures the same on another machine.",
    ]
    entry = ""
    for outcome in outcomes:
        about = lab.experiment(outcome.experiment)
        if about.entry != entry:
            entry = about.entry
            lines += ["", f"## {entry}", "", "| claim | measured here | verdict | experiment |", "|---|---|---|---|"]
        cells = [about.claim, outcome.says, outcome.verdict or outcome.problem or "", f"`{about.id}`"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--write", action="store_true", help="write data/measured/lab_claims.json and .md")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []

    def show(outcome: Outcome) -> None:
        outcomes.append(outcome)
        verdict = outcome.verdict or outcome.problem
        print(
            f"{outcome.experiment:22} {outcome.cpu_seconds:6.2f} s CPU {outcome.seconds:6.2f} s  {verdict}", flush=True
        )

    lab.run(arguments.ids or None, device=arguments.device, on_outcome=show)
    used = sum(o.cpu_seconds for o in outcomes)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    slowest = max(outcomes, key=lambda o: o.cpu_seconds)
    print(
        f"\n{len(outcomes)} experiments, {used:.1f} s of CPU (promised under {ALL_S:.0f}), the slowest {slowest.experiment} "
        f"{slowest.cpu_seconds:.1f} s (under {EACH_S:.0f}); with the imports of torch {usage.ru_utime + usage.ru_stime:.1f} s"
    )
    if arguments.write and not arguments.ids:
        document = {"python": platform.python_version(), "machine": platform.machine()}
        document["outcomes"] = [o.to_json() for o in outcomes]
        (FOLDER / "lab_claims.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        (FOLDER / "lab_claims.md").write_text(table(outcomes), encoding="utf-8")
    return int(used > ALL_S or slowest.cpu_seconds > EACH_S or any(o.problem for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
