"""The size of a request names a tensor only where it proves one."""

import pytest

from diag_kit.evidence.decode import decode, implied, printed_range
from diag_kit.units import GIB, KIB, MIB

MODEL = {"n_layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "ffn": 18944, "gated_ffn": True, "vocab": 152064}
RUN = {"micro_batch": 3, "seq_len": 2900, "model": MODEL}


def printed(size):
    """A request of ``size`` bytes as PyTorch's message prints it, and the bytes that are read back from it."""
    segment = -(-size // (2 * MIB)) * 2 * MIB
    unit, name = (GIB, "GiB") if segment >= GIB else (MIB, "MiB")
    number = f"{segment / unit:.2f}"
    return round(
        float(number) * unit
    ), f"CUDA out of memory. Tried to allocate {number} {name} (GPU 0; 79.15 GiB total capacity"


@pytest.mark.parametrize(
    ("tensor", "size", "operation"),
    [
        ("logits", 3 * 2900 * 152064 * 4, None),
        ("logits", 3 * 2899 * 152064 * 4, "loss"),
        ("logits", 2 * 3 * 2900 * 152064 * 2, "logits"),
        ("attention-scores", 3 * 28 * 2900 * 2900 * 2, "attention-scores"),
        ("attention-scores", 3 * 28 * 2900 * 2900 * 4, None),
        ("weights", 152064 * 3584 * 2, "load-weights"),
        ("weights", 152064 * 3584 * 4, "optimizer-state"),
        ("activations", 3 * 2900 * 2 * 18944 * 4, None),
    ],
)
def test_a_tensor_of_the_settings_is_named(tensor, size, operation):
    """A request that prints as a tensor of the stated shape is that tensor, with shape, bytes and odds in words."""
    asked, text = printed(size)
    found = decode(asked, RUN, text=text, operation=operation)
    assert found.claimed == tensor and found.chance <= 0.2
    assert any(one.size_bytes == size for one in found.matches)
    assert "GiB" in found.words or "MiB" in found.words
    assert "by chance about 1 in" in found.words


@pytest.mark.parametrize("off", [0.985, 0.992, 1.008, 1.015])
@pytest.mark.parametrize("operation", ["attention-scores", "loss", None])
def test_near_is_not_equal(off, operation):
    """What misses by more than the printed digits and a segment allow is no match, whatever the frame says."""
    asked, text = printed(round(3 * 28 * 2900 * 2900 * 4 * off))
    assert decode(asked, RUN, text=text, operation=operation) is None


@pytest.mark.parametrize("asked", [2 * MIB, 20 * MIB])
def test_segments_of_small_requests_tell_nothing(asked):
    """2 MiB and 20 MiB are what the allocator asks for on behalf of any small tensor, even where a shape fits."""
    settings = {"micro_batch": 1, "seq_len": 1024, "model": {"hidden": asked // 2048, "heads": 8}}
    assert decode(asked, settings, text=f"Tried to allocate {asked // MIB}.00 MiB") is None


@pytest.mark.parametrize("asked", [2**k * odd for k in range(24, 36) for odd in (1, 3)])
def test_round_sizes_are_never_claimed_from_the_size_alone(asked):
    """Dimensions that are powers of two meet in every size: only a frame can name the tensor."""
    model = {"n_layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 16384, "vocab": 65536}
    found = decode(asked, {"micro_batch": 4, "seq_len": 4096, "model": model})
    assert found is None or found.claimed is None


@pytest.mark.parametrize("settings", [{}, {"micro_batch": 4}, {"seq_len": 4096}, {"model": {"vocab": 32000}}])
@pytest.mark.parametrize("asked", [4 * GIB, 58 * GIB + 171798692, 1 << 37])
def test_without_dimensions_nothing_is_claimed(settings, asked):
    """A size by itself is consistent with anything."""
    assert decode(asked, settings) is None


def test_two_kinds_that_fit_claim_nothing_until_a_frame_tells():
    """Scores of 25 heads and logits of 25 x length words are the same number: the failing frame decides, or nobody."""
    settings = {"micro_batch": 3, "seq_len": 2900, "model": {"heads": 25, "vocab": 25 * 2900}}
    asked, text = printed(3 * 25 * 2900 * 2900 * 4)
    both = decode(asked, settings, text=text)
    assert both.claimed is None and {one.tensor for one in both.matches} == {"attention-scores", "logits"}
    assert decode(asked, settings, text=text, operation="loss").claimed == "logits"
    assert decode(asked, settings, text=text, operation="attention-scores").claimed == "attention-scores"


def test_the_chance_grows_as_the_request_shrinks():
    """A window of two printed decimals and a segment is small beside gigabytes and large beside a few mebibytes."""
    settings = {"micro_batch": 3, "seq_len": 2900, "model": {"hidden": 1701, "heads": 7, "ffn": 2003}}
    asked, text = printed(3 * 2900 * 1701 * 2)
    small = decode(asked, settings, text=text)
    assert small.claimed is None and small.chance > 0.05
    asked, text = printed(3 * 28 * 2900**2 * 4)
    assert decode(asked, RUN, text=text).chance < small.chance


def test_bytes_in_full_must_agree_in_full():
    """A request that is printed in bytes has no digits to hide in: one element more is another tensor."""
    size = 3 * 2900 * 152064 * 4
    assert decode(size, RUN, text=f"buffer of size {size} bytes").claimed == "logits"
    assert decode(size + 4, RUN, text=f"buffer of size {size + 4} bytes") is None


@pytest.mark.parametrize(
    ("asked", "text", "half"),
    [
        (round(58.16 * GIB), "Tried to allocate 58.16 GiB. GPU 0", 0.005 * GIB),
        (round(0.5 * GIB), "Tried to allocate 512.00 MiB", 0.005 * MIB),
        (round(1.5 * GIB), "Tried to allocate 1.5 GB", 0.05 * GIB),
        (round(25.002197 * MIB), "Cannot allocate 25.002197MB memory", 0.0000005 * MIB),
        (round(113 * GIB), "Unable to allocate 113. GiB for an array", 0.5 * GIB),
        (round(3.25 * GIB), "words without it", 0.005 * GIB),
        (700 * KIB, "700.00 KiB", 0.005 * KIB),
        (12345678, "tried to allocate 12345678 bytes", 0),
    ],
)
def test_printed_digits_bound_the_bytes(asked, text, half):
    """Half of the last printed digit on either side, in the unit that was printed; whole bytes are exact."""
    low, high = printed_range(asked, text)
    assert low == pytest.approx(asked - half, abs=1) and high == pytest.approx(asked + half, abs=1)


def test_an_open_dimension_is_worked_out():
    """With the tensor known from the frame, the size gives the tokens or the length that the settings leave open."""
    assert implied(29_803 * 128256 * 4, {"vocab": 128256}, "loss") == "about 29,803 tokens at 4 bytes, or 59,606 at 2"
    assert "a length of about 16,384 at 4 bytes" in implied(
        2 * 16 * 16384**2 * 4, {"micro_batch": 2, "model": {"heads": 16}}, "attention-scores"
    )
    assert implied(GIB, RUN, None) is None and implied(GIB, {}, "logits") is None


@pytest.mark.parametrize(
    "settings",
    [
        {"micro_batch": "4", "seq_len": [1], "model": {"heads": -1, "vocab": 10**40, "hidden": True}},
        {
            "micro_batch": 10**12,
            "seq_len": 10**12,
            "world_size": 0,
            "n_params": 7,
            "strategy": {"zero": 3},
            "model": MODEL,
        },
        {"model": ["heads"], "micro_batch": None, "seq_len": 1},
        {"micro_batch": 1, "seq_len": 1, "model": {"heads": 3, "hidden": 2, "ffn": 1, "kv_heads": 7}},
    ],
)
@pytest.mark.parametrize("asked", [-5, 0, 1, 4 << 60])
def test_settings_of_any_form_raise_nothing(settings, asked):
    """Settings come from files that anybody may have written."""
    decode(asked, settings, text="9" * 5000 + " GiB" * 5000, operation="loss")
    implied(max(asked, 1), settings, "attention-scores")


@pytest.mark.parametrize("size", [3 * 2900 * 152064 * 4 << shift for shift in range(0, 40, 8)])
def test_words_are_there_for_every_match(size):
    """However small the chance, it is said in words; an exact match of many bytes divides by nothing."""
    settings = {"micro_batch": size // (2900 * 152064 * 4), "seq_len": 2900, "vocab": 152064}
    assert "1 in" in decode(size, settings, text=f"{size} bytes", operation="logits").words
