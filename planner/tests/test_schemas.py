"""JSON Schemas of machines, models and tables: those committed are those printed, and contracts only grow."""

import json
from pathlib import Path

import pytest
import yaml

from benchsuite_plan.cli.reference import SCHEMAS, json_schema
from benchsuite_plan.layout import machines
from tests.contract.test_schemas import properties

PACKAGE = Path(__file__).parents[1] / "benchsuite_plan"
PROMISED: dict[str, dict[str, list[str]]] = json.loads((Path(__file__).parent / "fixtures/contract.json").read_text())


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_schema_is_the_printed_one(name: str):
    path = PACKAGE / "schemas" / f"{name}.json"
    assert path.read_text() == json_schema(name) + "\n", f"refresh it with: benchsuite plan schema {name} > {path}"


@pytest.mark.parametrize("name", SCHEMAS)
def test_contracts_only_grow(name: str):
    """No property or value of one is taken away, and nothing new is required of old files."""
    schema = json.loads(json_schema(name))
    found = dict(properties(schema, schema["$defs"]["TableRow"] if name == "table" else schema))
    promised = PROMISED[name]
    assert [key for key in promised if key not in found] == []
    lost = {key: [value for value in values if value not in found[key]] for key, values in promised.items()}
    assert {key: values for key, values in lost.items() if values and found[key]} == {}
    assert [key for key in schema.get("required", []) if key not in promised] == []


@pytest.mark.parametrize("name", ["machine", "model"])
def test_shipped_files_keep_to_their_schema(name: str):
    """Every key that a shipped machine or model sets is a property, and what is required is there."""
    schema = json.loads(json_schema(name))
    for file in (PACKAGE / "layout" / f"{name}s").glob("*.yaml"):
        text = yaml.safe_load(file.read_text())
        shared = text.get("common", {})
        for entry in text["models"].values() if "models" in text else [text]:
            values = shared | entry
            assert {*values} <= {*schema["properties"]}, file
            assert {*schema["required"]} <= {*values}, file


def test_units_and_bounds_stand_in_the_schema():
    device = json.loads(json_schema("machine"))["$defs"]["Device"]
    peak = device["properties"]["peak_flops"]["additionalProperties"]
    assert (peak["unit"], peak["minimum"], peak["maximum"]) == ("FLOP/s of one device", 1e11, 1e17)
    assert device["properties"]["peak_flops"]["propertyNames"]["enum"] == [*machines.PRECISIONS]
    assert "dense" in device["properties"]["peak_flops"]["description"]
