"""(r) The HTML report of 2,000 trials: its bytes, and seconds until a headless Chromium has drawn it."""

import time
from dataclasses import dataclass
from pathlib import Path

from benchsuite.results.charts import page as html
from tests.results.charts.chromium import tab
from tests.results.report.reported import many

TRIALS, POINTS, OPENINGS = 2000, 1000, 7


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
