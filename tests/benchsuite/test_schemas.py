"""JSON Schemas: those committed are those printed, and contracts only grow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchsuite.inventory import SCHEMAS, json_schema

ROOT = Path(__file__).parents[2]
CONTRACT = Path(__file__).parent / "fixtures" / "contract_v1.json"
"""What the first version promised: for each schema its properties, dotted, and the values of those with a few."""


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
    schema = json.loads(json_schema(name))
    return dict(properties(schema, schema))


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
    """A field that is added has a default: what version 1 wrote stays valid."""
    promised = json.loads(CONTRACT.read_text())[name]
    assert [key for key in json.loads(json_schema(name)).get("required", []) if key not in promised] == []


def test_contract_sees_nested_fields_and_values():
    assert contract("trial")["data.source"] == ["storage", "memory", "synthetic"]
    assert "figures.samples_per_s" in contract("record")
    assert "files.digest" in contract("manifest")
