"""Columns of what devices say, and all columns."""

from typing import Any

from benchsuite.results.render.device_columns import DEVICE_COLUMNS, every_column, of_card, significant
from tests.results.report.reported import GB

CARDS = [{"name": "H100", "memory_bytes": 80 * GB}, {"name": "A2", "memory_bytes": 16 * GB}]


def test_three_digits_whatever_the_size() -> None:
    found = [significant({"x": value}, "x") for value in (123456.0, 12.345, 0.0012345, 0.0)]
    assert found == ["123456", "12.3", "0.00123", "0"]
    assert significant({}, "x") == "-"


def test_the_peak_against_the_card() -> None:
    row: dict[str, Any] = {"spec.device": "cuda", "env.devices": CARDS[:1], "peak_memory_bytes": 40 * GB}
    assert of_card(row) == "40.0 of 80"
    assert of_card(row | {"device_memory_bytes": 56 * GB}) == "56.0 of 80", "what libraries hold included"
    assert of_card(row | {"spec.device": "cpu"}) == "-", "of a cpu it is resident memory"
    assert of_card(row | {"env.devices": CARDS}) == "40.0 of 16", "of the smallest that there is"
    assert of_card(row | {"env.devices": CARDS, "spec.device": "H100"}) == "40.0 of 80", "a watched loop names its own"
    assert of_card(row | {"env.devices": []}) == of_card(row | {"env.devices": ["H100"]}) == "-"


def test_every_figure_has_one_column() -> None:
    row: dict[str, Any] = {"energy_j": 5.0, "startup_s": 1.23456, "weights_bytes": 4 * GB, "flops_convention": "words"}
    columns = {column.heading: column for column in every_column([row])}
    assert {column.heading for column in DEVICE_COLUMNS} < columns.keys() and "energy_j" not in columns
    assert columns["startup_s"].cell(row) == "1.235" and columns["weights_bytes"].cell(row) == "4,000,000,000"
    assert "flops_convention" not in columns and "final_loss" not in columns, "words, and what nobody has"
    assert [*columns][-2:] == ["verdict", "caveats"]
