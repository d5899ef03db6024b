"""Conditions on figures: the little language in which an entry says when a sign holds.

A condition is a mapping of figure names to what is expected of them; all must hold::

    request_fits_free: false
    cached_bytes: {ge: 256 MiB}
    any: [{phase: eval}, {operation: {in: [eval-collect, state-dict]}}]

A figure that is not known makes neither a condition nor its ``not`` hold: what was not seen is not "not so". Only
``exists: false`` asks for absence. For ``gt ge lt le`` an operand may be a number, a size (``1 GiB``) or the name of
another figure, so that ``other_process_bytes: {ge: request_bytes}`` reads as it is meant.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import EntryError
from ..units import parse_size

KNOWN_FIGURES = frozenset((
    # the message's arithmetic
    "event_kind", "family", "has_sizes", "request_bytes", "total_bytes", "free_bytes", "allocated_bytes",
    "reserved_bytes", "cached_bytes", "unaccounted_bytes", "other_process_bytes", "other_process_count",
    "others_alike", "foreign_bytes", "foreign_share",
    "sibling_process_count", "sibling_process_bytes", "siblings_of_other_devices",
    "non_torch_bytes", "private_pools_bytes", "allowed_bytes", "request_share", "free_share",
    "allocated_share", "cached_share", "unaccounted_share", "other_process_share", "request_fits_free",
    "request_fits_free_and_cached", "request_exceeds_capacity", "request_impossible",
    "allocated_exceeds_capacity", "cap_reached", "device_full_of_this_process",
    # the place
    "phase", "operation", "operation_code", "exception", "resumed", "failed_step", "first_steps", "single_process",
    # the series
    "growth", "growth_bytes", "growth_points", "growth_rise_bytes", "growth_ranks", "length_correlation",
    "exhaustion_step", "exhaustion_agrees", "length_exponent", "failing_length", "failing_length_ratio",
    # second runs
    "reproduced", "reproduced_elsewhere", "reproduced_scaled",
    # the rest
    "free_margin_bytes", "largest_free_bytes", "xla_temporary_bytes", "xla_argument_bytes", "sizes_consistent",
    "others_are_strangers", "events", "parted", "parted_in_one", "ranks_failed_alike", "ranks_seen",
    "snapshot_largest_free_bytes", "snapshot_free_bytes",
    "memory_limit_bytes", "memory_used_bytes", "host_total_bytes", "killed_rss_bytes", "shm_total_bytes",
    "allocator_limit_share",
    "size_matches", "size_shape", "size_candidates", "size_implied",
    "size_in_layers_share", "recovered", "advisory",
))  # fmt: skip
"""Names that a condition may use, besides ``setting.<name>`` for a setting of the run."""

SETTING = "setting."

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le,
}  # fmt: skip
_PLAIN: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "in": lambda value, wanted: value in wanted,
    "has": lambda value, wanted: isinstance(value, Collection) and wanted in value,
    "matches": lambda value, wanted: re.search(wanted, str(value)) is not None,
}
OPERATORS = frozenset({*_ORDER, *_PLAIN, "exists"})


def holds(cond: Mapping[str, Any] | None, figures: Mapping[str, Any]) -> bool:
    """Whether the condition is known to be so. None and ``{}`` always hold.

    >>> holds({"request_bytes": {"gt": "1 GiB"}}, {"request_bytes": 3 * 1024**3})
    True
    >>> holds({"not": {"phase": "eval"}}, {})
    False
    """
    return _truth(cond, figures) is True


def figures_in(cond: Mapping[str, Any] | None) -> set[str]:
    """Names of all figures that the condition reads."""
    names: set[str] = set()
    for key, wanted in (cond or {}).items():
        if key == "any":
            names.update(*(figures_in(one) for one in wanted))
        elif key == "not":
            names |= figures_in(wanted)
        else:
            names.add(key)
            if isinstance(wanted, Mapping):
                names |= {o for op, o in wanted.items() if op in _ORDER and isinstance(o, str) and is_figure(o)}
    return names


def is_figure(name: str) -> bool:
    """Whether conditions may use this name."""
    return name in KNOWN_FIGURES or (name.startswith(SETTING) and len(name) > len(SETTING))


def check(cond: Any) -> None:
    """Refuse a condition that could never be read as meant.

    Raises:
        EntryError: an unknown figure or operator, an operand of the wrong form; the text names it.
    """
    if cond is None:
        return
    if not isinstance(cond, Mapping):
        raise EntryError(f"a condition is a mapping of figures, not {cond!r}")
    for key, wanted in cond.items():
        if key == "any":
            if not isinstance(wanted, list) or not wanted:
                raise EntryError(f"'any' takes a list of conditions, not {wanted!r}")
            for one in wanted:
                check(one)
        elif key == "not":
            check(wanted)
        elif not isinstance(key, str) or not is_figure(key):
            raise EntryError(f"unknown figure {key!r}; known are {', '.join(sorted(KNOWN_FIGURES))}, {SETTING}<name>")
        elif isinstance(wanted, Mapping):
            for op, operand in wanted.items():
                _check_operand(key, op, operand)
        elif wanted is None or isinstance(wanted, list):
            raise EntryError(f"{key} is compared with {wanted!r}; use {{exists: false}} or {{in: [...]}}")


def _check_operand(key: str, op: Any, operand: Any) -> None:
    if op not in OPERATORS:
        raise EntryError(f"unknown operator {op!r} on {key}; known are {', '.join(sorted(OPERATORS))}")
    wrong = (
        (op in _ORDER and _number(operand) is None and not (isinstance(operand, str) and is_figure(operand)))
        or (op == "in" and not isinstance(operand, list))
        or (op == "exists" and not isinstance(operand, bool))
    )
    if op == "matches":
        try:
            re.compile(operand)
        except (re.error, TypeError):
            wrong = True
    if wrong:
        raise EntryError(f"operator {op} on {key} can't take {operand!r}")


def _number(operand: Any) -> float | None:
    return parse_size(operand) if isinstance(operand, str) else operand if isinstance(operand, int | float) else None


def _truth(cond: Mapping[str, Any] | None, figures: Mapping[str, Any]) -> bool | None:
    """Three-valued: None where a figure that would decide is unknown."""
    answers = [_one(key, wanted, figures) for key, wanted in (cond or {}).items()]
    return False if False in answers else None if None in answers else True


def _one(key: str, wanted: Any, figures: Mapping[str, Any]) -> bool | None:
    if key == "any":
        answers = [_truth(one, figures) for one in wanted]
        return True if True in answers else None if None in answers else False
    if key == "not":
        inner = _truth(wanted, figures)
        return None if inner is None else not inner
    value = figures.get(key)
    tests = wanted if isinstance(wanted, Mapping) else {"eq": wanted}
    if "exists" in tests and (value is not None) != tests["exists"]:
        return False
    results = [_compare(op, value, operand, figures) for op, operand in tests.items() if op != "exists"]
    return False if False in results else None if None in results else True


def _compare(op: str, value: Any, operand: Any, figures: Mapping[str, Any]) -> bool | None:
    if value is None:
        return None
    if op not in _ORDER:
        return _PLAIN[op](value, operand)
    bound = figures.get(operand) if isinstance(operand, str) and is_figure(operand) else _number(operand)
    if bound is None or not isinstance(value, int | float):
        return None
    return _ORDER[op](value, bound)
