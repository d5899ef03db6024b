"""Lines come clean out of any log, and know number, rank, process and time."""

import pytest

from diag_kit.evidence.text import decode, lines_of, rank_of_path


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
        ("  0%|          | 0/100 [00:00<?, ?it/s]", "  0%|          | 0/100 [00:00<?, ?it/s]", None, None),
    ],
)
def test_prefixes_come_off_and_what_they_said_stays(raw, text, rank, local):
    """Launchers' prefixes are taken off one after the other; indentation and progress bars stay."""
    [line] = lines_of(raw.encode())
    assert (line.text, line.rank, line.local_rank) == (text, rank, local)


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
        "frank9.log": None,
    }
    assert {name: rank_of_path(name) for name in names} == names
