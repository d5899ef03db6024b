"""Who is who among the ranks, and who failed first: each rule on a log made for it, and on a thousand ranks."""


import pytest

from diag_kit.diagnosis import diagnose, judge
from diag_kit.evidence.facts import Event, FileCoverage, Process, Progress, Source
from diag_kit.evidence.origin import find
from diag_kit.evidence.ranks import names
from diag_kit.evidence.run import Run, load_run
from tests.effort import costs_less

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 47.43 GiB of which "
    "1.25 GiB is free. Including non-PyTorch memory, this process has 46.10 GiB memory in use. Of the allocated memory 41.00 GiB "
    "is allocated by PyTorch, and 4.10 GiB is reserved by PyTorch but unallocated."
)


def watchdog(rank, *, at="", number=77, size=640, ran=600014, group=""):
    """A watchdog's line of a rank, as torch 2.2 and later prints it."""
    return (
        f"[rank{rank}]:[E{at}ProcessGroupNCCL.cpp:600] [{group}Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) ran for {ran} "
        "milliseconds before timing out."
    )


def counters(rank, *, work, enqueued, completed, group="PG ID 0 PG GUID 0(default_pg)"):
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1834] [{group} Rank {rank}] Timeout at NCCL work: {work}, last enqueued NCCL "
        f"work: {enqueued}, last completed NCCL work: {completed}."
    )


def block(rank, local, code, *, pid=100, host="node-a", at="2026-03-01_10:00:00", alone=True, said="To enable traceback see: x"):
    """torchelastic's root-cause block."""
    return "\n".join((
        "Failures:", "  <NO_OTHER_FAILURES>" if alone else "[1]:", "-" * 60, "Root Cause (first observed failure):", "[0]:",
        f"  time      : {at}", f"  host      : {host}", f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {code} (pid: {pid})", "  error_file: <N/A>", f"  traceback : {said}", "=" * 60,
    ))  # fmt: skip


def sigterm(*pids):
    return "\n".join(
        f"W1129 11:56:59.150000 29471 torch/distributed/elastic/multiprocessing/api.py:897] Sending process {pid} closing signal SIGTERM"
        for pid in pids
    )


def origin(*lines):
    return find(load_run(text="\n".join(lines) + "\n"))


def folder(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


# --- who failed first ------------------------------------------------------------------------------------------------


def test_a_device_error_beats_a_wait_whatever_the_order():
    """Rule 1: the watchdogs speak before the rank that ran out is printed; it is the first all the same."""
    found = origin(*(watchdog(rank) for rank in (0, 1, 3)), f"[rank2]: {OOM}")
    assert (found.family, found.rank) == ("gpu-oom", 2)
    assert {event.rank for event in found.victims} == {0, 1, 3}


def nccl(pid, device, code, host="node-a"):
    return f"{host}:{pid}:{pid + 900} [{device}] NCCL INFO transport/net.cc:305 -> {code}"


def member(pid, rank, world, host="node-a"):
    return f"{host}:{pid}:{pid + 900} [{rank % 8}] NCCL INFO comm 0x5d rank {rank} nranks {world} cudaDev {rank % 8} busId b0 - Init COMPLETE"


def test_result_codes_1_and_2_begin_and_3_and_6_report():
    """Rule 2: the victims' codes are printed first; the process with code 1 began, and its id tells the rank."""
    join = [member(4100 + rank, rank, 4) for rank in range(4)]
    found = origin(*join, nccl(4100, 0, 6), nccl(4101, 1, 3), nccl(4103, 3, 1))
    assert found.event.kind == "nccl.cuda-error" and found.rank == 3
    assert {event.rank for event in found.victims} == {0, 1}
    assert origin(*join, nccl(4102, 2, 3), nccl(4100, 0, 2)).rank == 0
    assert origin(*join, nccl(4102, 2, 3), nccl(4100, 0, 6)).rank is None


def test_a_warning_before_nccls_name_still_tells_its_process():
    """NCCL puts the place in its source before its name in warnings: the process, and so the rank, is told all the same."""
    join = [member(4100 + rank, rank, 4) for rank in range(4)]
    found = origin(*join, nccl(4100, 0, 6), "node-a:4102:9 [2] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'")
    assert (found.family, found.rank) == ("gpu-oom", 2)


def test_a_fault_of_the_device_is_its_ranks_own():
    """No other rank's failure makes memory cells fail: the one rank shown is named."""
    assert origin("[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered").rank == 1
    assert origin(f"[rank1]: {OOM}").rank is None


def test_without_members_a_device_is_the_rank_only_on_one_host():
    """NCCL's number in brackets is a device: on two hosts it names nobody."""
    assert origin(nccl(7000, 0, 2), nccl(7002, 2, 3)).rank == 0
    assert origin(nccl(7000, 0, 2), nccl(7002, 2, 3, "node-b")).rank is None


def test_a_failed_system_call_around_a_lost_peer_is_a_victims():
    """Older NCCL says "unhandled system error" for a peer that went away."""
    lost = "[rank1]: ncclSystemError: System call (socket, malloc) or external library call failed\n[rank1]: Last error:\n[rank1]: Connection closed by remote peer node-b<40000>"
    found = origin(lost, f"[rank0]: {OOM}")
    assert found.rank == 0 and {event.rank for event in found.victims} == {1}
    assert origin(lost).event is None


def test_a_wait_is_dated_back_to_its_begin():
    """Rule 3: an error 2 s after the others began to wait is the first, though its stamp is 598 s before the watchdogs'."""
    waits = [watchdog(rank, at="1129 12:10:00.000000000 ", ran=600000) for rank in (0, 1, 2)]
    found = origin(*waits, f"[rank3]:E1129 12:00:02.000000 4141 torch/serve.py:10] {OOM}")
    assert found.rank == 3 and "2 s after the others began to wait" in found.reason


@pytest.mark.parametrize("error", [f"[rank0]:E1129 12:10:04.000000 4141 torch/x.py:10] {OOM}", None])
def test_an_error_after_the_others_gave_up_is_a_consequence(error):
    """Rule 3, the wrong way: what a rank meets after watchdogs had reported, or after its own did, began nothing."""
    waits = [watchdog(rank, at="1129 12:10:00.000000000 ") for rank in (0, 1, 2)]
    found = origin(*waits[1 if error else 0 :], error or f"[rank0]: {OOM}")
    assert found.rank is None and "given up waiting" in found.reason


def test_stamps_without_a_year_are_not_compared_with_full_ones(tmp_path):
    """A clock without a year in one file says nothing about a dated error in another."""
    files = {
        "rank0.log": watchdog(0, at="1129 12:10:00.000000000 "),
        "rank1.log": f"2026-11-29 12:30:00,000 ERROR {OOM}\n",
    }
    found = find(load_run([folder(tmp_path, files)]))
    assert found.rank == 1 and "began to wait" not in found.reason


def test_the_rank_behind_the_others_is_suspected():
    """Rule 4: all stand at one work number, one at an earlier: it is suspected, not named."""
    found = origin(*(watchdog(rank, number=77 if rank != 5 else 70) for rank in range(8)))
    assert found.rank is None and found.suspects == (5,)


def test_a_rank_that_had_enqueued_far_more_than_was_done_waited():
    """Rule 4: the only rank shown was healthy; the one below it must exist and is suspected."""
    found = origin(watchdog(1, number=6), counters(1, work=6, enqueued=516, completed=5))
    assert (found.event, found.rank, found.suspects) == (None, None, (0,))


@pytest.mark.parametrize(
    ("lines", "parted"),
    [
        ([watchdog(0, size=4311252), watchdog(1, size=1)], True),
        ([watchdog(0, size=4311252), watchdog(1, size=4311252)], False),
        (  # each of two groups counts its own collectives
            [watchdog(0, size=8), watchdog(1, size=1), counters(0, work=77, enqueued=77, completed=76, group="PG ID 1 PG GUID 3(tp)")],
            False,
        ),
        (
            [counters(2, work=9, enqueued=9, completed=8, group="PG ID 1 PG GUID 3(tp)"), watchdog(0, size=8), watchdog(1, size=1)],
            False,
        ),
        (["[rank4]:" + watchdog(0, size=8)[8:], watchdog(1, size=1)], False),  # rank 4 is the first of another group
    ],
)  # fmt: skip
def test_another_operation_at_the_same_number_parts_only_ranks_of_one_group(lines, parted):
    """Rule 4: the same number with other sizes means other paths through the code, within one group."""
    assert bool(origin(*lines).disagreement) is parted


@pytest.mark.parametrize(
    ("job", "waited", "parted"),
    [
        (2, [(0, 8, "ALLGATHER"), (1, 4096, "ALLGATHER")], True),
        (2, [(0, 8, "ALLREDUCE"), (1, 8, "ALLREDUCE")], False),  # the same work: one of them was late, or the network
        (2, [(0, 8, "SEND"), (1, 4096, "ALLREDUCE")], False),  # two ranks of a pipeline wait in different operations
        (3, [(0, 8, "ALLGATHER"), (1, 4096, "ALLGATHER")], False),  # rank 2 may be gone
        (4, [(r, 8 * (r + 1), "ALLGATHER") for r in range(4)], False),  # of four, two groups may have been meant
    ],
)
def test_ranks_that_all_waited_in_different_collectives_have_parted(job, waited, parted):
    """Nobody was gone, so that nobody died; where some rank shows nothing, it may have."""
    lines = [watchdog(r, size=size, number=77 + 100 * r).replace("ALLREDUCE", what) for r, size, what in waited]
    found = diagnose(text="\n".join([f"torchrun --standalone --nproc_per_node {job} train.py", *lines]))
    assert (found.family == "not-memory") is parted
    assert [one.verdict for one in found.findings if one.cause == "not-memory"] == ["likely"] * parted
    assert ("rank 0 in ALLGATHER of 8 elements" in found.summary) is parted


BARE = OOM.replace("GPU 0", "GPU {}")


@pytest.mark.parametrize(
    ("job", "device", "waited", "rank"),
    [
        (4, 1, (3,), 1),  # four on a node: 1; two on a node: 1 or 3
        (4, 1, (0,), None),
        (8, 3, (7, 0), 3),
        (8, 3, (0, 1), None),  # 3 or 7
        (4, 0, (1, 2, 3), 0),
        (4, 0, (1, 2), None),
        (4, 1, (), None),  # nothing says that the others were there
    ],
)
def test_a_device_and_the_ranks_that_waited_leave_one_rank(job, device, waited, rank):
    """A device counts on nodes of equal size; only where all others are out is a rank named."""
    members = [f"Initializing distributed: GLOBAL_RANK: {r}, MEMBER: {r + 1}/{job}" for r in range(job)]
    found = origin(*members, BARE.format(device), *(watchdog(r) for r in waited))
    assert found.rank == rank and found.family == "gpu-oom"


@pytest.mark.parametrize(
    "world",
    [
        "torchrun --standalone --nproc_per_node 4 train.py",
        "torchrun --nnodes 2 --nproc_per_node=2 train.py",
        "[INFO] [launch.py:162:main] WORLD INFO DICT: {'node-a': [0, 1, 2, 3]}",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4",
        member(4100, 0, 4),
    ],
)
def test_the_absent_rank_is_suspected_where_the_world_is_known(world):
    """Rule 5: whoever is in no watchdog's line is asked for by number, however the log tells how many ranks there are."""
    log = "\n".join([world, *(watchdog(rank) for rank in (0, 1, 2))])
    found = diagnose(text=log)
    assert found.initiating_rank is None and find(load_run(text=log)).suspects == (3,)
    assert any(one.kind == "other-rank-logs" and "rank 3" in one.what for one in found.missing)


def test_a_barrier_names_who_did_not_come():
    """A monitored barrier lists the ranks that are missing; they are suspected."""
    found = origin("[rank0]: RuntimeError: Rank 0 failed: Ranks 3, 5 failed to pass monitoredBarrier in 1800000 ms")
    assert found.rank is None and found.suspects == (3, 5)


ERROR = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n' + OOM


def test_a_launcher_that_lost_one_process_alone_names_it():
    """Rule 6: no other failure, one error told: it is that rank's."""
    found = origin(ERROR, sigterm(101, 102, 103), block(0, 0, 1))
    assert found.rank == 0 and "ended by itself" in found.reason
    failed = "ERROR    failed (exitcode: 1) local_rank: 3 (pid: 103) of binary: python"
    assert origin("accelerate launch --num_processes 4 train.py", ERROR, sigterm(100, 101, 102), failed).rank == 3
    assert origin("accelerate launch --num_processes 8 train.py", ERROR, sigterm(100, 101, 102), failed).rank is None
    found = origin("[rank: 1] Child process with PID 881 terminated with code -9. Forcefully terminating all other processes")
    assert (found.family, found.rank) == ("host-oom", 1)


def test_a_line_that_says_a_peer_is_gone_is_a_victims_once():
    """An exception that carries the words of a lost peer begins nothing; who raised another error did."""
    lost = [f"[rank{rank}]: torch.distributed.DistNetworkError: Connection reset by peer" for rank in (0, 1, 3)]
    found = origin(*lost, "[rank2]: KeyError: 'input_ids'")
    assert found.rank == 2 and [event.rank for event in found.told if event.role == "victim"] == [0, 1, 3]
    assert origin(*lost).suspects == (2,)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([block(3, 3, -6), sigterm(1, 2)], "an abort by the watchdog: the waiter"),
        ([ERROR, block(3, 3, -6)], "the same beside an error that another process may have told"),
        ([ERROR, block(3, 3, 1, alone=False)], "code 1 among several failures, in whole seconds: the first of a list"),
        ([ERROR, watchdog(1), block(3, 3, 1)], "the launcher may have noticed a waiter first"),
    ],
)
def test_a_launcher_names_the_wrong_way(lines, why):
    """Rule 6, the traps: exit code -6, ties, and victims that died before the culprit."""
    assert origin(*lines).rank is None, why


def test_a_root_cause_that_died_of_a_signal_is_the_first_of_its_nodes():
    """Rule 7: of the nodes' root causes the earliest signal counts, not an earlier abort; the same second tells nothing."""
    a, b = "2026-03-01_10:00:09", "2026-03-01_10:00:04"
    first = [block(9, 1, -9, host="node-b", at=a), block(17, 1, -9, host="node-c", at=b), block(0, 0, -6, host="node-a", at=b)]
    assert origin("exitcode: -9", *first).rank == 17
    assert origin("exitcode: -9", first[0], block(17, 1, -9, host="node-c", at=a)).rank is None


def test_deepspeeds_command_names_nobody():
    """Rule 8: the local rank in the command of the exit line is the last child's, and all children are killed."""
    killed = [f"[2026-03-01 10:00:00,100] [INFO] [launch.py:319:sigkill_handler] Killing subprocess {pid}" for pid in range(50, 54)]
    left = "[2026-03-01 10:00:02,100] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'train.py', '--local_rank=3'] exits with return code = {}"
    for code in (1, -9):
        found = origin(*killed, left.format(code))
        assert found.rank is None and all(event.rank is None for event in found.told)


def test_ranks_that_fail_alike_have_no_first():
    """Rule 9: the same error on all ranks but one is a matter of configuration; two of eight is not, and needs a clock."""
    found = origin(*(f"[rank{rank}]: {OOM}" for rank in range(7)), "[rank7]: ValueError: stop")
    assert found.rank is None and found.alike
    others = [watchdog(rank) for rank in range(2, 8)]
    found = origin(f"[rank0]: {OOM}", f"[rank1]: {OOM}", *others)
    assert found.rank is None and not found.alike and "no time stamp" in found.reason
    stamped = [f"2026-03-01 10:00:{20 - 9 * rank}.500 [rank{rank}]: {OOM}" for rank in (0, 1)]
    assert origin(*stamped, *others).rank == 1
    apart = [f"2026-03-01 10:0{5 - rank}:00.500 [rank{rank}]: {OOM}" for rank in range(4)]
    assert origin(*apart).rank == 3 and not origin(*apart).alike


def test_different_errors_without_a_clock_have_no_first():
    """An out-of-memory of one rank and another error of a second, in no order: neither is blamed."""
    found = origin(f"[rank0]: {OOM}", "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered")
    assert found.rank is None and "ranks 0, 1" in found.reason


# --- who is who ------------------------------------------------------------------------------------------------------


def test_a_message_that_lists_all_siblings_but_one_is_the_one_lefts():
    """NCCL's lines give three ids, one by one the ranks' numbers; the message's owner is the id that it does not list.
    The listed ones are the job's own, of other devices: contexts on a wrong GPU, no stranger's memory."""
    others = " ".join(f"Process {9000 + rank} has 1.10 GiB memory in use." for rank in range(8) if rank != 2)
    message = OOM.replace("Including", others + " Including").replace("46.10 GiB", "38.20 GiB").replace("41.00 GiB", "33.00 GiB")
    log = "\n".join([member(9001, 1, 8), member(9004, 4, 8), member(9007, 7, 8), message])
    found = diagnose(text=log)
    assert found.initiating_rank == 2 and found.failure.rank == 2
    assert found.figures["sibling_process_count"] == 7 and "other_process_bytes" not in found.figures
    assert (found.findings[0].cause, found.findings[0].verdict) == ("all-ranks-on-gpu0", "confirmed")
    assert found.failure.to_json()["facts"]["other_process_in_use_bytes"] == [1181116006] * 7


def test_a_known_process_that_is_not_listed_need_not_be_the_owner():
    """With one id of eight known, a message that lists others may be of any rank."""
    message = OOM.replace("Including", "Process 9005 has 1.10 GiB memory in use. Including")
    assert origin(member(9001, 1, 8), message).event.rank is None


def test_a_stranger_among_siblings_stays_a_stranger():
    """Only the ids that the job's lines know are taken off the others."""
    message = OOM.replace("Including", "Process 9001 has 1.10 GiB memory in use. Process 31 has 2.00 GiB memory in use. Including")
    found = diagnose(text=f"{member(9001, 1, 2)}\n{message}")
    assert found.figures["sibling_process_bytes"] == 1181116006
    assert found.figures["other_process_bytes"] == 2 << 30


@pytest.mark.parametrize(
    "glue",
    [
        "[2026-02-07 10:17:32,656] [DEBUG] [axolotl.mod:210] [PID:577] [RANK:5] x\n[2026-02-07 10:17:33,656] [DEBUG] [axolotl.mod:210] [PID:572] [RANK:0] x",
        "(Policy[rank=5] pid=577, ip=10.0.0.9) ready",
        "[rank: 5] Child process with PID 577 terminated with code -9",
        "[rank5]:W0321 04:11:58.123000 577 torch/_dynamo/convert.py:9] x",
    ],
)
def test_a_process_id_carries_the_rank_to_other_lines(glue):
    """A rank that one line gives a process holds for the lines that know the process alone."""
    found = origin(glue, f"(Policy pid=577, ip=10.0.0.9) {OOM}", watchdog(0))
    assert found.event.rank == 5 and found.rank == 5


def test_the_same_id_on_two_hosts_is_two_processes():
    """Process ids are their host's: another host's tells nothing."""
    found = origin("(Policy[rank=5] pid=577, ip=10.0.0.9) ready", f"(Policy pid=577, ip=10.0.0.8) {OOM}")
    assert found.event.rank is None


def test_a_local_rank_is_global_where_its_node_says_where_it_begins():
    """Rank 12 is local 4 of its node: local 6 there is 14. On a node that says nothing it stays local."""
    assert origin("[default4]:[rank12]: hello", f"[default6]:{OOM}", watchdog(1)).rank == 14
    assert origin(f"[default6]:{OOM}", watchdog(1)).rank is None


def test_file_names_that_two_nodes_share_count_on_their_node(tmp_path):
    """torchrun numbers its folders by local rank: of two nodes' folders neither is believed, a prefix is."""
    files = {f"node-{node}/attempt_0/{local}/stderr.log": "x\n" for node in (0, 1) for local in (0, 1)}
    files["node-1/attempt_0/1/stderr.log"] = OOM + "\n"
    found = find(load_run([folder(tmp_path, files)]))
    assert found.event.rank is None and found.rank is None
    files["node-1/attempt_0/0/stderr.log"] = watchdog(2) + "\n"
    assert find(load_run([folder(tmp_path, files)])).rank == 3


def test_long_lists_of_ranks_are_cut_and_counted():
    """A million ranks in a sentence are a range or a number, never a million words."""
    assert names(range(1_000_000)) == "ranks 0-999999"
    assert names(range(0, 100, 2)).endswith("and 38 more")


# --- a thousand ranks ------------------------------------------------------------------------------------------------

WORLD, NODES, FIRST = 1024, 128, 613


def rank_lines(rank):
    if rank == FIRST:
        return [f"[rank{rank}]: Traceback (most recent call last):", f'[rank{rank}]:   File "train.py", line 9, in step', f"[rank{rank}]:     loss.backward()", f"[rank{rank}]: {OOM}"]  # fmt: skip
    at = f"1129 12:10:{rank % 20:02}.{rank:09} "
    return [watchdog(rank, at=at), counters(rank, work=77, enqueued=80, completed=76)]


def node_lines(node):
    """What the agent of one node says: of the first one's node the truth, of the others a waiter's abort."""
    local = FIRST % 8 if node == FIRST // 8 else 2
    code = 1 if node == FIRST // 8 else -6
    pids = [4000 + one for one in range(8) if one != local]
    return [sigterm(*pids), block(node * 8 + local, local, code, pid=4000 + local, host=f"node-{node}", at="2026-11-29_12:10:30")]  # fmt: skip


def per_rank(tmp_path):
    files = {f"rank_{rank}.log": "\n".join(rank_lines(rank)) + "\n" for rank in range(WORLD)}
    files |= {f"launcher-node-{node}.log": "\n".join(node_lines(node)) + "\n" for node in range(NODES)}
    return folder(tmp_path, files)


def per_node(tmp_path):
    files = {}
    for node in range(NODES):
        lines = [f"[default{rank % 8}]:{line}" for rank in range(node * 8, node * 8 + 8) for line in rank_lines(rank)]
        files[f"node-{node}.log"] = "\n".join(lines + node_lines(node)) + "\n"
    return folder(tmp_path, files)


def merged(tmp_path):
    streams = [rank_lines(rank) for rank in range(WORLD)]
    lines = [stream[turn] for turn in range(4) for stream in streams if turn < len(stream)]
    lines += [line for node in range(NODES) for line in node_lines(node)]
    return folder(tmp_path, {"all.log": "\n".join(lines) + "\n"})


@pytest.mark.parametrize("layout", [per_rank, per_node, merged])
def test_one_of_a_thousand_ranks_is_named_in_every_layout(tmp_path, layout):
    """Rank 613 runs out, 1,023 ranks time out, 128 launchers report: 613 is named, the others are victims, lists are cut
    and say by how much."""
    found = diagnose(layout(tmp_path))
    assert (found.family, found.initiating_rank, found.failure.rank) == ("gpu-oom", FIRST, FIRST)
    assert "1,023" in found.initiating_reason
    assert len(found.collateral) == 200 and found.collateral_count >= 1023
    assert FIRST not in {one.rank for one in found.collateral}
    assert (found.timeline[0].role, found.timeline[0].rank) == ("originator", FIRST)
    assert len({one.rank for one in found.timeline if one.role == "victim"} - {FIRST, None}) == 1023
    assert {"victim", "teardown", "confirmation"} <= {moment.role for moment in found.timeline}
    told = found.to_json()
    assert len(told["timeline"]) <= 200 and told["timeline"][0]["rank"] == FIRST
    assert len(told["timeline"]) + sum(told["timeline_left_out"].values()) == len(found.timeline)
    assert found.timeline_left_out == {} and not any("timeline" in note for note in found.coverage["notes"])


def test_judging_grows_with_the_facts_and_not_with_their_square():
    """1,024 files, 4,096 events and 100,000 steps are judged in about the time that their number takes."""
    facts = [Progress(source=Source(f"rank{n % WORLD}.log", n), rank=n % WORLD, step=n // WORLD) for n in range(100_000)]
    for n in range(4 * WORLD):
        source = Source(f"rank{n % WORLD}.log", 200_000 + n)
        facts.append(Event(source=source, rank=n % WORLD, kind="torch.oom" if n == FIRST else "nccl.timeout",
                           family="gpu-oom" if n == FIRST else "undetermined", role="originator" if n == FIRST else "victim"))  # fmt: skip
        facts.append(Process(source=source, rank=n % WORLD, pid=n, host=f"node-{n % NODES}"))
    run = Run(tuple(facts), tuple(FileCoverage(f"rank{n}.log", 1, 1, "log") for n in range(WORLD)), "")
    judge(run)
    assert judge(run).initiating_rank == FIRST
    assert costs_less(lambda: judge(run), 50)


def test_a_million_rank_names_cost_no_more_than_their_lines(tmp_path):
    """A log that names a rank in each of its lines is read like any other, and what is listed stays short."""
    text = "".join(f"[rank{n}]: RuntimeError: Connection closed by remote peer\n" for n in range(120_000))
    path = folder(tmp_path, {"all.log": text + "[rank99999999999]: x\n"})
    found = diagnose(path)
    assert found.initiating_rank is None and len(str(found.to_json())) < 300_000


# --- the timeline ----------------------------------------------------------------------------------------------------


def test_the_timeline_begins_with_who_began():
    """Originator, victims by the begin of their waits, teardown, confirmations; equal lines are one moment with a count."""
    found = diagnose(text="\n".join([
        f"2026-11-29 12:10:09.000 {watchdog(0, ran=600000)}", f"2026-11-29 12:10:05.000 {watchdog(1, ran=600000)}",
        f"2026-11-29 12:10:05.500 {watchdog(1, ran=600000)}", f"2026-11-29 12:00:01.000 [rank2]: {OOM}",
        sigterm(1, 2), block(2, 2, 1, at="2026-11-29_12:10:20"),
    ]))  # fmt: skip
    assert [(one.role, one.rank, one.count) for one in found.timeline] == [
        ("originator", 2, 1), ("victim", 1, 2), ("victim", 0, 1), ("teardown", None, 2), ("confirmation", 2, 1),
    ]  # fmt: skip
    assert found.timeline[1].time - found.timeline[1].began == 600
    assert found.to_json()["timeline"][0]["role"] == "originator"


def test_a_stamp_without_a_year_gives_order_and_no_date():
    """1972 never shows: without a year there is no time, but the order is kept."""
    late, early = (watchdog(rank, at=f"1129 12:1{9 - rank}:00.000000000 ") for rank in (0, 1))
    found = diagnose(text=f"{late}\n{early}\n")
    assert [one.rank for one in found.timeline] == [1, 0] and {one.time for one in found.timeline} == {None}


def test_a_launcher_behind_a_rank_prefix_is_believed_in_what_it_says():
    """Where a collector put a rank before the launcher's own lines, the rank that its block names is the one that died."""
    text = (
        "[rank3]: ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 2 (pid: 71) of binary: /bin/python\n"
        "[rank3]: Root Cause (first observed failure):\n[rank3]: [0]:\n[rank3]:   time      : 2026-03-01_01:45:50\n[rank3]:   host      : node-1\n"
        "[rank3]:   rank      : 2 (local_rank: 2)\n[rank3]:   exitcode  : -9 (pid: 71)\n"
    )
    found = diagnose(text=text)
    assert found.initiating_rank == 2 and found.family == "host-oom"


@pytest.mark.parametrize("stopped", [(), (4000, 4001)])
@pytest.mark.parametrize(("code", "rank"), [(1, 5), (-6, None), (-15, None)])
def test_a_launchers_report_alone_names_who_ended_by_itself(stopped, code, rank):
    """Where only the launcher speaks, the one rank that it saw end by itself is named and its log asked for; a waiter's
    abort or a stopped rank is not.
    """
    lines = [f"W0311 02:15:41.3 139 torch/distributed/elastic/multiprocessing/api.py:900] Sending process {pid} closing signal SIGTERM" for pid in stopped]
    found = diagnose(text="\n".join([*lines, block(5, 5, code)]))
    assert (found.family, found.initiating_rank) == ("undetermined", rank)
    asked = next((one.what for one in found.missing if one.kind == "other-rank-logs"), "")
    assert ("rank 5" in asked) is (rank == 5) and ("rank 5" in found.summary) is (rank == 5)


@pytest.mark.parametrize("ending", [b"\n", b"\r", b""])
def test_an_error_behind_progress_bars_is_found_in_a_long_log(tmp_path, ending):
    """Bars that end in carriage returns hide no message, whatever ends the message's own line."""
    log = tmp_path / "run.log"
    log.write_bytes(b"step 1\n" + b"\r 10%|###  | 5/1000 [00:01<00:09, 3.2it/s]" * 40_000 + b"\r" + OOM.encode() + ending)
    assert [event.kind for event in load_run([log]).of(Event)] == ["torch.oom"]
