"""YAML files, nested and dotted keys, and `key=value` overrides."""

import re
from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchsuite.contract.errors import UserError, shown
from benchsuite.storage.dataset.local_path import open_regular

Values = dict[str, Any]
YAML_BEGINS = ("", *"[{\"'|>&*!%@`-?# \n")
"""What a value begins with that only YAML gives a meaning to."""
MAX_BYTES, MAX_VALUES, MAX_DEPTH, MAX_DIGITS = 1 << 20, 20_000, 16, 100
"""The most of a file. What people write has a few kB and five levels, and a grid of as many points as are allowed far
fewer values; more is not read at once, and swells or ends this process where nobody stops it."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, bounded, with values and keys as people mean them.

    Anchors stand for all that they hold, so that a dozen lines can stand for a billion values: an alias counts as many
    as its anchor, while the file is composed and before any of them is made.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._num_values = 0
        self._sizes: dict[str, int] = {}
        """Values that an anchor stands for; those that are not complete yet are missing."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor, line = event.anchor, event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) and anchor not in self._sizes:
            wrong = "holds itself" if anchor in self.anchors else "is not there"
            raise yaml.YAMLError(f"anchor {shown(anchor)} {wrong}, in line {line}")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise yaml.YAMLError(f"tag {shown(tag)} in line {line}: allowed: values without a tag, text in quotes")
        before, self._depth = self._num_values, self._depth + 1
        self._num_values += self._sizes.get(anchor, 0) if isinstance(event, yaml.AliasEvent) else 1
        if self._depth > MAX_DEPTH or self._num_values > MAX_VALUES:
            over = (
                f"more than {MAX_DEPTH} levels deep" if self._depth > MAX_DEPTH else f"more than {MAX_VALUES:,} values"
            )
            raise yaml.YAMLError(f"{over}, in line {line}")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._sizes[anchor] = self._num_values - before
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse a key that stands twice (the second would win in silence); what is merged comes later and may."""
        node = super().compose_mapping_node(anchor)
        line, seen = node.start_mark.line + 1, set[str]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.YAMLError(f"a key of the mapping that starts at line {line} is no text")
            if key.value in seen:
                raise yaml.YAMLError(f"key {shown(key.value)} stands twice in the mapping that starts at line {line}")
            check_key(key.value)
            seen.add(key.value)
        if double := _double(node):
            raise yaml.YAMLError(
                f"key {shown(double)} is given twice, nested and with dots, in the mapping that starts at line {line}"
            )
        return node

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:
        """Keys are text as they stand: `on`, `1.50`."""
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        text = node.value
        if len(text) > MAX_DIGITS:
            digits = sum(each.isalnum() for each in text.removeprefix("0x"))
            raise yaml.YAMLError(
                f"a number of {digits} digits in line {node.start_mark.line + 1}; allowed: {MAX_DIGITS}"
            )
        if node.tag == INT:
            return self.construct_yaml_int(node)
        return self.construct_yaml_float(node)


def _double(node: yaml.MappingNode) -> str | None:
    """The key of a mapping that is given both as levels and with dots: one of both would be left out in silence.

    Levels have names: the dot of `1.50` and of `gpt3-1.3b` is none.
    """
    if not any("." in key.value and all(map(str.isidentifier, key.value.split("."))) for key, _ in node.value):
        return None
    paths = sorted(_paths(node))
    return next((".".join(path) for path, after in pairwise(paths) if after[: len(path)] == path), None)


def _paths(node: yaml.MappingNode, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in node.value:
        path = (*above, *key.value.split("."))
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _paths(value, path)
        else:
            yield path


INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_LEFT_OUT = (INT, FLOAT, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in _LEFT_OUT]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Not what YAML 1.1 has besides: 1:30 is 90 there (base 60), 010 is 8 (base 8), and 2026-11-20 no text.
_Loader.add_implicit_resolver(
    INT, re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0b[01][01_]*)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    FLOAT,
    re.compile(
        r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)
for _tag in (INT, FLOAT):
    _Loader.add_constructor(_tag, _Loader.construct_number)


def _loaded(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _reason(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split()).replace(' in "<unicode string>",', "")


def check_key(key: str) -> None:
    """Dots of a key are levels, too.

    Raises:
        yaml.YAMLError: there are too many.
    """
    if key.count(".") >= MAX_DEPTH:
        raise yaml.YAMLError(f"key {shown(key)}: more than {MAX_DEPTH} levels deep")


def read_yaml(path: Path) -> Values:
    """A file's YAML mapping.

    Raises:
        UserError: missing, unreadable, no file of people's, or not a mapping.
    """
    try:
        return parse_yaml(_content(path).decode("utf-8-sig"), str(path))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not YAML: not UTF-8 text, at byte {error.start}") from error


def _content(path: Path) -> bytes:
    """A file's bytes; a pipe is not waited for, and a device not read from.

    Raises:
        OSError: it is neither, or may not be read.
        UserError: it is too large.
    """
    with open(open_regular(path)[0], "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: more than {MAX_BYTES >> 20} MiB; allowed: files that people write")
    return content


def parse_yaml(text: str, name: str) -> Values:
    """A YAML mapping.

    Raises:
        UserError: not YAML, or not a mapping; naming `name`.
    """
    try:
        value = _loaded(text)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not YAML: {_reason(error)}") from error
    if value is None:
        raise UserError(f"{name}: is empty")
    if not isinstance(value, dict):
        raise UserError(f"{name}: holds {shown(value)}, not keys and values")
    return value


def parse_value(text: str, what: str) -> Any:
    """One value, such as that of an option or a variable.

    Raises:
        UserError: it is not YAML; naming `what`.
    """
    try:
        return _loaded(text)
    except yaml.YAMLError as error:
        raise UserError(f"{what}: not a YAML value: {_reason(error)}") from error


def parse_override(text: str) -> tuple[str, Any]:
    """The key and the value of `-o key=value`. A path from the root, or several lines, are text as they stand.

    Raises:
        UserError: no `=` in it, or the value is not YAML.
    """
    key, equals, raw = text.partition("=")
    if not equals:
        raise UserError(f"-o {shown(text)}: give key=value, such as -o measure.steps=10")
    try:
        check_key(key)
    except yaml.YAMLError as error:
        raise UserError(f"-o {error}") from None
    if raw.startswith("/") or ("\n" in raw and raw[:1] not in YAML_BEGINS):
        return key, raw  # YAML would end it at " #", split it at ": ", and make one space of a line's end
    return key, parse_value(raw, f"-o {shown(text)}")


def with_parts(value: Values) -> Values:
    """A copy of a sweep that has its base, grid and zip, empty where they are not given.

    Raises:
        UserError: they hold no keys and values.
    """
    parts = {key: {} if value.get(key) is None else value[key] for key in ("base", "grid", "zip")}
    wrong = [
        f"{key!r} holds {shown(part)}, not keys and values"
        for key, part in parts.items()
        if not isinstance(part, Mapping)
    ]
    if wrong:
        raise UserError(*wrong)
    return {**value, **{key: dict(part) for key, part in parts.items()}}


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


def set_key(target: Values, key: str, value: Any) -> None:
    """Set a dotted key in nested mappings."""
    head, _, rest = key.partition(".")
    if not rest:
        target[head] = value
        return
    inner = target.get(head)
    target[head] = dict(inner) if isinstance(inner, Mapping) else {}
    set_key(target[head], rest, value)


def nested(entries: Mapping[str, Any]) -> Values:
    """Dotted keys as nested mappings."""
    found: Values = {}
    for key, item in entries.items():
        set_key(found, key, item)
    return found


def flat(value: Mapping[str, Any], prefix: str = "") -> Values:
    """Nested mappings as one with dotted keys."""
    found: Values = {}
    for key, item in value.items():
        found |= flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item}
    return found
