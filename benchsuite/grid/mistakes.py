"""Everything that is wrong with a sweep file, found before a point of it is made."""

import math
from collections.abc import Iterator, Mapping
from functools import partial

from benchsuite.contract.errors import UserError, dotted_keys, mistakes_of, refuse_key
from benchsuite.contract.trial_spec import SweepSpec, TrialSpec, parse_sweep, parse_trial
from benchsuite.contract.yaml_file import Values, flat, nested

MAX_POINTS, MAX_TRIALS = 100_000, 1_000_000
"""The most of a sweep. So many are planned in seconds and a few hundred MB; at a minute each, it runs for months."""


def check_number(number: int, allowed: int, what: str) -> None:
    """Refuse more than can be planned.

    Raises:
        UserError: there are more than are allowed.
    """
    if number > allowed:
        raise UserError(f"{number:,} {what}; allowed: up to {allowed:,}")


def sweep_mistakes(value: Values) -> Iterator[str]:
    """What is wrong with a sweep's values: its own keys, its axes, and each value of an axis in a point that has it."""
    yield from mistakes_of(lambda: parse_sweep(value))
    sweep = _usable(value)
    yield from _mistakes_of_axes(sweep)
    known = {*dotted_keys(TrialSpec)}
    base = flat(sweep.base)
    for varied in _tried(sweep):
        point = base | {key: item for key, item in varied.items() if key in known}
        yield from mistakes_of(partial(parse_trial, nested(point)))


def _usable(value: Values) -> SweepSpec:
    """The parts of a sweep that have the right shape, so that what is wrong with one hides nothing of another."""
    usable: Values = {"name": "", "base": {}, "scaling": value.get("scaling")}
    if isinstance(value.get("base"), Mapping):
        usable["base"] = value["base"]
    for name in ("grid", "zip"):
        axes = value.get(name)
        entries = axes.items() if isinstance(axes, Mapping) else ()
        usable[name] = {key: items for key, items in entries if isinstance(items, list)}
    for name in ("exclude", "include"):
        filters = value.get(name)
        usable[name] = [entry for entry in filters if isinstance(entry, Mapping)] if isinstance(filters, list) else []
    return SweepSpec.model_construct(**usable)


def _mistakes_of_axes(sweep: SweepSpec) -> Iterator[str]:
    """Axes and filters must name fields of a trial, and zipped lists must be equally long."""
    known = dotted_keys(TrialSpec)
    filters = [flat(entry) for entry in (*sweep.exclude, *sweep.include)]
    for key in [*sweep.grid, *sweep.zip, *(key for entry in filters for key in entry)]:
        if key not in known:
            yield refuse_key(key, known)
    if {} in filters:
        yield "exclude, include: an entry is empty; name at least one key"
    for key in sorted({*sweep.grid} & {*sweep.zip}):
        yield f"{key!r} stands in grid and in zip; keep one"
    lengths = {key: len(values) for key, values in sweep.zip.items()}
    if len(set(lengths.values())) > 1:
        yield f"zip: lists differ in length: {lengths}"
    for key, values in [*sweep.grid.items(), *sweep.zip.items()]:
        if not values:
            yield f"{key!r}: no values to vary over"
    if sweep.scaling in ("weak", "strong"):
        fixed = "batch_size" if sweep.scaling == "weak" else "global_batch_size"
        if fixed not in {*sweep.base, *sweep.grid, *sweep.zip}:
            yield f"scaling: {sweep.scaling} keeps {fixed} fixed: give it"
    sizes = [len(values) for values in sweep.grid.values()] + [max(lengths.values(), default=1)]
    number = math.prod(sizes) + len(sweep.include)
    yield from mistakes_of(lambda: check_number(number, MAX_POINTS, f"points, {' x '.join(map(str, sizes))}"))


def _tried(sweep: SweepSpec) -> Iterator[Values]:
    """Points of a sweep that together have every value of every axis, as few as that takes."""
    first = {key: values[0] for key, values in sweep.grid.items() if values}
    rows = max(map(len, sweep.zip.values()), default=0)
    together = [{key: values[row] for key, values in sweep.zip.items() if row < len(values)} for row in range(rows)]
    for row in together or [{}]:
        yield first | row
    for key, values in sweep.grid.items():
        for item in values[1:]:
            yield first | (together or [{}])[0] | {key: item}
    yield from map(flat, sweep.include)
