"""Predictions, pipelines and storage knees of the HTML report in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchsuite.cli.modelled import modelled
from benchsuite.results.charts import page as html
from tests.cli.test_modelled import SATURATED, piped, rank, reading, stored, weak
from tests.results.charts.chromium import Tab, tab

KEYS = ("predicted", "knee", "pipeline")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared against staged storage, a series of mixed environments, and a pipeline with its samples."""
    folder = tmp_path_factory.mktemp("page")
    local = dict.fromkeys(SATURATED, 0.98)
    mixed = [*weak((1,), sweep="mixed"), *weak((2,), sweep="mixed", env={"cpu": "<b>another</b>"})]
    store = stored(folder / "store", *reading("none", SATURATED), *reading("copy", local), *mixed)
    samples = {"record_id": "pipe", "ranks": [rank(0, 0.02, 0.04, 0.07), rank(1, 0.04, 0.06, 0.03)]}
    store.append(piped(record_id="pipe", trial_id="pipe", point_id="pipe"), samples)
    html.write(store, folder / "page.html", modelled(store))
    return folder / "page.html"


def opened(browser: Tab, page: Path, width: int = 1200, dark: bool = False) -> Tab:
    browser.problems.clear()
    browser.requested.clear()
    browser.look(width, dark)
    browser.open(page)
    return browser


def choose(browser: Tab, key: str, number: int) -> None:
    pick = f"const s = document.querySelector('#{key} select'); s.selectedIndex = {number}"
    browser.run(f"(() => {{ {pick}; s.dispatchEvent(new Event('change')); }})()")


def drawn(browser: Tab, key: str) -> dict[str, Any]:
    """Names of what Plotly drew, and the text below."""
    plot = f"document.querySelector('#{key} .plot')"
    names = browser.run(f"{plot}.data.map(trace => trace.name)")
    return {"names": names, "lines": browser.run(f"document.querySelector('#{key} .below').textContent")}


def test_all_are_drawn_without_an_error_or_a_request(browser: Tab, page: Path) -> None:
    opened(browser, page)
    shown = browser.run("[...document.querySelectorAll('#charts > section:not([hidden])')].map(box => box.id)")
    assert {*KEYS} <= {*shown} and browser.problems == [] and len(browser.requested) == 1
    assert drawn(browser, "predicted")["names"] == ["90 % interval", "fitted", "predicted", "measured"] * 2
    assert "knee at 3 ranks" in drawn(browser, "knee")["names"]
    assert browser.run("document.querySelectorAll('#pipeline .bars .point').length") == 8
    assert browser.run("document.querySelectorAll('#predicted .xy2 .scatterlayer .trace').length") == 4


def test_each_series_can_be_chosen_and_says_why_it_is_not_predicted(browser: Tab, page: Path) -> None:
    opened(browser, page)
    found = [(choose(browser, "predicted", number), drawn(browser, "predicted"))[1] for number in range(3)]
    (mixed,) = [one for one in found if "no prediction" in one["lines"]]
    assert mixed["names"] == ["measured", "measured"]
    assert "mixed environments: cpu 'a cpu' at 1 rank, '<b>another</b>' at 2 ranks" in mixed["lines"]
    assert browser.problems == []


def test_filters_narrow_them_down(browser: Tab, page: Path) -> None:
    opened(browser, page)
    browser.choose("sweep", "mixed")
    shown = browser.run("[...document.querySelectorAll('#charts > section:not([hidden])')].map(box => box.id)")
    assert "predicted" in shown and not {"knee", "pipeline"} & {*shown}
    assert drawn(browser, "predicted")["names"] == ["measured", "measured"] and browser.problems == []


def test_the_second_axis_is_dark_in_the_dark(browser: Tab, page: Path) -> None:
    opened(browser, page, dark=True)
    grid = "document.querySelector('#predicted .plot')._fullLayout.yaxis2.gridcolor"
    assert browser.run(grid) == "#2c323a" == browser.run(grid.replace("yaxis2", "yaxis"))


def test_a_phone_scrolls_down_only(browser: Tab, page: Path) -> None:
    opened(browser, page, width=390)
    right = "Math.max(...[...document.querySelectorAll('.plot .main-svg')].map(s => s.getBoundingClientRect().right))"
    assert browser.run("document.documentElement.scrollWidth") <= 390 and browser.run(right) <= 390
