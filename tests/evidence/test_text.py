"""Lines come clean out of any log, and know number, rank, process and time."""

import pytest

from diag_kit.evidence.text import YEARLESS_END, decode, labels_of, lines_of, rank_of_path


@pytest.mark.parametrize(
    ("raw", "text", "rank", "local"),
    [
        ('[rank3]:   File "a.py", line 1, in f', '  File "a.py", line 1, in f', 3, None),
        ("[default0]:[rank12]: boom", "boom", 12, 0),
        (
            'vllm-1  | ERROR 11-18 18:07:28 engine.py:366]   File "w.py", line 2, in g',
            '  File "w.py", line 2, in g',
            None,
            None,
        ),
        ("(Worker[rank=7] pid=44, ip=10.0.0.9) RuntimeError: x", "RuntimeError: x", 7, None),
        ("2026-03-01T02:03:04.123456789Z stderr F ValueError: y", "ValueError: y", None, None),
        ("\x1b[31mRuntimeError\x1b[0m: z", "RuntimeError: z", None, None),
        ("[1,5]<stderr>: hello", "hello", 5, None),
        ("E   AssertionError: no", "AssertionError: no", None, None),
        ("│ train.py:12 in step                      │", "train.py:12 in step", None, None),
        ("[default3]:[rank11]:[E1129 11:56:57.642513817 x.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 3] y", "[E1129 11:56:57.642513817 x.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 3] y", 11, 3),
        ("[rank13]:[E x.cpp:1] [Rank 1] y", "[E x.cpp:1] [Rank 1] y", 13, None),
        ("[E x.cpp:1] [Rank 1] y", "[E x.cpp:1] [Rank 1] y", 1, None),
        ("[E x.cpp:1] [PG ID 2 PG GUID 9(mesh_tp) Rank 1] y", "[E x.cpp:1] [PG ID 2 PG GUID 9(mesh_tp) Rank 1] y", None, None),
        ("trainer-1  | 2026-03-01T02:03:04.123Z [rank4]: boom", "boom", 4, None),
        ("[2025-01-29 08:52:43 TP5] boom", "boom", 5, None),
        ("[2025-01-29 08:52:43 DP1 TP5] boom", "boom", None, None),
        ("[2024-02-07T10:17:32.656Z] a1b2c3d4 [rank=1] || boom", "boom", 1, None),
        ("[2024-02-07 10:17:32,656] [DEBUG] [axolotl.mod:210] [PID:202100] [RANK:6] boom", "boom", 6, None),
        ("[default2|rank10]: boom", "boom", 10, 2),
        ("[node12:3]: boom", "boom", None, 3),
        ("job-worker-1: boom", "boom", None, None),
        ("[pod/job-worker-1/pytorch] [rank2]: boom", "boom", 2, None),
        ("W1129 11:56:59.150000 29471 torch/distributed/elastic/multiprocessing/api.py:897] boom", "boom", None, None),
        ("ERROR: boom", "ERROR: boom", None, None),
        ("RuntimeError: rank-worker-1: no", "RuntimeError: rank-worker-1: no", None, None),
        ("  0%|          | 0/100 [00:00<?, ?it/s]", "  0%|          | 0/100 [00:00<?, ?it/s]", None, None),
    ],
)
def test_prefixes_come_off_and_what_they_said_stays(raw, text, rank, local):
    """Launchers' prefixes are taken off one after the other; indentation and progress bars stay."""
    [line] = lines_of(raw.encode())
    assert (line.text, line.rank, line.local_rank) == (text, rank, local)


@pytest.mark.parametrize(
    ("raw", "host", "pid"),
    [
        ("job-worker-1: boom", "job-worker-1", None),
        ("[pod/job-worker-1/pytorch] boom", "job-worker-1", None),
        ("(Policy[rank=3] pid=10733, ip=10.0.0.17) boom", "10.0.0.17", 10733),
        ("node-a:101557:130069 [9] NCCL WARN boom", "node-a", 101557),
        ("[rank0]:W0321 04:11:58.123000 1401 torch/_dynamo/convert.py:9] boom", None, 1401),
        ("W1129 11:56:59.150000 29471 torch/distributed/elastic/agent/server/api.py:897] boom", None, None),
    ],
)
def test_prefixes_tell_node_and_process(raw, host, pid):
    """The node and the process are kept where a prefix names them; the launcher's own process is no rank's."""
    [line] = lines_of(raw.encode())
    assert (line.host, line.pid) == (host, pid)


def test_a_rank_within_a_group_yields_to_the_files_name():
    """rank13.log holds lines of rank 13, whatever its number in a group; a prefix knows better than the name."""
    lines = lines_of(b"[E x.cpp:1] [Rank 1] a\n[rank12]: b\n", rank=13)
    assert [line.rank for line in lines] == [13, 12]


def test_stamps_without_a_year_take_it_from_the_file():
    """Month and day alone are a clock of their own, unless another stamp of the file gives the year, also over New Year."""
    alone = lines_of(b"[E317 04:11:58.5 x.cpp:1] a\nE0317 04:11:59.000000 17 x.py:1] b\n")
    assert [line.time < YEARLESS_END for line in alone] == [True, True] and alone[1].time - alone[0].time == 0.5
    dated = lines_of(b"2026-12-31 23:59:59,000 a\nE0101 00:00:01.000000 17 x.py:1] b\nE1331 00:00:01.0 17 x.py:1] c\n")
    assert dated[1].time - dated[0].time == 2 and dated[2].time is None


def test_stamps_know_their_zone():
    """The same moment in two zones is one moment; without a zone the stamp is taken as it stands."""
    stamps = ["2026-03-01T10:00:05+01:00 a", "2026-03-01T09:00:05Z b", "2026-03-01 09:00:05 c", "2026-03-01T04:30:05-0430 d"]
    assert len({line.time for line in lines_of("\n".join(stamps).encode())}) == 1


def test_lines_are_counted_as_grep_counts_them():
    """Carriage returns make lines, but only newlines count."""
    lines = lines_of(b"one\r\n10%\r20%\r30%\nlast")
    assert [(line.number, line.text) for line in lines] == [(1, "one"), (2, "10%"), (2, "20%"), (2, "30%"), (3, "last")]


def test_srun_labels_are_ranks_only_if_every_line_has_one():
    """A number and colon before each line is srun's task; before one line it is text."""
    assert {line.rank for line in lines_of(b"0: a\n1: b\n0: c\n1: d\n")} == {0, 1}
    assert {line.rank for line in lines_of(b"3: epoch\nplain\nplain\nplain\n")} == {None}


@pytest.mark.parametrize("head", ["17:00.{} VGA compatible controller", "12:30:0{} step 4 of 9"])
def test_clocks_and_addresses_of_devices_are_no_srun_labels(head):
    """A number and a colon that more digits follow name no task."""
    assert {line.rank for line in lines_of("".join(head.format(i) + "\n" for i in range(6)).encode())} == {None}


def test_srun_labels_are_nodes_where_each_task_starts_ranks():
    """With torchrun inside each task the label counts nodes: ranks come from the prefixes within."""
    lines = lines_of(b" 0: [default1]:[rank1]: a\n 0: x\n11: [default0]:[rank88]: b\n11: RuntimeError: c\n")
    assert [(line.rank, line.host) for line in lines] == [(1, "task 0"), (None, "task 0"), (88, "task 11"), (None, "task 11")]
    part = lines_of(b"11: RuntimeError: c\n", labels=labels_of("0: torchrun\n11: a\n0: b\n11: c\n"))
    assert [(line.rank, line.text) for line in part] == [(None, "RuntimeError: c")]


def test_pdsh_labels_are_hosts_only_where_nearly_every_line_has_one():
    """A few hosts before all lines are labels; names of settings, each once, and levels are text."""
    lines = lines_of(b"gpu-a1: x\ngpu-a2: y\ngpu-a1: ValueError: z\ngpu-a2: w\n")
    assert [(line.host, line.text) for line in lines][2] == ("gpu-a1", "ValueError: z")
    for text in (b"lr1: 1\nlr2: 2\nlr3: 3\nlr4: 4\n", b"INFO: a\nERROR: b\nINFO: c\nERROR: d\n"):
        assert {line.host for line in lines_of(text)} == {None}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbfabc", "abc"),
        ("héllo".encode("utf-16"), "héllo"),
        ("wide".encode("utf-16-le"), "wide"),
        (b"a\xff\xfeb", "a\ufffd\ufffdb"),
    ],
)
def test_any_encoding_gives_text(data, text):
    """Byte-order marks, UTF-16 without one, and broken bytes lose nothing that can be kept."""
    assert decode(data) == text


def test_ranks_in_file_names():
    """A rank is read from a name only where the name says rank, or torchrun's folders do."""
    names = {
        "rank3.log": 3,
        "logs/worker_rank-11.txt": 11,
        "run/attempt_0/5/stderr.log": 5,
        "step_100.log": None,
        "gpu2.log": None,
        "node-1/rank7.out": 7,
        "rank_3.log": 3,
        "job-123-7.out": None,
        "log_3.txt": None,
        "frank9.log": None,
    }
    assert {name: rank_of_path(name) for name in names} == names
