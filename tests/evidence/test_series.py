"""Growth is told from warm-up, from noise and from a peak counter that can't fall."""

import math

from diag_kit.evidence.facts import MemoryPoint, Source
from diag_kit.evidence.series import judge, length_exponent

MIB = 1 << 20


def points(values, *, metric="allocated", micro=False, window=None):
    made = []
    for i, value in enumerate(values):
        step, micro_step = (i // window, i % window) if window else (None, i) if micro else (i, None)
        made.append(
            MemoryPoint(
                source=Source("m.csv", i + 2),
                metric=metric,
                value_bytes=int(value * MIB),
                step=step,
                micro_step=micro_step,
                series="m",
            )
        )
    return made


def test_slope_inside_windows_that_resets_is_per_micro_step():
    """A line inside each accumulation window is growth per micro-step, with its slope in bytes, though windows fall
    back.
    """
    growth = judge(points([1000 + 120 * (i % 8) for i in range(24)], window=8))
    assert (growth.kind, growth.slope_bytes) == ("per-micro-step", 120 * MIB)
    assert "falls back" in growth.text


def test_gradients_that_appear_once_are_no_slope():
    """From the first to the second micro-step memory may rise by the gradients; then it is flat."""
    assert judge(points([500] + [640] * 15, micro=True)).kind == "none"


def test_warm_up_then_flat_is_a_plateau():
    """The rise of the first steps is gradients, optimizer state and cache."""
    assert judge(points([2900, 4400, 4430, 4540, 4540, 4540, 4540])).kind == "plateau"


def test_a_leak_over_steps_has_its_slope():
    """A steady rise after the first steps is growth per step."""
    growth = judge(points([1000, 3000, *(3100 + 7 * i for i in range(60))]))
    assert growth.kind == "per-step" and math.isclose(growth.slope_bytes, 7 * MIB, rel_tol=0.01)


def test_single_jumps_are_spikes_not_a_leak():
    """One long batch among many is a spike."""
    assert judge(points([2000 + (i % 3) for i in range(30)] + [5200, 2001, 2000])).kind == "spikes"


def test_two_points_tell_nothing():
    """Two readings never make a slope."""
    assert judge(points([7000, 23000])).kind == "insufficient"


def test_a_peak_counter_that_creeps_is_not_a_leak():
    """A maximum can only rise; a few rises of it prove nothing."""
    assert judge(points([1000, 1500, 1500, 1700, 1700, 1700, 1710, 1710], metric="peak_allocated")).kind != "per-step"


def test_no_series_gives_nothing():
    """Without points of device memory there is no growth to speak of."""
    assert judge([]) is None
    assert judge(points([1, 2, 3, 4, 5], metric="host_used")) is None


def test_length_exponent_tells_quadratic_from_linear():
    """What a peak adds above its floor, against length: about 2 for a score matrix, about 1 for activations."""

    def runs(power):
        made = []
        for length in (1024, 2048, 4096, 8192):
            for metric, value in (("allocated", 900), ("peak_allocated", 900 + 50 * (length / 1024) ** power)):
                made.append(
                    MemoryPoint(
                        source=Source("l"),
                        metric=metric,
                        value_bytes=int(value * MIB),
                        step=1,
                        seq_len=length,
                        series="megatron",
                    )
                )
        return made

    assert math.isclose(length_exponent(runs(2))[0], 2, abs_tol=0.02)
    assert math.isclose(length_exponent(runs(1))[0], 1, abs_tol=0.02)
    assert length_exponent(runs(2)[:4]) is None
