"""The language of conditions: what holds, what does not, and what is never guessed."""

import pytest

from diag_kit.errors import EntryError
from diag_kit.failures.conditions import KNOWN_FIGURES, check, figures_in, holds

GIB = 1024**3


@pytest.mark.parametrize("cond", [None, {}])
def test_an_empty_condition_always_holds(cond):
    """No condition is a condition that is met."""
    assert holds(cond, {})


@pytest.mark.parametrize(
    ("cond", "expected"),
    [
        ({"phase": "eval"}, True),
        ({"phase": {"ne": "eval"}}, False),
        ({"phase": {"in": ["load", "eval"]}}, True),
        ({"request_bytes": {"ge": "1 GiB", "lt": 4 * GIB}}, True),
        ({"request_bytes": {"gt": "3 GiB"}}, False),
        ({"request_bytes": {"le": "free_bytes"}}, False),
        ({"request_bytes": {"gt": "free_bytes"}}, True),
        ({"events": {"has": "torch.oom"}}, True),
        ({"events": {"has": "torch"}}, False),
        ({"setting.attention": {"matches": "(?i)^flash"}}, True),
        ({"phase": "eval", "request_bytes": {"gt": "3 GiB"}}, False),
        ({"any": [{"phase": "load"}, {"phase": "eval"}]}, True),
        ({"any": [{"phase": "load"}, {"phase": "data"}]}, False),
        ({"not": {"phase": "load"}}, True),
        ({"not": {"phase": "eval"}}, False),
    ],
)
def test_operators(cond, expected):
    """Each operator means what it says, sizes are read as text and figures compare with figures."""
    figures = {
        "phase": "eval",
        "request_bytes": 3 * GIB,
        "free_bytes": GIB,
        "events": {"torch.oom"},
        "setting.attention": "Flash_attention_2",
    }
    assert holds(cond, figures) is expected


@pytest.mark.parametrize(
    "cond",
    [
        {"phase": "eval"},
        {"phase": {"ne": "eval"}},
        {"not": {"phase": "eval"}},
        {"any": [{"phase": "eval"}]},
        {"request_bytes": {"le": "free_bytes"}},
        {"growth": {"exists": True}},
        {"not": {"any": [{"phase": "eval"}, {"growth": "per-step"}]}},
    ],
)
def test_what_is_not_known_holds_neither_way(cond):
    """Not seen is never "not so": an unknown figure (absent or None) fulfils neither a condition nor its contrary."""
    assert not holds(cond, {"request_bytes": 1, "phase": None})


def test_absence_can_be_asked_for():
    """`exists: false` is the one condition that absence fulfils."""
    assert holds({"growth": {"exists": False}}, {"growth": None})
    assert not holds({"growth": {"exists": False}}, {"growth": "plateau"})
    assert not holds({"request_bytes": {"exists": True, "gt": 5}}, {"request_bytes": 3})


def test_known_parts_decide_where_they_can():
    """One alternative that holds, or one part that fails, decides whatever else is unknown."""
    assert holds({"any": [{"growth": "per-step"}, {"phase": "eval"}]}, {"phase": "eval"})
    assert holds({"not": {"phase": "load", "growth": "per-step"}}, {"phase": "eval"})


def test_false_is_known():
    """False and 0 are values, not absences."""
    assert holds({"request_fits_free": False, "growth_bytes": 0}, {"request_fits_free": False, "growth_bytes": 0})


def test_figures_in_names_all_that_is_read():
    """Nested conditions and figures on the right-hand side count."""
    cond = {
        "any": [{"phase": "eval"}, {"request_bytes": {"ge": "free_bytes"}}],
        "not": {"setting.lora": {"exists": True}},
    }
    assert figures_in(cond) == {"phase", "request_bytes", "free_bytes", "setting.lora"}
    assert figures_in(None) == set()


@pytest.mark.parametrize(
    ("cond", "word"),
    [
        ({"phase": {"like": "eval"}}, "like"),
        ({"pase": "eval"}, "pase"),
        ({"setting.": 1}, "setting."),
        ({"any": {"phase": "eval"}}, "any"),
        ({"not": {"nothing": 1}}, "nothing"),
        ({"request_bytes": {"gt": "much"}}, "much"),
        ({"phase": ["eval"]}, "phase"),
        ({"phase": {"in": "eval"}}, "eval"),
        ({"phase": {"matches": "("}}, "("),
        ({"phase": {"exists": "no"}}, "no"),
        ({"phase": None}, "phase"),
        ("phase", "phase"),
    ],
)
def test_a_condition_that_can_not_be_meant_is_refused(cond, word):
    """One line names the figure, operator or operand that is wrong."""
    with pytest.raises(EntryError) as refused:
        check(cond)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_known_figures_are_plain_names():
    """A figure's name can't be mistaken for a word of the language or a size."""
    assert not KNOWN_FIGURES & {"any", "not", "setting"}
    assert all(name.isidentifier() for name in KNOWN_FIGURES)
