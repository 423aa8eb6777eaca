"""Sweeps as benchmarks of airspeed velocity (asv): their names and parameters, and what each point gave.

A sweep is a benchmark class for each workload and parallelism: `sweeps.<sweep>__<workload>__<parallelism>`. Names of a
point depend on its own settings alone, so that a sweep that grows renames nothing. asv takes larger for worse: what is
good when large is tracked as what is missing to 1.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchsuite.results.render.naming import degrees, last_part
from benchsuite.results.store.frames import flatten
from benchsuite.results.store.record import READ_BEFORE, TrialRecord

VERSION = "2"
"""asv drops what was measured under another version; raise it when a metric's definition changes."""
UNITS: Mapping[str, str] = {
    "track_seconds_per_sample": "seconds",
    "track_one_minus_au": "1 - AU",
    "track_one_minus_efficiency": "1 - efficiency",
    "track_peak_memory": "bytes",
}
"""What is tracked of every sweep, and its unit. Seconds are wall time over samples of all ranks."""
EXPORTED = "benchsuite-sweeps.jsonl"
"""The file in asv's results with the parameters of exported sweeps, which `asv run` then lists too.

asv reads any `.json` there.
"""
DIGITS = 4
"""asv prints every digit of a fraction."""
FAILED = ("failed", "oom", "timeout")
NONE = "-"
"""The parameter `other` of a point whose other settings are all default."""
NAMED = re.compile(
    r"workload|parallelism(\..*)?|world_size|nodes|precision|batch_size"
    r"|global_batch_size|data\.(format|reader|loader|source)"
)
"""Settings that a point's other names hold, or that follow from them."""
NOT_A_SETTING = re.compile(r"data\.staging_dir|measure\.(repeats|timeout_s|profile|ceilings)")
"""What tells no points apart."""


class Key(NamedTuple):
    """The benchmark class of a point, and its parameters."""

    suite: str
    format: str
    """How samples are stored, or `memory`, `synthetic`."""
    reader: str
    loader: str
    precision: str
    batch: str
    """Samples of a rank; of all ranks as `global 256`."""
    ranks: int
    nodes: int
    other: str
    """The settings that are not default, as `key=value`, in the order of their names; `-` where there is none."""

    @property
    def params(self) -> tuple[str | int, ...]:
        """The values of PARAM_NAMES."""
        return self[1:]


PARAM_NAMES = Key._fields[1:]


@dataclass(frozen=True)
class Measured:
    """What a point gave: a value of each metric, NaN where it has none; or why it failed."""

    values: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


Axes = tuple[tuple[str | int, ...], ...]
"""The values of each parameter of a class; asv's benchmarks are their product."""


def suite_of(sweep: str, workload: str, parallelism: str) -> str:
    """The benchmark class of a sweep's workload and parallelism, of letters, digits and `_` alone.

    Parts that hold anything but letters, digits and single `-` get a digest, so that no two of them share a name.
    """
    return "__".join(map(_as_identifier, (sweep, workload, parallelism)))


def _as_identifier(part: str) -> str:
    plain = re.sub(r"\W+|_+", "_", part).strip("_")
    if re.fullmatch(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*", part):
        return plain
    return f"{plain}_{blake2b(part.encode(), digest_size=3).hexdigest()}"


def axes_of(keys: Iterable[Key]) -> dict[str, Axes]:
    """The values of each parameter of each class, each once; numbers in order, words in theirs."""
    suites: dict[str, list[Key]] = {}
    for key in keys:
        suites.setdefault(key.suite, []).append(key)
    return {suite: _axes(found) for suite, found in suites.items()}


def _axes(keys: Sequence[Key]) -> Axes:
    values = [list(dict.fromkeys(some)) for some in zip(*(key.params for key in keys), strict=True)]
    return tuple(tuple(sorted(some)) if isinstance(some[0], int) else tuple(some) for some in values)


def key_of(sweep: str, spec: Mapping[str, Any], nodes: int | None = None, revision: str | None = None) -> Key:
    """The key of a resolved spec.

    Args:
        sweep: its name.
        spec: as records hold it.
        nodes: that it ran on; default: as many as its ranks a node tell, else one.
        revision: of what it measures, as records tell it.
    """
    data, ranks = spec.get("data") or {}, int(spec.get("world_size") or 1)
    source = data.get("source", "storage")
    per_node = spec.get("ranks_per_node")
    whole = spec.get("global_batch_size")
    return Key(
        suite_of(sweep, last_part(spec["workload"]), _parallelism(spec)),
        str(data.get("format", "files")) if source == "storage" else source,
        last_part(data.get("reader") or READ_BEFORE) if source == "storage" else NONE,
        str(data.get("loader", "torch")) if source != "synthetic" else NONE,
        str(spec.get("precision", "fp32")),
        f"global {whole}" if whole is not None else str(spec.get("batch_size") or NONE),
        ranks,
        nodes or (math.ceil(ranks / int(per_node)) if per_node else 1),
        _other({**spec, "revision": revision}),
    )


def key_of_trial(trial: TrialRecord) -> Key:
    """The key of a trial."""
    return key_of(trial.sweep, trial.spec, len(trial.env.get("nodes") or ()) or None, trial.revision)


def _parallelism(spec: Mapping[str, Any]) -> str:
    """The mode, or what is set of its degrees."""
    asked = spec.get("parallelism")
    return degrees(asked) if isinstance(asked, Mapping) else str(asked or "none")


def _other(spec: Mapping[str, Any]) -> str:
    flat = flatten("", spec)
    usual = _defaults() | {"cpu_binding": "device" if flat.get("device") == "cuda" else "none"}  # as it is filled in
    kept = {
        short(name): value
        for name, value in flat.items()
        if not NAMED.fullmatch(name) and not NOT_A_SETTING.fullmatch(name) and value != usual.get(name)
    }
    if "root" in kept:
        kept["root"] = str(kept["root"]).rpartition(MADE)[2]  # the same wherever the repository of nights lies
    return " ".join(f"{name}={kept[name]}" for name in sorted(kept) if kept[name] is not None) or NONE


MADE = "/.asv/data/"
"""Where nightly sweeps make their data, below the repository of nights."""


def short(name: str) -> str:
    """A setting's name without its section: no two sections have a setting of the same name."""
    return name.removeprefix("data.").removeprefix("measure.").removeprefix("model.")


@cache
def _defaults() -> dict[str, Any]:
    """Every setting's default by its dotted name, from the schema of trials."""
    schema = json.loads((files("benchsuite") / "schemas" / "trial.json").read_text(encoding="utf-8"))

    def defaults(fields: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, about in fields.items():
            if "$ref" in about:
                inner = schema["$defs"][about["$ref"].rpartition("/")[2]]
                yield from defaults(inner["properties"], f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", about.get("default")

    return dict(defaults(schema["properties"], "")) | {"device": "cuda"}  # what `auto` is where nights are run


def measured(trials: Sequence[TrialRecord]) -> dict[Key, Measured]:
    """What each point of a sweep gave: medians over its ok repeats; over the trustworthy ones where there are any.

    A point without an ok repeat failed, or was skipped and has no values. One that was only interrupted is left out.
    """
    points: dict[Key, list[TrialRecord]] = {}
    for trial in trials:
        points.setdefault(key_of_trial(trial), []).append(trial)
    points = {key: _trusted(repeats) for key, repeats in points.items()}
    lines = _rates(points)
    found: dict[Key, Measured] = {}
    for key, repeats in points.items():
        ok = [trial for trial in repeats if trial.status == "ok"]
        failed = [trial for trial in repeats if trial.status in FAILED]
        if ok:
            found[key] = Measured(
                _values(ok) | {"track_one_minus_efficiency": _efficiency_lost(key, lines[_line(key)])}
            )
        elif failed:
            found[key] = Measured(failure=f"{failed[-1].status}: {failed[-1].reason}")
        elif any(trial.status == "skipped" for trial in repeats):
            found[key] = Measured(dict.fromkeys(UNITS, math.nan))
    return found


def _trusted(repeats: list[TrialRecord]) -> list[TrialRecord]:
    """The ok repeats without a caveat that forbids trust; all repeats where there are none."""
    from benchsuite.results.compare.nights import DISTRUSTED

    return [trial for trial in repeats if trial.status == "ok" and not DISTRUSTED & {*trial.caveats}] or repeats


def _values(ok: Sequence[TrialRecord]) -> dict[str, float]:
    rate, au, memory = (_median(ok, name) for name in ("samples_per_s", "au", "peak_memory_bytes"))
    return {
        "track_seconds_per_sample": 1 / rate if rate else math.nan,
        "track_one_minus_au": round(1 - au, DIGITS),
        "track_peak_memory": memory,
    }


def _median(trials: Sequence[TrialRecord], figure: str) -> float:
    from benchsuite.results.compare.nights import is_result

    values = [getattr(trial.figures, figure) for trial in trials if is_result(trial, figure)]
    known = [value for value in values if value is not None]
    return float(median(known)) if known else math.nan


def _line(key: Key) -> Key:
    """The key without what grows along a line of scaling."""
    return key._replace(ranks=0, nodes=0)


def _rates(points: Mapping[Key, Sequence[TrialRecord]]) -> dict[Key, dict[int, list[float]]]:
    """Rates of each line of scaling by ranks, without points whose cores were oversubscribed."""
    from benchsuite.results.scaling.series import EXCLUDED

    lines: dict[Key, dict[int, list[float]]] = {}
    for key, trials in points.items():
        counted = [trial for trial in trials if trial.status == "ok" and not EXCLUDED & {*trial.caveats}]
        known = [rate for trial in counted if (rate := trial.figures.samples_per_s)]
        line = lines.setdefault(_line(key), {})
        if known:
            line[key.ranks] = known
    return lines


def _efficiency_lost(key: Key, rates: Mapping[int, list[float]]) -> float:
    """1 - P(N) / (P(N0) N / N0), N0 the fewest ranks with a rate; NaN at N0, and where cores were oversubscribed."""
    from benchsuite.results.scaling.efficiency import efficiency

    baseline = min(rates, default=key.ranks)
    if key.ranks == baseline or key.ranks not in rates:
        return math.nan
    return round(1 - efficiency({None: rates[key.ranks]}, {None: rates[baseline]}, key.ranks, baseline), DIGITS)


def exported_axes(results_dir: Path) -> dict[str, Axes]:
    """The parameters of every exported sweep, by its benchmark class; those of older versions are of other names."""
    path = results_dir / EXPORTED
    lines = path.read_text().splitlines() if path.is_file() else []
    found: dict[str, Axes] = {}
    for entry in map(json.loads, filter(None, lines)):
        if "suite" in entry:
            axes = tuple(tuple(entry[name]) for name in PARAM_NAMES)
            found[entry["suite"]] = merged(found.get(entry["suite"]), axes)
    return found


def merged(one: Axes | None, other: Axes) -> Axes:
    """The values of both, each once."""
    if one is None:
        return other
    values = (dict.fromkeys([*some, *more]) for some, more in zip(one, other, strict=True))
    return tuple(tuple(sorted(some)) if isinstance(next(iter(some)), int) else tuple(some) for some in values)
