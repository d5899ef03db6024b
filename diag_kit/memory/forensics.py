"""Which tensors of a model have the size that failed, and how exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import SettingsError
from ..evidence.decode import Candidate, candidates, implied, printed_range, says_nothing, weigh
from ..units import MIB, format_bytes, parse_size
from .precision import widths
from .settings import Settings
from .states import share
from .trace.recording import Recording, any_layer

_WHAT = {
    "logits": "logits of one micro-batch, or their gradient",
    "attention-scores": "attention scores of one layer",
    "attention-mask": "an attention mask",
    "activations": "an activation of one layer, or its gradient",
    "weights": "one matrix, its gradient or a moment of it",
    "parameters": "parameters, gradients or moments in one buffer",
    "gathered": "weights of one FSDP unit, gathered",
    "bucket": "a communication bucket",
}
_SMALL, _LARGE = 512, 2 * MIB
SHOWN = 12


@dataclass(frozen=True, slots=True)
class Match:
    """Tensors of one kind that have the size.

    Attributes:
        tensor: kind of tensor, or the operator that makes it in a trace. shape: in symbols and numbers.
        how: ``exact``; ``printed``, equal to the digits that were printed; ``rounded``, in the allocator's steps.
        off_bytes: what was asked for minus the tensor's own size.
        count, module, phases: of a trace, how many such allocations a step makes, in which modules (numbers as *),
            and when.
    """

    tensor: str
    shape: str
    size_bytes: int
    what: str
    how: str
    off_bytes: int
    count: int = 1
    module: str = ""
    phases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forensics:
    """What a size can be in these settings.

    Attributes:
        matches: from the settings' shapes, nearest first; ``tried`` sizes, ``chance`` that one is equal by coincidence;
            ``claimed``: the kind of tensor that it was, None where chance or a second kind explains it as well.
        traced: allocations of a trace with that size. text: all of it in a sentence or two.
    """

    size_bytes: int
    matches: tuple[Match, ...]
    traced: tuple[Match, ...]
    tried: int
    chance: float
    claimed: str | None
    text: str

    def to_json(self) -> dict[str, Any]:
        """The document under ``size`` of ``diag-kit estimate --json``."""
        return asdict(self)


def which_tensors(size: int | str, s: Settings, recording: Recording | None = None) -> Forensics:
    """The tensors of these settings that a request of ``size`` can be: bytes, or text such as ``16.00 GiB``.

    A text stands for all sizes that print so; the allocator may have rounded what was asked for to its segments.
    SettingsError where the text is no size, or neither numbers nor a recording say what tensors there are.
    """
    if s.exact and s.exact.uncovered and recording is None:
        raise SettingsError(f"--size: {s.exact.where}: no numbers describe this model; let it be traced")
    text = size if isinstance(size, str) else f"{size} bytes"
    asked = parse_size(text)
    if asked is None or asked <= 0:
        raise SettingsError(f"--size: {text!r:.60} is no size; give one as the message prints it, such as 16.00 GiB")
    low, high = printed_range(asked, text)
    tried = [] if s.exact and s.exact.uncovered else _of(s)
    found = weigh(asked, tried, text)
    matches = tuple(
        Match(one.tensor, _symbols(one.shape), one.size_bytes, _WHAT[one.tensor], how, asked - one.size_bytes)
        for one in (found.matches[:SHOWN] if found else ())
        if (how := _how(one.size_bytes, asked, low, high))
    )
    traced = _traced(recording, asked, low, high) if recording else ()
    chance, claimed = (found.chance, found.claimed) if found else (0.0, None)
    known = len({one.size_bytes for one in tried})
    said = _said(asked, text, s, matches, traced, known, chance)
    return Forensics(asked, matches, traced, known, chance, claimed, said)


def _of(s: Settings) -> list[Candidate]:
    """Every tensor of the settings, at the widths that the precision keeps."""
    m, p, w, part = s.model, s.parallelism, widths(s), share(s)
    stated = {
        "micro_batch": s.micro_batch, "seq_len": s.seq_len, "world_size": p.data, "strategy": p.strategy,
        "n_params": m.params, "model": m.to_json(),
    }  # fmt: skip
    wide = s.precision == "fp32" and not s.lora
    listed = [c for c in candidates(stated) if c.tensor in _WHAT and not (wide and c.shape.endswith("× 2 bytes")
              and c.tensor != "attention-mask")]  # fmt: skip
    if p.strategy == "fsdp" and p.data > 1:
        units = {"parameters of one layer": part.linear + part.rest, "embedding, head and last norm": part.outside}
        listed += [Candidate("gathered", f"{name} {round(n):,} × {w.gathered} bytes", round(n) * w.gathered)
                   for name, n in units.items()]  # fmt: skip
    return listed


def _how(size: int, asked: int, low: int, high: int) -> str:
    if size == asked:
        return "exact"
    if low <= size <= high:
        return "printed"
    steps = _SMALL if high == low else _LARGE
    return "rounded" if size <= high and -(-size // steps) * steps >= low else ""


def _traced(recording: Recording, asked: int, low: int, high: int) -> tuple[Match, ...]:
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for one in recording.allocations:
        if how := _how(one.bytes, asked, low, high):
            module = any_layer(one.module)
            key = (one.op, module, tuple(one.shape), one.dtype, one.bytes, how)
            groups.setdefault(key, []).append(one.phase)
    ranked = sorted(groups.items(), key=lambda item: (abs(asked - item[0][4]), -len(item[1]), item[0][:2]))
    return tuple(
        Match(op, f"{' × '.join(f'{n:,}' for n in shape)} of {dtype}", size, f"made by {op}", how, asked - size,
              len(phases), module, tuple(dict.fromkeys(phases)))
        for (op, module, shape, dtype, size, how), phases in ranked[:SHOWN]
    )  # fmt: skip


def _symbols(shape: str) -> str:
    """A shape as one says it: batch and heads counted, a dimension that stands twice squared.

    >>> _symbols("batch 4 × heads 32 × length 8,192 × length 8,192 × 2 bytes")
    'a batch of 4 × 32 heads × 8,192² × 2 bytes'
    """
    said: list[str] = []
    parts = shape.split(" × ")
    for place, part in enumerate(parts):
        name, _, number = part.rpartition(" ")
        if place and part == parts[place - 1]:
            said[-1] = f"{number}²"
        else:
            said.append({"batch": f"a batch of {number}", "heads": f"{number} heads"}.get(name, part))
    return " × ".join(said)


def _said(
    asked: int, text: str, s: Settings, matches: tuple[Match, ...], traced: tuple[Match, ...], tried: int, chance: float
) -> str:
    shown = text.strip() if not text.endswith(" bytes") else format_bytes(asked)
    told = []
    if says_nothing(asked, text):
        told.append(f"{shown} is what PyTorch's allocator asks for on behalf of any small tensor: it tells no shape.")
    elif matches:
        exact = {"exact": "exactly", "printed": "to the printed digits", "rounded": "as the allocator rounds it"}
        first, kinds = matches[0], dict.fromkeys(f"{m.shape}: {m.what}" for m in matches[1:3])
        odds = f"about 1 in {min(1000, round(1 / chance))}" if chance < 0.5 else "as likely as not"
        told.append(f"{shown} is {first.shape}: {first.what} ({exact[first.how]}).")
        told += [f"It is as well {other}." for other in kinds]
        told.append(f"Of {tried} sizes tried one fits by chance {odds}.")
    else:
        run: Mapping[str, Any] = {"micro_batch": s.micro_batch, "model": s.model.to_json()}
        guesses = [(kind, implied(asked, run, kind)) for kind in ("logits", "attention-scores")]
        would = " and ".join(f"as {kind.replace('-', ' ')} {said}" for kind, said in guesses if said)
        told.append(f"No tensor of these settings has {shown}; {would}.")
    if traced:
        one = traced[0]
        more = f", and {len(traced) - 1} other kinds" if len(traced) > 1 else ""
        where = f" in {one.module}" if one.module else ""
        told.append(f"The trace makes {one.count} such by {one.tensor}{where}: {one.shape}{more}.")
    return " ".join(told)
