"""(r) The HTML report of 2,000 trials: its bytes, and seconds until a headless Chromium has drawn it.

And what `report` takes of a store of 5,000 records: seconds, and the most memory that its process held.
"""

import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.tables import goal, spread
from benchsuite.results.charts import page as html
from tests.results.charts.chromium import browser_command, tab
from tests.results.report.reported import many

MAX_PRINT_S = {"table": 3.0, "csv": 3.0, "html": 8.0}
MAX_PRINT_BYTES = 400e6
MAX_REPORT_BYTES, MAX_OPEN_S = 6e6, 2.0
TRIALS, POINTS, OPENINGS, PRINTINGS = 2000, 1000, 7, 5
RECORDS, STORES = 5000, (1000, 2500)
"""Records of each store, and the points of each."""
PRINTED: Mapping[str, tuple[str, ...]] = {"table": (), "csv": ("--format", "csv"), "html": ("--html", "report.html")}
"""Options of `report`, by name."""

TELLING = """
import sys
from benchsuite.__main__ import main
try:
    main()
finally:
    print(open("/proc/self/status").read(), file=sys.stderr)
"""


@dataclass(frozen=True)
class Opened:
    """One page, opened several times in a browser that runs already."""

    num_bytes: int
    write_s: float
    open_s: list[float]


def measure(folder: Path) -> Opened | None:
    """Write the page and open it; the first opening, which starts the renderer, is left out. None without a browser."""
    if browser_command() is None:
        return None
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
    """One `benchsuite report` in processes of its own, their start included."""

    seconds: list[float]
    peak_bytes: int


def printed(folder: Path, points: int) -> dict[str, Printed]:
    """Each way to print a report on RECORDS records of so many points, by name, in turns; a first run is left out."""
    store = many(folder / "store", trials=RECORDS, points=points)
    commands = {name: ["report", "--store", str(store.path), *words] for name, words in PRINTED.items()}
    _run(folder, commands["html"])
    runs = [{name: _run(folder, words) for name, words in commands.items()} for _ in range(PRINTINGS)]
    return {name: Printed([run[name][0] for run in runs], max(run[name][1] for run in runs)) for name in commands}


def _run(folder: Path, words: list[str]) -> tuple[float, int]:
    """One process of the command, which tells its own peak: `ru_maxrss` has that of the process that forked it, too."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", TELLING, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    peak = re.search(r"^VmHWM:\s*(\d+) kB", done.stderr, re.MULTILINE)
    assert peak is not None
    return time.perf_counter() - started, int(peak[1]) * 1024


def show(folder: Path) -> None:
    """Print what `report` takes, and the HTML page's size and time to draw."""
    for points in STORES:
        print(f"(r) `report` of {RECORDS:,} records of {points:,} points")
        for name, one in printed(folder / str(points), points).items():
            most_s = MAX_PRINT_S[name]
            print(f"    {name}: {spread(one.seconds)}, {one.peak_bytes / 1e6:.0f} MB")
            print(goal(float(np.median(one.seconds)) <= most_s, f"<= {most_s:.0f} s"))
            if name != "html":
                print(goal(one.peak_bytes <= MAX_PRINT_BYTES, f"<= {MAX_PRINT_BYTES / 1e6:.0f} MB"))
    print(f"(r) the HTML report of {TRIALS:,} trials of {POINTS:,} points")
    found = measure(folder)
    if found is None:
        print("    not opened: no Chromium is installed (`make browser` installs it on Debian)")
        return
    print(f"    written in {found.write_s:.1f} s, {found.num_bytes / 1e6:.2f} MB")
    print(goal(found.num_bytes <= MAX_REPORT_BYTES, f"<= {MAX_REPORT_BYTES / 1e6:.0f} MB"))
    print(f"    opened and drawn: {spread(found.open_s)}")
    print(goal(float(np.median(found.open_s)) <= MAX_OPEN_S, f"<= {MAX_OPEN_S} s"))
