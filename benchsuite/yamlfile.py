"""YAML files, nested and dotted keys, and `key=value` overrides."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchsuite.errors import UserError

Values = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which would let the second of two equal keys win in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        doubled = [key for key in keys if keys.count(key) > 1]
        if doubled:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"key {doubled[0]!r} stands twice in the mapping that starts at line {line}")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Values:
    """A file's YAML mapping.

    Raises:
        UserError: missing, unreadable, or not a mapping.
    """
    try:
        return parse_yaml(path.read_text(), str(path))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not YAML: {error}") from error


def parse_yaml(text: str, name: str) -> Values:
    """A YAML mapping.

    Raises:
        UserError: not YAML, or not a mapping; naming `name`.
    """
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split()).replace(' in "<unicode string>",', "")
        raise UserError(f"{name}: not YAML: {reason}") from error
    if value is None:
        raise UserError(f"{name}: is empty")
    if not isinstance(value, dict):
        raise UserError(f"{name}: holds {type(value).__name__}, not keys and values")
    return value


def parse_override(text: str) -> tuple[str, Any]:
    """The key and the value of `-o key=value`.

    Raises:
        UserError: no `=` in it, or the value is not YAML.
    """
    key, equals, raw = text.partition("=")
    if not equals:
        raise UserError(f"-o {text!r}: give key=value, such as -o measure.steps=10")
    try:
        return key, yaml.safe_load(raw)
    except yaml.YAMLError:
        raise UserError(f"-o {text!r}: {raw!r} is not a YAML value") from None


def override(value: Values, overrides: list[str]) -> Values:
    """Apply `key=value` overrides to a sweep: a list becomes an axis of the grid, anything else a base value.

    Raises:
        UserError: no `=` in it, or the value is not YAML.
    """
    sweep = with_parts(value)
    for text in overrides:
        assign(sweep, *parse_override(text))
    return sweep


def with_parts(value: Values) -> Values:
    """A copy of a sweep that has its base, grid and zip, empty where they are not given.

    Raises:
        UserError: one of them holds no keys and values.
    """
    return {**value, **{key: _mapping(value, key) for key in ("base", "grid", "zip")}}


def assign(sweep: Values, key: str, value: Any) -> None:
    """Give a key of a sweep another value, or, by a list, other values to vary over."""
    sweep["grid"].pop(key, None)
    together = sweep["zip"].pop(key, None)
    if not isinstance(value, list):
        set_key(sweep["base"], key, value)
    elif together is not None:
        sweep["zip"][key] = value
    else:
        sweep["grid"][key] = value


def _mapping(value: Values, key: str) -> Values:
    inner = value.get(key) or {}
    if not isinstance(inner, Mapping):
        raise UserError(f"{key!r} holds {inner!r}, not keys and values")
    return dict(inner)


def set_key(target: Values, key: str, value: Any) -> None:
    """Set a dotted key in nested mappings."""
    head, _, rest = key.partition(".")
    if not rest:
        target[head] = value
        return
    inner = target.get(head)
    target[head] = dict(inner) if isinstance(inner, Mapping) else {}
    set_key(target[head], rest, value)


def flat(value: Mapping[str, Any], prefix: str = "") -> Values:
    """Nested mappings as one with dotted keys."""
    found: Values = {}
    for key, item in value.items():
        found |= flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item}
    return found
