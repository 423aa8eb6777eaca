"""Tables on narrow terminals: what stands above and below them, and that nothing is cut."""

import io
import itertools
import re
from typing import Any

import pytest
from rich.console import Console

from benchsuite.results.render.tables import COLUMNS, TRIAL_COLUMNS, Column, Row, telling
from benchsuite.results.render.terminal import DROPPED_FIRST, fitting_table, hanging, say
from benchsuite.results.report import compare, mlperf, scaling
from benchsuite.results.report.probes import COLUMNS_OF

POINT: dict[str, Any] = {
    "trial_id": "0123456789ab.default.0",
    "label": "webdataset ddp 2 ranks",
    "status": "ok",
    "au": 0.51,
    "samples_per_s": 1234.0,
    "io_bytes_per_s": 12.34e6,
    "cache_hit_fraction": 0.25,
    "step_s_mean": 0.0321,
    "load_s": 0.010,
    "forward_s": 0.0221,
    "bottleneck": "storage",
    "caveats": ["not_steady", "foreign_load"],
}
OTHER = POINT | {
    "trial_id": "ba9876543210.default.0",
    "label": "files fsdp 4 ranks",
    "au": 0.93,
    "samples_per_s": 99.0,
    "load_s": 0.0123,
    "step_s_mean": 0.0543,
    "bottleneck": "communication",
    "caveats": ["unlike_any_other"],
}


def printed(found: list[Row], columns: tuple[Column, ...], width: int) -> list[str]:
    out = Console(width=width, file=io.StringIO(), color_system=None)
    out.print(fitting_table(found, columns, out))
    assert isinstance(out.file, io.StringIO)
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width, lines
    return lines


def cell_of(heading: str, row: Row, columns: tuple[Column, ...]) -> str:
    return next(column.cell(row) for column in columns if column.heading == heading)


def plain_columns(**widths: int) -> tuple[Column, ...]:
    """Columns of numbers as wide as they say."""
    return tuple(Column(name, lambda row, name=name: str(row[name])) for name in widths)


def test_a_table_that_fits_has_every_heading_on_one_line() -> None:
    head, rule, *lines = printed([POINT, OTHER], COLUMNS, 200)
    told = [column.heading for column in telling([POINT, OTHER], COLUMNS)]
    assert re.split(r" {2,}", head.strip()) == told and len(told) > 6
    assert {*rule.strip()} == {"─"}
    assert [line.strip().split("  ")[0] for line in lines] == [
        POINT["label"],
        OTHER["label"],
    ]


def test_in_a_pipe_no_line_ends_in_blanks_and_none_is_blank() -> None:
    out = Console(width=2000, file=io.StringIO(), color_system=None)
    out.print(fitting_table([POINT, OTHER], TRIAL_COLUMNS, out))
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert len(lines) == 4 and all(line == line.rstrip() != "" for line in lines)
    assert OTHER["label"] in lines[3] and lines[3].endswith("unlike_any_other")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_numbers_are_whole_and_words_too(width: int) -> None:
    text = "\n".join(printed([POINT, OTHER], TRIAL_COLUMNS, width))
    gone = text.rpartition("no room for ")[2].partition(":")[0].split(", ") if "no room for " in text else []
    assert {*gone} <= {*DROPPED_FIRST}
    assert len(gone) < {60: 6, 80: 4, 100: 3}[width]
    for row in (POINT, OTHER):
        for heading in ("AU", "samples/s", "ms/step", "MB/s"):
            assert heading in gone or cell_of(heading, row, TRIAL_COLUMNS) in text.split(), (heading, text)
        for word in (*row["label"].split(), *row["caveats"], row["bottleneck"]):
            assert word in text.replace("\n", " ").split(), (word, text)


def test_what_is_the_same_in_all_rows_stands_once_above() -> None:
    lines = printed([POINT, OTHER, POINT], TRIAL_COLUMNS, 80)
    assert lines[0].startswith("in all rows: status ok · ")
    assert "\n".join(lines).count("75%") == 1


def test_a_single_row_without_room_is_a_block_with_everything() -> None:
    lines = printed([POINT], TRIAL_COLUMNS, 80)
    assert [line.split()[0] for line in lines[:3]] == ["trial", "status", "point"]
    for column in TRIAL_COLUMNS:
        cell = column.cell(POINT)
        assert cell in ("", "-") or f"{column.heading:<27}  {cell}" in lines, column.heading


def test_remarks_are_numbered_below() -> None:
    rows = [POINT, OTHER, POINT | {"caveats": []}, POINT | {"label": "again"}]
    lines = printed(rows, COLUMNS, 70)
    assert "note 1: not_steady foreign_load" in lines and "note 2: unlike_any_other" in lines
    ends = [line.split()[-1] for line in lines[2:] if {"storage", "communication"} & {*line.split()}]
    assert ends == ["1", "2", "storage", "1"]


def test_columns_that_have_no_room_are_named() -> None:
    lines = printed([POINT, OTHER], TRIAL_COLUMNS, 60)
    (line,) = [line for line in lines if line.startswith("no room for ")]
    assert line.startswith("no room for = load+h2d+fwd+bwd+comm+opt")
    assert "a wider terminal" in " ".join(lines)


def test_a_query_with_more_columns_than_room_is_a_block_per_row() -> None:
    names = [f"column_{n}" for n in range(12)]
    columns = plain_columns(**dict.fromkeys(names, 9))
    lines = printed([dict.fromkeys(names, 123456789), dict.fromkeys(names, 5)], columns, 60)
    assert lines[0] == "column_0   123456789" and lines[11] == "column_11  123456789"
    assert lines[12] == "" and lines[13] == "column_0   5"


def test_a_long_word_is_broken_rather_than_cut() -> None:
    path = "/scratch/project/" + "x" * 90
    row = {"path": path, "file": "a file system", "MB/s": "1234567.8"}
    columns = (Column("path", lambda row: row["path"], right=False), Column("rate", lambda row: row["MB/s"]))
    lines = printed([row, row | {"path": "short"}], columns, 60)
    assert "".join(line.split()[0] for line in lines if "x" in line) == path
    assert any("1234567.8" in line for line in lines)


def test_colours_of_a_log_do_not_reach_the_terminal() -> None:
    for width in (60, 300):
        text = "\n".join(printed([POINT | {"label": "\x1b[31mred\x1b[0m\x07 one"}, OTHER], COLUMNS, width))
        assert "red" in text and "\x1b" not in text and "\x07" not in text


def compared_row(label: str, metric: str, why: str | None) -> Row:
    told = {"label": label, "metric": metric, "good": "up", "a": 1234.5e6, "b": 1111.25e6}
    numbers = {"repeats_a": 10, "repeats_b": 12, "ratio": 0.9, "ratio_of_medians": 0.9, "practical": 0.005}
    said = {"ratio_low": 0.898, "ratio_high": 0.903, "verdict": "can't tell", "why": why, "left_out": 0, "caveats": []}
    return told | numbers | said


def test_a_comparison_fits_80_columns_with_its_reasons() -> None:
    metrics = ("samples_per_s", "first_batch_s", "peak_memory_bytes")
    pairs = itertools.product(("wds lustre", "hdf5 nvme"), metrics)
    why = "needs {} repeats a side for 8 comparisons, has 3 and 3"
    rows = [compared_row(label, metric, why.format(n)) for n, (label, metric) in enumerate(pairs)]
    lines = printed(rows, compare.COLUMNS, 80)
    told = [line.split() for line in lines]
    text = " ".join(" ".join(words) for words in told)
    assert "0.900 [0.898 0.903]" in text and "1234 MB" in text and "1111 MB" in text
    assert all(f"needs {n} repeats a side" in text for n in range(len(rows)))
    assert all(metric in text.split() for metric in metrics)


def test_scaling_fits_80_columns() -> None:
    shared = {"weak_efficiency": None, "interval": "95 %", "repeats": 6, "reason": None, "status": "ok"}
    rows = [
        shared
        | {"ranks": ranks, "samples_per_s": 364.0 * ranks, "samples_per_s_min": 300.0, "samples_per_s_max": 40000.0}
        | {"strong_efficiency": 0.91, "strong_efficiency_low": 0.89, "strong_efficiency_high": 1.01}
        | {f"lost_{name}": 0.01 * ranks for name in ("load", "communication", "imbalance", "rest")}
        | {"caveats": ["not_steady", "unstable"] if ranks > 1 else []}
        for ranks in (1, 2, 64)
    ]
    text = "\n".join(printed(rows, scaling.COLUMNS, 80))
    assert all(f"{0.01 * ranks * 100:.0f} %" in text for ranks in (1, 2, 64))
    assert "23296.0 ±22996.0" in text and "not_steady unstable" in text and "no room" not in text


@pytest.mark.parametrize("columns", [COLUMNS_OF["probe"], COLUMNS_OF["checkpoint"], mlperf.COLUMNS])
def test_every_table_has_its_remarks_marked(columns: tuple[Column, ...]) -> None:
    assert [column.heading for column in columns if column.footnote] in (["caveats"], ["caveats", "deviations"])


def test_lines_hang_below_their_beginning() -> None:
    text = "  likely layer: input: load 1.0 -> 2.0 ms a step"
    assert hanging(text, 30).split("\n") == ["  likely layer: input: load", "    1.0 -> 2.0 ms a step"]
    assert hanging("/a/path/that/is-longer-than-the-line", 10) == "/a/path/that/is-longer-than-the-line"


def test_lines_are_wrapped_on_terminals_only() -> None:
    found = []
    for is_terminal in (True, False):
        out = Console(width=20, file=io.StringIO(), force_terminal=is_terminal, color_system=None)
        say(out, "a line [bold]that[/bold] is :smile: too long\nand another")
        assert isinstance(out.file, io.StringIO)
        found.append(out.file.getvalue())
    assert found[1] == "a line [bold]that[/bold] is :smile: too long and another\n"  # a name's newline ends no line
    assert found[0].split() == found[1].split() and max(map(len, found[0].splitlines())) <= 20
