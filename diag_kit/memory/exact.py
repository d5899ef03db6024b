"""The exact model of a run: programs compiled from traces of its own model, as they are asked for, and kept.

A program covers one family: one micro-batch or more, accumulating or not, lengths to one side of the model's attention
window. It is compiled from traces of a few layers and proven by one more, at the batch and length that were asked for
and one more layer, whose allocations and peak it must give exactly. Where they are not given, the whole depth is
traced; where that is no polynomial either, the point itself.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError
from . import kept
from .architecture import DEPTHS
from .compiling import compile_program
from .documents import check_length
from .estimates import Progress
from .program import ROUNDING, NotPolynomialError, Point, Program
from .settings import Settings
from .sharing import by_trace

if TYPE_CHECKING:
    from .trace.recording import Recording
    from .trace.step import Session

LENGTH_UNIT = 128
"""Grid lengths are 5, 7 and 9 of these: multiples of what kernels pad to, and no usual width of a head."""
MOST_WHOLE = 16
"""Layers of a stack that is traced whole, at several lengths, where its depth can't be told from that of a part."""


@dataclass(frozen=True)
class Family:
    """What one program covers."""

    single: bool
    accumulates: bool
    windowed: bool = False
    ragged: bool = False
    depth: int | None = None
    point: Point | None = None


@dataclass
class Traced:
    """A program and how it was proven.

    Attributes:
        family: what it covers.
        longest: the most tokens that the model has positions for, None without a limit.
        why: what kept the families that were tried before from covering it.
        off_bytes: by how much it missed the bytes of one more trace, at ``proof``; None where that is the program.
        decisions, kernels, notes: as recorded.
    """

    program: Program
    family: Family
    proof: Point
    off_bytes: int | None
    decisions: list[tuple[str, str, float]]
    kernels: list[tuple[str, str, str]]
    notes: list[str]
    why: tuple[str, ...] = ()
    longest: int | None = None

    def about(self) -> dict[str, object]:
        """All but the program, as JSON holds it."""
        return {
            "family": asdict(self.family),
            "proof": list(self.proof),
            "off_bytes": self.off_bytes,
            "decisions": self.decisions,
            "kernels": self.kernels,
            "notes": self.notes,
            "longest": self.longest,
        }

    @property
    def said(self) -> str:
        """How exact this is, in one line."""
        p = self.proof
        at = f"micro-batch {p.micro_batch}, length {p.seq_len:,}, {p.layers} layers, {p.grad_accum} micro-steps"
        if self.off_bytes is None:
            return f"not polynomial here ({'; '.join(self.why)}): traced live at {at}"
        return f"self-check against one more trace ({at}): {self.off_bytes} bytes off"


class Exact:
    """Programs of one model under one set of settings but its numbers. Torch is imported when one is traced."""

    def __init__(self, s: Settings, on_progress: Progress | None = None) -> None:
        self.s = s
        self.on_progress = on_progress or (lambda *_: None)
        self._sessions: dict[int | None, Session] = {}
        self.programs: dict[Family, Traced] = {}
        self.identity = identity(s)
        self.full_layers: int | None = None
        self._done = self._meant = 0

    def at(self, s: Settings) -> tuple[Traced, Point]:
        """The program that covers these settings, which differ from its own in their numbers only; and the point."""
        if self.knows(s) or not by_trace(self.s):
            return self._at(s)
        from .trace.sharded import pretended_group

        try:
            with pretended_group(self.s.parallelism.data):
                return self._at(s)
        finally:
            self.release()  # what was sharded over a group ends with it

    def _at(self, s: Settings) -> tuple[Traced, Point]:
        if layers_of(s) is None and self.full_layers is None:
            self.full_layers = self._session(None).job.full_layers or 1
        p = self._point(s)
        traced = self._recalled(p)
        if traced is None:
            traced = self._trace(self._family(p), p)
            if traced.off_bytes is not None and not self._own_code:
                kept.save(self._name(p), traced.program, traced.about())
            self.programs[traced.family] = traced
        check_length(p.seq_len, traced.longest)  # polynomials would go on where the model can't
        return traced, p

    def knows(self, s: Settings) -> bool:
        """Whether a program covers these settings without a trace: one in memory, or one that was kept."""
        known = layers_of(s) or self.full_layers
        return known is not None and self._recalled(self._point(s)) is not None

    @property
    def _own_code(self) -> bool:
        """Whether the model is the user's code, which may be another the next time: none of its programs are kept."""
        return bool(self.s.exact and self.s.exact.factory)

    def _point(self, s: Settings) -> Point:
        return Point(s.micro_batch, s.seq_len, layers_of(s) or self.full_layers or 1, s.grad_accum)

    def _recalled(self, p: Point) -> Traced | None:
        if traced := self._covering(p):
            return traced
        traced = None if self._own_code else _recalled(self._name(p))
        if traced:
            self.programs[traced.family] = traced
        return traced

    def _family(self, p: Point) -> Family:
        return Family(p.micro_batch == 1, p.grad_accum > 1, self._windowed(p))

    def _name(self, p: Point) -> str:
        return kept.key(self.identity, (self._family(p), bool(p.seq_len % 8), p.layers))

    def recording(self, s: Settings) -> Recording | None:
        """The whole step with every allocation, at these settings; None where it is sharded."""
        if by_trace(self.s):
            return None
        return self._session(None).record(s.micro_batch, s.seq_len, min(s.grad_accum, 3))

    def release(self) -> None:
        """Let go of the models; programs stay."""
        self._sessions.clear()

    def _covering(self, p: Point) -> Traced | None:
        family = self._family(p)
        for ragged in (False, True):
            for wanted in (family, replace(family, depth=p.layers), replace(family, point=p)):
                traced = self.programs.get(replace(wanted, ragged=ragged))
                if traced is None or not traced.program.covers(p.layers):
                    continue
                if ragged or wanted.point or traced.program.any_length or not p.seq_len % 8:
                    return traced
        return None

    def _windowed(self, p: Point) -> bool:
        window = self._window()
        return window is not None and p.seq_len >= window

    def _window(self) -> int | None:
        config = self.s.exact.config if self.s.exact else None
        if not config or config.get("use_sliding_window") is False:
            return None
        window = config.get("sliding_window")
        return window if isinstance(window, int) and window > 0 else None

    # --- tracing

    def _trace(self, family: Family, p: Point) -> Traced:
        attempts = [family, replace(family, ragged=True)] if p.seq_len % 8 else [family]
        why: list[str] = []
        for wanted in [*attempts, *(replace(one, depth=p.layers) for one in attempts)]:
            deep = wanted.depth is not None
            if deep and (p.layers > MOST_WHOLE or self._depths(family, p)[0] is None):
                continue
            try:
                traced = self._compiled(wanted, p)
            except NotPolynomialError as e:
                why.append(str(e))
                continue
            except SettingsError as e:
                if not self._own_code:
                    raise
                why.append(str(e))  # the user's code may know one size alone
                break
            if traced.off_bytes == 0:
                return traced
            why.append(f"the self-check was {traced.off_bytes} bytes off")
        live = self._live(replace(family, point=p), p)
        live.why = tuple(dict.fromkeys(why))
        return live

    def _compiled(self, family: Family, p: Point) -> Traced:
        flat, deep, proof = self._depths(family, p)
        k = 3 if family.accumulates else 1
        batches = (1,) if family.single else (2, 3)
        lengths, others = self._lengths(family)
        session = self._session(deep)
        layers = session.job.layers or p.layers
        self._meant = len(batches) * len(lengths) + len(others) + 2
        self._done = 0
        grid = [self._record(session, Point(b, n, layers, k)) for b in batches for n in lengths]
        for i, n in enumerate(others):
            grid.append(self._record(session, Point(batches[i % len(batches)], n, layers, k)))
        shallow = None
        if flat is not None:
            shallow = self._record(self._session(flat), grid[0][0]._replace(layers=flat))
        rounding = 1 if self.s.device == "cpu" else ROUNDING
        any_length = True
        try:
            program = compile_program(grid, shallow, rounding)
        except NotPolynomialError:
            even = [one for one in grid if not one[0].seq_len % 8]
            if family.ragged or len(even) == len(grid):
                raise
            program, any_length = compile_program(even, shallow, rounding), False
        program.any_length = any_length
        if not any_length and p.seq_len % 8:
            raise NotPolynomialError("lengths that are no multiple of 8 take another course")
        checked = self._session(proof)
        at = Point(p.micro_batch, p.seq_len, checked.job.layers or p.layers, min(p.grad_accum, 4))
        _, recording = self._record(checked, at)
        return self._with_proof(program, family, at, recording, _off(program, at, recording))

    def _live(self, family: Family, p: Point) -> Traced:
        at = p._replace(grad_accum=3 if family.accumulates else 1)
        _, recording = self._record(self._session(None), at)
        program = compile_program([(at, recording)], None, 1 if self.s.device == "cpu" else ROUNDING)
        return self._with_proof(program, family, at, recording, None)

    def _with_proof(self, program: Program, family: Family, at: Point, r: Recording, off: int | None) -> Traced:
        decisions, kernels = [tuple(d) for d in r.decisions], [tuple(k) for k in r.kernels]
        longest = next(iter(self._sessions.values())).job.longest
        return Traced(program, family, at, off, decisions, kernels, list(r.notes), longest=longest)  # type: ignore[arg-type]

    def _depths(self, family: Family, p: Point) -> tuple[int | None, int | None, int | None]:
        """Layers of the shallow, the deep and the proving stack; None for the whole, or for none shallow."""
        if family.depth is not None or layers_of(self.s) is None:
            return None, None, None
        period = self._session(2).job.period if self._session(2).job.layers else 0
        if not period or p.layers <= 3 * period:
            return None, None, None
        rest = p.layers % period
        return 2 * period + rest, 3 * period + rest, min(4 * period + rest, p.layers)

    def _lengths(self, family: Family) -> tuple[list[int], list[int]]:
        """Lengths of the grid, multiples of what kernels pad to, and others that are not."""
        longest = self._session(2).job.longest if layers_of(self.s) is not None else self._session(None).job.longest
        window = self._window() or 1 << 30
        start = -(-window // LENGTH_UNIT) * LENGTH_UNIT if family.windowed else 0
        room = min(longest or 1 << 30, 1 << 30 if family.windowed else window - 1) - start
        unit = next((u for u in (LENGTH_UNIT, 64, 32) if 9 * u <= room), 0)
        a, b, c = (5, 7, 9) if unit else (2, 3, 4)
        unit = unit or max(room // 32 * 8, 8)
        if family.ragged:
            grid, others = [a * unit + 1, b * unit + 11, c * unit - 3], [(c - 1) * unit - 2, a * unit + 7, b * unit + 5]
        else:
            # The first of the others tells all paddings apart: the odd ones may take another course.
            grid = [a * unit, b * unit, c * unit]
            others = [(b - 1) * unit + 8, a * unit + 3, a * unit + unit // 2 + 1]
        return [start + n for n in grid], [start + n for n in others]

    def _session(self, layers: int | None) -> Session:
        from .trace.step import Session

        if layers not in self._sessions:
            self.on_progress("building the model under fake tensors", self._done, self._meant)
            self._sessions[layers] = Session(self.s, layers)
        return self._sessions[layers]

    def _record(self, session: Session, p: Point) -> tuple[Point, Recording]:
        what = f"tracing micro-batch {p.micro_batch}, length {p.seq_len:,}, {p.layers} layers"
        self.on_progress(what, self._done, self._meant)
        recording = session.record(p.micro_batch, p.seq_len, p.grad_accum)
        self._done += 1
        self.on_progress(what, self._done, self._meant)
        return p, recording


def _recalled(name: str) -> Traced | None:
    """A program that was kept, with what was said about it."""
    found = kept.load(name)
    if found is None:
        return None
    program, about = found
    try:
        family: dict[str, Any] = about["family"]  # type: ignore[assignment]
        proof: list[int] = about["proof"]  # type: ignore[assignment]
        rest = {field: about[field] for field in ("off_bytes", "decisions", "kernels", "notes", "longest")}
        return Traced(program, Family(**family), Point(*proof), **rest)  # type: ignore[arg-type]
    except (KeyError, TypeError):
        return None


def _off(program: Program, p: Point, recording: Recording) -> int:
    """By how much the peak is off, before rounding; at least 1 where the bytes alive differ after any birth in it.

    What is alive before the step is compared in sum: its order means nothing.
    """
    ids, amounts, base = program.events(p)
    born: dict[int, int] = {}
    predicted = []
    for name, size in zip(ids, amounts, strict=True):
        predicted.append(-born[name] if name in born else size)
        born.setdefault(name, size)
    sizes = [a.bytes for a in recording.allocations]
    traced = [sizes[event - 1] if event > 0 else -sizes[-event - 1] for event in recording.events]
    off = abs(Program.peak_bytes(replace(program, rounding=1), p) - recording.peak_bytes())
    return off if _alive(predicted, base) == _alive(traced, base) else max(off, 1)


def _alive(changes: list[int], base: int) -> list[int]:
    """Bytes alive before the step, and after each birth in it."""
    live = sum(changes[:base])
    levels = [live]
    for change in changes[base:]:
        live += change
        if change > 0:
            levels.append(live)
    return levels


def layers_of(s: Settings) -> int | None:
    """The depth of the run's model as its settings state it; None where only the model itself can tell."""
    if s.exact is None:
        return s.model.n_layers
    config: dict[str, Any] = s.exact.config or {}
    found = next((config[name] for name in DEPTHS if isinstance(config.get(name), int)), None)
    return found if not isinstance(config.get("text_config"), dict) else None


def identity(s: Settings) -> str:
    """What a trace depends on, as text: the settings without the numbers that a program is evaluated at."""
    return _identity(replace(s, micro_batch=1, seq_len=1, grad_accum=1, capacity_bytes=None, method="auto"))


@lru_cache(256)
def _identity(s: Settings) -> str:
    document = s.to_json()
    model = dict(document["model"])
    config = model.get("hf_config", model)
    if isinstance(config, dict) and not config.get("layer_types"):
        config = {name: value for name, value in config.items() if name not in DEPTHS}
        model = {"hf_config": config} if "hf_config" in model else config
    gpu = None if s.device == "cpu" else s.gpu
    return json.dumps({**document, "model": model, "gpu": gpu}, sort_keys=True, default=str)


def refuse(s: Settings) -> None:
    """SettingsError where a trace can't describe these settings."""
    p = s.parallelism
    if p.tensor > 1 or p.pipeline > 1:
        raise SettingsError("settings.method: tensor and pipeline parallelism are known by formula only; use formula")
