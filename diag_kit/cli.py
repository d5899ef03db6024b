"""The commands: thin, one answer each, no traceback ever.

Exit status 0 means an answer was given, whatever it says; 2 that the call or the input can't be used, with one line on
standard error that says what, where, and what to do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .errors import DiagKitError, EntryError, EvidenceError

if TYPE_CHECKING:
    from .memory.plan import Engine
    from .memory.settings import Settings

_PIPE_CLOSED = 141
_MOST_INPUT = 256 << 20


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of a page of usage."""
        self.exit(2, f"{_plain(f'{self.prog}: {message} (see {self.prog} --help)')}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    _steady_streams()
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except DiagKitError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        return _refuse("stopped by the keyboard; nothing was written")
    except OSError as error:
        return _refuse(f"{error.filename or 'a file'}: {error.strerror or error}; check the path and its permissions")
    except Exception as error:  # a fault of ours: still one line, with what a report of it needs
        if os.environ.get("DIAG_KIT_DEBUG"):
            raise
        said = f"{type(error).__name__}: {str(error)[:200]}"
        return _refuse(f"internal fault ({said}); please report it, DIAG_KIT_DEBUG=1 shows where")


def _refuse(text: str) -> int:
    print(f"diag-kit: {_plain(text)}", file=sys.stderr)
    return 2


def _plain(text: str) -> str:
    """One line without what a terminal would take for a command."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def _steady_streams() -> None:
    """Streams that were closed get a sink, and an alphabet that lacks a character shows it by its code."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: PTH123, SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace" if name == "stdin" else "backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="diag-kit", description="Diagnose training runs that died of memory.")
    parser.add_argument("--version", action="version", version=f"diag-kit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, run: Callable[[argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about, description=about)
        made.set_defaults(run=run)
        return made

    diagnose = command("diagnose", _diagnose, "say what failed first, why, how firmly, and what to do next")
    diagnose.add_argument(
        "paths",
        nargs="+",
        metavar="RUN",
        help="a log, several, or a folder of logs, settings, tables; - is standard input",
    )
    diagnose.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="GOOD",
        help="a log or folder of a run that ended well, to hold RUN against; may be given again for more of its files",
    )
    diagnose.add_argument("--json", action="store_true", help="print the whole diagnosis as JSON")
    diagnose.add_argument("--report", metavar="OUT", help="write a report too; the suffix says .html, .md or .json")
    diagnose.add_argument(
        "--no-redact", action="store_true", help="keep names, hosts, addresses and keys in the report"
    )
    estimate = command("estimate", _estimate, "memory of one optimizer step, from settings")
    estimate.add_argument("--settings", required=True, metavar="FILE", help="settings as JSON")
    estimate.add_argument("--json", action="store_true", help="print the whole estimate as JSON")
    estimate.add_argument(
        "--traced-remedies", action="store_true", help="predict each remedy by a trace of its own too (minutes)"
    )
    estimate.add_argument("--lengths", metavar="FILE", help="lengths of the samples: CSV, JSON lines, or numbers")
    estimate.add_argument("--column", metavar="NAME", help="a CSV column's name or number, or a field of JSON lines")
    estimate.add_argument(
        "--batching",
        default="fixed",
        metavar="RULE",
        help="how batches are made of the lengths: fixed, grouped, token-budget:N or packed",
    )
    estimate.add_argument("--size", metavar="SIZE", help='which tensors have the size that failed, such as "16.00 GiB"')
    reproduce = command("reproduce", _reproduce, "write a script that runs the failed step alone, on one GPU")
    reproduce.add_argument("paths", nargs="+", metavar="RUN", help="a log, several, or a folder, as for diagnose")
    reproduce.add_argument("-o", "--out", metavar="FILE", default="reproduce.py", help="the script (reproduce.py)")
    workbook = command("workbook", _workbook, "open the workbook in JupyterLab")
    workbook.add_argument("path", nargs="?", metavar="RUN", help="a log or folder to load (default: a sample)")
    workbook.add_argument("--no-browser", action="store_true", help="print the URL instead of opening a browser")
    entries = command("entries", _entries, "list the failures that are known, find some, or show one")
    entries.add_argument("words", nargs="*", metavar="WORD", help="an entry's id, a cause, or words to look for")
    entries.add_argument("--framework", default="pytorch", metavar="NAME", help="whose code to show with the fixes")
    entries.add_argument("--json", action="store_true", help="print JSON")
    entries.add_argument("--check", action="store_true", help="say what is wrong with the entries, one line a fault")
    lab = command("lab", _lab, "measure on this machine whether the claims about memory are so (needs torch)")
    lab.add_argument("ids", nargs="*", metavar="ID", help="experiments, or an entry for all of its (default: all)")
    lab.add_argument("--list", action="store_true", help="list the experiments instead of running them")
    lab.add_argument("--json", action="store_true", help="print JSON")
    lab.add_argument("--device", choices=("cpu", "cuda"), default="auto", help="default: CUDA where torch finds it")
    loop = command("loop", _loop, "run a training loop small, and name the line that keeps memory alive")
    gives = "gives (model, batch, step), (model, batches, loop) or a Trainer"
    loop.add_argument("factory", metavar="FILE.py:FUNCTION", help=gives)
    loop.add_argument("--micro-steps", type=int, default=3, metavar="N", help="in a window (3, or until backward)")
    loop.add_argument("--set", action="append", default=[], metavar="K=V", help="a setting of the factory")
    loop.add_argument("--change", action="append", default=[], metavar="K=V", help="measure with this setting too")
    loop.add_argument("--try-fix", action="store_true", help="edit the named line on a copy, measure again")
    loop.add_argument("--form", choices=("auto", "step", "loop"), default="auto", help="what the factory's function is")
    loop.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    loop.add_argument("--fake", action="store_true", help="tensors without memory, for a model too big")
    loop.add_argument("--seconds", type=float, default=600, metavar="S", help="give up after this long (default 600)")
    loop.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    return parser


def _loop(args: argparse.Namespace) -> int:
    from .lab.loop import child, result

    loop, comparisons = child.inspect_apart(
        args.factory, settings=child.pairs(args.set), change=child.pairs(args.change), try_fix=args.try_fix,
        seconds=args.seconds, micro_steps=args.micro_steps, form=args.form, device=args.device,
        fake=True if args.fake else None,
    )  # fmt: skip
    if args.json:
        return _print_json(loop.to_json() | {"comparisons": [one.to_json() for one in comparisons]})
    print("\n".join(result.lines(loop, comparisons)))
    return 0


def _print_json(document: Any) -> int:
    try:
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    except ValueError:  # a number without end, from a configuration that is repeated
        text = json.dumps(_finite(document), indent=1, ensure_ascii=False)
    print(text)
    return 0


def _finite(value: Any) -> Any:
    """The same with what JSON has no number for as transformers writes it: ``{"__float__": "Infinity"}``."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return {"__float__": json.dumps(value)} if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def _nothing_printed() -> Iterator[None]:
    """What a user's code or its children print goes to standard error, past Python's own streams too."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # closed
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            if sys.__stdout__ is not None:
                sys.__stdout__.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _diagnose(args: argparse.Namespace) -> int:
    from .diagnosis import diagnose

    text = None
    if "-" in args.paths:
        from .evidence.reading import text_of

        data = sys.stdin.buffer.read(_MOST_INPUT + 1)
        if len(data) > _MOST_INPUT:
            raise EvidenceError(f"standard input: more than {_MOST_INPUT >> 20} MiB; write it to a file, and name that")
        text = text_of("standard input", data, _MOST_INPUT)
    paths = [path for path in args.paths if path != "-"]
    if args.report is not None and _is_evidence(args.report, (*paths, *args.against)):
        raise EvidenceError(f"{args.report}: is evidence; write the report beside it, under another name")
    progress = _progress() if sys.stderr.isatty() else None
    diagnosis = diagnose(*paths, text=text, against=args.against or None, on_progress=progress)
    if args.report is not None:
        from . import report

        report.write(args.report, diagnosis, redact=not args.no_redact)
        print(_plain(f"report written to {args.report}"), file=sys.stderr)
    if args.json:
        return _print_json(diagnosis.to_json())
    from .report import terminal

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(terminal.render(diagnosis, width=shutil.get_terminal_size((100, 24)).columns, color=colour))
    return 0


def _is_evidence(out: str, given: Sequence[str]) -> bool:
    """Whether a report would overwrite one of the files that are read."""
    from .evidence.files import find

    target = os.path.expanduser(out)  # noqa: PTH111
    if not os.path.exists(target):  # noqa: PTH110
        return False
    return any(file.path.exists() and os.path.samefile(target, file.path) for file in find(given)[0])  # noqa: PTH121


def _progress() -> Callable[[str, int, int], None]:
    shown = 0.0

    def show(path: str, done: int, total: int) -> None:
        nonlocal shown
        if done < total and time.monotonic() - shown < 0.1:
            return
        shown = time.monotonic()
        share = f"{done / total:4.0%} of {total >> 20} MiB" if total else ""
        line = f"\rreading {_plain(path[-50:])} {share}\x1b[K"
        print(line, end="\n" if done >= total else "", file=sys.stderr, flush=True)

    return show


def _estimate(args: argparse.Namespace) -> int:
    from .memory.engine import Known, engine, estimate
    from .memory.plan import plan
    from .memory.settings import Settings
    from .report import terminal

    settings = Settings.load(args.settings)
    progress = _tracing() if sys.stderr.isatty() else None
    with _nothing_printed():
        found = estimate(settings, progress)
        traces = engine(settings, progress) if found.method == "trace" else None
        uncovered = settings.exact is not None and settings.exact.uncovered
        if traces is None or not (args.traced_remedies or uncovered):
            document = found.to_json() | plan(settings, shapes=traces, answer=found)
        else:
            asked = traces if args.traced_remedies else Known(traces)
            document = found.to_json() | plan(settings, asked, traces, found)
        if args.lengths is not None:
            document["lengths"] = _lengths(args, settings, traces)
        if args.size is not None:
            from .memory.forensics import which_tensors

            recording = traces.exact(settings).recording(settings) if traces else None
            document["size"] = which_tensors(args.size, settings, recording).to_json()
    if args.json:
        return _print_json(document)
    print(terminal.render_estimate(document, width=shutil.get_terminal_size((100, 24)).columns))
    return 0


def _tracing() -> Callable[[str, int, int], None]:
    def show(what: str, done: int, meant: int) -> None:
        ended = done >= meant > 0
        print(f"\r{what} {f'({done} of {meant})' if meant else ''}\x1b[K", end="\r" if ended else "", file=sys.stderr)
        sys.stderr.flush()

    return show


def _lengths(args: argparse.Namespace, settings: Settings, engine: Engine | None) -> dict[str, Any]:
    from .evidence.streams import open_text
    from .memory.lengths import outlook, parse_rule, read

    parse_rule(args.batching)
    with open_text(args.lengths) as stream:
        lengths = read(stream, _plain(args.lengths), args.column)
        if stream.note:
            raise EvidenceError(f"{args.lengths}: {stream.note}")
    return outlook(settings, lengths, args.batching, engine).to_json()


def _reproduce(args: argparse.Namespace) -> int:
    from pathlib import Path

    from .diagnosis import diagnose
    from .reproduction import commands, save

    if _is_evidence(args.out, args.paths):
        raise EvidenceError(f"{args.out}: is evidence; write the script beside it, under another name")
    progress = _progress() if sys.stderr.isatty() else None
    path, made = save(args.out, diagnose(*args.paths, on_progress=progress), [Path(one) for one in args.paths])
    print(_plain(f"written to {path}; read its settings before you run it"))
    for why in (*made.assumed.values(), *made.left_out.values()):
        print(_plain(f"  note: {why}"))
    for command in commands(path):
        print("  " + "".join(char if char.isprintable() else "?" for char in command))  # two spaces in a name stay two
    return 0


def _workbook(args: argparse.Namespace) -> int:
    from .workbook.launch import launch

    return launch(args.path, browser=not args.no_browser)


def _entries(args: argparse.Namespace) -> int:
    from .failures import load_entries
    from .failures.records import FRAMEWORKS
    from .failures.search import named, search

    if args.check:
        from .failures import lint
        from .lab.catalog import experiments

        faults = lint.check(experiments={one.id for one in experiments()})
        print("\n".join(faults) or "no fault in any entry", file=sys.stderr if faults else sys.stdout)
        return 2 * bool(faults)
    if args.framework not in FRAMEWORKS:
        raise EntryError(f"no code for {args.framework!r}; --framework takes {', '.join(FRAMEWORKS)}")
    query = " ".join(args.words)
    one = named(query)
    if query and one is None:
        found = search(query)
        if not found.hits:
            meant = f"did you mean: diag-kit entries {found.suggestion}"
            ask = meant if found.suggestion else "diag-kit entries lists all"
            raise EntryError(f"no entry speaks of {query[:80]!r}; {ask}")
        one = found.hits[0].entry if len(found.hits) == 1 else None
    if args.json:
        entries = [hit.entry for hit in found.hits] if query and one is None else load_entries()
        summaries = {"schema": "diag_kit.entries/1", "entries": [entry.to_summary() for entry in entries]}
        return _print_json(one.to_json() if one else summaries)
    from .report import entry_text as text

    wide, colour = shutil.get_terminal_size((100, 24)).columns, sys.stdout.isatty() and "NO_COLOR" not in os.environ
    if one:
        print(text.entry_text(one, args.framework, width=wide, color=colour))
    elif query:
        print(text.found_text(query, found, width=wide, color=colour))
    else:
        print(text.listing(load_entries(), width=wide, color=colour))
    return 0


def _lab(args: argparse.Namespace) -> int:
    from . import lab
    from .lab import terminal

    width, colour = shutil.get_terminal_size((100, 24)).columns, sys.stdout.isatty() and "NO_COLOR" not in os.environ
    found = lab.chosen(args.ids)
    if args.list:
        document = {"schema": lab.SCHEMA, "experiments": [one.to_json() for one in found]}
        return _print_json(document) if args.json else print(terminal.listed(found, width)) or 0

    def show(outcome: lab.Outcome) -> None:
        print(terminal.told(outcome, lab.experiment(outcome.experiment), width, colour), end="\n\n", flush=True)

    outcomes = lab.run([one.id for one in found], device=args.device, on_outcome=None if args.json else show)
    if args.json:
        _print_json({"schema": lab.SCHEMA, "outcomes": [one.to_json() for one in outcomes]})
    else:
        print(terminal.summary(outcomes))
    problems = {one.problem: one.experiment for one in outcomes if one.problem}
    return _refuse("; ".join(f"lab: {id}: {said}" for said, id in problems.items())) if problems else 0


if __name__ == "__main__":
    sys.exit(main())
