"""The ways in which memory stays alive from one micro-step to the next, as data: what to call them and what to do."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """``cause``: its name in the encyclopedia; ``title`` and ``advice``: for a person."""

    cause: str
    title: str
    advice: str


KINDS = {
    "deferred": Kind(
        "graph-retention",
        "backward is deferred, so the graphs of all micro-steps wait for it",
        "run backward in each micro-step on the loss divided by the number of micro-steps; the gradients are the same",
    ),
    "carried": Kind(
        "graph-retention",
        "a state is carried on with its graph, which reaches back through all steps before",
        "detach the state where the next micro-step takes it up (truncated backpropagation through time)",
    ),
    "graph": Kind(
        "graph-retention",
        "a tensor is kept with its graph attached",
        "keep .item() of a scalar, or .detach() of a tensor, which holds its own bytes until .cpu() or a reduction; "
        "compute what is only logged under torch.no_grad()",
    ),
    "retained": Kind(
        "graph-retention",
        "backward was told to keep its graph, and a tensor that is kept holds on to it",
        "drop retain_graph=True where no second backward runs over the same graph, and keep .detach() of the tensor",
    ),
    "hidden": Kind(
        "graph-retention",
        "a custom function keeps tensors as attributes, which backward doesn't free",
        "hand them to ctx.save_for_backward(...) instead; backward frees those",
    ),
    "cycle": Kind(
        "graph-retention",
        "a cycle through autograd's graph, which Python's collector can't see, keeps it for good",
        "keep no output of a function on its own context, and clear gradients that have a graph (create_graph=True)",
    ),
    "gradients": Kind(
        "graph-retention",
        "gradients were made with a graph of their own, and nothing lets go of them",
        "use torch.autograd.grad(..., create_graph=True), or set the gradients to None after use",
    ),
    "swept": Kind(
        "graph-retention",
        "tensors are part of a cycle, which lives until Python's collector happens to run",
        "break the cycle: ctx.save_for_backward(...) for what a custom function needs, weakref for a way back",
    ),
    "evaluation": Kind(
        "graph-retention",
        "a graph is recorded and kept although no backward ever runs",
        "evaluate under torch.no_grad() or torch.inference_mode(), and keep numbers rather than tensors",
    ),
    "outputs": Kind(
        "tensor-accumulation",
        "tensors without a graph pile up",
        "reduce them to the numbers that are needed, move them off the device with .cpu() as they are made, or empty "
        "what holds them once it is read (a metric's reset())",
    ),
    "grows": Kind(
        "tensor-accumulation",
        "one tensor grows with each micro-step",
        "collect numbers instead, or write into a tensor of fixed size",
    ),
}

SPIKES = {
    "scores": Kind(
        "attention-quadratic",
        "attention scores, as large as the square of the length",
        "use a fused kernel: torch.nn.functional.scaled_dot_product_attention, or attn_implementation='sdpa'",
    ),
    "logits": Kind(
        "logits-loss-peak",
        "logits over the whole vocabulary and copies of them",
        "compute the loss in chunks or with a fused kernel; keep no float32 copy of the logits",
    ),
    "autograd": Kind(
        "eval-peak",
        "made with autograd on although no backward runs",
        "evaluate under torch.no_grad() or torch.inference_mode()",
    ),
}
