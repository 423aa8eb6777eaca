"""Where the values of a sweep come from: built-in < site < user < sweep file < BENCHSUITE_* < -o.

A file of the site or of the user holds defaults. Where one would clash with what stands above it (a batch size of the
other kind, ranks beside degrees), it gives way, so that no default makes a valid sweep invalid.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchsuite.contract.errors import UserError, dotted_keys, nearest, refuse
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.contract.yaml_file import Values, assign, flat, nested, parse_override, parse_value, set_key, with_parts
from benchsuite.host.site import BATCH, check_values, config_files
from benchsuite.workloads.layout import ONE_RANK

PREFIX = "BENCHSUITE_"
RESERVED = ("STORE", "SITE", "BUCKETS", "USER_CONFIG", "AGENT", "CHART", "JOB_RANKS_PER_NODE", "RUN")
RESERVED_PREFIXES = ("NIGHTLY_", "TEST_", "IMAGENET_")
"""Environment variables with another meaning than a field of a trial."""
BUILT_IN = "built-in"

Given = Mapping[str, list[Any]]
"""Dotted key -> the values that it takes, in all points."""


@dataclass(frozen=True)
class Layered:
    """A sweep with its defaults, and where each value of its base comes from."""

    sweep: Values
    origins: Mapping[str, str]
    """Dotted key -> a file's path, an environment variable, or `-o`, of axes too; what is missing here is built-in."""


def environment_fields(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables that set a field -> the field's dotted key. An empty variable sets nothing.

    Raises:
        UserError: a variable names no field.
    """
    fields = [key for key in dotted_keys(TrialSpec) if key not in ("data", "measure", "model")]
    known = {PREFIX + key.upper().replace(".", "__"): key for key in fields}
    found = {}
    for name in sorted(name for name, text in environment.items() if name.startswith(PREFIX) and text):
        rest = name.removeprefix(PREFIX)
        if rest in RESERVED or rest.startswith(RESERVED_PREFIXES):
            continue
        if name not in known:
            allowed = f"{PREFIX}<FIELD> with __ for dots, {', '.join(PREFIX + word for word in RESERVED)}"
            near = nearest(name, [*known, *(PREFIX + word for word in RESERVED)])
            raise UserError(f"environment: unknown variable {name}{near}; allowed: {allowed}")
        found[name] = known[name]
    return found


def _environment_values(environment: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """Variable, dotted key and value of each field that the environment sets."""
    found = []
    for name, key in environment_fields(environment).items():
        value = parse_value(environment[name], name)
        if isinstance(value, list):
            raise UserError(f"{name}={environment[name]!r}: one value, not a list; axes are of the sweep file or -o")
        check_values(nested({key: value}), name)
        found.append((name, key, value))
    return found


def apply_layers(
    value: Values, file: str, overrides: Iterable[str], environment: Mapping[str, str] = os.environ
) -> Layered:
    """Return a sweep file's values between those of the layers below and above it.

    Raises:
        UserError: one line about the first problem, naming the file, the variable or the override.
    """
    sweep = with_parts(value)
    overridden = [parse_override(text) for text in overrides]
    named = {key for key, _ in overridden}
    variables = [found for found in _environment_values(environment) if _other_batch(found[1]) not in named]
    for _, key, _ in variables:
        for part in ("base", "grid", "zip"):
            sweep[part].pop(_other_batch(key), None)
    above = values_of(sweep)
    for key, item in [(key, item) for _, key, item in variables] + overridden:
        above[key] = item if isinstance(item, list) else [item]
    base, origins = _defaults(above, environment)
    for key, item in entries(sweep["base"]).items():
        set_key(base, key, item)
        origins[key] = file
    sweep["base"] = base
    origins |= dict.fromkeys([*sweep["grid"], *sweep["zip"]], file)
    for name, key, item in variables:
        assign(sweep, key, item)
        origins[key] = name
    for key, item in overridden:
        assign(sweep, key, item)
        origins[key] = "-o"
    return Layered(sweep, origins)


def _other_batch(key: str) -> str | None:
    return BATCH[1 - BATCH.index(key)] if key in BATCH else None


def entries(base: Mapping[str, Any]) -> Values:
    """A base with dotted keys, degrees of parallelism as one value: those of two layers do not mix."""
    found = nested(flat(base))
    degrees = {"parallelism": found.pop("parallelism")} if isinstance(found.get("parallelism"), Mapping) else {}
    return flat(found) | degrees


def values_of(sweep: Values) -> dict[str, list[Any]]:
    """The values that a sweep file gives each key."""
    found: dict[str, list[Any]] = {key: [item] for key, item in entries(sweep["base"]).items()}
    axes = [*sweep["grid"].items(), *sweep["zip"].items()]
    added = sweep.get("include")
    for entry in added if isinstance(added, list) else []:
        axes += [(key, [item]) for key, item in entries(entry).items()] if isinstance(entry, Mapping) else []
    for key, items in axes:
        found[key] = found.get(key, []) + (items if isinstance(items, list) else [items])
    return found


def _defaults(above: Given, environment: Mapping[str, str]) -> tuple[Values, dict[str, str]]:
    """The base that site and user give below `above`, and which file each value is from."""
    given = dict(above)
    kept: dict[str, tuple[Any, str]] = {}
    for path, config in reversed(config_files(environment).items()):
        defaults = {key: item for key, item in entries(config.base).items() if key not in given}
        for key, item in defaults.items():
            if not _clashes(key, item, given):
                kept[key] = item, str(path)
        given |= {key: [item] for key, (item, _) in kept.items() if key not in given}
    base: Values = {}
    for key, (item, _) in kept.items():
        if not _pointless(key, given):
            set_key(base, key, item)
    return base, {key: path for key, (_, path) in kept.items() if not _pointless(key, given)}


def _clashes(key: str, item: Any, above: Given) -> bool:
    """Whether a default cannot stand beside what is given above it."""
    if key in BATCH:
        return any(other is not None for other in above.get(str(_other_batch(key)), []))
    modes = [mode for name, values in above.items() if name.partition(".")[0] == "parallelism" for mode in values]
    if key == "world_size":
        fixed = any(name.startswith("parallelism.") for name in above)
        return fixed or any(isinstance(mode, Mapping) or mode in ONE_RANK for mode in modes)
    if key == "parallelism":
        return bool(modes) or (isinstance(item, Mapping) and "world_size" in above)
    return False


def _pointless(key: str, given: Given) -> bool:
    """Whether a default needs another value that nobody gives: ranks a mode, a folder for copies the copying."""
    if key == "world_size":
        return all(name.partition(".")[0] != "parallelism" for name in given)
    return key == "data.staging_dir" and all(mode in ("none", None) for mode in given.get("data.staging", []))


def find_sweep_file(file: Path) -> Path:
    """Return a sweep file, or the built-in one of that name, with `.yaml` or without, where there is no such file here.

    Raises:
        UserError: it is neither.
    """
    folder = Path(str(files("benchsuite"))) / "sweeps"
    if file.exists() or file.is_symlink():
        return file
    names = sorted(path.stem for path in folder.glob("*.yaml")) if file.parent == Path() else []
    if file.name.removesuffix(".yaml") in names:
        return folder / f"{file.name.removesuffix('.yaml')}.yaml"
    if names and not file.suffix:
        raise UserError(f"{refuse('sweep', file.name, names)}; or a file, such as mine.yaml")
    near = nearest(str(file), [*map(str, file.parent.glob("*.y*ml")), *(f"{name}.yaml" for name in names)])
    raise UserError(f"{file}: No such file or directory{near}; `benchsuite list sweeps` names the built-in sweeps")
