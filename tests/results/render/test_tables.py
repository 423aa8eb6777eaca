"""Tables: how cells are printed, and that each output format can be read back."""

import csv
import io
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from benchsuite.results.render.tables import (
    COLUMNS,
    TRIAL_COLUMNS,
    Column,
    as_csv,
    as_json,
    as_markdown,
    caveats,
    from_storage,
    is_missing,
    number,
    of_epoch,
    outcome,
    rows,
    step_parts,
    troubles,
)
from benchsuite.results.render.terminal import fitting_table


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"au_epoch": 0.7, "au_epoch_rule": "epoch"}, "0.70"),
        ({"au_epoch": 0.7, "au_epoch_rule": "epoch", "au_epoch_error": 0.05}, "0.70 ±0.05"),
        ({"au_epoch": 0.7, "au_epoch_rule": "window", "au_epoch_error": 0.05}, "0.70 ±0.05 est."),
        (
            {
                "au_epoch": 0.7,
                "au_epoch_rule": "stream",
                "au_epoch_error": 0.05,
                "au_epoch_min": 0.62,
                "au_epoch_max": 0.7,
            }
            | {"repeats": 3},
            "0.70 ±0.08 est.",
        ),
        ({"au_epoch": None, "au_epoch_rule": "window"}, "-"),
    ],
)
def test_an_estimated_epoch_says_so_and_how_far_it_may_be_off(row: dict[str, Any], said: str):
    assert of_epoch(row) == said


POINT: dict[str, Any] = {
    "label": "files",
    "status": "ok",
    "au": 0.5,
    "samples_per_s": 123.4,
    "io_bytes_per_s": 12.34e6,
    "cache_hit_fraction": 0.25,
    "step_s_mean": 0.0321,
    "load_s": 0.010,
    "forward_s": 0.0221,
    "bottleneck": "storage",
    "caveats": [],
}


def as_text(found: list[dict[str, Any]], columns: tuple[Column, ...] = COLUMNS) -> str:
    out = Console(width=200, file=io.StringIO())
    out.print(fitting_table(found, columns, out))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def cells(line: str) -> list[str]:
    """The cells of a line of a pipe table, as GitHub splits it."""
    return [cell.strip() for cell in line.strip("|").replace("\\|", "\0").split("|")]


def test_missing_is_not_zero():
    assert [is_missing(value) for value in (None, float("nan"), np.float64("nan"), 0, 0.0, "", [])] == [True] * 3 + [
        False
    ] * 4


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (None, "-"), (float("nan"), "-"), (1.234, "1.23"), (2, "2.00")]
)
def test_number(value: float | None, text: str):
    assert number({"au": value}, "au") == text


def test_number_scales_and_rounds():
    assert number({"step_s_mean": 0.03217}, "step_s_mean", 1e3, 1) == "32.2"


@pytest.mark.parametrize(("low", "repeats", "text"), [(0.5, 1, "0.50"), (0.4, 1, "0.50 ±0.10"), (0.5, 3, "0.50 ±0.00")])
def test_a_single_repeat_has_a_distance_where_other_sessions_give_one(low: float, repeats: int, text: str):
    assert number({"au": 0.5, "au_min": low, "au_max": 0.5, "repeats": repeats}, "au") == text


def test_number_shows_how_far_repeats_spread():
    row = {"au": 0.5, "au_min": 0.4, "au_max": 0.52, "repeats": 3}
    assert number(row, "au").startswith("0.50 ")
    assert "0.10" in number(row, "au") or "0.40" in number(row, "au")
    assert number(row | {"au_min": None}, "au") == "0.50"


def test_step_parts_are_a_sum_with_gaps_where_a_part_is_unknown():
    parts = step_parts(POINT | {"h2d_s": 0.0, "communication_s": None})
    assert [part.strip() for part in parts.split("+")] == ["10.0", "0.0", "22.1", "-", "-", "-"]
    assert step_parts({"status": "failed"}) == "-"


def test_from_storage():
    assert from_storage(POINT) == "75%"
    assert from_storage({"cache_hit_fraction": 0.0}) == "100%"
    assert from_storage({"cache_hit_fraction": None}) == "-"


def test_outcome_is_the_verdict_or_the_status():
    assert outcome(POINT) == "storage"
    assert outcome(POINT | {"bottleneck": None}) == "-"
    assert outcome(POINT | {"repeats_failed": 2}) == "storage (2 failed)"
    assert outcome(POINT | {"status": "oom"}) == "oom"


def test_caveats_name_instability_too():
    assert caveats({"caveats": ["not_cold", "not_steady"]}) == "not_cold not_steady"
    assert caveats({"caveats": ["not_cold"], "unstable": True}) == "not_cold unstable"
    assert caveats({"caveats": [], "unstable": False}) == ""
    borne = {
        "caveats": ["foreign_load", "not_cold"],
        "caveat_repeats": {"foreign_load": 1, "not_cold": 3},
        "repeats": 3,
    }
    assert caveats(borne) == "foreign_load(1/3) not_cold"


def test_troubles_count_what_is_alike():
    failed = {"label": "files", "status": "failed", "reason": "disk on fire"}
    skipped = {"label": "tar", "status": "skipped", "reason": "no shards"}
    found = troubles([POINT, failed, skipped, failed, failed | {"label": "lmdb"}])
    assert found == ["failed: files x 2, lmdb: disk on fire", "skipped: tar: no shards"]
    assert troubles([POINT]) == []


def test_troubles_of_many_points_are_cut_short():
    points = [{"label": f"point {number}", "status": "skipped", "reason": "no shards"} for number in range(6)]
    assert troubles(points) == ["skipped: point 0, point 1, point 2, point 3 and 2 more: no shards"]


def test_markdown_escapes_pipes_and_line_ends():
    table = as_markdown([POINT | {"label": "a|b\nc"}, POINT], COLUMNS)
    lines = table.split("\n")
    assert len(lines) == 4
    assert {len(cells(line)) for line in lines} == {len([column for column in COLUMNS if not column.optional])}
    assert cells(lines[2])[0] == "a\0b c"
    assert cells(lines[3])[:4] == ["files", "0.50", "123", "12.3"]
    assert cells(lines[1])[0] == "---" and cells(lines[1])[1] == "---:"


def test_optional_columns_are_there_when_a_row_has_something_in_them():
    heading = as_markdown([POINT, POINT | {"mfu": 0.5, "tokens_per_s": 1000.0}], COLUMNS).split("\n")[0]
    assert cells(heading)[2:5] == ["samples/s", "tokens/s", "MFU"]


def test_markdown_escapes_headings():
    lines = as_markdown([{"a|b": 1}], [Column("a|b", lambda row: str(row["a|b"]))]).split("\n")
    assert {len(cells(line)) for line in lines} == {1}


def test_markdown_without_rows_is_a_heading():
    assert len(as_markdown([], TRIAL_COLUMNS).split("\n")) == 2


def test_json_reads_back():
    found = [POINT | {"caveats": ["a"], "au": None, "question": 'so "quoted"?\n|'}]
    assert json.loads(as_json(found)) == found
    assert json.loads(as_json([])) == []


def test_csv_reads_back():
    found = [{"label": 'a, "b"\nc', "au": None, "caveats": ["x", "y"], "zero": 0.0}, {"label": "d", "late": True}]
    back = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert back[0] == {"label": 'a, "b"\nc', "au": "", "caveats": '["x", "y"]', "zero": "0.0", "late": ""}
    assert json.loads(back[0]["caveats"]) == ["x", "y"]
    assert back[1] == {"label": "d", "au": "", "caveats": "", "zero": "", "late": "True"}
    assert as_csv([]) == ""


def test_rows_have_null_for_what_is_missing():
    frame = pd.DataFrame({"au": [0.5, float("nan")], "caveats": [["a"], []], "repeat": [0, 1]})
    assert rows(frame) == [
        {"au": 0.5, "caveats": ["a"], "repeat": 0},
        {"au": None, "caveats": [], "repeat": 1},
    ]
    assert json.loads(as_json(rows(frame)))[1] == {"au": None, "caveats": [], "repeat": 1}


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1, None], dtype="Int32"),
        pytest.param(
            pd.Series([pd.Timestamp("2026-01-01"), pd.NaT]),
        ),
    ],
)
def test_rows_have_null_for_the_nulls_of_a_query(column: "pd.Series[Any]"):
    found = json.loads(as_json(rows(pd.DataFrame({"value": column}))))
    assert found[1] == {"value": None}


def test_lists_of_a_query_are_lists():
    frame = pd.DataFrame({"caveats": [np.array(["a", "b"], dtype=object)]})
    assert json.loads(as_json(rows(frame))) == [{"caveats": ["a", "b"]}]
    assert as_csv(rows(frame)) == 'caveats\n"[""a"", ""b""]"'


def test_table_leaves_out_columns_that_say_nothing():
    text = as_text([POINT, POINT | {"label": "tar", "au": None}])
    assert "verdict" in text and "storage" in text and "tar" in text
    assert "caveats" not in text
    assert "caveats" in as_text([POINT | {"caveats": ["not_cold"]}])


def test_table_prints_brackets_as_they_are():
    assert "[bold]x[/bold]" in as_text([POINT | {"label": "[bold]x[/bold]"}])
