"""On fake CPU tensors, what is allocated and saved is what CUDA allocates and saves: bytes are worked out by hand."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from diag_kit.memory.device import capability  # noqa: E402
from diag_kit.memory.settings import Settings  # noqa: E402
from diag_kit.memory.trace import autocast as rules  # noqa: E402
from diag_kit.memory.trace.autocast import autocast  # noqa: E402
from diag_kit.memory.trace.cuda import as_cuda  # noqa: E402

B, H, KV, S, D = 2, 8, 2, 256, 64
NUMBERS = {"n_layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 100}


def on(gpu=None, **settings):
    """Settings of a run on this GPU."""
    return Settings.from_json({"model": NUMBERS, "gpu": gpu, **settings})


class Watch(TorchDispatchMode):
    """Every storage that operators make, while it lives."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak, self.ops = {}, 0, []

    @property
    def bytes(self):
        return sum(self.alive.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func._schema.name.startswith("prim::"):
            self.ops.append(func._schema.name.removeprefix("aten::"))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in {*self.alive, *given}:
                storage = t.untyped_storage()
                self.alive[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, storage._cdata)
        self.peak = max(self.peak, self.bytes)
        return out

    def from_here(self):
        """Bytes alive now; the peak is counted from here."""
        self.peak = self.bytes
        return self.bytes


@pytest.fixture
def fake():
    with FakeTensorMode():
        yield


def tensor(*shape, dtype=torch.bfloat16, grad=True):
    return torch.empty(*shape, dtype=dtype, requires_grad=grad)


def attend(*, mask=None, dtype=torch.bfloat16, kv=H, length=S, head=D, **options):
    """One attention call: (bytes that it keeps for its backward, most bytes above inputs and result in the backward)."""
    q, k, v = tensor(B, H, length, head, dtype=dtype), *(tensor(B, kv, length, head, dtype=dtype) for _ in "kv")
    with Watch() as watch:
        out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=kv != H, **options)
        kept = watch.bytes
        grad = torch.empty(B, length, H, head, dtype=dtype).transpose(1, 2)
        before = watch.from_here()
        torch.autograd.grad(out, (q, k, v), grad)
        return kept, watch.peak - before


def test_flash_keeps_its_result_and_row_sums_and_does_not_repeat_grouped_heads(fake):
    """Saved beside q, k, v: the result in bf16 and one fp32 per row (and 24 bytes of seeds); k and v stay KV heads."""
    with as_cuda(on()) as cuda:
        kept, _ = attend(kv=KV, is_causal=True)
    rows = B * H * S
    assert kept == rows * D * 2 + rows * 4 + 24
    assert [call.kernel for call in cuda.kernels] == ["flash"]
    assert cuda.kernels[0].shape == (B, H, S, S, D)


def test_flash_backward_sums_in_fp32_and_expands_grouped_gradients(fake):
    """dq, dk, dv; row sums and dq in fp32 with rows in 128s; dk and dv of every query head where heads are grouped."""
    rows, padded = B * H * 200, B * H * 256
    with as_cuda(on()):
        _, back = attend(kv=KV, length=200)
        _, plain = attend(length=200)
    kv = B * KV * 200 * D * 2
    assert back >= (expected := rows * D * 2 + 2 * kv + padded * (4 + D * 4) + 2 * rows * D * 2)
    assert back - expected <= rows * D * 2  # the result is copied where it doesn't lie as its rows do
    assert plain - back == 2 * (rows * D * 2 - kv) - 2 * rows * D * 2


def test_heads_are_padded_to_multiples_of_eight_for_flash(fake):
    """A head dimension of 60 runs as 64: copies of q, k and v are what is saved."""
    with as_cuda(on()):
        kept, _ = attend(head=60)
    assert kept == 4 * B * H * S * 64 * 2 + B * H * S * 4 + 24


def test_efficient_attention_pads_row_sums_and_keeps_the_mask(fake):
    """fp32: the kernel's row sums go by 32 rows; a boolean mask is kept as numbers, rows in multiples of 8."""
    with as_cuda(on()) as cuda:
        kept, _ = attend(dtype=torch.float32, length=130)
        masked, _ = attend(dtype=torch.float32, length=130, mask=torch.empty(B, 1, 130, 130, dtype=torch.bool))
    seeds = 2 * 8
    assert kept == B * H * 130 * D * 4 + B * H * 160 * 4 + seeds
    assert masked - kept == B * 130 * 136 * 4
    assert [call.kernel for call in cuda.kernels] == ["efficient", "efficient"]


def test_efficient_backward_has_a_workspace_of_dq_in_fp32(fake):
    """bf16: dq, dk, dv, one fp32 per row, and blocks of 64 x 64 in fp32 with 16 bytes of counters each."""
    with as_cuda(on(attention="efficient")):
        _, back = attend()
    n = B * H * S
    assert back == 3 * n * D * 2 + n * 4 + B * H * (S // 64) * (64 * 64 + 4) * 4


def test_cudnn_goes_first_on_hopper(fake):
    """H100: row sums of its own shape, dq summed in fp32; dropout that is no sixteenth goes to flash."""
    with as_cuda(on("NVIDIA H100 80GB HBM3")) as cuda:
        kept, back = attend(kv=KV)
        attend(dropout_p=0.1)
        attend(dropout_p=0.125)
    n, kv = B * H * S, B * KV * S
    assert kept == n * D * 2 + n * 4 + 16
    assert back == (n + 2 * kv) * D * 2 + n * 4 + n * D * 4 + 2 * n * D * 2
    assert [call.kernel for call in cuda.kernels] == ["cudnn", "flash", "cudnn"]
    assert "sixteenths" in cuda.kernels[1].why


CALLS = [
    (None, {}, "flash", "8.0"),
    ("Tesla T4", {"dtype": torch.float16}, "efficient", "7.5"),
    ("Tesla T4", {}, "math", "not bf16"),
    (None, {"dtype": torch.float32}, "efficient", "not fp32"),
    (None, {"mask": (B, 1, S, S)}, "efficient", "mask (here 2×1×256×256)"),
    (None, {"mask": (B, 1, S, S), "kv": KV}, "math", "grouped heads"),
    (None, {"head": 320}, "efficient", "up to 256"),
    ("NVIDIA A10G", {"head": 200}, "efficient", "no backward"),
    (None, {"dtype": torch.float32, "head": 30}, "math", "multiples of 4"),
    ("NVIDIA B200", {"mask": (B, 1, S, S)}, "cudnn", "10.0"),
]


@pytest.mark.parametrize(("gpu", "call", "kernel", "why"), CALLS)
def test_the_kernel_is_torchs_choice_and_says_what_the_faster_ones_refused(fake, gpu, call, kernel, why):
    """Choice and reason, by GPU, dtype, mask and heads; a fall to the math path names the scores' size."""
    if "mask" in call:
        call = call | {"mask": torch.empty(*call["mask"], dtype=torch.bool)}
    with as_cuda(on(gpu)) as cuda:
        attend(**call)
    assert cuda.kernels[0].kernel == kernel
    assert why in cuda.kernels[0].why
    assert ("2×8×256×256 are materialised" in cuda.kernels[0].why) == (kernel == "math")


def test_who_pins_the_efficient_kernel_repeats_grouped_heads(fake):
    """``attention: efficient``: k and v of every query head are made and kept; SDPA itself would fall to the math path."""
    with as_cuda(on("T4", attention="efficient")) as cuda:
        kept, _ = attend(kv=KV, dtype=torch.float16)
    n = B * H * S
    assert kept == 3 * n * D * 2 + n * 4 + 16
    assert cuda.kernels[0].kernel == "efficient"


def test_a_padding_mask_does_not_stop_the_flash_package(fake):
    """``attention: flash`` is the package that is given lengths; SDPA itself would leave flash."""
    mask = torch.empty(B, 1, S, S, dtype=torch.bool)
    with as_cuda(on(attention="flash")) as package:
        attend(mask=mask)
    assert package.kernels[0].kernel == "flash"


def test_kernels_that_the_user_switched_off_are_not_taken(fake):
    """sdpa_kernel() holds; with nothing left it is torch's error."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with as_cuda(on()) as cuda:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            attend()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
            attend(dtype=torch.float32)
    assert "switched off" in cuda.kernels[0].why


def test_the_math_path_keeps_scores_in_fp32(fake):
    """bf16 on a T4: operands and scores in fp32 are kept, as fallbacks are dear; dropout's mask takes a byte each."""
    with as_cuda(on("T4")):
        kept, _ = attend()
        dropped, _ = attend(dropout_p=0.1)
    scores = B * H * S * S
    n = B * H * S * D
    assert kept == scores * 4 + 3 * n * 4 + n * 2  # scaled q, scaled k, v, and the result
    assert dropped - kept == scores * (4 + 1)


def test_module_and_recomputation_are_told(fake):
    """Whoever watches says which module runs; calls within a backward, of checkpointing, are marked."""
    from torch.utils.checkpoint import checkpoint

    with as_cuda(on()) as cuda:
        cuda.where = lambda: "layers.0.attention"
        q = tensor(B, H, S, D)
        checkpoint(lambda t: F.scaled_dot_product_attention(t, t, t), q, use_reentrant=False).sum().backward()
    assert [(c.module, c.recomputed) for c in cuda.kernels] == [("layers.0.attention", r) for r in (False, True)]


def test_softmax_of_fp16_into_fp32_makes_no_copy(fake):
    """fp16: the result alone; bf16: the copy comes and goes. The backward makes a product of the result's size."""
    n = B * S * S
    for dtype, passing in ((torch.float16, 0), (torch.bfloat16, 4 * n)):
        x = tensor(B, S, S, dtype=dtype)
        with as_cuda(on()), Watch() as watch:
            y = torch.softmax(x, -1, dtype=torch.float32)
            assert (watch.bytes, watch.peak) == (4 * n, 4 * n + passing)
            grad = torch.empty_like(y)
            before = watch.from_here()
            torch.autograd.grad(y, x, grad)
            into = 2 if dtype is torch.float16 else 4  # the gradient comes in the input's dtype, or is cast after
            assert watch.peak - before == n * into + n * 4


def test_dropout_keeps_one_byte_per_element(fake):
    """The fused kernel: result and a boolean mask, whatever the dtype."""
    x = tensor(B, S, D, dtype=torch.float32)
    with as_cuda(on()), Watch() as watch:
        y = F.dropout(x, 0.1)
        assert watch.bytes == B * S * D * (4 + 1)
        assert F.dropout(x, 0.1, training=False) is not y
        assert watch.ops == ["native_dropout"]


def test_norms_keep_their_input_and_fp32_statistics(fake):
    """rms_norm is one kernel with one fp32 per row; layer_norm of 16-bit input has two; both of fp32 as on a CPU."""
    x, weight = tensor(B, S, D), tensor(D)
    n = B * S
    with as_cuda(on()), Watch() as watch:
        y = F.rms_norm(x, (D,), weight)
        assert watch.bytes == n * D * 2 + n * 4
        z = F.layer_norm(x, (D,), weight, weight)
        assert watch.bytes == 2 * n * D * 2 + n * 4 + n * 8
        assert [t.shape for t in torch.autograd.grad((y, z), (x, weight), (y, z))] == [x.shape, weight.shape]


def test_optimizers_are_foreach_by_default(fake):
    """AdamW's passing list of one size of all parameters appears, as on a GPU; clipping takes foreach norms too."""
    layer = torch.nn.Linear(D, D)
    with as_cuda(on()), Watch() as watch:
        layer(tensor(B, D, dtype=torch.float32, grad=False)).sum().backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        torch.optim.AdamW(layer.parameters()).step()
    assert {"_foreach_norm", "_foreach_sqrt"} <= set(watch.ops)
    with Watch() as watch:
        torch.optim.AdamW(layer.parameters()).step()
    assert "_foreach_sqrt" not in watch.ops


# --- autocast


def test_every_rule_of_cuda_in_this_torch_has_one_here():
    """The dispatcher's own list: what CUDA casts is cast here, or torch's CPU rule is the same (to lower precision)."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    ops = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::") and has(n, "AutocastCUDA")]
    known = rules.FP32 | rules.FP32_RESULT | rules.WIDEST | rules.LOWER | rules.NORM.keys()
    left = {n for n in ops if n.removeprefix("aten::") not in known}
    assert len(ops) > 80 and {n for n in left if not has(n, "AutocastCPU")} == set()


def test_weights_are_cast_once_and_held_until_the_context_ends(fake):
    """Two uses of one layer: one bf16 copy of weight and bias, kept for the backward; a second context casts again."""
    layer, x = torch.nn.Linear(D, D), tensor(B, D, dtype=torch.float32, grad=False)
    weights = (D * D + D) * 2
    with as_cuda(on()), Watch() as watch:
        with autocast(torch.bfloat16):
            layer(x), layer(x)
            assert watch.bytes == weights
        assert watch.bytes == 0
        with autocast(torch.bfloat16):
            loss = layer(x).sum()
        assert watch.bytes == B * D * 2 + 4  # x in bf16, for the weight's gradient; the loss in fp32
        del loss
        with autocast(torch.bfloat16):
            torch.einsum("bi,ij->bj", x, layer.weight), torch.einsum("bi,ij->bj", x, layer.weight)
            assert watch.bytes == D * D * 2
        assert watch.bytes == 0


def test_casts_are_cudas_in_kind_and_place(fake):
    """To bf16, to fp32, asked for fp32, to the widest; cat casts nothing of itself; off where the model says so."""
    layer, x = torch.nn.Linear(D, D), tensor(B, D, dtype=torch.float32)
    with as_cuda(on()):
        with autocast(torch.bfloat16):
            y = layer(x)
            wide = (
                y.exp(),
                y.pow(2),
                F.layer_norm(y, (D,)),
                F.softmax(y, -1),
                y.sum(),
                y.norm(dim=-1),
                torch.cat([x, y]),
            )
            assert {t.dtype for t in wide} == {torch.float32} and y.dtype is torch.bfloat16
            assert torch.addcmul(y, y, y).dtype is torch.bfloat16 and torch.addcmul(y, y, x).dtype is torch.float32
            assert F.cross_entropy(y, torch.zeros(B, dtype=torch.long)).dtype is torch.float32
            assert y.softmax(-1, dtype=torch.bfloat16).dtype is torch.bfloat16
            with torch.autocast("cpu", enabled=False):
                assert layer(x).dtype is torch.float32 and not torch.is_autocast_enabled()
            with torch.autocast("cuda", enabled=False):
                assert layer(x).dtype is torch.float32
        with torch.autocast("cuda"):
            assert layer(x).dtype is torch.float16 and torch.is_autocast_enabled()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert F.softmax(layer(x), -1).dtype is torch.float32
        assert layer(x).dtype is torch.float32 and not torch.is_autocast_enabled()


# --- in and out


def test_nothing_is_left_behind_even_after_a_failure():
    """Real tensors compute as ever afterwards, and under autocast by the CPU's own table."""
    x = torch.randn(2, 4, 8, 16)
    expected = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    functions = (F.scaled_dot_product_attention, torch.is_autocast_enabled, torch.amp.autocast_mode.autocast.__init__)
    with pytest.raises(ZeroDivisionError), FakeTensorMode(), as_cuda(on()):
        F.dropout(tensor(4, 4), 1 / 0)
    assert functions == (
        F.scaled_dot_product_attention,
        torch.is_autocast_enabled,
        torch.amp.autocast_mode.autocast.__init__,
    )
    assert torch.equal(F.scaled_dot_product_attention(x, x, x, is_causal=True), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.softmax(x.bfloat16(), -1).dtype is torch.bfloat16
    with Watch() as watch:
        torch.softmax(torch.randn(3, requires_grad=True), -1).sum().backward()
        F.dropout(x, 0.5)
    assert "mul" in watch.ops and "native_dropout" not in watch.ops  # the CPU's dropout multiplies
    assert watch.ops[watch.ops.index("_softmax_backward_data") + 1] != "mul"


def test_on_a_cpu_calls_are_noted_and_nothing_changes():
    """device "cpu": results, gradients and operators are torch's own; which kernel ran is told."""
    x = torch.randn(2, 4, 8, 16, requires_grad=True)

    def run():
        with Watch() as watch:
            for dropout in (0.0, 0.1):
                torch.autograd.grad(F.scaled_dot_product_attention(x, x, x, None, dropout, True).sum(), x)
        return watch.ops

    expected = run()
    with as_cuda(on(device="cpu")) as noted:
        assert run() == expected
        with FakeTensorMode(allow_non_fake_inputs=True):
            run()
    assert [call.kernel for call in noted.kernels] == ["flash", "math"] * 2
    assert "dropout" in noted.kernels[1].why


@pytest.mark.parametrize(
    ("gpu", "version"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0)), ("Tesla V100-SXM2-32GB", (7, 0)), ("Tesla P100-PCIE-16GB", (6, 0)),
        ("T4", (7, 5)), ("Quadro RTX 6000", (7, 5)), ("NVIDIA GeForce RTX 2080 Ti", (7, 5)), ("NVIDIA GeForce GTX 1080 Ti", (6, 1)),
        ("NVIDIA RTX A6000", (8, 6)), ("NVIDIA A10G", (8, 6)), ("A40", (8, 6)), ("NVIDIA GeForce RTX 3090", (8, 6)),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9)), ("L4", (8, 9)), ("NVIDIA L40S", (8, 9)), ("NVIDIA GeForce RTX 4090", (8, 9)),
        ("NVIDIA H100 NVL", (9, 0)), ("NVIDIA GH200 480GB", (9, 0)), ("NVIDIA B200", (10, 0)), ("NVIDIA GB300", (10, 3)),
        ("NVIDIA GeForce RTX 5090", (12, 0)), ("NVIDIA RTX PRO 6000 Blackwell", (12, 0)), ("A30", (8, 0)), ("A800", (8, 0)),
        (None, (8, 0)), ("an unknown card", (8, 0)),
    ],
)  # fmt: skip
def test_compute_capability_by_name(gpu, version):
    """Names as drivers and people write them."""
    assert capability(gpu) == version
