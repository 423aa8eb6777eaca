"""asv's benchmarks: a class for the nightly sweep, and one for every sweep exported from batch jobs.

asv takes larger for worse, so it compares seconds per sample, 1 - AU, 1 - efficiency and peak memory. A point that
failed is `failed`; one that was skipped, or has no such figure, is NaN, which asv prints as `n/a`.
"""

import itertools
from pathlib import Path
from typing import Any

from benchsuite.nightly import measuring
from benchsuite.results.export.asv_points import (
    PARAM_NAMES,
    UNITS,
    VERSION,
    Axes,
    Key,
    Measured,
    axes_of,
    class_name,
    exported_axes,
)

SETUP_TIMEOUT_S = 43_200.0
"""A trial that hangs is ended by its own measure.timeout_s long before."""
Found = dict[Key, Measured]
_NIGHTLY = measuring.nightly_of(Path(__file__).parent)


def _value(found: Found, key: Key, metric: str) -> float:
    """A point's value of a metric; NaN where the sweep does not have it.

    Raises:
        RuntimeError: the point failed.
    """
    point = found.get(key)
    if point is None:
        return float("nan")
    if point.failure:
        raise RuntimeError(point.failure)
    return point.values[metric]


def _tracker(metric: str) -> Any:
    """The method that asv calls for each point with what `setup_cache` returned."""

    def track(self: object, found: Found, workload: str, format: str, ranks: int) -> float:
        return _value(found, Key(workload, format, ranks), metric)

    track.__name__ = metric
    track.__dict__.update(unit=UNITS[metric], version=VERSION)
    return track


def _measured_here(self: object) -> Found:
    """One sweep, whose results all benchmarks of the class share."""
    return measuring.measure(_NIGHTLY)


_measured_here.__dict__["timeout"] = SETUP_TIMEOUT_S


def _measured_elsewhere(self: object, *params: object) -> None:
    raise NotImplementedError("measured in batch jobs; `benchsuite results export asv` writes it")


def _benchmarks(axes: Axes, **methods: Any) -> type:
    """A benchmark class over the product of the axes."""
    trackers = {metric: _tracker(metric) for metric in UNITS}
    fields = {"params": [list(values) for values in axes], "param_names": list(PARAM_NAMES), "timeout": 60.0}
    return type("Sweep", (), {**fields, **trackers, **methods})


def _classes() -> dict[str, type]:
    """A class for each sweep, by its name."""
    exported = exported_axes(_NIGHTLY.results_dir)
    name = class_name(_NIGHTLY.sweep().name)
    known = [Key(*values) for values in itertools.product(*exported.pop(name, ([], [], [])))]
    nightly = axes_of([*measuring.covered(_NIGHTLY), *known])
    found = {other: _benchmarks(axes, setup=_measured_elsewhere) for other, axes in exported.items()}
    return found | {name: _benchmarks(nightly, setup_cache=_measured_here)}


for _name, _class in _classes().items():
    _class.__name__ = _class.__qualname__ = _name
    globals()[_name] = _class
