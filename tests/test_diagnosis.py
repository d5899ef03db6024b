"""The judgement: nothing firmer than the evidence, each rule on evidence made for it."""

import json
import os
import subprocess
import sys

import pytest

from diag_kit.diagnosis import diagnose
from diag_kit.errors import EvidenceError

OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate {tried} (GPU 0; {total} total capacity; {allocated} already allocated; {free} free; "
    "{reserved} reserved in total by PyTorch)"
)
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free. "
    "Process {pid} has {other} GiB memory in use. Including non-PyTorch memory, this process has {own} GiB memory in use. Of the allocated memory "
    "{allocated} GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)
STRANGER = NEW.format(pid=4242, other="60.00", own="18.00", allocated="15.00")
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 9, in step\n    loss.backward()\n'


def oom(tried="2.00 GiB", total="23.70 GiB", allocated="21.00 GiB", free="0.50 GiB", reserved="22.50 GiB"):
    return OOM.format(tried=tried, total=total, allocated=allocated, free=free, reserved=reserved)


def verdicts(diagnosis):
    return {finding.cause: finding.verdict for finding in diagnosis.findings}


def folder(tmp_path, **files):
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return diagnose(tmp_path)


def test_a_stranger_that_would_have_served_the_request_is_confirmed():
    """One process, another named in the message, nothing that contradicts: that is entailed."""
    assert verdicts(diagnose(text=STRANGER))["other-process"] == "confirmed"


@pytest.mark.parametrize(
    "beside",
    [
        "[rank0]: step 1\n[rank1]: step 1",  # several ranks run, and their processes are not known
        "$ torchrun --nproc_per_node 2 train.py --batch_size 4",
        "(Worker[rank=1] pid=4242) NCCL WARN Cuda failure 'out of memory'",  # the process is the job's own
    ],
)
def test_a_process_that_may_be_the_jobs_own_is_not_confirmed(beside):
    """Where several processes ran, the other one may be a sibling: likely at best."""
    assert verdicts(diagnose(text=beside + "\n" + STRANGER)).get("other-process") != "confirmed"


def test_sizes_that_contradict_each_other_confirm_nothing():
    """A message whose parts exceed its whole is doubted, whatever it seems to say."""
    message = NEW.format(pid=4242, other="70.00", own="78.00", allocated="75.00")
    assert "confirmed" not in verdicts(diagnose(text=message)).values()
    assert "confirmed" not in verdicts(diagnose(text=oom(tried="200.00 GiB", free="160.00 GiB"))).values()


def test_a_decimal_comma_is_not_read_as_thousands():
    """``2,00 GiB`` is not two hundred."""
    found = diagnose(text=oom(tried="2,00 GiB"))
    assert found.failure.facts.get("tried_to_allocate_bytes") != 200 << 30


def test_a_snapshot_of_another_run_proves_nothing(tmp_path):
    """Segments whose sums don't agree with the message are not this failure's."""
    message = oom(tried="2.00 GiB", allocated="12.00 GiB", free="1.00 GiB", reserved="20.00 GiB")
    stranger = json.dumps([{"total_size": 5, "allocated_size": 3, "blocks": []}])
    assert verdicts(folder(tmp_path, run_DOT_log=message, old__x_DOT_json=stranger)).get("fragmentation") != "confirmed"


def series(lengths, rank=""):
    head = "step,seq_len,allocated_mib" + (",rank" if rank != "" else "")
    rows = [
        f"{step},{length},{4000 + length}" + (f",{rank}" if rank != "" else "") for step, length in enumerate(lengths)
    ]
    return "\n".join([head, *rows])


def test_a_length_counts_only_for_the_step_that_failed(tmp_path):
    """The last long batch of a table explains the failure only where it is of the failing step, and of a training phase."""
    steps = "\n".join(f"step: {i}  loss: 2.0" for i in range(8))
    lengths = [512, 500, 480, 512, 512, 490, 512, 4096]
    fits = folder(tmp_path / "a", run_DOT_log=f"{steps}\n{TRACEBACK}{oom()}", m_DOT_csv=series(lengths))
    assert verdicts(fits)["long-sequence-outlier"] == "confirmed"
    later = "\n".join(f"step: {i}  loss: 2.0" for i in range(40))
    other = folder(tmp_path / "b", run_DOT_log=f"{later}\n{TRACEBACK}{oom()}", m_DOT_csv=series(lengths))
    assert verdicts(other).get("long-sequence-outlier") != "confirmed"
    saving = 'Traceback (most recent call last):\n  File "t.py", line 9, in save_checkpoint\n    torch.save(model.state_dict(), path)\n'
    saved = folder(tmp_path / "c", run_DOT_log=f"{steps}\n{saving}{oom()}", m_DOT_csv=series(lengths))
    assert verdicts(saved).get("long-sequence-outlier") != "confirmed"


def test_a_strangers_config_does_not_overrule_the_run(tmp_path):
    """What the run printed stands before a file beside it; files that disagree say nothing."""
    log = "$ python train.py --per_device_train_batch_size 4 --gradient_accumulation_steps 8\n" + oom()
    found = folder(tmp_path / "a", run_DOT_log=log, z__default_DOT_json='{"gradient_accumulation_steps": 1}')
    assert found.settings["grad_accum"][0] == 8
    assert "--gradient_accumulation_steps 16" in found.restart and "--per_device_train_batch_size 2" in found.restart
    split = folder(
        tmp_path / "b",
        run_DOT_log=oom(),
        a__x_DOT_json='{"micro_batch_size": 2}',
        z__y_DOT_json='{"micro_batch_size": 16}',
    )
    assert "micro_batch" not in split.settings


@pytest.mark.parametrize(
    "mention",
    [
        "# " + oom(),
        "./README.md:12:" + oom(),
        '    raise RuntimeError("' + oom() + '")',
        'sample 3: {"prompt": "why do I get ' + oom() + '"}',
        "* " + oom(),
        'with pytest.raises(RuntimeError, match="' + oom() + '"):',
    ],
)
def test_a_quoted_message_is_not_the_runs_failure(mention):
    """A message in a comment, a listing, a sample or a grep does not stop a run that ended otherwise."""
    assert diagnose(text=mention + "\nstep: 5  loss: 2.0\nTraining completed.\n").family == "ok"
    crash = 'Traceback (most recent call last):\n  File "t.py", line 3, in f\n    d[k]\nKeyError: 4\n'
    assert diagnose(text=mention + "\n" + crash).family == "not-memory"


def test_a_json_log_that_names_its_message_is_no_quote():
    """Structured logs carry the error inside quotes, under a key that says so."""
    line = json.dumps({"level": "ERROR", "message": oom()})
    assert diagnose(text=line).family == "gpu-oom"


def test_documents_beside_a_log_are_not_logs(tmp_path):
    """A README that quotes a message is not what the run printed, unless it is named."""
    found = folder(tmp_path, train_DOT_log="step: 5  loss: 1\nTraining completed.\n", README_DOT_md=oom())
    assert found.family == "ok" and any("README.md" in note for note in found.coverage["notes"])
    assert diagnose(tmp_path / "README.md").family == "gpu-oom"


@pytest.mark.parametrize("line", ["step 20: WARNING: loss is nan, skipping", "sample: my loss is nan after 3 epochs"])
def test_words_about_nan_do_not_hide_an_out_of_memory(line):
    """A warning or a text about NaN is no end of the run."""
    assert diagnose(text=f"{line}\n{TRACEBACK}{oom()}").family == "gpu-oom"


def test_another_programs_kill_is_not_the_runs(tmp_path):
    """The kernel's log speaks of every program on the machine."""
    kill = "[123.4] Out of memory: Killed process 999 (chrome) total-vm:1kB, anon-rss:1kB"
    assert folder(tmp_path, dmesg_DOT_log=kill, train_DOT_log="step: 5  loss: 1\nTraining completed.\n").family == "ok"


def test_an_out_of_memory_before_a_proper_finish_was_survived():
    """Training that says it finished was not stopped by what it caught before."""
    assert diagnose(text=f"step: 3  loss: 1\ncaught: {oom()}\nTraining finished\n").family == "ok"


def test_every_standing_finding_has_a_reason():
    """A verdict without a line for it is no verdict."""
    for text in (STRANGER, oom(), "RuntimeError: CUDA error: device-side assert triggered", "ValueError: loss is nan"):
        assert all(finding.for_ for finding in diagnose(text=text).findings if finding.cause != "undetermined")


def test_the_error_is_named_where_memory_is_not_to_blame():
    """Someone who is told that it was not memory is told what it was, and where."""
    found = diagnose(
        text='Traceback (most recent call last):\n  File "t.py", line 3, in f\n    d[k]\nZeroDivisionError: float division by zero\n'
    )
    assert "ZeroDivisionError: float division by zero" in found.summary and "pasted text:4" in found.next_action


def test_answers_do_not_depend_on_the_order_of_a_set(tmp_path):
    """Two interpreters with other hash seeds give the same document."""
    (tmp_path / "run.log").write_text(TRACEBACK + oom())
    command = [sys.executable, "-m", "diag_kit.cli", "diagnose", "--json", str(tmp_path)]
    answers = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(answers) == 1


@pytest.mark.parametrize(
    "bad",
    [
        '{"hidden_size": NaN, "dropout": Infinity}',
        '[{"total_size": "x", "allocated_size": null}]',
        '{"architectures": 5, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}',
    ],
)
def test_one_bad_file_costs_a_note_not_the_diagnosis(tmp_path, bad):
    """A settings file that no reader can make sense of leaves the log's diagnosis as it is."""
    assert folder(tmp_path, run_DOT_log=oom(), config_DOT_json=bad).family == "gpu-oom"


def test_what_is_no_path_is_told():
    """A wrong argument from Python gets a sentence, not a traceback of ours."""
    with pytest.raises(EvidenceError):
        diagnose("")
    with pytest.raises(EvidenceError):
        diagnose(text=b"bytes")
    with pytest.raises(EvidenceError):
        diagnose()


GATHER = (
    'Traceback (most recent call last):\n  File "loop.py", line 30, in pick\n    dist.{function}(sizes, size, group=group)\n'
    '  File "/opt/py/site-packages/torch/distributed/distributed_c10d.py", line 3042, in {function}\n    input_tensor.resize_(max_object_size)\n'
)
EXPIRED = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLGATHER, "
    "NumelIn=1, NumelOut=4, Timeout(ms)=600000) ran for 600096 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("function", "asked", "before", "family"),
    [
        ("all_gather_object", "184.13 GiB", True, "not-memory"),
        ("broadcast_object_list", "9000.00 GiB", True, "not-memory"),
        ("all_gather_object", "184.13 GiB", False, "gpu-oom"),  # objects can be as large as that
        ("all_gather_object", "4.00 GiB", True, "gpu-oom"),  # nothing odd about the size
        ("all_gather_into_tensor", "184.13 GiB", True, "gpu-oom"),  # the caller's own shape, whenever it is asked for
    ],
)
def test_a_size_read_from_a_collective_that_had_timed_out_is_a_corrupted_number(tmp_path, function, asked, before, family):
    """Only what peers state, beyond the card, after the wait was given up; else no need for memory is denied."""
    text = oom(tried=asked, total="79.14 GiB", allocated="38.00 GiB", free="37.00 GiB", reserved="39.00 GiB")
    log = (EXPIRED.format(1) if before else "") + (GATHER.format(function=function) + text).replace("\n", "\n[rank1]: ")
    found = folder(tmp_path, rank1_DOT_log=log, rank0_DOT_log=EXPIRED.format(0) if before else "step 1\n")
    assert found.family == family
    confirmed = {cause for cause, verdict in verdicts(found).items() if verdict == "confirmed"}
    if family == "not-memory":
        assert confirmed == {"misreported"} and "read the log of the rank that did not come" in found.next_action
    elif "object" in function:
        assert not confirmed


@pytest.mark.parametrize(
    ("own", "free", "verdict"),
    [("9.00", "0.25", "likely"), ("44.00", "0.25", None), ("23.00", "0.25", "likely"), ("9.00", "38.00", None)],
)
def test_what_is_in_use_beside_this_process_is_told_where_no_process_is_named(own, free, verdict):
    """The driver counts it, although a container cannot name its holder; it is not this process's, nor is it free."""
    text = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 47.50 GiB of which {free} GiB "
        f"is free. Including non-PyTorch memory, this process has {own} GiB memory in use. Of the allocated memory 8.00 GiB is allocated by PyTorch, "
        "and 100.00 MiB is reserved by PyTorch but unallocated."
    )
    found = diagnose(text=TRACEBACK + text)
    assert verdicts(found).get("other-process") == verdict
    assert all("the message lists" not in one.what for one in found.missing)


@pytest.mark.parametrize(
    ("largest", "free", "verdict"),
    [("3.33G", "6.78G", "confirmed"), ("6.70G", "6.78G", None), ("30.56M", "58.64M", "possible")],
)
def test_free_memory_that_lies_in_pieces_is_fragmentation(largest, free, verdict):
    """Enough is free, no piece of it is large enough; with next to nothing free the device is simply full."""
    asked = "31.06M" if free.endswith("M") else "6.48G"
    text = f"RESOURCE_EXHAUSTED: Attempting to reserve {asked} at the bottom of memory. That was not possible. There are {free} free, 0B reserved, and {largest} reservable."
    assert verdicts(diagnose(text=text)).get("fragmentation") == verdict


@pytest.mark.parametrize(("arguments", "temporaries", "cause"), [("475.37MiB", "27.93GiB", "activations-too-large"), ("20.00GiB", "2.00GiB", None)])
def test_xlas_table_tells_states_from_activations(arguments, temporaries, cause):
    """Parameters and optimizer state are arguments of a compiled step, activations its temporaries."""
    text = (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 29995136128 bytes.\nBufferAssignment stats:\n"
        f"             parameter allocation:  {arguments}\n     preallocated temp allocation:   {temporaries}\n"
    )
    assert [c for c, verdict in verdicts(diagnose(text=text)).items() if verdict in ("likely", "confirmed")] == [cause] * (cause is not None)


@pytest.mark.parametrize(
    ("shape", "node", "phase", "cause"),
    [
        ("16,12,384,384", "node enc/layer_3/attention/self/dropout/mul (defined at a.py:1)", "forward", "attention-quadratic"),
        ("16,12,384,384", "node gradients/enc/layer_3/self_attention/softmax/Reshape_1 (defined at a.py:1)", "backward", "attention-quadratic"),
        ("16,64,384,384", "node net/attention/conv2d/Relu (defined at a.py:1)", "forward", None),  # an image with channels
        ("50,16,40000", "node decoder/projection/add (defined at a.py:1)", "forward", "logits-loss-peak"),
        ("50,16,41000", "node decoder/projection/add (defined at a.py:1)", "forward", None),  # no vocabulary of that size
        ("512,40000", "node decoder/projection/read (defined at a.py:1)", "forward", None),  # weights
    ],
)
def test_tensorflows_nodes_and_shapes_tell_phase_and_tensor(shape, node, phase, cause):
    """The name of a node tells forward from backward; a shape tells scores by their node, logits by the vocabulary."""
    text = (
        "Creating vocabulary lookup table of size 40000\nResourceExhaustedError: OOM when allocating tensor with "
        f"shape[{shape}] and type float on /device:GPU:0 by allocator GPU_0_bfc\n\t [[{node} ]]"
    )
    found = diagnose(text=text)
    assert found.failure.phase == phase
    assert [c for c, verdict in verdicts(found).items() if verdict in ("likely", "confirmed")] == [cause] * (cause is not None)


@pytest.mark.parametrize("label", ["Fetching 4 files", "Loading checkpoint shards", "Map (num_proc=8)", "model-00001-of-00004.safetensors"])
def test_a_bar_that_counts_files_is_no_step(label):
    """A run that fails after its weights were fetched has made no step; a bar of batches counts as before."""
    bar = "{}: 100%|##########| 4/4 [03:50<00:00, 57.69s/it]\n"
    assert diagnose(text=bar.format(label) + TRACEBACK + oom()).failure.step is None
    assert diagnose(text=bar.format("Epoch 1") + TRACEBACK + oom()).failure.step == 4


def test_copying_parameters_to_other_ranks_is_loading():
    """A wrapper's constructor that broadcasts the model fails on memory that the model takes, not on communication."""
    frames = "".join(
        f'  File "/opt/py/site-packages/torch/{path}", line 9, in {function}\n    {code}\n'
        for path, function, code in (
            ("nn/parallel/distributed.py", "__init__", "_sync_module_states("),
            ("distributed/utils.py", "_sync_params_and_buffers", "dist._broadcast_coalesced("),
        )
    )
    found = diagnose(text="Traceback (most recent call last):\n" + frames + oom(tried="250.00 MiB", free="100.00 MiB", allocated="22.90 GiB", reserved="23.00 GiB"))
    assert found.failure.phase == "load" and verdicts(found)["model-states-too-large"] == "likely"


@pytest.mark.parametrize("function", ["build_targets", "get_assignments", "simota_matching"])
def test_assigning_boxes_to_targets_has_the_shape_of_the_data(function):
    """Detectors match boxes with predictions pair by pair, so that memory follows the number of boxes."""
    frames = f'Traceback (most recent call last):\n  File "yolo/utils/loss.py", line 73, in {function}\n    pairs = a[:, None] - b[None]\n'
    found = diagnose(text=frames + oom(tried="3.00 GiB"))
    assert found.failure.phase == "loss" and verdicts(found)["variable-shape-peak"] == "likely"


def test_nccl_refusing_its_configuration_is_no_memory_failure():
    """Invalid usage and invalid arguments are told in NCCL's own last words."""
    text = (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage\nncclInvalidUsage: This usually reflects invalid "
        "usage of NCCL library.\nLast error:\nNo socket interface found\n"
    )
    found = diagnose(text=text)
    assert verdicts(found) == {"not-memory": "confirmed"} and "No socket interface found" in found.summary


def test_a_bus_error_inside_nccl_speaks_for_shared_memory():
    """A page of a mapped file that cannot be had, while NCCL joins ranks by files in /dev/shm; elsewhere it stays open."""
    crash = "[n1:41{0} :0:97] Caught signal 7 (Bus error: nonexistent physical address)\n 0 0x00 killpg()  ???:0\n 1 0x08 {1}()  ???:0\n"
    inside = diagnose(text=crash.format(1, "ncclGroupEnd") + crash.format(2, "ncclGroupEnd"))
    outside = diagnose(text=crash.format(1, "mdb_get"))
    assert verdicts(inside)["shared-memory"] == "likely" and inside.failure.phase == "comm" and inside.initiating_rank is None
    assert verdicts(outside)["shared-memory"] == "possible"


SHAPE = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 128256, "intermediate_size": 14336}
ASKED = "CUDA out of memory. Tried to allocate 7.83 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free. " + (
    "Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("stated", "ranks", "predicted"),
    [
        ({"per_device_train_batch_size": 2, "max_seq_length": 8192, "bf16": True}, 1, True),
        ({"per_device_train_batch_size": 2, "max_seq_length": 8192, "bf16": True}, 8, False),
        ({"per_device_train_batch_size": 2, "bf16": True}, 1, False),
        ({"max_seq_length": 8192, "bf16": True}, 1, False),
    ],
)
def test_no_remedy_is_weighed_by_settings_that_are_not_the_runs(tmp_path, stated, ranks, predicted):
    """What a remedy saves is told where batch and length are known, and not where eight ranks share a model in a way that
    nothing states and the prediction for one is far beyond the card.
    """
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "training_args.json").write_text(json.dumps(stated))
    lines = [f"[rank{rank}]: step 3 done" for rank in range(ranks)] if ranks > 1 else ["step 3 done"]
    (tmp_path / "run.log").write_text("\n".join([*lines, TRACEBACK + f"{'[rank0]: ' if ranks > 1 else ''}torch.OutOfMemoryError: {ASKED}"]))
    saves = [fix.saves_bytes for finding in diagnose(tmp_path).findings for fix in finding.fixes]
    assert saves and any(one is not None for one in saves) is predicted
