"""The arithmetic of a message decides: figures, each on a message made for it."""

import pytest

from diag_kit.evidence.derived import figures_of
from diag_kit.evidence.run import load_run

GIB = 1 << 30


def values(text, *before):
    return figures_of(load_run(text="\n".join((*before, text)))).values


def message(tried, total, allocated, free, reserved):
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {tried} (GPU 0; {total} total capacity; {allocated} already allocated; {free} free; "
        f"{reserved} reserved in total by PyTorch)"
    )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # the cache and the free memory together would have served the request
        (
            ("4.00 GiB", "24.00 GiB", "8.00 GiB", "3.50 GiB", "19.50 GiB"),
            {"request_fits_free": False, "request_fits_free_and_cached": True, "cached_bytes": int(11.5 * GIB)},
        ),
        # nothing that PyTorch holds back would have served it
        (
            ("4.00 GiB", "24.00 GiB", "21.00 GiB", "1.00 GiB", "22.00 GiB"),
            {"request_fits_free_and_cached": False, "device_full_of_this_process": True},
        ),
        # a third of the card belongs to nobody in the message
        (
            ("64.00 MiB", "24.00 GiB", "14.00 GiB", "0 bytes", "15.00 GiB"),
            {"unaccounted_bytes": 9 * GIB, "device_full_of_this_process": False},
        ),
        # one request larger than the card
        (
            ("305.00 GiB", "16.00 GiB", "2.00 GiB", "12.00 GiB", "2.00 GiB"),
            {"request_exceeds_capacity": True, "request_impossible": False},
        ),
        # more allocated than there is: shared memory of the system, where shares mean nothing
        (
            ("1.00 GiB", "8.00 GiB", "12.00 GiB", "0 bytes", "12.50 GiB"),
            {"allocated_exceeds_capacity": True, "unaccounted_bytes": None},
        ),
    ],
)
def test_arithmetic_of_a_message(sizes, expected):
    """Request against free plus cached, the unaccounted rest, request against capacity."""
    got = values(message(*sizes))
    assert {name: got.get(name) for name in expected} == expected


NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 80.00 GiB of which 100.00 MiB is free. {others}"
    "{own}Of the allocated memory 10.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)


def test_other_processes_are_those_that_the_message_tells_apart():
    """With a clause of its own, every listed process is another one."""
    got = values(
        NEW.format(
            others="Process 7 has 66.00 GiB memory in use. ",
            own="Including non-PyTorch memory, this process has 13.00 GiB memory in use. ",
        )
    )
    assert got["other_process_bytes"] == 66 * GIB and got["non_torch_bytes"] == 2 * GIB


def test_a_process_that_holds_what_this_one_holds_is_this_one():
    """In a container the message can't name its own process: the one of the same size is not a stranger."""
    got = values(
        NEW.format(others="Process 7 has 11.50 GiB memory in use. Process 8 has 67.00 GiB memory in use. ", own="")
    )
    assert (got["other_process_count"], got["other_process_bytes"]) == (1, 67 * GIB)


def test_siblings_of_one_small_size_are_told():
    """Several contexts of the same small size are ranks on one GPU, as far as sizes can say."""
    others = "".join(f"Process {100 + i} has 1.{19 + i % 2} GiB memory in use. " for i in range(7))
    assert (
        values(
            NEW.format(others=others, own="Including non-PyTorch memory, this process has 11.50 GiB memory in use. ")
        )["others_alike"]
        is True
    )


def test_unknown_stays_absent():
    """A bare message gives no arithmetic at all: absent is not zero."""
    got = values("RuntimeError: CUDA out of memory.")
    assert (
        not {"request_bytes", "free_bytes", "unaccounted_bytes", "request_fits_free", "single_process", "first_steps"}
        & got.keys()
    )


@pytest.mark.parametrize(
    ("frames", "phase", "operation"),
    [
        (
            [("t.py", "train_step", "loss.backward()"), ("/x/torch/autograd/__init__.py", "backward", "run_backward(")],
            "backward",
            "backward",
        ),
        (
            [
                ("t.py", "run", "opt.step()"),
                ("/x/torch/optim/adamw.py", "_init_group", "state['exp_avg'] = torch.zeros_like(p)"),
            ],
            "optimizer",
            "optimizer-state",
        ),
        (
            [
                ("t.py", "validate", "out = model(x)"),
                ("/x/torch/nn/modules/module.py", "_call_impl", "return forward_call(*args)"),
            ],
            "eval",
            None,
        ),
        (
            [
                ("t.py", "main", "trainer.train()"),
                ("/x/transformers/trainer.py", "_save_checkpoint", "self.save_model()"),
            ],
            "checkpoint",
            None,
        ),
        ([("m.py", "forward", "attn = (q @ k.transpose(-2, -1)) * self.scale")], "forward", "attention-scores"),
        ([("m.py", "forward", "x = F.scaled_dot_product_attention(q, k, v)")], "forward", "attention-fused"),
        ([("m.py", "forward", "logits = self.lm_head(h)")], "forward", "logits"),
        ([("m.py", "forward", "h = self.linear_attention_block(h)")], "forward", None),
        (
            [
                ("t.py", "main", "model.to(device)"),
                ("/x/torch/nn/modules/module.py", "_apply", "param_applied = fn(param)"),
            ],
            "load",
            "load-weights",
        ),
        (
            [
                ("t.py", "main", "dist.barrier()"),
                ("/x/torch/distributed/distributed_c10d.py", "barrier", "work = pg.barrier()"),
            ],
            "comm",
            "collective",
        ),
        (
            [
                ("t.py", "main", "for batch in loader:"),
                ("/x/torch/utils/data/dataloader.py", "_try_get_data", "data = self._data_queue.get()"),
            ],
            "data",
            None,
        ),
        ([("t.py", "main", "retain_graph = True")], "unknown", None),
    ],
)
def test_frames_name_phase_and_operation(frames, phase, operation):
    """Frames of public libraries reveal where a run was; words alone reveal nothing."""
    lines = ["Traceback (most recent call last):"]
    for path, function, code in frames:
        lines += [f'  File "{path}", line 7, in {function}', f"    {code}"]
    got = values("\n".join([*lines, "RuntimeError: CUDA out of memory."]))
    assert (got.get("phase"), got.get("operation")) == (phase, operation)


LISTING = """RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.59 GiB total capacity; 10.00 GiB already allocated; 1.09 GiB free; 12.00 GiB reserved in total by PyTorch)
|    0   N/A  N/A      4411      C   python                          13324MiB |
|    0   N/A  N/A      4412      C   python                          {held}MiB |
|    1   N/A  N/A      4413      C   python                          25000MiB |
"""


@pytest.mark.parametrize(("held", "read"), [(26000, 26000 << 20), (9000, None), (39000, None)])
def test_a_list_of_processes_counts_where_it_fits_the_message(held, read):
    """What nvidia-smi lists for others on the failing device counts only where it explains what the message leaves
    unaccounted: 26.5 GiB here, of which a context may be this process's own.
    """
    found = values(LISTING.format(held=held))
    assert found.get("other_process_bytes") == read


def test_the_host_the_limit_and_the_victim_are_figures():
    """The kernel's report gives the limit that was reached and what the victim held; df gives /dev/shm."""
    text = (
        "memory: usage 8388608kB, limit 8388608kB, failcnt 12\nMemory cgroup out of memory: Killed process 7 (python) total-vm:9kB, "
        "anon-rss:6291456kB, file-rss:1kB, shmem-rss:0kB\nshm              64M   64M     0 100% /dev/shm\n"
    )
    found = values(text)
    assert (found["memory_limit_bytes"], found["killed_rss_bytes"], found["shm_total_bytes"]) == (
        8 << 30,
        6 << 30,
        64 << 20,
    )


def test_an_allocator_that_was_given_a_part_of_the_card():
    """TensorFlow's limit is a share of the card that it found at start."""
    text = (
        "Found device 0 with properties:\ncoreCount: 68 deviceMemorySize: 10.00GiB deviceMemoryBandwidth: 573GiB/s\n"
        "Limit:                      2147483648\nInUse:                      2047483648\nMaxInUse:                   2147483648\n"
        "ResourceExhaustedError: OOM when allocating tensor with shape[32,256,56,56] and type float on /device:GPU:0 by allocator GPU_0_bfc\n"
    )
    assert values(text)["allocator_limit_share"] == pytest.approx(0.2)
