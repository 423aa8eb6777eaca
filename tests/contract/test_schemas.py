"""JSON Schemas: those committed are those printed, and contracts only grow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchsuite.cli.inspect import SCHEMAS, json_schema

ROOT = Path(__file__).parents[2]
CONTRACT = Path(__file__).parent / "fixtures" / "contract_v2.json"
"""What schema 2 of records, and the first of all else, promised: for each schema its properties, dotted, and the values
of those with a few."""


def resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref", "").rpartition("/")[2]
    return schema["$defs"][name] if name else part


def properties(schema: dict[str, Any], part: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Every property with its enumerated values, nested ones and those of list items with dots."""
    for name, value in part.get("properties", {}).items():
        inner = resolved(schema, value)
        options = [inner, *inner.get("anyOf", [])]
        values = [
            item for option in options for item in option.get("enum", [option["const"]] if "const" in option else [])
        ]
        yield prefix + name, values
        yield from properties(schema, inner, f"{prefix}{name}.")
        yield from properties(schema, resolved(schema, inner.get("items", {})), f"{prefix}{name}.")


def contract(name: str) -> dict[str, list[Any]]:
    """Of records those of every kind; of a table the columns: its schema is rows, or a header with lists of cells."""
    schema = json.loads(json_schema(name))
    parts = [schema["$defs"]["TableRow"]] if name == "table" else schema.get("oneOf", [schema])
    found: dict[str, list[Any]] = {}
    for part in parts:
        for key, values in properties(schema, resolved(schema, part)):
            open_ended = key in found and not (found[key] and values)  # of which one part takes any value
            found[key] = [] if open_ended else [*found.get(key, []), *values]
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_schema_is_the_printed_one(name: str):
    path = ROOT / "benchsuite" / "schemas" / f"{name}.json"
    assert path.is_file() and path.read_text() == json_schema(name) + "\n", (
        f"{path.relative_to(ROOT)} is not what the models say. If the change is meant, refresh it with: "
        f"benchsuite schema {name} > {path.relative_to(ROOT)}"
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_contracts_only_grow(name: str):
    promised: dict[str, list[Any]] = json.loads(CONTRACT.read_text())[name]
    found = contract(name)
    assert [key for key in promised if key not in found] == [], "properties were taken away; fields are only ever added"
    lost = {  # where no values are named any more, all of the type are allowed
        key: [value for value in values if found[key] and value not in found[key]] for key, values in promised.items()
    }
    assert {key: values for key, values in lost.items() if values} == {}, "values were taken away"


@pytest.mark.parametrize("name", SCHEMAS)
def test_nothing_new_is_required_of_old_files(name: str):
    """A field that is added has a default: what was written before stays valid."""
    promised = json.loads(CONTRACT.read_text())[name]
    assert [key for key in json.loads(json_schema(name)).get("required", []) if key not in promised] == []


def test_contract_sees_nested_fields_and_values():
    assert contract("trial")["data.source"] == ["storage", "memory", "synthetic"]
    assert "figures.samples_per_s" in contract("record")
    assert "files.digest" in contract("manifest")
    assert "seq_len" in contract("table")


@pytest.mark.parametrize("name", ["record", "sweep", "trial"])
def test_every_field_says_what_it_is(name: str):
    """The reference among the pages is made of them."""
    schema = json.loads(json_schema(name))
    parts = [schema, *schema.get("$defs", {}).values()]
    fields = [(key, value) for part in parts for key, value in part.get("properties", {}).items()]
    told = ("description", "$ref", "const")
    blank = {key for key, value in fields if not any(word in json.dumps(value) for word in told)}
    assert blank == set()
