"""`benchsuite report --html`: its file, its errors, and the page in a real browser."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchsuite.cli.app import run_command
from benchsuite.contract.trial_spec import parse_sweep
from benchsuite.grid.expand import expand
from benchsuite.host.machine import Machine
from benchsuite.results.charts import page as html
from benchsuite.results.report import provenance
from benchsuite.results.store.store import ResultsStore
from tests.results.charts.chromium import Tab, tab
from tests.results.made import made_record
from tests.results.report.reported import NASTY, full_store, made_figures, made_spec, many, trial

BEFORE_IO = ("choices", "au", "rate", "heat", "step", "weak-scaling", "buckets", "memory", "operators", "roofline")
CHARTS = (*BEFORE_IO, "io", "staging", "timeline")
SHOWN = "[...document.querySelectorAll('#charts > section:not([hidden])')].map(box => box.id)"
ROWS = "[...document.querySelectorAll('#points tbody tr')].map(row => row.querySelector('td.point').textContent)"
CONTRAST = "getComputedStyle(document.querySelector('#au .ytitle')).fill"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The full report, with plain names and with names that would run if they could."""
    folder = tmp_path_factory.mktemp("pages")
    for name, nasty in (("plain", ""), ("nasty", NASTY)):
        html.write(full_store(folder / name, nasty), folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in ("plain", "nasty")}


def opened(browser: Tab, page: Path, width: int = 1200, dark: bool = False) -> Tab:
    browser.problems.clear()
    browser.requested.clear()
    browser.look(width, dark)
    browser.open(page)
    return browser


def traces(browser: Tab, key: str) -> list[dict[str, Any]]:
    """What Plotly drew, as it was given."""
    script = (
        f"JSON.stringify(document.querySelector('#{key} .plot').data.map(({{name, x, y, z}}) => ({{name, x, y, z}})))"
    )
    return json.loads(browser.run(script))


def test_the_verb_writes_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full_store(tmp_path / "store")
    out = tmp_path / "out.html"
    assert run_command(["report", "--store", str(tmp_path / "store"), "--html", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.splitlines()[-1].startswith(f"written: {out} (1.6 MB; ")
    assert out.read_text().startswith("<!DOCTYPE html>") and [*tmp_path.glob("*.*")] == [out]


@pytest.mark.parametrize("more", [["--format", "md"], ["--mlperf-storage"]])
def test_other_outputs_beside_it_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    full_store(tmp_path / "store")
    assert run_command(["report", "--store", str(tmp_path / "store"), "--html", "x.html", *more]) == 2
    error = capsys.readouterr().err
    assert (
        error
        == f"error: report: --html x.html with {' '.join(more)}; allowed: one of --html, --format, --mlperf-storage\n"
    )


def test_figures_are_written_a_file_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    store = ResultsStore(tmp_path / "store")
    for number, ranks in enumerate((1, 2)):
        record = trial(number, f"p{ranks}", made_spec(world_size=ranks), {"samples_per_s": 9.0 * ranks}, sweep="s")
        store.append(record)
    assert (
        run_command(["report", "--store", str(store.path), "--svg", str(tmp_path / "a"), "--pdf", str(tmp_path)]) == 0
    )
    printed = capsys.readouterr()
    written = [tmp_path / "a" / f"{key}.svg" for key in ("choices", "rate", "weak-scaling", "predicted")]
    written += [tmp_path / f"{path.stem}.pdf" for path in written]
    assert printed.out == "" and printed.err.splitlines() == [f"figure: {path}" for path in written]
    assert all(path.is_file() for path in written)
    assert run_command(["report", "--store", str(store.path), "--pdf", "x", "--format", "md"]) == 2
    told = "error: report: --pdf x with --format md; allowed: one of --pdf, --format, --mlperf-storage\n"
    assert capsys.readouterr().err == told


def test_no_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", "--store", str(tmp_path / "none"), "--html", str(tmp_path / "x.html")]) == 2
    assert "no results there" in capsys.readouterr().err and not (tmp_path / "x.html").exists()


def test_its_sweep_file_measures_the_same_points() -> None:
    machine = Machine(cores=8, cuda_devices=0)
    base = {
        "workload": "resnet50",
        "variant": "tiny",
        "batch_size": 8,
        "device": "cpu",
        "data": {"source": "synthetic"},
    }
    sweep = {
        "name": "again",
        "question": "The same?",
        "base": base,
        "grid": {"world_size": [1, 2, 4], "parallelism": ["ddp", {"dp": 1, "tp": 1}]},
        "include": [{"bucket_cap_mb": 5, "parallelism": "ddp", "world_size": 2}],
    }
    plan = expand(parse_sweep(sweep), machine)
    asked = [point.spec for point in (*plan.points, *(skipped.point for skipped in plan.skipped))]
    records = [
        made_record(n, point_id=f"p{n}", order=n, spec=spec.model_dump(mode="json"), question="The same?")
        for n, spec in enumerate(asked)
    ]
    again = expand(parse_sweep(yaml.safe_load(provenance.sweep_file(records) or "")), machine)
    found = [point.spec for point in (*again.points, *(skipped.point for skipped in again.skipped))]
    assert len(found) == 7 and again.sweep.question == "The same?"
    assert {spec.model_dump_json() for spec in found} == {spec.model_dump_json() for spec in asked}


@pytest.mark.parametrize("name", ["plain", "nasty"])
def test_every_chart_is_drawn_without_an_error_or_a_request(browser: Tab, pages: dict[str, Path], name: str) -> None:
    opened(browser, pages[name])
    assert browser.problems == []
    assert [url for url in browser.requested if not url.startswith("data:")] == [pages[name].as_uri()]
    assert tuple(browser.run(SHOWN)) == CHARTS
    drawn = browser.run("[...document.querySelectorAll('.plot')].every(box => box.querySelector('.main-svg'))")
    bars = browser.run("document.querySelectorAll('#step .bars .point').length")
    assert drawn and bars == 9 * 6  # nine points with a step of six parts


def test_names_that_are_markup_are_text(browser: Tab, pages: dict[str, Path]) -> None:
    opened(browser, pages["nasty"])
    assert browser.run("document.title") == "benchsuite report" and browser.run("document.images.length") == 0
    assert browser.run("document.scripts.length") == 3
    assert f"files 1 ranks{NASTY}" in browser.run(ROWS)
    legend = browser.run("document.querySelector('#buckets .legend').textContent")
    assert "</script><script>document.title" in legend


def test_a_reason_from_a_log_is_text_in_its_hover(browser: Tab, tmp_path: Path) -> None:
    store, reason = ResultsStore(tmp_path / "store"), "<b>EIO</b> <a href='https://example.org/'>part-7</a> & more"
    for number, ranks in enumerate((1, 2, 4)):
        lost = {"reason": reason} if ranks == 4 else {}
        rate = None if lost else made_figures(100.0 * ranks)
        store.append(trial(number, f"p{ranks}", made_spec(world_size=ranks), rate, **lost))
    html.write(store, tmp_path / "hover.html")
    opened(browser, tmp_path / "hover.html")
    find = "const plot = document.querySelector('#weak-scaling .plot')"
    at = "[{curveNumber: plot.data.findIndex((one) => one.name === 'no result'), pointNumber: 0}]"
    told = "[...plot.querySelectorAll('.hoverlayer text')].map((one) => one.textContent).join(' ')"
    hover = browser.run(f"(() => {{ {find}; Plotly.Fx.hover(plot, {at}); return {told}; }})()")
    assert f"failed: {reason}" in hover
    assert browser.run("document.querySelectorAll('.hoverlayer a').length") == 0


def test_a_page_of_two_thousand_trials_opens_and_answers(browser: Tab, tmp_path: Path) -> None:
    html.write(many(tmp_path / "store", trials=2000, points=1000), tmp_path / "many.html")
    opened(browser, tmp_path / "many.html")
    assert browser.problems == [] and len(browser.run(ROWS)) > 0
    assert browser.run(
        "[...document.querySelectorAll('#charts > section:not([hidden]) .plot')].every("
        "box => box.querySelector('.main-svg'))"
    )
    assert [len(trace["z"]) for trace in traces(browser, "heat")] == [3], "a row per loader"
    browser.choose("workload", "bert")
    assert browser.run("document.getElementById('count').textContent") == "300 of 1000 points"
    assert browser.run(ROWS)[0].startswith("bert ") and browser.problems == []


def test_a_script_put_into_the_page_does_not_run(browser: Tab, pages: dict[str, Path]) -> None:
    opened(browser, pages["plain"])
    make = "const s = document.createElement('script'); s.textContent = 'document.title = `owned`'"
    browser.run(f"(() => {{ {make}; document.body.append(s); }})()")
    assert browser.run("document.title") != "owned"


def test_filters_narrow_tables_and_charts_down(browser: Tab, pages: dict[str, Path]) -> None:
    opened(browser, pages["plain"])
    browser.choose("format", "lmdb")
    assert browser.run(ROWS) == ["lmdb 1 ranks", "lmdb 2 ranks", "lmdb 4 ranks"]
    assert browser.run("document.getElementById('count').textContent") == "3 of 11 points"
    assert [(trace["name"], trace["y"]) for trace in traces(browser, "rate")] == [
        ("all lmdb", [100.5, 180.5]),
        ("no result", [0]),
    ]
    assert [trace["z"] for trace in traces(browser, "heat")] == [[[0.9]]]
    assert not {"io", "staging", "buckets"} & set(browser.run(SHOWN))
    browser.choose("status", "failed")
    assert browser.run(ROWS) == ["lmdb 4 ranks"] and "au" in browser.run(SHOWN) and "step" not in browser.run(SHOWN)
    browser.run("document.querySelector('#filters button').click()")
    assert len(browser.run(ROWS)) == 11 and tuple(browser.run(SHOWN)) == CHARTS
    browser.choose("workload", "bert")
    browser.choose("session", "default")
    assert browser.run(ROWS) == [] and browser.run(SHOWN) == [] and browser.problems == []


def test_failures_say_why(browser: Tab, pages: dict[str, Path]) -> None:
    opened(browser, pages["plain"])
    told = browser.run("[...document.querySelectorAll('#failures tbody tr')].map(row => row.innerText)")
    assert [line.split("\t")[:4] for line in told] == [
        ["all · lmdb 4 ranks", "failed", "EIO on part-7", "2"],
        ["all · oom", "oom", "CUDA out of memory", "1"],
    ]


def test_another_trials_timeline_can_be_chosen(browser: Tab, pages: dict[str, Path]) -> None:
    opened(browser, pages["plain"])
    pick = "const s = document.querySelector('#timeline select'); s.selectedIndex = 4"
    assert {rank for trace in traces(browser, "timeline") for rank in trace["y"]} == {"0"}
    browser.run(f"(() => {{ {pick}; s.dispatchEvent(new Event('change')); }})()")
    assert {rank for trace in traces(browser, "timeline") for rank in trace["y"]} == {"0", "1", "2", "3"}


def test_of_many_series_some_can_be_chosen(browser: Tab, tmp_path: Path) -> None:
    """Eight formats at three ranks with two loaders: sixteen series, too many for a legend."""
    store = ResultsStore(tmp_path / "store")
    grid = itertools.product((f"format{n}" for n in range(8)), ("torch", "dali"), (1, 2, 4))
    for number, (format, loader, ranks) in enumerate(grid):
        spec = made_spec(world_size=ranks, data={"format": format, "loader": loader})
        store.append(trial(number, f"p{number}", spec, made_figures(90.0 * ranks), label=f"{format} {loader} {ranks}"))
    html.write(store, tmp_path / "many.html")
    opened(browser, tmp_path / "many.html")
    options = "[...document.querySelectorAll('#rate select option')].map(one => one.textContent)"
    assert browser.run(options) == ["all 16 series", *(f"format{n}" for n in range(8))]
    assert len(traces(browser, "rate")) == 16 and browser.run("document.querySelector('#rate .legend')") is None
    pick = "const s = document.querySelector('#rate select'); s.selectedIndex = 3"
    browser.run(f"(() => {{ {pick}; s.dispatchEvent(new Event('change')); }})()")
    assert [(trace["name"], trace["x"]) for trace in traces(browser, "rate")] == [
        ("format2 torch", [1, 2, 4]),
        ("format2 dali", [1, 2, 4]),
    ]
    legend = browser.run("document.querySelector('#rate .legend').textContent")
    assert "format2 torch" in legend and "format2 dali" in legend
    browser.choose("format", "format5")
    assert browser.run(options) == ["all 16 series", "format5"]
    assert [trace["name"] for trace in traces(browser, "rate")] == ["format5 torch", "format5 dali"]
    assert browser.problems == []


LONG = "webdataset threads 2 workers fsdp 4 ranks bf16 cold"
TICKS = "[...document.querySelectorAll('.plot .ytick text, .plot .xtick text, .plot .legendtext')]"


def test_labels_of_a_phone_are_whole_and_inside(browser: Tab, tmp_path: Path) -> None:
    """Words of a label stand on lines below one another; nothing ends in an ellipsis or beyond the screen."""
    store = ResultsStore(tmp_path / "store")
    for number, ranks in enumerate((1, 2, 4)):
        for repeat, loader in enumerate(("threads", "torch")):
            spec = made_spec(world_size=ranks, data={"format": "webdataset", "loader": loader})
            label = f"{loader} {ranks} {LONG}"
            store.append(trial(2 * number + repeat, f"p{ranks}{loader}", spec, made_figures(90.0 * ranks), label=label))
    html.write(store, tmp_path / "long.html")
    opened(browser, tmp_path / "long.html", width=390)
    place = "t => [t.textContent, t.getBoundingClientRect().left, t.getBoundingClientRect().right]"
    found = browser.run(f"{TICKS}.map({place})")
    labels = [text for text, _, _ in found if LONG.replace(" ", "") in text.replace(" ", "")]
    assert len(labels) >= 12  # six bars in each of two charts at the least
    assert [(text, left, right) for text, left, right in found if left < 0 or right > 390 or "…" in text] == []


def test_light_and_dark_follow_the_browser(browser: Tab, pages: dict[str, Path]) -> None:
    opened(browser, pages["plain"])
    light = browser.run("getComputedStyle(document.documentElement).backgroundColor"), browser.run(CONTRAST)
    browser.look(1200, dark=True)
    dark = browser.run("getComputedStyle(document.documentElement).backgroundColor"), browser.run(CONTRAST)
    assert light == ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    assert dark == ("rgb(20, 23, 27)", "rgb(231, 234, 238)")


@pytest.mark.parametrize("name", ["plain", "nasty"])
def test_a_phone_scrolls_down_only(browser: Tab, pages: dict[str, Path], name: str) -> None:
    opened(browser, pages[name], width=390)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    widest = browser.run(
        "Math.max(...[...document.querySelectorAll('.plot .main-svg')].map(s => s.getBoundingClientRect().right))"
    )
    assert widest <= 390


def test_print_is_light_and_whole(browser: Tab, pages: dict[str, Path]) -> None:
    opened(browser, pages["plain"], dark=True)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(CONTRAST) == "rgb(27, 31, 36)"
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run(CONTRAST) == "rgb(231, 234, 238)"
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") >= 3 and browser.problems == []


def test_the_session_stands_before_the_point(browser: Tab, tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "store")
    for number, session in enumerate(("mon", "tue")):
        store.append(made_record(number, trial_id=session, session=session))
    html.write(store, tmp_path / "two.html")
    opened(browser, tmp_path / "two.html")
    heads = "[...document.querySelectorAll('#points th')].map((cell) => cell.textContent)"
    cells = "[...document.querySelectorAll('#points tbody td:first-child')].map((cell) => cell.textContent)"
    assert browser.run(heads)[:2] == ["session", "point"] and browser.run(cells) == ["mon", "tue"]


def test_rows_beyond_the_first_are_shown_on_demand(browser: Tab, tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "store")
    for number in range(30):
        store.append(made_record(number, trial_id=f"t{number}", point_id=f"p{number}", label=f"point {number}"))
    html.write(store, tmp_path / "many.html")
    opened(browser, tmp_path / "many.html")
    assert len(browser.run(ROWS)) == 25
    browser.run("document.querySelector('#points .more').click()")
    assert len(browser.run(ROWS)) == 30 and browser.run("document.querySelector('#points .more').hidden")


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three formats with one and two workers on a rank, two repeats each; one was disturbed."""
    folder = tmp_path_factory.mktemp("one")
    store = ResultsStore(folder / "store")
    rates = {"files": 50.0, "hdf5": 70.0, "lmdb": 90.0}
    grid = itertools.product(rates, (1, 2), range(2))
    for number, (form, workers, repeat) in enumerate(grid):
        spec = made_spec(data={"format": form, "num_workers": workers, "reader": "stock"})
        figures = made_figures(rates[form] * workers + repeat, load_s=0.010 * workers)
        noted = {"caveats": ["foreign_load"], "caveat_details": ["foreign_load: so"]} if form == "lmdb" else {}
        label = f"{form} {workers} workers"
        store.append(trial(number, f"{form}{workers}", spec, figures, label=label, repeat=repeat, **noted))
    html.write(store, folder / "one.html")
    return folder / "one.html"


def test_choices_of_one_rank_are_sorted_dots_and_not_lines_over_one_x(browser: Tab, one_rank: Path) -> None:
    opened(browser, one_rank)
    shown = browser.run(SHOWN)
    assert "choices" in shown and not {"au", "rate"} & {*shown}
    ranked, disturbed = traces(browser, "choices")
    assert (ranked["x"], disturbed["x"]) == ([140.5, 100.5, 70.5, 50.5], [90.5, 180.5])
    ticks = "[...document.querySelectorAll('#choices .ytick text')].map((one) => one.textContent)"
    assert browser.run(ticks) == [f"{form} {n} workers" for form, n in (
        ("lmdb", 2), ("hdf5", 2), ("files", 2), ("lmdb", 1), ("hdf5", 1), ("files", 1),
    )]  # fmt: skip
    assert "not ranked" in browser.run("document.querySelector('#choices .legend').textContent")
    assert browser.problems == []


def test_choices_can_be_set_against_any_axis_that_varies(browser: Tab, one_rank: Path) -> None:
    opened(browser, one_rank)
    selects = "[...document.querySelectorAll('#choices select')]"
    assert browser.run(f"{selects}.map((one) => one.ariaLabel)") == ["which to show", "against what"]
    assert browser.run(f"[...{selects}[0].options].map((one) => one.value)") == ["samples/s", "AU", "ms per step"]
    assert browser.run(f"[...{selects}[1].options].map((one) => one.value)") == ["", "format", "num_workers"]
    pick = f"const s = {selects}[1]; s.value = 'num_workers'; s.dispatchEvent(new Event('change'))"
    browser.run(f"(() => {{ {pick}; }})()")
    drawn = [(one["name"], one["x"], one["y"]) for one in traces(browser, "choices")]
    assert sorted(drawn) == [
        ("files", ["1", "2"], [50.5, 100.5]),
        ("hdf5", ["1", "2"], [70.5, 140.5]),
        ("lmdb", ["1", "2"], [90.5, 180.5]),
    ]
    browser.choose("format", "hdf5")
    assert [one["y"] for one in traces(browser, "choices")] == [[70.5, 140.5]]
    assert browser.problems == []


def test_a_hover_tells_the_point_and_its_figure_between_its_ends_with_units(browser: Tab, one_rank: Path) -> None:
    opened(browser, one_rank)
    hover = "Plotly.Fx.hover(plot, [{curveNumber: 0, pointNumber: 0}])"
    told = "[...plot.querySelectorAll('.hoverlayer text')].map((one) => one.textContent).join(' ')"
    said = browser.run(
        f"(() => {{ const plot = document.querySelector('#choices .plot'); {hover}; return {told}; }})()"
    )
    assert "hdf5 2 workers" in said and "140.5 [140 141] samples/s" in said
    said = browser.run(f"(() => {{ const plot = document.querySelector('#step .plot'); {hover}; return {told}; }})()")
    assert "load: 20 ms per step" in said


def test_tables_are_sorted_by_their_headings(browser: Tab, one_rank: Path) -> None:
    """Numbers by their size, the largest first, and the other way round the second time; by the keyboard, too."""
    opened(browser, one_rank)
    find = "[...document.querySelectorAll('#points th')].find((one) => one.textContent.startsWith('samples/s'))"
    browser.run(f"{find}.querySelector('button').click()")
    assert browser.run(f"{find}.getAttribute('aria-sort')") == "descending"
    assert browser.run(ROWS)[:2] == ["lmdb 2 workers", "hdf5 2 workers"]
    assert browser.run("document.activeElement.textContent") == "samples/s", "the keyboard stays where it was"
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    assert browser.run(f"{find}.getAttribute('aria-sort')") == "ascending"
    assert browser.run(ROWS)[0] == "files 1 workers"


def test_parts_of_a_step_are_bars_and_caveats_open_to_what_helps(browser: Tab, one_rank: Path) -> None:
    opened(browser, one_rank)
    bars = "[...document.querySelectorAll('#points .parts')]"
    assert browser.run(f"{bars}.length") == 6
    assert browser.run(f"{bars}[0].title").startswith("load 20 ms, h2d 1 ms, forward 20 ms, backward 40 ms")
    widths = browser.run(f"[...{bars}[0].children].map((one) => one.getBoundingClientRect().width)")
    assert widths[3] == pytest.approx(2 * widths[0], rel=0.05) and widths[0] == pytest.approx(widths[2], rel=0.05)
    badge = "document.querySelector('#points .badge')"
    assert browser.run(f"{badge}.querySelector('summary').textContent") == "foreign_load"
    hidden = f"{badge}.querySelector('span').checkVisibility()"
    assert browser.run(hidden) is False
    browser.run(f"{badge}.querySelector('summary').click()")
    assert browser.run(hidden) is True
    assert browser.run(f"{badge}.innerText").endswith("An idle machine. Other processes used the cores.")


def test_links_lead_to_the_parts_that_are_shown(browser: Tab, pages: dict[str, Path]) -> None:
    opened(browser, pages["plain"])
    links = "[...document.querySelectorAll('nav a:not([hidden])')]"
    found = browser.run(f"{links}.map((one) => one.hash.slice(1))")
    assert found == ["summary", "points", "failures", *CHARTS, "provenance"]
    assert all(browser.run(f"Boolean(document.getElementById('{name}'))") for name in found)
    browser.choose("format", "lmdb")
    assert not {"io", "staging", "buckets"} & {*browser.run(f"{links}.map((one) => one.hash.slice(1))")}


def test_scaling_stands_in_a_table_below_its_chart(browser: Tab, pages: dict[str, Path]) -> None:
    opened(browser, pages["plain"])
    heads = browser.run(
        "[...document.querySelectorAll('#weak-scaling .below table:first-of-type th')].map((e) => e.textContent)"
    )
    assert heads[:3] == ["ranks", "samples/s", "efficiency"]
    rows = browser.run("[...document.querySelectorAll('#weak-scaling .below tr')].map((e) => e.innerText)")
    assert any(row.startswith("4\t360") for row in rows) and not browser.run(
        "document.querySelector('#weak-scaling pre')"
    )
