"""How large the house is: verbs, options, axes, pairs of reader and loader, lines. `make count` prints it."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from benchsuite import storage
from benchsuite.cli.app import VERBS, load_verb
from benchsuite.contract.trial_spec import TrialSpec

PRODUCT = ("benchsuite", "results", "storage", "workloads")


def lines_in(*folders: str) -> int:
    """Lines of the Python files that git knows in some folders."""
    names = subprocess.run(["git", "ls-files", "-z", *folders], capture_output=True, check=True).stdout.decode()
    return sum(open(name, "rb").read().count(b"\n") for name in names.split("\0") if name.endswith(".py"))


def commands(command: Any) -> Iterator[Any]:
    """A verb, or the verbs of a group."""
    inner = getattr(command, "commands", None)
    yield from (each for one in inner.values() for each in commands(one)) if inner else [command]


def axes(model: type[BaseModel]) -> Iterator[tuple[str, int]]:
    """Each field of a spec, with the number of words that it allows where it allows no others."""
    for name, field in model.model_fields.items():
        inner = next((one for one in (field.annotation, *get_args(field.annotation)) if _is_model(one)), None)
        if inner is not None:
            yield from axes(inner)
        else:
            yield name, len(words_of(field.annotation))


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def words_of(kind: Any) -> set[str]:
    """The words of a type's literals."""
    if get_origin(kind) is Literal:
        return set(map(str, get_args(kind)))
    return {word for one in get_args(kind) for word in words_of(one)}


def counts() -> dict[str, int]:
    """Each count by its name."""
    verbs = [each for name in VERBS for each in commands(load_verb(name))]
    found = dict(axes(TrialSpec))
    loaders = getattr(storage, "LOADERS", {})
    return {
        "verbs": len(VERBS),
        "verbs and verbs of groups": len(verbs),
        "options": sum(one.param_type_name == "option" and not one.hidden for verb in verbs for one in verb.params),
        "axes": len(found),
        "words that axes allow": sum(found.values()),
        "loaders, each with its reader": len(loaders),
        "product lines": lines_in(*PRODUCT),
        "planner lines": lines_in("planner/benchsuite_plan"),
        "lines of tests": lines_in("tests"),
        "lines of benchmarks": lines_in("bench"),
        "words of BENCHMARKS.md": len(open("BENCHMARKS.md").read().split()),
    }


if __name__ == "__main__":
    print(json.dumps(counts(), indent=1))
