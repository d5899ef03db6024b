"""Which event stopped the run, and which rank failed first: rules, each on a log made for it."""

from diag_kit.evidence.origin import find
from diag_kit.evidence.run import load_run
from tests.evidence.samples import SAMPLES

OOM = SAMPLES["torch_oom"][0]
TIMEOUT = SAMPLES["collectives"][0]


def origin(text=None, **files):
    return find(load_run(text=text)) if text else None


def folder(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return find(load_run([tmp_path]))


def test_the_rank_with_an_error_of_its_own_comes_before_those_that_waited(tmp_path):
    """One rank ran out, the others timed out: the first is the origin, the rest are victims."""
    files = {f"rank{r}.log": TIMEOUT.replace("rank5", f"rank{r}").replace("Rank 5", f"Rank {r}") for r in range(8)} | {
        "rank3.log": OOM
    }
    found = folder(tmp_path, files)
    assert (found.family, found.rank) == ("gpu-oom", 3) and {event.rank for event in found.victims} == {
        0,
        1,
        2,
        4,
        5,
        6,
        7,
    }


def test_ranks_that_fail_alike_have_no_first(tmp_path):
    """The same error on every rank is a matter of configuration."""
    found = folder(tmp_path, {f"rank{r}.log": OOM for r in range(4)})
    assert found.rank is None and found.alike


def test_waiting_ranks_alone_are_undetermined():
    """Timeouts without an originator don't say what stopped the run."""
    found = origin(TIMEOUT)
    assert (found.family, found.event, found.rank) == ("undetermined", None, None)


def test_a_reraise_after_the_message_does_not_replace_it():
    """The first memory event of a chain counts, though a wrapper raised something else last."""
    found = origin(
        OOM + "\n\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "w.py", line 3, in wrap\n    raise ValueError("pick smaller targets")\nValueError: pick smaller targets\n'
    )
    assert found.event.kind == "torch.oom"


def test_an_out_of_memory_that_training_outlived_is_no_failure():
    """Steps that go on after the message make it recovered."""
    steps = "\n".join(f"step: {i}  loss: 2.0" for i in range(11, 20))
    found = origin("step: 10  loss: 2.1\n" + OOM + "\n" + steps + "\nTraining finished\n")
    assert found.family == "ok" and found.event is None and found.survived


def test_an_impossible_size_is_no_need_for_memory():
    """A request of exbibytes is a corrupted number."""
    assert (
        origin("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.").family
        == "not-memory"
    )


def test_an_exit_code_yields_to_what_explains_it():
    """SIGKILL of the launcher's cleaning comes after the error that began it."""
    found = origin(OOM + "\n[ERROR] failed (exitcode: -9) local_rank: 1 (pid: 77) of binary: /bin/python\n")
    assert found.event.kind == "torch.oom"


def test_disagreeing_collectives_are_not_memory():
    """The same number with other sizes on another rank: the ranks parted."""
    other = TIMEOUT.replace("rank5", "rank6").replace("Rank 5", "Rank 6").replace("NumelIn=640", "NumelIn=1")
    assert origin(TIMEOUT + "\n" + other).family == "not-memory"
