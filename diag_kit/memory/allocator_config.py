"""Settings of PyTorch's caching allocator, as ``PYTORCH_ALLOC_CONF`` (formerly ``PYTORCH_CUDA_ALLOC_CONF``) has them.

Source: torch 2.13's ``c10/core/AllocatorConfig.h`` and ``c10/cuda/CUDAAllocatorConfig.h``; what torch takes and what it
refuses was tried on the library of torch 2.14.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..errors import SettingsError
from ..units import MIB

_INTERVALS = 16  # of roundup_power2_divisions: 1 MiB, 2 MiB ... 32 GiB
_NUMBERS = {  # key -> (field, least, most, what is allowed, bytes of one; 0 for a fraction)
    "max_split_size_mb": ("max_split_bytes", 20, 1 << 30, "a whole number from 20", MIB),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", 20, 1 << 30, "a whole number from 20", MIB),
    "large_segment_size_mb": ("large_segment_bytes", 11, 1 << 20, "a whole number from 11", MIB),
    "garbage_collection_threshold": ("garbage_collection_threshold", 1e-9, 1 - 1e-9, "a number between 0 and 1", 0),
    "per_process_memory_fraction": ("memory_fraction", 0, 1, "a number from 0 to 1", 0),
}
_WITHOUT_EFFECT = (
    "graph_capture_record_stream_reuse", "pinned_free_catch_all", "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb", "pinned_num_register_threads", "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads", "pinned_use_cuda_host_register", "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "throw_on_cudamalloc_oom",
)  # fmt: skip
KNOWN_KEYS = ("backend", "expandable_segments", "roundup_power2_divisions", *_NUMBERS, *_WITHOUT_EFFECT)


@dataclass(frozen=True, slots=True)
class AllocatorConfig:
    """What decides which bytes the allocator reserves; the defaults are torch's. Sizes in bytes.

    ``max_split_bytes``: blocks of this size and more are never split; None where all may be. A request of that size
    may take a block less than ``max_non_split_rounding_bytes`` larger. ``large_segment_bytes``: the segment of requests
    between 1 and 10 MiB, and the page of expandable segments. ``roundup_divisions``: empty, or the divisions of each
    of the 16 powers of two from 1 MiB on. ``garbage_collection_threshold`` acts only under a ``memory_fraction``.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = 20 * MIB
    large_segment_bytes: int = 20 * MIB
    roundup_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float = 0.0
    memory_fraction: float | None = None

    def round(self, size_bytes: int) -> int:
        """Bytes of the block that a request asks for, a multiple of 512.

        >>> AllocatorConfig().round(513), AllocatorConfig(roundup_divisions=(4,) * 16).round(2_200_000)
        (1024, 2621440)
        """
        if self.roundup_divisions and size_bytes >= 512:
            power = size_bytes.bit_length() - 1
            divisions = self.roundup_divisions[min(max(power - 20, 0), _INTERVALS - 1)]
            if divisions > 1 and size_bytes > 512 * divisions:
                part = (1 << power) // divisions
                return -(-size_bytes // part) * part
        return (size_bytes + 511) & ~511


def parse_config(text: str) -> AllocatorConfig:
    """Reads the value of ``PYTORCH_ALLOC_CONF``; settings of torch that change nothing here are passed over.

    Errors: SettingsError, one line, for what torch refuses: an unknown key, a value out of range; and for the
    cudaMallocAsync backend, which is another allocator.

    >>> parse_config("expandable_segments:True, max_split_size_mb:128").max_split_bytes
    134217728
    """
    fields: dict[str, Any] = {}
    divisions = [0] * _INTERVALS
    for entry in re.split(r",(?![^\[\]]*\])", re.sub(r"\s+", "", text)) if len(text) <= 4096 else [text]:
        key, _, value = entry.partition(":")
        if not entry:
            continue
        if key not in KNOWN_KEYS:
            raise _wrong(f"{key[:60]!r} is no setting of the allocator; known are {', '.join(KNOWN_KEYS)}")
        if not value:
            raise _wrong(f"{key} has no value; write {key}:VALUE, with a comma before the next setting")
        if key in _NUMBERS:
            name, least, most, words, unit = _NUMBERS[key]
            if not re.fullmatch(r"\d{1,12}" if unit else r"\d{0,3}\.?\d{0,20}(?<=\d)", value, re.A):
                raise _wrong(f"{key} takes {words}, not {value[:30]!r}")
            number = int(value) if unit else float(value)
            if not least <= number <= most:
                raise _wrong(f"{key} takes {words}, not {value[:30]!r}")
            fields[name] = number * (unit or 1)
        elif key == "expandable_segments":
            if value not in ("True", "False"):
                raise _wrong(f"{key} takes True or False, not {value[:30]!r}")
            fields[key] = value == "True"
        elif key == "roundup_power2_divisions":
            _divide(divisions, value)
        elif key == "backend" and value != "native":
            raise _wrong(f"only backend:native can be replayed, not {value[:30]!r}; leave it out")
    return AllocatorConfig(**fields, roundup_divisions=tuple(divisions) if any(divisions) else ())


def _divide(divisions: list[int], value: str) -> None:
    """Enters ``8``, for all, or ``[256:1,512:2,>:4]``: by MiB, the first also below it, and ``>`` above the last."""
    listed = value.startswith("[")
    last = -1
    for pair in value.strip("[]").split(",") if listed else [f">:{value}"]:
        start, _, count = pair.partition(":")
        powers = [int(n) if re.fullmatch(r"\d{1,9}", n, re.A) else -1 for n in (start.replace(">", "1"), count)]
        if pair and (min(powers) < 0 or any(n & (n - 1) for n in powers) or not powers[0] or not (listed or powers[1])):
            raise _wrong(f"roundup_power2_divisions takes powers of 2, as 8 or [256:1,>:4], not {value[:60]!r}")
        index = min(powers[0].bit_length() - 1, _INTERVALS - 1)
        if start == ">":
            after = max(last, 0) + listed
            divisions[after:] = [powers[1]] * (_INTERVALS - after)
        elif pair:
            first = 0 if last < 0 else index
            divisions[first : index + 1] = [powers[1]] * (index + 1 - first)
            last = index


def _wrong(what: str) -> SettingsError:
    return SettingsError(f"PYTORCH_ALLOC_CONF: {what}")
