"""The JSON Schema of users' tables: the columns that are read, their bounds and other names."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from benchsuite.contract.errors import UserError
from benchsuite.predict.scaling.table_input import COUNTS, FLAGS, NAMES, TIMES, Table, TableRow, _name_of, read


def row_schema() -> dict[str, Any]:
    found: dict[str, Any] = Table.model_json_schema()["$defs"]["TableRow"]
    return found


def test_every_column_that_is_read_is_in_the_schema_with_a_description():
    columns = row_schema()["properties"]
    assert [*columns] == [*NAMES]
    assert all(column["description"] and column["also"] == list(NAMES[name]) for name, column in columns.items())


def test_other_names_are_those_that_reading_knows():
    assert all(_name_of(also) == name for name, names in NAMES.items() for also in names)
    assert _name_of("GPUs") == "ranks" and _name_of("iteration time (ms)") == "step_ms"


def test_ranks_and_one_time_are_needed():
    schema = row_schema()
    assert schema["allOf"] == [{"anyOf": [{"required": ["ranks"]}, {"required": ["nodes"]}]}]
    assert schema["anyOf"] == [{"required": [name]} for name in TIMES]


@pytest.mark.parametrize("name", NAMES)
def test_bounds_are_those_of_reading(name: str, tmp_path: Path):
    """What the schema refuses is refused, and what it takes is read."""
    base = {"ranks": 2, "step_s": 0.5, "seq_len": 8}
    for value in (-1, 0, 0.5, 1, 3, 4):
        row = base | {name: value}
        if name in TIMES and name != "step_s":
            del row["step_s"]
        file = tmp_path / "t.json"
        file.write_text(json.dumps([row]))
        assert takes(row) == is_read(file), (name, value)
    assert (name in COUNTS) == (not takes(base | {name: 0.5}) and name not in FLAGS)


def takes(row: dict[str, Any]) -> bool:
    try:
        TableRow.model_validate(row)
    except ValidationError:
        return False
    return True


def is_read(file: Path) -> bool:
    try:
        read(file)
    except UserError as error:
        assert "is not allowed" in str(error), error
        return False
    return True


def test_both_forms_of_json():
    Table.model_validate([{"ranks": 1, "step_s": 0.5, "note": "x"}])
    Table.model_validate({"columns": ["gpus", "ms/step"], "rows": [[1, 500.0], [2, None]], "source": "a paper"})
