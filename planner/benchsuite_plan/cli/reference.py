"""The verbs `plan list` and `plan schema`: machines and models to choose from, and what files of one's own hold."""

import json
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Annotated, Literal

import typer
from pydantic import TypeAdapter

from benchsuite.contract.errors import refuse
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite_plan.layout import machines, models, template

SchemaName = Literal["machine", "model", "table"]
SCHEMAS: Mapping[str, str] = {
    "machine": "benchsuite_plan.layout.machines:Machine",
    "model": "benchsuite_plan.layout.models:Model",
    "table": "benchsuite_plan.tables.table_input:Table",
}
"""Where each is: that of tables takes pandas."""


def list_(
    what: Annotated[str, typer.Argument(help="machines or models; default: both.")] = "",
    yaml: Annotated[
        str | None, typer.Option("--yaml", metavar="NAME", help="Print this machine or model as YAML, to edit.")
    ] = None,
    format: Annotated[PlainFormat, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """List the machines and models that there are."""
    if yaml is not None:
        return document(template.text(what, yaml).removesuffix("\n"))
    found = {"machines": machines.names(), "models": models.names()}
    if what and what not in found:
        raise refuse("plan list", what, found)
    found = {what: found[what]} if what else found
    if format == "json":
        return document(json.dumps(found, indent=1))
    echo(*(f"{kind}: {', '.join(names)}" for kind, names in found.items()))


def schema(what: Annotated[SchemaName, typer.Argument(help="machine, model or table.")]) -> None:
    """Print a JSON Schema."""
    document(json_schema(what))


def json_schema(what: str) -> str:
    """A JSON Schema, with sorted keys."""
    return json.dumps(TypeAdapter(resolve_name(SCHEMAS[what])).json_schema(), indent=1, sort_keys=True)
