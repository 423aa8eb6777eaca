"""User-facing errors: one line saying what was given, what is allowed and the nearest match."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

ALTERNATIVES = ("str", "Parallelism", "constrained-int", "literal['auto']")
"""How pydantic calls what a field may be, where it may be several things."""


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
    own = [name for name in model.model_fields if name in model.__annotations__]
    for name in [*own, *(name for name in model.model_fields if name not in own)]:
        keys.append(prefix + name)
        annotation = model.model_fields[name].annotation
        for part in (annotation, *get_args(annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                keys += dotted_keys(part, f"{prefix}{name}.")
    return keys


def _first(error: ValidationError) -> dict[str, Any]:
    """The problem to tell: an unknown key, else the first; of a field's alternatives the one that was meant.

    Where a field is a word or a mapping, pydantic tells what is wrong with each, and names them in the location.
    """
    errors: list[dict[str, Any]] = []
    for found in error.errors():
        loc = tuple(part for part in found["loc"] if part not in ALTERNATIVES)
        meant = isinstance(found["input"], str) or found["loc"][-1:] != ("str",) or not _errors_below(error, loc)
        errors += [{**found, "loc": loc}] if meant else []
    return next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])


def _errors_below(error: ValidationError, loc: tuple[Any, ...]) -> bool:
    """Whether there are problems with keys below a location."""
    return any(found["loc"][: len(loc)] == loc and len(found["loc"]) > len(loc) + 1 for found in error.errors())


def one_line(error: ValidationError, model: type[BaseModel], not_yet: Mapping[str, Iterable[str]]) -> UserError:
    """A validation error of `model` as one line about its first problem.

    `not_yet` maps dotted keys to values that later versions will accept.
    """
    first = _first(error)
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
