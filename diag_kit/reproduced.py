"""stub"""
from __future__ import annotations
import hashlib, json
from typing import Any
from .findings import Failure


def failure_key(failure: Failure | None) -> str:
    """What a reproduction is of: a digest of the failure's sizes as stated and its phase; empty without a failure."""
    if failure is None:
        return ""
    sizes = {name: value for name, value in sorted(failure.facts.items()) if name.endswith("_bytes")}
    return hashlib.sha256(json.dumps([sizes, failure.phase], default=str).encode()).hexdigest()[:12]
