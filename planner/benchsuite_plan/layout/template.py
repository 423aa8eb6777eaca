"""A shipped machine or model as YAML to edit, with what each key is."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from benchsuite.contract.errors import UserError, refuse
from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.machines import Machine
from benchsuite_plan.layout.models import Model
from benchsuite_plan.layout.yaml_input import Part, Quantity

COLUMN = 42
"""Where values end, where they leave room for it."""
HEADS = {
    "machines": "A machine of your own: edit, save, and give the file to `benchsuite plan --machine`.",
    "models": "A model of your own: edit, save, and give the file to `benchsuite plan --model`.",
}
NOTE = "null: not known. `benchsuite plan schema {what}` has every key with its bounds."


def text(what: str, name: str) -> str:
    """The machine or model as YAML, each key with a comment; reading it gives the same again.

    Raises:
        UserError: neither machines nor models are asked for, or there is none of that name.
    """
    if what not in HEADS:
        raise UserError(f"--yaml {name}: goes with {' and '.join(HEADS)}: benchsuite plan list machines --yaml {name}")
    of = machines if what == "machines" else models
    if name not in of.names():
        raise refuse("--yaml", name, of.names())
    found: Machine | Model = of.load(name)
    own = [key for key in type(found).model_fields if _is_shown(found, key)]
    head = [f"# {HEADS[what]}", f"# {NOTE.format(what=what.removesuffix('s'))}"]
    return "\n".join([*head, *_lines(found, own, "")]) + "\n"


def _is_shown(of: Machine | Model, key: str) -> bool:
    """All of a machine but its name, which is the file's; of a model what was set, for kinds differ."""
    return key != "name" and (isinstance(of, Machine) or getattr(of, key) != type(of).model_fields[key].default)


def _lines(of: Part, keys: list[str], indent: str) -> Iterator[str]:
    """Lines of some keys, each in block style."""
    for key in keys:
        value, field = getattr(of, key), type(of).model_fields[key]
        unit = next((each.unit for each in _metadata(field) if isinstance(each, Quantity)), None)
        about = ". ".join(filter(None, (unit, " ".join((field.description or "").split()))))
        if isinstance(value, Part):
            yield f"{indent}{key}:"
            yield from _lines(value, list(type(value).model_fields), f"{indent}  ")
        elif isinstance(value, Mapping):
            yield _commented(f"{indent}{key}:", about)
            yield from (f"{indent}  {name}: {scalar(item)}" for name, item in value.items())
        elif isinstance(value, list):
            yield _commented(f"{indent}{key}:" + ("" if value else " []"), about)
            yield from (f"{indent}  - {scalar(item)}" for item in value)
        else:
            yield _commented(f"{indent}{key}: {scalar(value)}", about)


def _metadata(field: Any) -> list[Any]:
    """Metadata of a field's annotation, and of the alternatives in it."""
    parts = getattr(field.annotation, "__args__", ())
    return [*field.metadata, *(each for part in parts for each in getattr(part, "__metadata__", ()))]


def _commented(line: str, about: str) -> str:
    return f"{line:<{COLUMN}}  # {about}" if about else line


def scalar(value: Any) -> str:
    """A value on one line that YAML reads as the same: numbers by powers of 1,000 where that is shorter, and exact."""
    if isinstance(value, float) and value.is_integer():
        power = (len(f"{abs(value):.0f}") - 1) // 3 * 3
        plain, short = f"{value:.0f}", f"{value / 10**power!r}e+{power}"
        return short if float(short) == value and len(short) < len(plain) else plain
    shown = yaml.safe_dump(value, default_flow_style=True, width=100_000, allow_unicode=True)
    return shown.removesuffix("\n").removesuffix("\n...")
