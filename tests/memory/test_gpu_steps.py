"""The trace against what benchmarks/gpu measured: every record that data/measured holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag_kit.memory.engine import estimate

MEASURED = Path(__file__).parents[2] / "data" / "measured" / "gpu_steps.json"
RECORDS = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record['name']}-{record['gpu']}")
def test_the_trace_agrees_with_the_gpu(record):
    """Peak allocated within 1 %, and each phase of the step within 3 %."""
    pytest.importorskip("transformers")
    e = estimate({**record["settings"], "method": "trace"})
    measured = record["allocated_bytes"]
    assert e.peak_allocated_bytes == pytest.approx(max(measured.values()), rel=0.01)
    for phase, most in measured.items():
        assert e.peak_by_phase[phase] == pytest.approx(most, rel=0.03), phase
