"""`sweep --show-config`: every value of a sweep's base, and where it comes from."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from benchsuite.contract.exit_codes import PlainFormat
from benchsuite.contract.terminal import document
from benchsuite.contract.trial_spec import SweepSpec, TrialSpec, parse_trial
from benchsuite.contract.yaml_file import Values, flat, read_yaml, set_key
from benchsuite.grid.expand import load_sweep
from benchsuite.grid.layers import BUILT_IN, Layered, bundled, layered


@dataclass(frozen=True)
class Setting:
    """A field of a trial in a sweep."""

    key: str
    value: Any
    """The values of its axis, where it has one."""
    varies: str | None
    """grid or zip; None where it has one value."""
    origin: str


def show(file: Path, overrides: list[str], format: PlainFormat) -> None:
    """Print the settings of a sweep file; run nothing.

    Raises:
        UserError: one line about the first problem.
    """
    path = bundled(file)
    sweep = load_sweep(path, overrides)
    _check(sweep)
    found = settings(layered(read_yaml(path), str(path), overrides))
    if format is PlainFormat.json:
        document(json.dumps([asdict(setting) for setting in found], indent=1))
    else:
        _print(found)


def _check(sweep: SweepSpec) -> None:
    """Refuse what the first point of the grid would be refused for."""
    nested: Values = {}
    firsts = {key: values[0] for key, values in {**sweep.grid, **sweep.zip}.items()}
    for key, value in {**flat(sweep.base), **firsts}.items():
        set_key(nested, key, value)
    parse_trial(nested)


def settings(found: Layered) -> list[Setting]:
    """Every field of a trial, in the order of the schema, and the axes that vary a part of one."""
    fields = dict(_defaults(TrialSpec))
    fields |= dict.fromkeys(key for part in ("grid", "zip") for key in found.sweep[part] if key not in fields)
    return [_setting(key, default, found) for key, default in fields.items()]


def _defaults(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with their built-in values; degrees of parallelism are one value."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _defaults(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, None if field.is_required() else field.default


def _setting(key: str, default: Any, found: Layered) -> Setting:
    below = [name for name in found.origins if name == key or name.startswith(f"{key}.")]
    origin = found.origins[below[-1]] if below else BUILT_IN
    for part in ("grid", "zip"):
        if key in found.sweep[part]:
            return Setting(key, found.sweep[part][key], part, found.origins[key])
    return Setting(key, _lookup(found.sweep["base"], key, default), None, origin)


def _lookup(base: Values, key: str, default: Any) -> Any:
    value: Any = base
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return default
        value = value[part]
    return value


def _print(found: list[Setting]) -> None:
    from rich.table import Table

    from benchsuite.contract.console import console

    table = Table("field", "value", "from", box=None, pad_edge=False)
    for setting in found:
        words = _in_words(setting.value)
        value = f"{setting.varies}: {words}" if setting.varies else words
        table.add_row(setting.key, _plain(value), _plain(setting.origin))
    console().print(table)


def _in_words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
