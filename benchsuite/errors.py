"""User-facing errors: one line saying what was given, what is allowed and the nearest match."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError


class UserError(ValueError):
    """Something its user can mend; printed as one `error: ...` line, exit code 2."""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """A hint naming the closest allowed word, or nothing."""
    close = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.5)
    return f"; nearest: {close[0]}" if close else ""


def nearest_key(given: str, known: list[str]) -> str:
    """A hint naming the closest dotted key: the same last part elsewhere, or a close one on the same level."""
    parent, _, last = given.rpartition(".")
    elsewhere = [name for name in known if name.rpartition(".")[2] == last and name != given]
    if elsewhere:
        return f"; nearest: {elsewhere[0]}"
    level = [name for name in known if name.rpartition(".")[0] == parent]
    return nearest(given, level) or nearest(given, known)


def refuse(what: str, given: object, allowed: Iterable[str], not_yet: Iterable[str] = ()) -> UserError:
    """The error for a value that is not allowed."""
    words = list(allowed)
    if given in tuple(not_yet):
        return UserError(f"{what} {given!r}: not yet supported; allowed: {', '.join(words)}")
    return UserError(f"{what} {given!r} is unknown; allowed: {', '.join(words)}{nearest(str(given), words)}")


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of a model, nested ones with dots."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += dotted_keys(field.annotation, f"{prefix}{name}.")
    return keys


def one_line(error: ValidationError, model: type[BaseModel], not_yet: Mapping[str, Iterable[str]]) -> UserError:
    """A validation error of `model` as one line about its first problem.

    `not_yet` maps dotted keys to values that later versions will accept.
    """
    errors = error.errors()
    first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
    key = ".".join(str(part) for part in first["loc"])
    given: Any = first["input"]
    if first["type"] == "extra_forbidden":
        known = dotted_keys(model)
        level = [name for name in known if name.rpartition(".")[0] == key.rpartition(".")[0]]
        return UserError(f"unknown key {key!r}; allowed here: {', '.join(level)}{nearest_key(key, known)}")
    if first["type"] == "missing":
        return UserError(f"{key!r} is missing")
    if isinstance(given, str) and given in tuple(not_yet.get(key, ())):
        return UserError(f"{key} {given!r}: not yet supported; {first['msg'][0].lower()}{first['msg'][1:]}")
    if first["type"] == "none_required":
        return UserError(f"{key} {given!r}: not yet supported; leave it out")
    if first["type"] == "literal_error" and " or " not in first["ctx"]["expected"]:
        return UserError(f"{key} {given!r}: not yet supported; allowed: {first['ctx']['expected']}")
    if first["type"] == "literal_error":
        allowed = [word.strip("'") for word in first["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        return UserError(f"{key} {given!r} is not allowed; allowed: {', '.join(allowed)}{nearest(str(given), allowed)}")
    if first["type"] == "value_error":
        return UserError(first["msg"].removeprefix("Value error, "))
    return UserError(f"{key} {given!r}: {first['msg'][0].lower()}{first['msg'][1:]}")
