"""Verdicts come from the measured bytes: recorded figures give the recorded verdict, altered ones another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diag_kit import lab
from diag_kit.failures import load_entries
from diag_kit.lab import catalog
from diag_kit.lab.fitting import exponent, per_step, slope, solve, steady, truth
from diag_kit.lab.records import Line, Measured

RECORDED = Path(__file__).resolve().parents[2] / "data" / "measured" / "lab_claims.json"
OUTCOMES = {
    o["experiment"]: lab.Outcome.from_json(o) for o in json.loads(RECORDED.read_text(encoding="utf-8"))["outcomes"]
}
MIB = 1 << 20


def lines(measured: Measured, size: Callable[[int, int, int], float]) -> Measured:
    """The same with bytes by (number of the line, number of the point, bytes so far)."""
    return replace(measured, lines=tuple(
        Line(line.label, line.x, tuple(round(size(n, at, old)) for at, old in enumerate(line.bytes)))
        for n, line in enumerate(measured.lines)
    ))  # fmt: skip


ALTERED: dict[str, Callable[[Measured], Measured]] = {
    # what another machine, or another torch, might have measured
    "all the same": lambda m: replace(lines(m, lambda n, at, old: MIB), figures=dict.fromkeys(m.figures, MIB)),
    "all climb": lambda m: lines(m, lambda n, at, old: MIB * (n + 1) * 16**at),
    "the first climbs": lambda m: lines(m, lambda n, at, old: old + 64 * MIB * at * (n == 0)),
    "the last is small": lambda m: lines(m, lambda n, at, old: 1 if n == len(m.lines) - 1 else old),
    "the others are small": lambda m: lines(m, lambda n, at, old: old if n == 0 else 1),
    "the others are large": lambda m: lines(m, lambda n, at, old: old if n == 0 else old + 64 * MIB),
    "all linear": lambda m: lines(m, lambda n, at, old: max(1000 * m.lines[n].x[at], 1)),
    "figures are large": lambda m: replace(m, figures={name: n * 100 for name, n in m.figures.items()}),
}


@pytest.mark.parametrize("id", [one.id for one in lab.experiments()])
def test_recorded_bytes_give_the_recorded_verdict(id: str) -> None:
    """Judging needs nothing but what was measured, and says the same of it again, figures in units in its sentence."""
    outcome = OUTCOMES[id]
    judged = catalog.module(id).judge(outcome.measured)
    assert (judged.verdict, judged.says, judged.rows) == (outcome.verdict, outcome.says, outcome.rows)
    assert any(char.isdigit() for char in outcome.says) and outcome.says.endswith(".")


@pytest.mark.parametrize("id", [one.id for one in lab.experiments()])
def test_other_bytes_give_another_verdict(id: str) -> None:
    """No verdict is written down beforehand: there are bytes that turn each of them."""
    outcome = OUTCOMES[id]
    verdicts = {catalog.module(id).judge(alter(outcome.measured)).verdict for alter in ALTERED.values()}
    assert verdicts - {outcome.verdict}, f"{id} says {outcome.verdict} whatever is measured"


def test_a_leak_would_be_called_one() -> None:
    """Were each added loss to keep 5 MiB, the lab would say that adding up losses leaks; and false of nothing kept."""
    leaking = lines(OUTCOMES["kept-loss"].measured, lambda n, at, old: old + 5 * MIB * at)
    assert catalog.module("kept-loss").judge(leaking).verdict == "true"
    linear = lines(OUTCOMES["attention-length"].measured, lambda n, at, old: 3000 * 2**at)
    assert catalog.module("attention-length").judge(linear).verdict == "false"
    off = OUTCOMES["activation-shapes"].measured
    off = replace(off, figures={**off.figures, "7 x 160": off.figures["7 x 160"] * 1.1})
    assert catalog.module("activation-shapes").judge(off).verdict == "conditional"


def claims() -> list[tuple[str, str, str]]:
    """(entry, experiment, truth) of each claim that names one."""
    return [
        (entry.id, said.experiment, said.truth)
        for entry in load_entries() for said in (*entry.causes, *entry.claims) if said.experiment
    ]  # fmt: skip


@pytest.mark.parametrize(("entry", "experiment", "truth"), claims())
def test_entries_say_what_the_lab_measured(entry: str, experiment: str, truth: str) -> None:
    """Each experiment that an entry names exists, and its measured verdict is the entry's."""
    assert lab.experiment(experiment).id == experiment
    assert OUTCOMES[experiment].verdict == truth, f"{entry}: {experiment}"


def test_every_experiment_was_recorded_whole() -> None:
    """The record has each experiment once, without a problem, within the promised 5 and 90 seconds of the processor."""
    assert set(OUTCOMES) == {one.id for one in lab.experiments()}
    assert all(o.problem is None and o.cpu_seconds < 5 for o in OUTCOMES.values())
    assert sum(o.cpu_seconds for o in OUTCOMES.values()) < 90


def test_outcomes_are_read_back_equal_and_others_refused() -> None:
    """JSON loses nothing; another schema or a wrong verdict is one line."""
    for outcome in OUTCOMES.values():
        assert lab.Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome
    good = OUTCOMES["kept-loss"].to_json()
    for wrong in ({**good, "schema": "other/1"}, {**good, "verdict": "maybe"}, {**good, "surprise": 1}, {}):
        with pytest.raises(lab.LabError) as told:
            lab.Outcome.from_json(wrong)
        assert "\n" not in str(told.value)


def test_fits() -> None:
    """Slopes, powers, systems and truths, on numbers whose answer is known."""
    assert slope([1, 2, 3], [5, 7, 9]) == 2
    assert exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)
    assert [int(n) for n in solve([[0, 2], [1, 1]], [6, 5])] == [2, 3]
    assert per_step([9, 10, 12, 14]) == 2 and steady([10, 10]) and not steady([10, 11])
    assert [truth([True]), truth([False]), truth([True, False])] == ["true", "false", "conditional"]
    with pytest.raises(ZeroDivisionError):
        solve([[1, 1], [2, 2]], [1, 2])
