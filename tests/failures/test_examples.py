"""Entries bring their own tests: their example texts run through the real parsers and the real engine."""

import pytest

from diag_kit.diagnosis import diagnose
from diag_kit.failures import load_entries

MATCH = [(e.id, x) for e in load_entries() for x in e.examples.match]
NO_MATCH = [(e.id, x) for e in load_entries() for x in e.examples.no_match]


def verdicts(text):
    """Cause -> verdict of what the text is diagnosed as, best first."""
    return {finding.cause: finding.verdict for finding in diagnose(text=text).findings}


def label(value):
    """Names a case by entry and cause."""
    return value if isinstance(value, str) else value.cause


@pytest.mark.parametrize(("entry", "example"), MATCH, ids=label)
def test_a_matching_text_leads_to_its_cause(entry, example):
    """The cause stands with the promised verdict, and no other cause stands above it."""
    found = verdicts(example.text)
    assert found.get(example.cause) == example.verdict
    first = next(iter(found))
    assert found[first] == example.verdict


@pytest.mark.parametrize(("entry", "example"), NO_MATCH, ids=label)
def test_a_lookalike_does_not(entry, example):
    """The cause is neither confirmed nor likely."""
    assert verdicts(example.text).get(example.cause) in (None, "possible", "ruled-out")
