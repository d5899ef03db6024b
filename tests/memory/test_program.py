"""Programs of made-up steps: polynomials, layers and micro-steps that repeat, and what is no program."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from diag_kit.memory.compiling import compile_program  # noqa: E402
from diag_kit.memory.program import NotPolynomialError, Point  # noqa: E402
from diag_kit.memory.terms import CATEGORIES  # noqa: E402
from diag_kit.memory.trace.recording import BASE, Allocation, Mark, Recording, segments  # noqa: E402


def step(p: Point, *, deferred: bool = False, pad: int = 1, odd: int = 0) -> Recording:
    """A step by hand: weights, a saved tensor and a temporary for each layer, logits, gradients."""
    r = Recording(marks=[Mark(0, BASE, 0)])
    length = -(-p.seq_len // pad) * pad

    def born(size: int, op: str, phase: str, m: int, category: str, layer: int | None = None) -> int:
        module = "" if layer is None else f"layers.{layer}"
        r.allocations.append(Allocation(size, op, (), "float32", module, phase, m, category))
        r.events.append(len(r.allocations))
        return len(r.allocations)

    def dead(i: int) -> None:
        r.events.append(-i)

    def mark(phase: str, m: int = 0) -> None:
        r.marks.append(Mark(len(r.events), phase, m))

    for layer in range(p.layers):
        born(1000, "parameters", BASE, 0, "parameters", layer)
    born(5000, "parameters", BASE, 0, "parameters")
    graphs: list[list[int]] = []
    grads: list[int] = []

    def backward(saved: list[int], m: int) -> None:
        for i in reversed(saved):
            fresh = born(1000, "mm", "backward", m, "gradients")
            dead(i)
            if len(grads) < len(saved):
                grads.append(fresh)
            else:
                dead(fresh)

    for m in range(1, p.grad_accum + 1):
        mark("forward", m)
        saved = []
        for layer in range(p.layers):
            temporary = born(
                3 * p.micro_batch * p.seq_len**2 + odd * (p.seq_len > 1000), "bmm", "forward", m, "temporaries", layer
            )
            saved.append(born(7 * p.micro_batch * length + 11, "gelu", "forward", m, "activations", layer))
            dead(temporary)
        mark("loss", m)
        saved.append(born(13 * p.micro_batch * p.seq_len, "log_softmax", "loss", m, "logits"))
        if deferred and m < p.grad_accum:
            graphs.append(saved)
            continue
        mark("backward", m)
        backward(saved, m)
        for earlier in reversed(graphs):
            backward(earlier, m)
    mark("optimizer")
    for i in grads:
        dead(i)
    return r


GRID = [(b, s) for b in (2, 3) for s in (640, 896, 1152)] + [(2, 776), (3, 643)]


def program(accum: int = 1, **how):
    """A program from small stacks, as a trace makes it."""
    points = [Point(b, s, 3, accum) for b, s in GRID]
    flat = points[0]._replace(layers=2)
    return compile_program([(p, step(p, **how)) for p in points], (flat, step(flat, **how)), 1)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize(
    ("b", "s", "layers", "accum"), [(2, 33, 3, 2), (5, 777, 12, 3), (7, 4096, 40, 9), (4, 10, 4, 64)]
)
def test_a_program_is_the_step_at_any_point(deferred, b, s, layers, accum):
    """Peak, categories at the peak and every event agree with the step itself, at points far from the grid."""
    p = Point(b, s, layers, accum)
    made, real = program(3, deferred=deferred), step(p, deferred=deferred)
    totals = made.totals(p)
    assert int(totals.max()) == real.peak_bytes() == made.peak_bytes(p)
    _, amounts, base = made.events(p)
    sizes = [a.bytes for a in real.allocations]
    assert amounts == [sizes[e - 1] if e > 0 else 0 for e in real.events]
    assert base == layers + 1
    (row,) = made.by_category(p, [int(totals.argmax())])
    assert row.sum() == real.peak_bytes()
    live = dict.fromkeys(CATEGORIES, 0)
    best: dict[str, int] = {}
    for _, moves in segments(real):
        for move in moves:
            live[move.category] += move.sign * sizes[move.place]
            if sum(live.values()) == real.peak_bytes() and not best:
                best = dict(live)
    assert dict(zip(CATEGORIES, map(int, row), strict=True)) == best


def test_one_micro_step_is_a_program_of_its_own():
    """Without accumulation no gradient is alive in the forward pass; the accumulating program refuses that point."""
    p = Point(2, 100, 5, 1)
    assert program().peak_bytes(p) == step(p).peak_bytes()
    with pytest.raises(NotPolynomialError):
        program(3).peak_bytes(p)


def test_an_earlier_graph_counts_as_retained():
    """With one backward at the end, all graphs but the one at work are retained; with one each, none is."""
    p = Point(2, 640, 4, 5)
    for deferred in (False, True):
        made = program(3, deferred=deferred)
        at = {s.phase: s for s in made.segments if s.micro_step == 3}["backward"]
        rows = made.by_category(p, range(at.first, at.last))
        most = rows[:, CATEGORIES.index("retained_graphs")].max()
        one = 4 * (7 * 2 * 640 + 11) + 13 * 2 * 640
        assert most == (4 * one if deferred else 0)


@pytest.mark.parametrize("pad", [8, 32, 128])
def test_padding_of_kernels_is_found(pad):
    """A size that follows the length rounded up is exact at lengths that are no multiples."""
    made = program(pad=pad)
    for s in (641, 650, 1000, 129):
        p = Point(4, s, 6, 1)
        assert made.peak_bytes(p) == step(p, pad=pad).peak_bytes()


def test_sizes_are_rounded_each_not_in_sum():
    """CUDA's allocator rounds every tensor: 512 bytes for the smallest."""
    points = [Point(b, s, 3, 1) for b, s in GRID]
    made = compile_program([(p, step(p)) for p in points], None, 512)
    p = points[0]
    rounded = step(p)
    for a in rounded.allocations:
        a.bytes = -(-a.bytes // 512) * 512
    assert made.peak_bytes(p) == rounded.peak_bytes()


def test_what_is_no_polynomial_is_refused():
    """A size that bends with the length, a deeper stack that is another, a step that takes another course."""
    with pytest.raises(NotPolynomialError):
        program(odd=100)
    points = [Point(b, s, 3, 1) for b, s in GRID]
    other = step(points[0]._replace(layers=2), deferred=True)
    other.allocations[0].bytes = 999
    with pytest.raises(NotPolynomialError):
        compile_program([(p, step(p)) for p in points], (points[0]._replace(layers=2), other), 1)
    with pytest.raises(NotPolynomialError):
        compile_program([(points[0], step(points[0])), (points[1], step(points[1]._replace(layers=4)))], None, 1)


def test_evaluation_costs_no_trace_and_a_fixed_number_of_products():
    """A slider's step is four products of a matrix and a vector, whatever the depth or accumulation."""
    made = program(3)
    assert all(counts.shape == (len(made.origins), len(made.examples)) for counts in made.counts)
    assert made.peak_bytes(Point(2, 640, 400, 1000)) > made.peak_bytes(Point(2, 640, 4, 2))
    assert len(made.origins) < 400  # moments of three layers and three micro-steps, not of all


def test_a_stretch_that_ends_as_the_stack_does_is_one_layer():
    """Sizes that occur in a layer and after the last one too (norms) do not tear a layer apart."""
    from diag_kit.memory.compiling import Token, _insertions

    def list_of(layers: int) -> list[Token]:
        sizes = [500, *([90, 90, 40, 7, 7] * layers), 7]
        return [Token(1, "optimizer_state", size, "state", BASE) for size in sizes]

    assert _insertions(list_of(2), list_of(3), BASE) == [(11, 16)]
