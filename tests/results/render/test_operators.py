"""Operator classes and the roofline as a table, in words, in Markdown and as charts."""

from pathlib import Path

import pytest

from benchsuite.results.charts import operators as charts
from benchsuite.results.render import operators
from benchsuite.results.render.tables import as_markdown
from benchsuite.results.report.markdown import report
from tests.results.report.reported import OPERATORS, full_store

ROW = {"label": "bert", **OPERATORS}


def test_in_words() -> None:
    classes, point = operators.lines(ROW)
    assert classes == (
        "operator classes: contraction 99.8 % of FLOPs, 61.0 % of the time; normalisation 0.2 % of FLOPs, 25.5 % of "
        "the time; element-wise 0.0 % of FLOPs, 10.0 % of the time; other 3.5 % of the time"
    )
    assert point == (
        "roofline: 20 FLOPs a byte (operator-level), 2 TFLOP/s, 25.0 % of the roof of 8 TFLOP/s, where memory is the "
        "bound (ridge at 100; published: X1)"
    )
    assert "compute is the bound" in operators.lines({**ROW, "arithmetic_intensity": 101.0})[1]


def test_what_is_missing_is_no_zero() -> None:
    unknown = dict.fromkeys(("roof_flops_per_s", "roof_fraction", "roof_source", "ridge_intensity"))
    compiled = {name: None for name in OPERATORS if name.endswith("_time_fraction")}
    classes, point = operators.lines({**ROW, **unknown, **compiled, "attained_flops_per_s": 27e9})
    assert point == "roofline: 20 FLOPs a byte (operator-level), 27 GFLOP/s; the device's roof is not known"
    assert "of the time" not in classes and "other -" in classes
    assert operators.lines({"label": "x"}) == []
    assert operators.sources([{**ROW, **unknown}]) == []


def test_as_a_table() -> None:
    text = as_markdown([ROW], operators.COLUMNS).splitlines()[-1]
    cells = ["bert", "99.8 % / 61.0 %", "0.2 % / 25.5 %", "0.0 % / 10.0 %", "- / 3.5 %", "20", "100", "2 TFLOP/s"]
    assert [cell.strip() for cell in text.strip("|").split("|")] == [*cells, "25.0 %"]


def test_in_the_report(tmp_path: Path) -> None:
    text = report(full_store(tmp_path))
    part = text.partition("Operators:")[2].partition("Every trial:")[0]
    assert "| 99.8 % / 61.0 % |" in part and "roof published: X1" in part and "operator-level bytes" in part
    assert text.count("Operators:") == 1, "only where they were counted"


def test_charts() -> None:
    (shares,), (roof,) = charts.classes([(3, ROW)]), charts.roofline([(3, ROW), (4, {"label": "plain"})])
    assert {trace["name"]: trace["x"] for trace in shares.traces} == {
        "contraction": [61.0],
        "normalisation": [25.5],
        "element-wise": [10.0],
        "other": [3.5],
    }
    line, dot = roof.traces
    assert line["name"] == "published: X1" and line["meta"] == {"point": 3}
    assert line["x"][1] == 100.0 and line["y"][1:] == pytest.approx([40.0, 40.0]), "the ridge, and the peak from there"
    assert line["y"][0] == pytest.approx(line["x"][0] * 0.4, rel=1e-3)
    assert (dot["x"], dot["y"], dot["customdata"]) == ([20.0], [2.0], [3])
    assert charts.classes([(0, {"label": "plain"})]) == charts.roofline([(0, {"label": "plain"})]) == []
