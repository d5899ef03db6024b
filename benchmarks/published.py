"""Every published peak beside the trace, the closed forms and the peers, and the errors by stratum.

    python benchmarks/published.py                    # traces each row, prints it, then medians by stratum
    python benchmarks/published.py --recorded         # takes what was traced from data/measured/published_traced.json
    python benchmarks/published.py --write            # and writes it there
    python benchmarks/published.py --markdown OUT.md  # the same tables as Markdown
    python benchmarks/published.py --only fms-        # rows whose id begins so

Strata: trained whole or by LoRA, with or without checkpointing, eager attention or a fused kernel, 4-bit base or not;
rows whose settings are all stated and that are allocated bytes first, the rest apart, and those apart that ran other
code than transformers'. One publisher's T4 holds most rows, so the strata are told and not only the whole. No row is
fitted. Why a row is off stands in the file's column
``reason``, where it is established.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))
import peers
from closed_forms import PEAKS, Row, predicted
from closed_forms import rows as formula_rows

from diag_kit.errors import DiagKitError
from diag_kit.memory.compiling import compile_program
from diag_kit.memory.exact import Exact, Family, Traced, refuse
from diag_kit.memory.program import NotPolynomialError, Point
from diag_kit.memory.traced import traced_estimate
from diag_kit.units import gib

TRACED = PEAKS.with_name("published_traced.json")
MUST_EXPLAIN = 0.08
OTHER_CODE = ("litgpt's own model code", "own fused kernels", "Megatron-LM")
"""Groups of rows that were measured on other model code than transformers', which is what is traced."""


@dataclass(frozen=True)
class Told:
    """A published row and what is said of it: traced bytes or why there are none, and the peers' errors."""

    row: Row
    completeness: int
    reason: str
    traced_bytes: int | None
    words: str
    peers: dict[str, float | None] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        """Traced over published, minus one; None where nothing was traced."""
        return None if self.traced_bytes is None else self.traced_bytes / self.row.published_bytes - 1

    @property
    def complete(self) -> bool:
        """All settings are stated, and what was published are allocated bytes."""
        return self.completeness == 3 and self.row.metric == "max_allocated"

    @property
    def stratum(self) -> str:
        """What kind of training it is, as far as it moves memory."""
        s = self.row.settings
        words = [
            "LoRA" if s.lora else "full training",
            "checkpointing" if s.checkpointing != "none" else "no checkpointing",
            "eager" if s.attention == "eager" else "fused",
            *(["4-bit base"] if s.base_quantization else []),
        ]
        kind = "other code: " if self.row.group in OTHER_CODE else "" if self.complete else "other rows: "
        return kind + ", ".join(words)

    @property
    def unexplained(self) -> bool:
        """Off by more than it may be without a reason, which is not found."""
        return not self.reason and (self.error is None or abs(self.error) > MUST_EXPLAIN)


def told(only: str = "", recorded: bool = False) -> Iterator[Told]:
    """Every published row whose id begins with ``only``, traced now or as the file has it."""
    with PEAKS.open(encoding="utf-8", newline="") as file:
        records = {record["id"]: record for record in csv.DictReader(file)}
    held = json.loads(TRACED.read_text(encoding="utf-8")) if recorded else {}
    kept = peers.held()["rows"]
    for row in formula_rows():
        if not row.id.startswith(only):
            continue
        traced, words = held[row.id] if recorded else trace(row)
        said = kept.get(row.id, {}).get("answers", {})
        others = {name: peers.off(said.get(name), row.published_bytes) for name in peers.PEERS}
        record = records[row.id]
        yield Told(row, int(record["completeness"]), record["reason"], traced, words, others)


class AtPoint(Exact):
    """Programs of one point each, from two depths at the row's own batch and length: a quarter of the traces."""

    def _trace(self, family: Family, p: Point) -> Traced:
        flat, deep, _ = self._depths(family, p)
        session = self._session(deep)
        at = p._replace(layers=session.job.layers or p.layers, grad_accum=3 if family.accumulates else 1)
        _, recording = self._record(session, at)
        shallow = self._record(self._session(flat), at._replace(layers=flat)) if flat else None
        program = compile_program([(at, recording)], shallow)
        return self._with_proof(program, replace(family, point=p), at, recording, None)


def trace(row: Row) -> tuple[int | None, str]:
    """Traced bytes of what was published and the moment of the peak; None and why where it can't be traced."""
    s = row.settings
    try:
        refuse(s)
        e = traced_estimate(*AtPoint(s).at(s), s)
    except (DiagKitError, NotPolynomialError) as error:
        return None, str(error)
    return predicted(e, row.metric), e.peak.label


def strata(table: list[Told]) -> dict[str, tuple[int, float | None, float | None, float]]:
    """Stratum -> rows, median and largest absolute error of the trace (None where none was traced), median of the
    closed forms."""
    found = {}
    for name in sorted({t.stratum for t in table}, key=lambda name: (name.startswith("other"), name)):
        members = [t for t in table if t.stratum == name]
        errors = [abs(t.error) for t in members if t.error is not None]
        middle, most = (statistics.median(errors), max(errors)) if errors else (None, None)
        found[name] = len(members), middle, most, statistics.median(abs(t.row.error) for t in members)
    return found


def lines(table: list[Told]) -> Iterator[list[str]]:
    """Cells of the table by row, its head first."""
    yield ["id", "settings", "metric", "published GiB", "traced", "error", "formula", *peers.PEERS, "reason"]
    for t in table:
        others = [_share(error) for error in t.peers.values()]
        traced = f"{gib(t.traced_bytes):.2f}" if t.traced_bytes else "n/a"
        yield [
            *(t.row.id, t.row.described, t.row.metric, f"{gib(t.row.published_bytes):.2f}", traced, _share(t.error)),
            *(_share(t.row.error), *others, t.reason or ("not found" if t.unexplained else "")),
        ]


def _share(error: float | None) -> str:
    return "n/a" if error is None else f"{error:+.1%}"


def _median(error: float | None) -> str:
    return "n/a" if error is None else f"{error:.1%}"


def markdown(table: list[Told]) -> str:
    """The medians and the table as Markdown."""
    text = ["| stratum | rows | median error, trace | largest | median, formula |", "|---|---:|---:|---:|---:|"]
    for name, (n, middle, most, formula) in strata(table).items():
        text.append(f"| {name} | {n} | {_median(middle)} | {_median(most)} | {formula:.1%} |")
    head, *body = lines(table)
    text += ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    text += ["| " + " | ".join(cells) + " |" for cells in body]
    return "\n".join(text) + "\n"


def main() -> None:
    """Print the table; write it as Markdown where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, metavar="OUT.md", help="write the tables as Markdown")
    parser.add_argument("--recorded", action="store_true", help=f"take what was traced from {TRACED.name}")
    parser.add_argument("--write", action="store_true", help=f"write {TRACED.name}")
    parser.add_argument("--only", default="", metavar="ID", help="rows whose id begins so")
    arguments = parser.parse_args()
    table = []
    for t in told(arguments.only, arguments.recorded):
        table.append(t)
        print(
            f"{t.row.id:40} {t.row.described:70.70} {t.row.metric:13} {gib(t.row.published_bytes):7.2f} GiB "
            f"trace {_share(t.error):>7}  formula {_share(t.row.error):>7}  {t.reason or t.words}",
            flush=True,
        )
    print(f"\n{'stratum':58} {'rows':>4} {'median':>7} {'largest':>8} {'formula':>8}")
    for name, (n, middle, most, formula) in strata(table).items():
        print(f"{name:58} {n:4} {_median(middle):>7} {_median(most):>8} {formula:8.1%}")
    bare = [t.row.id for t in table if t.complete and t.unexplained]
    print(f"\noff by more than {MUST_EXPLAIN:.0%} without a reason found: {', '.join(bare) or 'none'}")
    if arguments.write and not arguments.only:
        held = {t.row.id: [t.traced_bytes, t.words] for t in table}
        TRACED.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(table), encoding="utf-8")


if __name__ == "__main__":
    main()
