"""What a message does not prove: each kind of wrong conclusion, over many sizes, wordings and prefixes.

The arithmetic decides, in every generation of the message; words, frames and the moment of a failure do not.
"""

import itertools

import pytest

from diag_kit.diagnosis import diagnose
from diag_kit.evidence.derived import figures_of
from diag_kit.evidence.run import load_run

MIB, GIB = 1 << 20, 1 << 30
TIP = " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
NEW_TIP = " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
PREFIXES = ("", "[rank0]: ", "2026-05-04T11:02:07.118Z ", "trainer-1  | ")


def size(n):
    """Bytes as the allocator prints them."""
    unit, name = (
        (GIB, "GiB") if n >= GIB else (MIB, "MiB") if n >= MIB else (1024, "KiB") if n >= 1024 else (1, "bytes")
    )
    return f"{n / unit:.2f} {name}" if unit > 1 else f"{n} bytes"


def old(tail, *, cached=False, allowed=False):
    """The sentence of PyTorch up to 2.0; before 1.4 its last field is reserved less allocated."""

    def write(tried, total, allocated, free, reserved, cap=None):
        last = f"{size(reserved - allocated)} cached" if cached else f"{size(reserved)} reserved in total by PyTorch"
        limit = f"{size(cap)} allowed; " if cap else ""
        return (
            f"RuntimeError: CUDA out of memory. Tried to allocate {size(tried)} (GPU 0; {size(total)} total capacity; "
            f"{size(allocated)} already allocated; {size(free)} free; {limit}{last}){tail}"
        )

    return write


def new(capacity, who="CUDA", tail=NEW_TIP):
    """The sentence since 2.1, without clauses on processes, as it is where the driver can't list them."""

    def write(tried, total, allocated, free, reserved, cap=None):
        limit = f"{size(cap)} allowed; " if cap else ""
        return (
            f"torch.OutOfMemoryError: {who} out of memory. Tried to allocate {size(tried)}. GPU 0 has a total {capacity} of "
            f"{size(total)} of which {size(free)} is free. {limit}Of the allocated memory {size(allocated)} is allocated by PyTorch, "
            f"and {size(reserved - allocated)} is reserved by PyTorch but unallocated.{tail}"
        )

    return write


GENERATIONS = {
    "1.3": old("", cached=True),
    "1.9": old(""),
    "2.0": old(TIP),
    "2.1": new("capacty"),
    "2.6": new("capacity"),
    "no tip": new("capacity", tail=""),
    "rocm": new("capacity", who="HIP"),
}
every_wording = pytest.mark.parametrize(
    ("wording", "prefix"),
    [(g, PREFIXES[i % len(PREFIXES)]) for i, g in enumerate(GENERATIONS)] + [("2.6", p) for p in PREFIXES],
)
FRAMES = {
    "forward": ("/x/torch/nn/modules/linear.py", "forward", "return F.linear(input, self.weight, self.bias)"),
    "backward": ("/x/torch/autograd/__init__.py", "backward", "Variable._execution_engine.run_backward("),
    "optimizer": ("/x/torch/optim/adamw.py", "_init_group", 'state["exp_avg"] = torch.zeros_like(p)'),
    "attention": ("m.py", "forward", "attn_weights = attn_weights.softmax(dim=-1)"),
    "loss": ("/x/torch/nn/functional.py", "cross_entropy", "return torch._C._nn.cross_entropy_loss("),
    "accumulate_grad": (
        "/x/torch/autograd/function.py",
        "accumulate_grad",
        "retain_graph=retain_graph, create_graph=create_graph",
    ),
}


def log(message, *, prefix="", frame=None, before=()):
    """A log whose lines stand behind a prefix: what went before, a traceback, the message."""
    lines = list(before)
    if frame:
        path, function, code = FRAMES[frame]
        lines += ["Traceback (most recent call last):", '  File "train.py", line 40, in main', "    step(batch)"]
        lines += [f'  File "{path}", line 7, in {function}', f"    {code}"]
    return "\n".join(prefix + line for line in [*lines, message])


def verdicts(text):
    return {finding.cause: finding.verdict for finding in diagnose(text=text).findings}


def claimed(text, *verdict):
    """Causes that the diagnosis stands by."""
    return {cause for cause, said in verdicts(text).items() if said in (verdict or ("confirmed", "likely"))}


CARDS = (10 * GIB + 780 * MIB, 23 * GIB + 700 * MIB, 79 * GIB + 150 * MIB)


# --- 1: fragmentation


@every_wording
@pytest.mark.parametrize("total", CARDS)
@pytest.mark.parametrize("cached_share", [0.15, 0.4])
def test_pieces_matter_only_where_together_they_would_have_served(wording, prefix, total, cached_share):
    """A gap between reserved and allocated is fragmentation only if the request is at most free plus cached."""
    free, cached = 200 * MIB, int(total * cached_share)
    reserved = total - free - 500 * MIB
    fits = GENERATIONS[wording](int(free + cached * 0.6), total, reserved - cached, free, reserved)
    over = GENERATIONS[wording](int(free + cached * 1.2), total, reserved - cached, free, reserved)
    assert verdicts(log(fits, prefix=prefix)).get("fragmentation") in ("likely", "possible")
    assert verdicts(log(over, prefix=prefix)).get("fragmentation") in (None, "ruled-out")


@every_wording
@pytest.mark.parametrize(("cached", "tried"), [(18 * MIB, 2 * MIB), (90 * MIB, 20 * MIB), (200 * MIB, 64 * MIB)])
def test_a_ratio_of_tiny_amounts_is_no_fragmentation(wording, prefix, cached, tried):
    """Eighteen mebibytes of cache are much more than two, and nothing beside the card."""
    text = log(GENERATIONS[wording](tried, CARDS[1], CARDS[1] - GIB, 0, CARDS[1] - GIB + cached), prefix=prefix)
    assert "fragmentation" not in claimed(text, "confirmed", "likely", "possible")


# --- 2: who holds the rest


@every_wording
@pytest.mark.parametrize("frame", ["optimizer", "attention", "accumulate_grad", "backward"])
def test_memory_that_nobody_here_holds_outweighs_the_frame(wording, prefix, frame):
    """Where most of the card is neither free nor reserved here, the frame tells only who asked last."""
    said = GENERATIONS[wording](64 * MIB, CARDS[1], 3 * GIB, 30 * MIB, 3 * GIB + 200 * MIB)
    first = next(iter(verdicts(log(said, prefix=prefix, frame=frame, before=["gradient_accumulation_steps: 4"]))))
    assert first == "other-process"


@every_wording
@pytest.mark.parametrize("frame", ["optimizer", "forward", "backward"])
def test_a_card_full_of_its_own_process_blames_nobody_else(wording, prefix, frame):
    """Where free and reserved add up to the card, no other process is to blame, whoever suspects one."""
    said = GENERATIONS[wording](300 * MIB, CARDS[1], CARDS[1] - GIB, 100 * MIB, CARDS[1] - 700 * MIB)
    assert "other-process" not in claimed(log(said, prefix=prefix, frame=frame), "confirmed", "likely", "possible")


@pytest.mark.parametrize("sign", ["NCCL WARN Cuda failure 'out of memory'", "world_size: 8"])
def test_the_rest_of_a_card_may_be_siblings(sign):
    """In a job of several processes, what is unaccounted may be other ranks' contexts: nobody is convicted."""
    said = GENERATIONS["1.9"](64 * MIB, CARDS[1], 3 * GIB, 30 * MIB, 3 * GIB + 200 * MIB)
    assert "other-process" not in claimed(log(said, frame="backward", before=[sign]), "confirmed")


@pytest.mark.parametrize(
    ("prefix", "alone"), [("", None), ("[rank0]: ", None), ("[rank1]: ", False), ("[rank6]: ", False)]
)
def test_a_rank_above_zero_has_others_beside_it(prefix, alone):
    """A line of rank 6 shows that there are seven, though none of the others is in the evidence; rank 0 shows nothing."""
    said = GENERATIONS["1.9"](64 * MIB, CARDS[1], 3 * GIB, 30 * MIB, 3 * GIB + 200 * MIB)
    text = log(said, prefix=prefix, frame="backward")
    assert figures_of(load_run(text=text)).values.get("single_process") is alone
    assert ("other-process" in claimed(text, "confirmed")) is (alone is None)


@pytest.mark.parametrize("prefix", ["[rank0]: ", "[rank1]: "])
def test_a_listed_process_may_be_a_sibling(prefix):
    """In a job of ranks whose number is open, a process that the message lists is not known to be a stranger."""
    text = (
        f"{prefix}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
        "79.15 GiB of which 0.50 GiB is free. Process 4121 has 39.10 GiB memory in use. Including non-PyTorch memory, "
        "this process has 39.20 GiB memory in use. Of the allocated memory 38.00 GiB is allocated by PyTorch, and "
        "200.00 MiB is reserved by PyTorch but unallocated."
    )
    assert figures_of(load_run(text=text)).values.get("others_are_strangers") is not True
    assert "other-process" not in claimed(text, "confirmed")


@pytest.mark.parametrize("allocated", [12 * GIB, 30 * GIB])
def test_memory_that_the_driver_lends_is_not_another_process(allocated):
    """More allocated than the card has, and 2^64 bytes in use, are Windows' shared memory and its placeholder."""
    text = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free. "
        f"Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory {size(allocated)} is allocated by PyTorch, "
        f"and 300.00 MiB is reserved by PyTorch but unallocated."
    )
    got = figures_of(load_run(text=text)).values
    assert not {"non_torch_bytes", "unaccounted_bytes", "unaccounted_share"} & got.keys()
    assert got["allocated_exceeds_capacity"] is True
    assert "other-process" not in verdicts(text)


# --- 3: free memory exceeds the request


@every_wording
@pytest.mark.parametrize("frame", ["forward", "attention", "optimizer", None])
def test_a_request_smaller_than_the_free_memory_is_neither_size_nor_leak(wording, prefix, frame):
    """With gigabytes free, what was refused is not explained by size, growth or pieces; nothing is stood by."""
    said = GENERATIONS[wording](512 * MIB, CARDS[2], 4 * GIB, CARDS[2] - 6 * GIB, 5 * GIB)
    stood_by = claimed(log(said, prefix=prefix, frame=frame, before=["step 4000/9000"]))
    assert not stood_by & {
        "activations-too-large", "model-states-too-large", "fragmentation", "graph-retention", "tensor-accumulation",
        "other-process", "oversized-single-request",
    }  # fmt: skip


@pytest.mark.parametrize("wording", ["1.9", "2.0", "2.6", "rocm"])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.8])
def test_a_stated_limit_explains_a_refusal_with_memory_free(wording, share):
    """The message names what the process is allowed: reached, it is the cause; not reached, it is none."""
    total = CARDS[1]
    cap = int(total * share)
    at = GENERATIONS[wording](256 * MIB, total, cap - 200 * MIB, total - cap, cap - 100 * MIB, cap=cap)
    assert claimed(at, "confirmed") == {"process-memory-cap"}
    below = GENERATIONS[wording](256 * MIB, total, cap // 3, 100 * MIB, cap // 3 + 20 * MIB, cap=cap)
    assert "process-memory-cap" not in claimed(below, "confirmed", "likely", "possible")


# --- 4: when it failed


@every_wording
@pytest.mark.parametrize("step", [60, 4517, 200_000])
def test_a_late_failure_is_no_leak(wording, prefix, step):
    """Thousands of steps that fitted prove neither growth nor its absence: only a series does."""
    said = GENERATIONS[wording](32 * MIB, CARDS[1], CARDS[1] - GIB, 10 * MIB, CARDS[1] - 800 * MIB)
    text = log(said, prefix=prefix, frame="forward", before=[f"step {n}/900000 loss 2.1" for n in (step - 1, step)])
    assert not claimed(text) & {"graph-retention", "tensor-accumulation"}


def test_an_early_failure_is_not_proof_of_size():
    """The first step fails on a shared card too: size is not confirmed by the moment."""
    for frame in ("forward", "backward", "optimizer", "attention", "loss"):
        said = GENERATIONS["2.6"](32 * MIB, CARDS[1], CARDS[1] - GIB, 10 * MIB, CARDS[1] - 800 * MIB)
        assert not claimed(log(said, frame=frame, before=["step 0/1000"]), "confirmed")


@pytest.mark.parametrize("levels", [(2934, 4413, 4433, 4537), (900, 3100, 5200, 5300)])
def test_growth_of_the_first_steps_is_no_leak(levels):
    """Gradients, state and caches arrive in the first steps; a flat line after them is health."""
    series = [*levels, *[levels[-1]] * 20]
    text = "\n".join(f"step {n} loss 1.9 memory_allocated: {mib} MiB" for n, mib in enumerate(series))
    assert diagnose(text=text).family in ("ok", "undetermined")
    assert not claimed(text)


# --- 6: impossible and oversized requests


@pytest.mark.parametrize("tried", [4_270_570_841 * GIB, (1 << 64) - 50 * MIB, 1 << 62])
@pytest.mark.parametrize("wording", GENERATIONS)
def test_an_impossible_size_is_no_need_for_memory(wording, tried):
    """Exabytes are an overflow or garbage: no memory cause is stood by, and no saving is advised."""
    text = log(GENERATIONS[wording](tried, CARDS[1], 3 * GIB, 18 * GIB, 3 * GIB), frame="forward")
    found = diagnose(text=text)
    assert {f.cause for f in found.findings if f.verdict in ("confirmed", "likely")} <= {"misreported"}
    assert "impossible" in found.summary


@every_wording
@pytest.mark.parametrize("times", [1.1, 13, 180])
def test_a_request_beyond_the_card_is_a_shape(wording, prefix, times):
    """No saving serves one request larger than the card: the shape is named, neither pieces nor leaks nor neighbours."""
    said = GENERATIONS[wording](int(CARDS[0] * times), CARDS[0], GIB, 8 * GIB, GIB + 100 * MIB)
    text = log(said, prefix=prefix, frame="forward", before=["step 900/1000"])
    assert claimed(text) == {"oversized-single-request"}
    advice = " ".join(f"{x.action} {x.code}" for f in diagnose(text=text).findings for x in f.fixes)
    assert "empty_cache" not in advice
    assert claimed(log(said, prefix=prefix, frame="attention"), "confirmed") == {"attention-quadratic"}
    assert claimed(log(said, prefix=prefix, frame="loss"), "confirmed") == {"logits-loss-peak"}


@pytest.mark.parametrize("frame", ["attention", "loss"])
@pytest.mark.parametrize("share", [0.001, 0.004])
def test_a_small_request_on_a_full_card_does_not_convict_its_frame(frame, share):
    """The frame is who asked last: a request of thousandths of the card confirms nothing, even of a known shape."""
    total = CARDS[2]
    said = GENERATIONS["2.6"](int(total * share), total, total - 2 * GIB, 10 * MIB, total - GIB)
    assert not claimed(log(said, frame=frame), "confirmed")


@pytest.mark.parametrize(
    ("code", "confirmed"),
    [
        ("attn = (q @ k.transpose(-2, -1)) * self.scale", True),
        ("scores = torch.matmul(query, key.transpose(2, 3))", True),
        ("sim = torch.matmul(features, bank.t())", False),
        ("scores = embeddings @ gallery.T", False),
    ],
)
def test_a_product_of_other_things_is_no_attention(code, confirmed):
    """Similarity to a bank or a gallery is a large product too: attention is confirmed only by its own names."""
    said = GENERATIONS["2.6"](int(CARDS[1] * 0.7), CARDS[1], 6 * GIB, 15 * GIB, 7 * GIB)
    text = "\n".join(["Traceback (most recent call last):", '  File "m.py", line 7, in forward', f"    {code}", said])
    assert ("attention-quadratic" in claimed(text, "confirmed")) is confirmed


# --- 7: caught, and not caught

OOM = GENERATIONS["2.6"](2 * GIB, CARDS[1], CARDS[1] - GIB, 100 * MIB, CARDS[1] - 500 * MIB)
STEPS = [f"step {n}/1000 loss 1.{n % 10}" for n in range(100, 130)]


@pytest.mark.parametrize("caught", [["WARNING: ran out of memory on GPU #0, skipping batch"], [f"| WARNING | {OOM}"]])
def test_an_error_that_training_outlives_is_no_failure(caught):
    """Steps after it show that it was survived; the same without them ended the run."""
    assert diagnose(text="\n".join([*STEPS[:10], *caught, *STEPS[10:]])).family == "ok"


def test_without_progress_after_it_the_same_message_is_the_failure():
    """What was survived elsewhere ends a run that says no more."""
    assert diagnose(text="\n".join([*STEPS[:10], log(OOM, frame="forward")])).family == "gpu-oom"


def test_what_fails_after_a_survived_error_is_what_stopped_the_run():
    """An out-of-memory that was survived is not blamed for another error, thousands of lines later."""
    later = ["Traceback (most recent call last):", '  File "t.py", line 9, in main', "    open(path)"]
    text = "\n".join([*STEPS[:5], "WARNING: ran out of memory on GPU #0, skipping batch", *STEPS[5:], *later,
                      "FileNotFoundError: [Errno 2] No such file or directory: 'shard-9.tar'"])  # fmt: skip
    found = diagnose(text=text)
    assert found.family == "not-memory" and "FileNotFoundError" in found.failure.message


# --- 8: killed


@pytest.mark.parametrize(
    "line",
    [
        "exitcode  : -9 (pid: 4021)",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
    ],
)
def test_a_kill_alone_proves_no_lack_of_memory(line):
    """SIGKILL comes from the kernel and from people: nothing is confirmed or likely, and the kernel's log is asked for."""
    found = diagnose(text="\n".join([*STEPS, line]))
    assert not {f.cause for f in found.findings if f.verdict in ("confirmed", "likely")}
    assert found.family in ("host-oom", "undetermined")
    assert {"kernel-log", "full-log"} & {one.kind for one in found.missing[:3]}


@pytest.mark.parametrize(
    "word",
    [
        "Out of memory: Killed process 4021 (python) total-vm:98000000kB, anon-rss:61000000kB, file-rss:0kB, shmem-rss:0kB",
        "Memory cgroup out of memory: Killed process 4021 (python) total-vm:98000000kB, anon-rss:61000000kB, file-rss:0kB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
    ],
)
def test_the_kernels_word_settles_a_kill(word):
    """The kernel's or the scheduler's own line entails it, for the node and for a limit of the job."""
    assert claimed("\n".join([*STEPS, "exitcode  : -9 (pid: 4021)", word]), "confirmed") == {"host-oom"}


# --- 9: words

WORDS = [
    "loss.backward(retain_graph=True)  # called by accumulate_grad",
    "Epoch [3][50/7330] lr: 2.0e-02, time: 0.4, memory: 3912, loss: 1.08",
    "Test: [ 10/500] eta: 0:02:11 loss: 0.9 time: 0.2 max mem: 6032",
    "| epoch 001: 100 / 900 loss=9.1, wps=3000, oom=0, gnorm=2.2",
    "I/O: If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
    "UserWarning: gradient checkpointing is off; attention memory may be large",
    "2 pytorch allocator cache flushes since last step. this happens when there is high memory pressure",
    "Token indices sequence length is longer than the specified maximum sequence length for this model (900 > 512)",
]


@pytest.mark.parametrize("order", [*itertools.islice(itertools.permutations(range(len(WORDS))), 0, 40_000, 9_000)])
def test_words_of_memory_are_no_failure(order):
    """Metrics, advice and stock parameters with the words of memory end no run and accuse nobody."""
    found = diagnose(text="\n".join([*STEPS[:5], *(WORDS[i] for i in order), *STEPS[5:], "Training finished."]))
    assert found.family in ("ok", "undetermined")
    assert not {f.cause for f in found.findings if f.verdict in ("confirmed", "likely")}


@pytest.mark.parametrize("frame", ["accumulate_grad", "backward"])
def test_stock_frames_accuse_no_graph(frame):
    """``retain_graph`` and ``accumulate_grad`` stand in every backward."""
    text = log(OOM, frame=frame, before=STEPS)
    assert not claimed(text) & {"graph-retention", "grad-accumulation-buffer"}


# --- 10: what settings and moments do not prove


@pytest.mark.parametrize("step", [2, 50, 7000])
def test_the_optimizer_of_a_later_step_makes_no_first_state(step):
    """State that exists is not made again: after whole steps, a failure in step() is something else."""
    text = log(OOM, frame="optimizer", before=[f"step {n}/9000" for n in range(max(0, step - 5), step + 1)])
    assert verdicts(text).get("optimizer-state-first-step") in (None, "ruled-out")


@pytest.mark.parametrize(("accum", "stands"), [(1, False), (2, True), (64, True)])
def test_accumulation_costs_a_buffer_in_jax_only_where_there_is_some(accum, stands):
    """One more buffer of the parameters' size is what accumulation adds there; without accumulation there is none."""
    text = f"gradient_accumulation_steps: {accum}\nRESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 23.43G of 15.48G hbm."
    assert ("grad-accumulation-buffer" in claimed(text)) is stands


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_results_kept_in_evaluation_are_no_graph(share):
    """Predictions that are joined on the card are that; a graph is not accused."""
    said = GENERATIONS["2.6"](int(CARDS[1] * share), CARDS[1], CARDS[1] // 3, GIB, CARDS[1] // 3 + GIB)
    frames = [
        "Traceback (most recent call last):",
        '  File "/x/transformers/trainer.py", line 3300, in evaluation_loop', "    all_preds.add(logits)",
        '  File "/x/transformers/trainer_pt_utils.py", line 100, in nested_concat', "    return torch_pad_and_concatenate(a, b)",
    ]  # fmt: skip
    text = "\n".join([*frames, said])
    assert claimed(text, "confirmed") == {"eval-peak"} and "graph-retention" not in claimed(text)


# --- squares


@pytest.mark.parametrize(
    ("shape", "said", "scores"),
    [
        ("32,4,4096,4096", "[[{{node block_7/attention/MatMul}}]]", True),
        ("8,12,1024,1024", "[Op:Softmax]", True),
        ("2,16,2048,2048", "[[{{node transformer/layer_3/einsum/Einsum}}]]", True),
        ("8,64,512,512", "[[{{node unet/conv2d_3/Conv2D}}]]", False),
        ("16,64,256,256", "[Op:Conv2D]", False),
        ("4,32,1024,1024", "", False),
    ],
)
def test_a_square_is_attention_only_where_a_product_made_it(shape, said, scores):
    """Images are square as well: channels of height and width are no heads of length and length."""
    text = f"OOM when allocating tensor with shape[{shape}] and type float on /job:localhost/device:GPU:0 by allocator GPU_0_bfc {said}"
    found = verdicts(f"ResourceExhaustedError: {text}")
    assert (found.get("attention-quadratic") in ("confirmed", "likely")) is scores


# --- 11: sums


@pytest.mark.parametrize("free", [9.6, 10.4, 10.46, 26.12, 0.4])
@pytest.mark.parametrize("cached", [61.6, 17.45, 0.3, 88.5])
def test_shown_sums_add_up(free, cached):
    """The digits that are shown add up as they stand: nobody has to trust a rounding."""
    from diag_kit.report.words import arithmetic

    said = GENERATIONS["2.6"](2 * GIB, CARDS[1], CARDS[1] - GIB, int(free * MIB), CARDS[1] - GIB + int(cached * MIB))
    shown = (
        arithmetic(diagnose(text=said))
        .split("free ")[1]
        .split(":")[0]
        .replace("+ cached ", "")
        .replace("= ", "")
        .split()
    )
    numbers, units = shown[0::2], shown[1::2]
    if len(set(units)) == 1:
        assert round(float(numbers[0]) + float(numbers[1]), 3) == float(numbers[2]), shown
