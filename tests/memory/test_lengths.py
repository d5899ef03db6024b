"""Lengths of a data set: what is read of a file, which batches won't fit, how likely one is, what removes them."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random

import pytest

from diag_kit.errors import SettingsError
from diag_kit.memory.formulas import device_limit, peak_bytes
from diag_kit.memory.lengths import Lengths, outlook, parse_rule, read
from diag_kit.memory.plan import largest
from diag_kit.memory.settings import Settings
from diag_kit.units import GIB
from tests.effort import costs_less

LLAMA = {"n_layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 128256}


def run(**settings):
    """A 1B Llama in bf16, 4 sequences a batch, on a 40 GB card."""
    document = {"model": LLAMA, "precision": "bf16", "seq_len": 4096, "micro_batch": 4, "capacity_bytes": 40 * GIB}
    return Settings.from_json({**document, **settings})


def lengths_of(text, column=None):
    return read(io.BytesIO(text if isinstance(text, bytes) else text.encode()), "f", column)


@pytest.mark.parametrize(
    ("text", "column", "counts"),
    [
        ("3\n5\n3\n", None, {3: 2, 5: 1}),
        ("3\r\n\r\n5\r\n3", None, {3: 2, 5: 1}),
        ("\ufeff7\n", None, {7: 1}),
        ("0\n0\n4\n", None, {0: 2, 4: 1}),
        ("length\n3\n5\n", None, {3: 1, 5: 1}),
        ("id,Length,text\n1,3,a\n2,5,\"b,\nc\"\n", None, {3: 1, 5: 1}),
        ("id,n\n1,3\n2,5.0\n", "n", {3: 1, 5: 1}),
        ("id\tn\n1\t3\n", "2", {3: 1}),
        ("1,3\n2,5\n", "2", {3: 1, 5: 1}),
        ('{"n": 3}\n\n{"n": 5}\n', "n", {3: 1, 5: 1}),
        ('{"input_ids": [1, 2, 3]}\n', None, {3: 1}),
        ('{"length": 9, "input_ids": [1]}\n', None, {9: 1}),
        ("[1, 2, 3]\n[4]\n", None, {3: 1, 1: 1}),
        ("[10, 20, 10]", None, {10: 2, 20: 1}),
    ],
)  # fmt: skip
def test_a_column_is_read_however_it_is_written(text, column, counts):
    """Plain numbers, CSV by name, by number or by a usual name, JSON lines of numbers and lists, one JSON list."""
    found = lengths_of(text, column)
    assert found.counts == counts and found.unit == "tokens"
    assert (found.samples, found.tokens) == (sum(counts.values()), sum(n * k for n, k in counts.items()))


def test_characters_are_told_from_tokens():
    """The length of a text is in characters, and the outlook says so."""
    found = lengths_of('{"text": "abc"}\n', "text")
    assert (found.counts, found.unit) == ({3: 1}, "characters")
    assert "characters" in outlook(run(), found).notes[0]


@pytest.mark.parametrize(
    ("text", "column", "told"),
    [
        ("3\nx\n5\n", None, r"f:2: 'x' is no whole number"),
        ("3\n" * 5000 + "-4\n", None, r"f:5001: '-4'"),
        ("3\n4 5\n", None, r"f:2: '4 5'"),
        ("3\n" + "9" * 5000 + "\n", None, r"f:2: "),
        ("3\n2.5\n", None, r"f:2: '2.5'"),
        ("a,b\n1,2\n", None, r"which column\? --column with one of a, b"),
        ("a,b\n1,2\n", "c", r"no column 'c'; it has a, b"),
        ("a,b\n1,2\n3\n", "b", r"f:3: has 1 columns"),
        ("a,b\n1,2\n3,x\n", "b", r"f:3: column 'b': 'x'"),
        ('{"n": 3}\n{"m": 3}\n', "n", r"f:2: no field 'n'; it has m"),
        ('{"n": 3}\n', None, r"f:1: which field\? --column with one; it has n"),
        ('{"n": 3}\n{"n": tru\n', "n", r"f:2: not JSON"),
        ('{"n": true}\n', "n", r"f:1: True is no whole number"),
        ('{"n": null}\n', "n", r"f:1: None is no whole number"),
        ("[" * 100_000, None, r"f:1: n"),
        ("", None, r"holds no length"),
        ("length\n", None, r"holds no length"),
        (b"\xff\xfe\x00\n", None, r"holds no length"),
    ],
)
def test_what_is_no_length_ends_in_one_line_with_its_place(text, column, told):
    """File, line, value, and what would be right; never a traceback."""
    with pytest.raises(SettingsError, match=told) as error:
        lengths_of(text, column)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_what_grows_without_bound_is_refused():
    """More than a million different lengths, or a line without end, is no column of lengths."""
    with pytest.raises(SettingsError, match="different values"):
        lengths_of("\n".join(map(str, range(1_000_002))))
    with pytest.raises(SettingsError, match="a line of more than 16 MiB"):
        lengths_of("[" + "1," * (9 << 20))


def test_millions_of_samples_cost_seconds():
    """Two million numbers in seconds; what is held is a count for each length."""
    text = b"\n".join(b"%d" % (i % 5000) for i in range(2_000_000))
    found = lengths_of(text)
    assert costs_less(lambda: lengths_of(text), 50)
    assert found.samples == 2_000_000 and len(found.counts) == 5000


def sampled(present, size, rounds=20_000):
    """Share of batches, share of epochs and mean step with a sample that is marked, by drawing."""
    rng, hit, steps = random.Random(1), 0, 0
    for _ in range(rounds):
        rng.shuffle(present)
        hit += any(present[:size])
        steps += present.index(True) // size + 1
    return hit / rounds, steps / rounds


@pytest.mark.parametrize(("good", "bad", "batch"), [(40, 2, 4), (30, 1, 8), (50, 10, 3)])
def test_the_chance_is_that_of_drawing_without_replacement(good, bad, batch):
    """Chance per batch, expected bad batches and expected first step agree with draws of whole epochs."""
    s = run(micro_batch=batch)
    edge = largest(s, "seq_len")
    found = outlook(s, Lengths({edge: good, edge + 1: bad}))
    assert (found.longest_fit, found.too_long, found.chance_per_epoch) == (edge, bad, 1.0)
    chance, step = sampled([False] * good + [True] * bad, batch)
    assert found.chance_per_batch == pytest.approx(chance, abs=0.015)
    assert found.first_step == pytest.approx(step, abs=0.1)
    assert found.batches == -(-(good + bad) // batch)


def test_expected_bad_batches_are_exact():
    """Counted over all ways to place two long samples among seven in batches of two, the last one short."""
    s = run(micro_batch=2)
    edge = largest(s, "seq_len")
    placed = list(itertools.combinations(range(7), 2))
    expected = sum(len({place // 2 for place in one}) for one in placed) / len(placed)
    found = outlook(s, Lengths({edge: 5, edge + 1: 2}))
    assert found.bad_batches == pytest.approx(expected)
    first = sum(min(one) // 2 + 1 for one in placed) / len(placed)
    assert found.first_step == pytest.approx(first)


def test_where_all_fit_nothing_is_said_to_fail():
    """No bad batch, no step, no cut; without a capacity nothing is judged at all."""
    found = outlook(run(), Lengths({10: 5}))
    assert (found.too_long, found.bad_batches, found.chance_per_epoch, found.first_step, found.cuts) == (
        0,
        0,
        0,
        None,
        (),
    )
    blind = outlook(run(capacity_bytes=None), Lengths({10: 5, 10**6: 1}))
    assert blind.longest_fit is None and blind.bins[0].fits is None and blind.too_long == 0


def test_steps_count_ranks_and_accumulation():
    """With four times as many samples in an optimizer step the first failure comes about four times earlier."""
    counts = {100: 9_990, 10**6: 10}
    one = outlook(run(), Lengths(counts)).first_step
    four = outlook(run(grad_accum=2, parallelism={"strategy": "ddp", "world_size": 2}), Lengths(counts)).first_step
    assert one / 4 == pytest.approx(four, abs=1)


def test_cuts_remove_what_does_not_fit_and_say_what_is_lost():
    """After the cap no batch is bad; samples and tokens dropped are those beyond it."""
    s = run()
    counts = {256: 900, 8192: 40, 16384: 6, 60000: 4}
    found = outlook(s, Lengths(counts))
    cap, budget = found.cuts
    assert cap.value == found.longest_fit == largest(s, "seq_len")
    kept = {n: k for n, k in counts.items() if n <= cap.value}
    assert outlook(s, Lengths(kept)).too_long == 0
    gone = {n: k for n, k in counts.items() if n > cap.value}
    assert cap.samples == sum(gone.values()) and cap.share == cap.samples / 950
    assert cap.tokens_if_left_out == sum(n * k for n, k in gone.items())
    assert cap.tokens_if_cut == sum((n - cap.value) * k for n, k in gone.items())
    assert budget.what == "token budget" and budget.samples < cap.samples
    alone = {n: k for n, k in counts.items() if n <= largest(s.with_(micro_batch=1), "seq_len")}
    assert outlook(s, Lengths(alone), f"token-budget:{budget.value}").too_long == 0


def test_a_token_budget_gives_long_samples_fewer_neighbours():
    """Each length is judged with as many sequences as the budget holds, at least one."""
    s = run()
    limit = device_limit(s)
    budget, counts = 40_000, dict.fromkeys(range(100, 30_000, 371), 3)
    found = outlook(s, Lengths(counts), f"token-budget:{budget}")
    for length in counts:
        fits = peak_bytes(s.with_(seq_len=length, micro_batch=max(1, budget // length))) <= limit
        assert fits == (length <= found.longest_fit)
    assert found.batches == sum(-(-3 // max(1, budget // n)) for n in counts)


def test_grouped_batches_hold_the_long_samples_together():
    """Sorted by length, the longest first: few batches are bad, and the first one is."""
    counts = {100: 992, 10**6: 8}
    found = outlook(run(), Lengths(counts), "grouped")
    assert (found.bad_batches, found.first_step) == (2, 1.0)
    assert found.bad_batches < outlook(run(), Lengths(counts)).bad_batches


def test_packed_batches_have_one_shape():
    """All fit or none does, whatever the lengths; the block that fits is named."""
    s = run(capacity_bytes=80 * GIB, micro_batch=1, seq_len=2048)
    assert outlook(s, Lengths({100: 1000, 5000: 1}), "packed").bad_batches == 0
    tight = s.with_(capacity_bytes=16 * GIB, micro_batch=16)
    found = outlook(tight, Lengths({100: 1000}), "packed")
    assert found.bad_batches == found.batches and found.first_step == 1
    assert "1 samples are longer" in outlook(s, Lengths({100: 1000, 5000: 1}), "packed").notes[0]


def test_the_histogram_holds_every_sample_once():
    """Bins add up to all samples and tokens; each one's peak is that of its longest length, and rises."""
    rng = random.Random(0)
    counts = {}
    for _ in range(5000):
        n = min(int(rng.lognormvariate(6, 1)) + 1, 30_000)
        counts[n] = counts.get(n, 0) + 1
    s = run()
    found = outlook(s, Lengths(counts))
    assert sum(b.samples for b in found.bins) == 5000 and len(found.bins) <= 24
    assert sum(b.tokens for b in found.bins) == found.tokens
    for one in found.bins:
        assert one.peak_bytes == peak_bytes(s.with_(seq_len=one.high))
        assert one.fits == (one.high <= largest(s, "seq_len"))
    json.dumps(found.to_json())


def test_another_engine_finds_the_same_edge():
    """From peaks alone, asked a few hundred times."""

    class Counting:
        method = "trace"
        asked = 0

        def estimate(self, s):
            raise AssertionError

        def peak_bytes(self, s):
            self.asked += 1
            return peak_bytes(s)

    engine, lengths = Counting(), Lengths({100: 10, 20_000: 3})
    assert outlook(run(), lengths, "fixed", engine).longest_fit == outlook(run(), lengths).longest_fit
    assert engine.asked < 300


@pytest.mark.parametrize("rule", ["token-budget", "token-budget:x", "token-budget:0", "fixed:3", "random", ""])
def test_a_rule_that_is_none_is_refused(rule):
    """One line that lists the rules, or what the budget must be."""
    with pytest.raises(SettingsError, match=r"--batching: "):
        parse_rule(rule)


def test_gzip_is_the_caller_s_business():
    """What is packed and not unpacked is refused like any other text that holds no numbers, whatever time stands in it."""
    for packed_at in range(0, 2**32, 2**32 // 997):
        with pytest.raises(SettingsError, match=r"lengths: f(:| holds no length)"):
            read(io.BytesIO(gzip.compress(b"3\n4\n", mtime=packed_at)), "f")
