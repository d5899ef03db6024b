"""What the workbook's plots cost, beside what a notebook would do instead.

    python benchmarks/workbook.py [--moves 200] [--browser]

Prints the milliseconds of a slider's handler (from the new value to the verdict and the step's plot), and of what
follows once it rests (curves, tables, saving), on an event loop as in a kernel; the ratio of building the same plots as
``plotly.graph_objects.Figure`` against handler and curves together; and the bytes that a page loads for its plots.
With ``--browser``: seconds from Run All to the first plot, in JupyterLab on a real browser.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import plotly
import plotly.graph_objects as go

from diag_kit.report.bundle import plotly_js
from diag_kit.workbook import Workbook, launch, places, workbook


def percentiles(milliseconds: list[float]) -> str:
    """Median and 95th percentile, for a line."""
    ranked = sorted(milliseconds)
    return f"p50 {statistics.median(ranked):5.2f} ms   p95 {ranked[int(0.95 * len(ranked))]:5.2f} ms"


def timed(act: Callable[[int], object], times: int) -> list[float]:
    """Milliseconds of each of ``times`` calls, after a tenth of them as a warm-up."""
    spent = []
    for i in range(-times // 10, times):
        start = time.perf_counter()
        act(i)
        if i >= 0:
            spent.append((time.perf_counter() - start) * 1e3)
    return spent


async def moves(book: Workbook, name: str, values: list[int], times: int) -> tuple[list[float], list[float], float]:
    """Milliseconds of each move of one slider, of the curves after it, and of what follows once it rests."""
    control, view = book.what_if.controls[name], book.what_if
    curves: list[float] = []

    def move(i: int) -> None:
        control.value = values[i % len(values)]

    handled = timed(move, times)
    for i in range(times):
        move(i)
        start = time.perf_counter()
        view._curves.now()
        curves.append((time.perf_counter() - start) * 1e3)
    start = time.perf_counter()
    view._show_tables()
    book.state.save_now()
    return handled, curves, (time.perf_counter() - start) * 1e3


def rebuild(book: Workbook) -> Callable[[int], object]:
    """The same plots as `plotly.graph_objects` figures, built anew and serialised for a browser."""
    specs = [json.loads(book.what_if.plots[name].spec) for name in ("step", "length", "micro_step")]
    return lambda _: [go.Figure(spec).to_json() for spec in specs]


def first_plot() -> float:
    """Seconds from Run All to the first plot in a browser."""
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import READY, TOKEN, find_chromium

    with tempfile.TemporaryDirectory() as folder:
        os.environ["DIAG_KIT_DATA"] = folder
        work = places.work_folder()
        copy, port = launch.working_copy("workbook.ipynb", work), launch._free_port()
        notebook = json.loads(copy.read_text(encoding="utf-8"))
        del notebook["metadata"]["diag_kit"]  # so that it waits for Run All
        copy.write_text(json.dumps(notebook), encoding="utf-8")
        command = [*launch.command(work, port), "--expose-app-in-browser"]
        env, log = launch.environment(work, TOKEN, None), work / "server.log"
        with log.open("wb") as out:
            server = subprocess.Popen(command, env=env, cwd=work, stdout=out, stderr=out, start_new_session=True)
        try:
            launch._wait_until_up(server, port, TOKEN, log)
            with sync_playwright() as playwright:
                flags = ["--disable-gpu", "--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
                page = playwright.chromium.launch(executable_path=find_chromium(), args=flags).new_page()
                page.goto(f"http://127.0.0.1:{port}/doc/tree/{copy.name}?token={TOKEN}")
                page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.context?.ready")
                page.evaluate(READY)
                start = time.perf_counter()
                page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
                page.wait_for_selector(".dk-what-if .dk-plot .main-svg", timeout=120_000)
                return time.perf_counter() - start
        finally:
            launch._stop(server)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--browser", action="store_true", help="measure Run All to first plot too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DIAG_KIT_DATA"] = folder
        book = workbook(places.samples()[0].path)
        lists = {
            "seq_len": [512, 768, 1024, 1536, 2048],
            "micro_batch": [1, 2, 3, 4, 6],
            "grad_accum": [4, 8, 12, 16, 20],
        }
        for name, values in lists.items():
            handled, curves, rest = asyncio.run(moves(book, name, values, options.moves))
            ours = statistics.median(handled) + statistics.median(curves)
            print(f"slider {name:12} {percentiles(handled)} | curves {percentiles(curves)} | at rest {rest:5.1f} ms")
        built = timed(rebuild(book), options.moves // 4)
        print(f"go.Figure, same plots {percentiles(built)}: {statistics.median(built) / ours:.1f} × handler and curves")
        full = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").stat().st_size
        print(f"bundle: {len(plotly_js()) / 1e6:.2f} MB, once a page; plotly's own {full / 1e6:.2f} MB")
    if options.browser:
        print(f"Run All to first plot: {first_plot():.1f} s")


if __name__ == "__main__":
    main()
