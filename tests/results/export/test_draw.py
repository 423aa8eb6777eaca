"""Vector figures: what they draw, and what is said where they cannot be drawn."""

import builtins
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchsuite.results.charts.modelled import pipelines
from benchsuite.results.charts.scaling import chart_of
from benchsuite.results.export.charts import draw
from benchsuite.results.report.modelled import PipelineStep, Slot
from benchsuite.results.scaling.series import find_series
from benchsuite.results.store.store import StoreError
from tests.results.scaled import frame, made_trials

pytest.importorskip("matplotlib")
SVG_TEXT = "{http://www.w3.org/2000/svg}text"
SERIES = find_series(frame(*made_trials({1: [100.0, 101.0], 2: [190.0, 191.0], 4: [None], 8: [640.0, 644.0]})))


def drawn(tmp_path: Path, format: str) -> Path:
    out = tmp_path / f"figure.{format}"
    return draw(chart_of(SERIES, ["weak <title>"], "Scaling efficiency"), out, format)


def test_svg_holds_the_axes_and_the_legend_as_text(tmp_path: Path):
    root = ElementTree.fromstring(drawn(tmp_path, "svg").read_text())
    words = ["".join(text.itertext()).strip() for text in root.iter(SVG_TEXT)]
    assert {"ranks", "efficiency", "ideal", "no result", "weak <title>", "1", "2", "4", "8"} <= {*words}


NASTY = "weak · a < b & c_d 100% $x_{$ \x1b[31m\x07\x00\x0b\ud800 ü"
PLAIN = "weak · a < b & c_d 100% $x_{$ ü"


def words_of(figure: Path) -> str:
    """All text of a figure: long names stand on several lines."""
    drawn = ("".join(text.itertext()) for text in ElementTree.parse(figure).iter(SVG_TEXT))
    return " ".join(" ".join(drawn).split())


def test_titles_of_users_are_text_in_svg_and_pdf(tmp_path: Path):
    """Two `$` would hold a formula that is none; control characters are no XML."""
    for format in ("svg", "pdf"):
        draw(chart_of(SERIES, [NASTY], "Scaling"), tmp_path / f"a.{format}", format)
    assert PLAIN in words_of(tmp_path / "a.svg")


def test_the_title_of_a_schedule_is_text_too(tmp_path: Path):
    (chart,) = pipelines([PipelineStep(NASTY, [Slot(0, "F", 0, 0, 0.0, 1.0)], timed=False)], {})
    assert f"Pipeline schedules · {PLAIN}" in words_of(draw(chart, tmp_path / "s.svg", "svg"))


def test_points_lie_where_their_efficiency_is(tmp_path: Path):
    """Heights tell the efficiencies: 1 at 1 rank, 190.5 / 201 at 2, 642 / 804 at 8. A fourth marker is the legend's."""
    text = drawn(tmp_path, "svg").read_text()
    uses = re.findall(r'<use xlink:href="#(\w+)" x="([\d.]+)" y="([\d.]+)" style="(\w+: #\w+)', text)
    left = min(float(x) for _, x, _, _ in uses)
    ticks = sorted({float(y) for _, x, y, style in uses if style == "stroke: #000000" and float(x) == left})
    blue = [(name, float(y)) for name, _, y, style in uses if style == "fill: #0072b2"]
    (markers,) = (found for name in {n for n, _ in blue} if len(found := [y for n, y in blue if n == name]) == 4)
    zero, fifth = ticks[-1], ticks[-2]
    heights = [(zero - y) / (zero - fifth) * 0.2 for y in markers[:3]]
    assert heights == pytest.approx([1.0, 190.5 / 201, 642 / 804], abs=1e-3)


@pytest.mark.parametrize("format", ["svg", "pdf"])
def test_the_same_series_give_the_same_bytes(tmp_path: Path, format: str):
    first = drawn(tmp_path, format).read_bytes()
    assert drawn(tmp_path, format).read_bytes() == first
    assert first.startswith(b"%PDF" if format == "pdf" else b"<?xml")


def test_without_matplotlib_what_to_install_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StoreError, match=r"^--pdf needs matplotlib .*pip install 'benchsuite\[figures\]'$"):
        drawn(tmp_path, "pdf")


def test_a_file_that_cannot_be_written(tmp_path: Path):
    with pytest.raises(StoreError, match=r"gone/figure\.svg: cannot be written: No such file"):
        drawn(tmp_path / "gone", "svg")
