"""User-facing errors: what was given, the nearest match, and what is allowed, in a line for each mistake."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

ALTERNATIVES = ("str", "Parallelism", "constrained-int", "literal['auto']")
"""How pydantic calls what a field may be, where it may be several things."""
MAX_TOLD, MAX_SHOWN, MAX_REPEATS = 30, 100, 1000
"""Mistakes that are told in one go, characters of what was given, and how often a mistake is found again."""
NOTHING: Mapping[Any, Any] = {}


TOO_FEW_PROCESSES = ("can't start new thread", "Resource temporarily unavailable", "pthread_create failed")
"""What Python, fork and libraries of threads say where no more processes or threads may start."""
MORE_PROCESSES = (
    "no more processes or threads may start here: raise `ulimit -u` (in a container the limit of pids), or use fewer "
    "ranks, workers and threads"
)


def lacks_processes(text: str) -> bool:
    """Whether an error says that no more processes or threads may start."""
    return any(words in text for words in TOO_FEW_PROCESSES)


class UserError(ValueError):
    """What its user can mend: a mistake, or several; each printed as one `error: ...` line, exit code 2."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))

    def within(self, where: str) -> "UserError":
        """Return these mistakes with `where` before each."""
        return UserError(*(f"{where}{mistake}" for mistake in self.args))


def several(mistakes: Iterable[str]) -> UserError | None:
    """Mistakes as one error, each once and no more than a screen of them; None where there are none."""
    told: dict[str, None] = {}
    for number, mistake in enumerate(mistakes):
        if mistake not in told and len(told) == MAX_TOLD:
            return UserError(*told, "and more mistakes: mend these first")
        told[mistake] = None
        if number == MAX_REPEATS:
            return UserError(*told, "and perhaps more mistakes: mend these first")
    return UserError(*told) if told else None


def mistakes_of(*checks: Callable[[], object]) -> Iterator[str]:
    """What is wrong by several checks, each of which may raise UserError."""
    for check in checks:
        try:
            check()
        except UserError as error:
            yield from error.args


def shown(value: object) -> str:
    """What was given, on one line and cut short."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


@lru_cache(maxsize=1024)
def _closest(given: str, allowed: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(given, allowed, n=1, cutoff=0.5) if len(given) <= MAX_SHOWN else []
    return f"; nearest: {close[0]}" if close else ""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """A hint naming the closest allowed word, or nothing."""
    return _closest(given, tuple(allowed))


def nearest_key(given: str, known: list[str]) -> str:
    """A hint naming the closest dotted key: the same last part elsewhere, or a close one on the same level."""
    parent, _, last = given.rpartition(".")
    elsewhere = [name for name in known if name.rpartition(".")[2] == last and name != given]
    if elsewhere:
        return f"; nearest: {elsewhere[0]}"
    level = [name for name in known if name.rpartition(".")[0] == parent]
    return nearest(given, level) or nearest(given, known)


def refuse(what: str, given: object, allowed: Iterable[str]) -> UserError:
    """The error for a value that is not allowed."""
    words = list(allowed)
    return UserError(f"{what} {shown(given)} is unknown{nearest(str(given), words)}; allowed: {', '.join(words)}")


def refuse_key(key: str, known: list[str], where: str = " here") -> str:
    """What is said of a key that nobody knows, with those that stand on its level."""
    parent = key.rpartition(".")[0]
    level = [name for name in known if name.rpartition(".")[0] == parent] or [name for name in known if "." not in name]
    return f"unknown key {shown(key)}{nearest_key(key, known)}; allowed{where}: {', '.join(level)}"


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


def problems(error: ValidationError) -> list[dict[str, Any]]:
    """All that is wrong, unknown keys first; of a field's alternatives the one that was meant.

    Where a field is a word or a mapping, pydantic tells what is wrong with each, and names them in the location.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    every = error.errors()
    above = {each["loc"][:size] for each in every for size in range(1, len(each["loc"]) - 1)}
    for each in every:
        loc = tuple(part for part in each["loc"] if part not in ALTERNATIVES)
        if isinstance(each["input"], str) or each["loc"][-1:] != ("str",) or loc not in above:
            found.setdefault(loc, {**each, "loc": loc})
    return sorted(found.values(), key=lambda each: each["type"] != "extra_forbidden")


def in_words(
    error: ValidationError,
    model: type[BaseModel],
    told: Mapping[tuple[Any, ...], str] = NOTHING,
) -> Iterator[str]:
    """A validation error of `model`, a line for each problem.

    A key that is missing because it is misspelt is told once. `told` maps the places of problems to words of the
    caller's.
    """
    known = dotted_keys(model)
    misspelt = set[str]()
    for each in problems(error):
        key = dotted(each["loc"])
        if each["loc"] in told:
            yield told[each["loc"]]
        elif each["type"] == "extra_forbidden":
            misspelt.add(nearest_key(key, known).removeprefix("; nearest: "))
            yield refuse_key(key, known)
        elif each["type"] != "missing":
            yield from _told(each, key)
        elif key not in misspelt:
            yield f"{key!r} is missing"


def dotted(loc: Iterable[Any]) -> str:
    """Where a problem is, on one line."""
    key = ".".join(map(str, loc))
    return key if key.isprintable() and len(key) <= MAX_SHOWN else shown(key)


def _told(problem: dict[str, Any], key: str) -> Iterator[str]:
    given, kind, message = problem["input"], problem["type"], problem["msg"][:1].lower() + problem["msg"][1:]
    told = f"{key} {shown(given)}"
    if kind == "none_required":
        yield f"{told}: not yet supported; leave it out"
    elif kind == "literal_error":
        yield f"{told}{_words_allowed(given, problem['ctx']['expected'])}{_quotes(given)}"
    elif kind == "value_error":
        start = given[:40] if isinstance(given, str) else ""
        for words in map(str, problem["ctx"]["error"].args):  # a check of a single value, such as a path, knows no key
            yield f"{key} {words}" if start and words.startswith(start) else words
    elif kind in ("model_type", "dict_type"):
        yield f"{told}: give keys and their values, as in {key}: {{name: value}}"
    else:
        yield f"{told}: {message}{_quotes(given) if kind == 'string_type' else ''}"


def _words_allowed(given: object, expected: str) -> str:
    if " or " not in expected:
        return f": not yet supported; allowed: {expected}"
    allowed = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    return f" is not allowed{nearest(str(given), allowed)}; allowed: {', '.join(allowed)}"


def _quotes(given: object) -> str:
    told = "; YAML reads on, off, yes and no as true and false: if it is meant as text, put it in quotes"
    return told if isinstance(given, bool) else ""
