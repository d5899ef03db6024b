"""Many files, or one large file, over the cores of this machine: the biggest first, a file's end before its beginning.

A job is a whole small file or a part of a large log. Jobs are plain calls of ``reading`` with plain arguments and
results, so that another engine than this pool can run them. Where processes can't be started without harm (a script
that would run again, a program with threads), the same jobs run one after the other.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

from ..errors import StopReading
from . import reading
from .facts import FileCoverage
from .files import File
from .reading import How, Part
from .scan import Scan
from .scan.engines import prepared

_WORTH_SECONDS = 1.5
"""Of reading; below, starting processes costs as much as it saves."""
_FILE_SECONDS = 0.004
_SLOW, _PART, _SLOW_PART = 100_000_000, 64 << 20, 8 << 20
_MOST_WORKERS = 32

Report = Callable[[str, int], None]
"""Called with the file at hand and the bytes of all files done so far."""


class Job(NamedTuple):
    """One call: all of file ``which``, or its bytes from ``start`` to ``end`` (None: to its end)."""

    which: int
    size: int
    part: tuple[int, int | None] | None = None


def read_all(
    files: Sequence[File], how: Sequence[How], report: Report | None = None, workers: int | None = None
) -> list[Part]:
    """A part for each file, in order. A file that can't be read has its reason in the coverage.

    Args:
        files: as ``files.find`` gave them.
        how: to read each file.
        report: told of progress; where it raises StopReading, what is done is kept.
        workers: processes to use; None chooses by the work and the machine.
    """
    parts = [
        Part(coverage=FileCoverage(file.shown, file.size, 0, "unread", (file.why_not or reading.STOPPED,)))
        for file in files
    ]
    jobs, pieces = _jobs(files, how)
    scans: dict[int, dict[int, Scan | str]] = {which: {} for which in pieces}
    try:
        for job, result in _run(files, jobs, how, report, _workers(files, jobs, how) if workers is None else workers):
            if isinstance(result, Part):
                parts[job.which] = result
            elif job.part:
                scans[job.which][job.part[0]] = result
    except StopReading:
        pass  # what is done is kept
    for which, bounds in pieces.items():
        parts[which] = _joined(files[which], bounds, scans[which], how[which])
    return parts


def _jobs(files: Sequence[File], how: Sequence[How]) -> tuple[list[Job], dict[int, list[tuple[int, int | None]]]]:
    """Jobs in the order to do them, and the parts of each file that was divided."""
    jobs: list[Job] = []
    pieces: dict[int, list[tuple[int, int | None]]] = {}
    length = 0
    for which, file in enumerate(files):
        if file.why_not:
            continue
        if file.size > 2 * _SLOW_PART:
            length = length or (_PART if _speed(how[which]) > _SLOW else _SLOW_PART)
            try:
                divided = file.size >= 2 * length and reading.divisible(file)
            except OSError:
                divided = False  # the job will say why
            if divided:
                starts = range(0, file.size - length // 2, length)
                bounds = [(start, start + length if start != starts[-1] else None) for start in starts]
                pieces[which] = bounds
                jobs += [Job(which, (end or file.size) - start, (start, end)) for start, end in reversed(bounds)]
                continue
        jobs.append(Job(which, file.size))
    jobs.sort(key=lambda job: -files[job.which].size)
    return jobs, pieces


def _speed(how: How) -> int:
    return prepared(reading.literals().all, how.engine)[0].speed


def _workers(files: Sequence[File], jobs: Sequence[Job], how: Sequence[How]) -> int:
    size = sum(job.size for job in jobs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2 or len(jobs) < 2 or (size < 16 << 20 and len(jobs) * _FILE_SECONDS < _WORTH_SECONDS):
        return 1
    if size / _speed(how[0]) + len(jobs) * _FILE_SECONDS < _WORTH_SECONDS or _context() is None:
        return 1
    return min(cores, len(jobs), _MOST_WORKERS)


def _context() -> multiprocessing.context.BaseContext | None:
    """How a process can be started: by fork where no other thread could hold a lock, else anew where nothing of the
    caller's would run again.
    """
    if sys.platform == "linux" and threading.active_count() == 1:
        return multiprocessing.get_context("fork")
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) is None or getattr(main, "__package__", None) in ("diag_kit", "ipykernel"):
        return multiprocessing.get_context("spawn")
    return None


def _do(file: File, job: Job, how: How) -> Part | Scan | str:
    """One job; a file that is gone or closed gives the reason as text."""
    if job.part is None:
        return reading.read(file, how)
    try:
        return reading.scan_part(file.path, *job.part, file.size, how)
    except OSError as error:
        return f"can't be read ({error.strerror or error})"


def _run(
    files: Sequence[File], jobs: Sequence[Job], how: Sequence[How], report: Report | None, workers: int
) -> Iterator[tuple[Job, Part | Scan | str]]:
    """Results as they come."""
    tell = report or (lambda shown, done: None)
    done = 0
    left = list(jobs)
    if workers > 1 and (context := _context()):
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts)
        try:
            for job, result in _pooled(pool, files, jobs, how, 4 * workers):
                left.remove(job)
                yield job, result
                done += job.size
                tell(files[job.which].shown, done)
        except BrokenProcessPool:
            pass  # a process was killed, or none could be started: what is left is done here
        except KeyboardInterrupt:
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    for job in left:
        file = files[job.which]
        tell(file.shown, done)
        if job.part is None:
            yield job, reading.read(file, how[job.which], functools.partial(_tell_from, tell, file.shown, done))
        else:
            yield job, _do(file, job, how[job.which])
        done += job.size
        tell(file.shown, done)


def _leave_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the one that shares out the work answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _tell_from(tell: Report, shown: str, done: int, ahead: int) -> None:
    tell(shown, done + ahead)


def _pooled(
    pool: Executor, files: Sequence[File], jobs: Sequence[Job], how: Sequence[How], ahead: int
) -> Iterator[tuple[Job, Part | Scan | str]]:
    waiting = iter(jobs)
    running: dict[Future[Part | Scan | str], Job] = {}
    while True:
        while len(running) < ahead and (job := next(waiting, None)):
            running[pool.submit(_do, files[job.which], job, how[job.which])] = job
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running[future], future.result()
            del running[future]


def _joined(file: File, bounds: Sequence[tuple[int, int | None]], scans: dict[int, Scan | str], how: How) -> Part:
    """One part of a divided file's scans; a stretch that was not read keeps its lines counted, and is told."""
    whole: Scan | None = None
    read, notes = 0, []
    for start, end in bounds:
        found = scans.get(start)
        if isinstance(found, Scan):
            read += found.end - found.start
        else:
            notes.append(found or reading.STOPPED)
            found = reading.unread(file.path, start, end or file.size) if found is None else Scan(start, end or start)
        whole = whole.then(found) if whole else found
    if not read or whole is None:
        return Part(coverage=FileCoverage(file.shown, file.size, 0, "unread", tuple(dict.fromkeys(notes))))
    part = reading.parse_scan(file.shown, whole, how)
    said = tuple(dict.fromkeys([*part.coverage.notes, *notes]))
    part.digest = reading.digest(file)
    return reading.replace_coverage(part, size_bytes=max(file.size, read), read_bytes=read, notes=said)
