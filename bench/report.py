"""(r) The HTML report of 2,000 trials: its bytes, and seconds until a headless Chromium has drawn it.

And what `report` takes of a store of 5,000 records: seconds, and the most memory that its process held.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchsuite.results.charts import page as html
from tests.results.charts.chromium import tab
from tests.results.report.reported import many

TRIALS, POINTS, OPENINGS = 2000, 1000, 7
RECORDS = 5000
PRINTED: Mapping[str, tuple[str, ...]] = {"table": (), "csv": ("--format", "csv"), "html": ("--html", "report.html")}
"""Options of `report`, by name."""


@dataclass(frozen=True)
class Opened:
    """One page, opened several times in a browser that runs already."""

    num_bytes: int
    write_s: float
    open_s: list[float]


def measure(folder: Path) -> Opened:
    """Write the page and open it; the first opening, which starts the renderer, is left out."""
    store, page = many(folder / "store", trials=TRIALS, points=POINTS), folder / "report.html"
    started = time.perf_counter()
    html.write(store, page)
    write_s, open_s = time.perf_counter() - started, []
    with tab(folder / "profile") as browser:
        browser.look(1200)
        for _ in range(OPENINGS + 1):
            browser.call("Page.navigate", url="about:blank")
            started = time.perf_counter()
            browser.open(page)
            open_s.append(time.perf_counter() - started)
    return Opened(page.stat().st_size, write_s, open_s[1:])


@dataclass(frozen=True)
class Printed:
    """One `benchsuite report` in a process of its own, its start included."""

    seconds: float
    peak_bytes: int


def printed(folder: Path) -> dict[str, Printed]:
    """Each way to print a report on RECORDS records of POINTS points."""
    store = many(folder / "large", trials=RECORDS, points=POINTS)
    return {name: _run(folder, ["report", "--store", str(store.path), *words]) for name, words in PRINTED.items()}


def _run(folder: Path, words: list[str]) -> Printed:
    started = time.perf_counter()
    command = [sys.executable, "-m", "benchsuite", *words]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Printed(time.perf_counter() - started, usage.ru_maxrss * 1024)
