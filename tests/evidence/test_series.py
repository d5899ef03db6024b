"""Growth is told from warm-up, from noise and from a peak counter that can't fall."""

import math
import random

import pytest

from diag_kit.evidence.derived import figures_of
from diag_kit.evidence.facts import MemoryPoint, Source
from diag_kit.evidence.run import load_run
from diag_kit.evidence.series import GROWING, exhaustion, judge, length_exponent

MIB, GIB = 1 << 20, 1 << 30


def points(values, *, metric="allocated", micro=False, window=None, **more):
    lengths, times = more.pop("lengths", None), more.pop("times", None)
    made = []
    for i, value in enumerate(values):
        step, micro_step = (i // window, i % window) if window else (None, i) if micro else (i, None)
        made.append(
            MemoryPoint(
                source=Source("m.csv", i + 2),
                metric=metric,
                value_bytes=int(value * MIB),
                step=None if times else step,
                micro_step=micro_step,
                series="m",
                seq_len=lengths[i] if lengths else None,
                time=times[i] if times else None,
                **more,
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


def noise(r, n, level=9000, sigma=20.0):
    return [level + r.gauss(0, sigma) for _ in range(n)]


def _plateau(r, n):
    base = r.choice([3000, 12_000, 40_000])
    return points([base * 0.4, base * 0.85, base * 0.95, *noise(r, n - 3, base, r.choice([0.2, 5, 60, 400]))])


def _saturating(r, n):
    reach = r.uniform(2, n / 8)
    return points([12_000 * (1 - 0.5 * math.exp(-i / reach)) + r.gauss(0, 1) for i in range(n)])


def _long_warm_up(r, n):
    end = r.randrange(3, n // 3 + 1)
    return points([12_000 * (0.4 + 0.6 * min(1, i / end)) + r.gauss(0, 3) for i in range(n)])


def _saw(r, n):
    period, height = r.randrange(6, max(7, n // 3)), r.choice([50, 400, 5000])
    return points([9000 + height * (i % period) / period + r.gauss(0, height * 0.02) for i in range(n)])


def _lengths(r, n):
    lengths = [r.choice([512, 700, 1024, 1500, 2048, 3000]) for _ in range(n)]
    return points([8000 + 2.5 * length + r.gauss(0, 30) for length in lengths], lengths=lengths)


def _unknown_lengths(r, n):
    return points([8000 + 2.5 * r.lognormvariate(6.5, 0.6) for _ in range(n)])


def _cache_ratchet(r, n):
    level, held = 9000, []
    for i in range(n):
        level += r.choice([20, 200, 1500]) if r.random() < 3 / (i + 3) else 0
        held.append(level)
    return points(held, metric="reserved")


def _peak_counter(r, n):
    values = noise(r, n, 9000, 800)
    return points([max(values[: i + 1]) for i in range(n)], metric="peak_allocated")


def _steps_up(r, n):
    at = sorted(r.sample(range(n // 6, n - 3), r.choice([1, 2])))
    height = r.choice([100, 1000, 8000])
    return points([value + height * sum(i >= a for a in at) for i, value in enumerate(noise(r, n, sigma=1))])


def _spikes(r, n):
    return points([v + (r.choice([3000, 9000]) if r.random() < 0.06 else 0) for v in noise(r, n, sigma=5)])


HEALTHY = (
    _plateau, _saturating, _long_warm_up, _saw, _lengths, _unknown_lengths, _cache_ratchet, _peak_counter, _steps_up,
    _spikes,
)  # fmt: skip


@pytest.mark.parametrize("make", HEALTHY, ids=lambda make: make.__name__.strip("_"))
def test_no_healthy_series_is_called_growth(make):
    """Of 60 seeded series of each healthy kind, 15 to 1000 readings long, none is called growth."""
    called = []
    for seed in range(60):
        r = random.Random(seed)
        growth = judge(make(r, (15, 40, 120, 1000)[seed % 4]))
        if growth.kind in GROWING:
            called.append((seed, growth.text))
    assert not called


@pytest.mark.parametrize("spoilt", ["", "lengths", "spikes"])
@pytest.mark.parametrize("slope", [1 / 16, 1, 7, 50, 200])
def test_every_leak_well_above_its_noise_is_found(slope, spoilt):
    """Leaks of 64 KiB to 200 MiB a step are all called growth where they add up to 20 times the noise over 120 steps;
    the true slope lies in the interval; lengths that vary and single spikes hide nothing.
    """
    n = 120
    for seed in range(15):
        r = random.Random(seed)
        lengths = [r.choice([512, 1024, 2048, 3000]) for _ in range(n)] if spoilt == "lengths" else None
        values = [9000 + slope * i + r.gauss(0, slope * n / 20) for i in range(n)]
        if lengths:
            values = [value + 2.5 * length for value, length in zip(values, lengths, strict=True)]
        if spoilt == "spikes":
            values = [value + (4000 if i % 24 == 23 else 0) for i, value in enumerate(values)]
        growth = judge(points([4000, 8000, *values[2:]], lengths=lengths))
        assert growth.kind in ("per-step", "creep"), (seed, growth.text)
        assert growth.low_bytes <= slope * MIB <= growth.high_bytes


def test_a_saw_whose_floor_rises_leaks_and_one_that_returns_does_not():
    """What an epoch's end releases is no leak; what it leaves behind is, with the slope of the floor."""
    still = judge(points([9000 + 100 * (i % 25) for i in range(200)]))
    assert (still.kind, still.slope_bytes) == ("sawtooth", 0) and "does not rise" in still.text
    leak = judge(points([9000 + 100 * (i % 25) + 20 * (i // 25) * 25 for i in range(200)]))
    assert leak.kind == "per-step" and math.isclose(leak.slope_bytes, 20 * MIB, rel_tol=0.05)


def test_teeth_as_long_as_the_accumulation_are_windows():
    """Without a micro-step column, a rise that falls back as often as the settings accumulate is per micro-step."""
    growth = judge(points([9000 + 120 * (i % 8) for i in range(80)]), grad_accum=8)
    assert (growth.kind, growth.slope_bytes) == ("per-micro-step", 120 * MIB)


def test_growth_between_windows_is_seen_beside_that_within_them():
    """Flat windows on a rising floor are growth per step; rising windows on a rising floor are both."""
    between = judge(points([9000 + 30 * (i // 8) for i in range(160)], window=8))
    assert between.kind == "per-step" and math.isclose(between.slope_bytes, 30 * MIB, rel_tol=0.02)
    both = judge(points([9000 + 30 * (i // 8) + 120 * (i % 8) for i in range(160)], window=8))
    assert both.kind == "per-micro-step" and "its floor by 30 MiB" in both.text


def test_reserved_that_rises_over_flat_allocated_is_cache():
    """A ratchet of reserved memory is no leak where what is allocated stays; alone, it is said to be open."""
    r = random.Random(1)
    held = points([9000 + 40 * i for i in range(60)], metric="reserved")
    growth = judge([*points(noise(r, 60)), *held])
    assert growth.kind == "cache-growth" and "cache" in growth.text and growth.points[0].metric == "reserved"
    alone = judge(held)
    assert alone.kind == "reserved-growth" and "may be the allocator's cache alone" in alone.text
    peak = judge([*points(noise(r, 60)), *points([9000 + 40 * i for i in range(60)], metric="peak_allocated")])
    assert peak.kind == "peak-growth"


def test_length_explains_what_it_explains():
    """Memory that follows the length is said to, with r; where lengths only ever rise nobody can tell, so it is not."""
    growth = judge(_lengths(random.Random(3), 60))
    assert growth.kind == "length-driven" and growth.correlation > 0.95
    curriculum = [1000 + 10 * i for i in range(60)]
    assert judge(points([9000 + length for length in curriculum], lengths=curriculum)).kind != "length-driven"


def test_time_stands_in_for_steps_and_says_so():
    """A series with stamps alone grows by the hour, not by the step, and what it counts is named."""
    growth = judge(points([9000 + 50 * i for i in range(40)], metric="used", times=[60.0 * i for i in range(40)]))
    assert (growth.kind, growth.per) == ("over-time", "hour")
    assert math.isclose(growth.slope_bytes, 3000 * MIB, rel_tol=0.01) and "cache" in growth.text


def test_the_rank_that_grows_alone_is_named():
    """Each rank is judged alone: the one that grows is said, and so is it where all do."""
    r = random.Random(5)
    ranks = [point for rank in range(4) if rank != 2 for point in points(noise(r, 60), rank=rank)]
    growth = judge([*ranks, *points([9000 + 50 * i for i in range(60)], rank=2)])
    assert growth.ranks == (2,) and "on rank 2 of 4" in growth.text
    every = judge([p for rank in range(3) for p in points([9000 + 50 * i for i in range(60)], rank=rank)])
    assert every.ranks == () and "all 3 ranks" in every.text


def test_too_short_a_series_says_what_would_tell():
    """Three readings are no slope, whatever they rise; the text says how many would be."""
    growth = judge(points([7000, 9000, 11_000]))
    assert growth.kind == "insufficient" and "ten steps" in growth.text


def test_exhaustion_is_a_step_with_its_band():
    """At 100 MiB a step from 9000 MiB, 16 GiB are full after step 73; noise widens the band around it."""
    assert exhaustion(judge(points([9000 + 100 * i for i in range(60)])), 16 * GIB)[0] == 74
    r = random.Random(2)
    step, early, late = exhaustion(judge(points([9000 + 100 * i + r.gauss(0, 200) for i in range(60)])), 16 * GIB)
    assert early < step < late and exhaustion(judge(points(noise(r, 60))), 16 * GIB) is None


@pytest.mark.parametrize(("slope", "agrees"), [(100, True), (0.5, False), (20, None)])
def test_the_pace_is_held_against_the_step_that_failed(tmp_path, slope, agrees):
    """Growth that fills the card at the failing step agrees; one that had hardly begun contradicts; between, neither."""
    lines = [f"step {i} loss 1.0" for i in range(100)]
    lines.append(
        "RuntimeError: CUDA out of memory. Tried to allocate 200.00 MiB (GPU 0; 19.00 GiB total capacity; "
        "18.80 GiB already allocated; 100.00 MiB free; 18.90 GiB reserved in total by PyTorch)"
    )
    (tmp_path / "run.log").write_text("\n".join(lines))
    rows = (f"{i},{9000 + slope * i}" for i in range(95))
    (tmp_path / "m.csv").write_text("step,allocated_mib\n" + "\n".join(rows))
    figures = figures_of(load_run([tmp_path]))
    assert figures.values.get("exhaustion_agrees") is agrees
    assert "the card is full near step" in figures.growth.text
