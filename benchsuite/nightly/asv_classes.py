"""asv's benchmarks: a class for each sweep, workload and parallelism, of the nightly sweeps and of batch jobs.

asv takes larger for worse, so it compares seconds per sample, 1 - AU, 1 - efficiency and peak memory. A point that
failed is `failed`; one that was skipped, or has no such figure, is NaN, which asv prints as `n/a`.
"""

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
    exported_axes,
    merged,
)

SETUP_TIMEOUT_S = 43_200.0
"""A trial that hangs is ended by its own measure.timeout_s long before."""
Found = dict[Key, Measured]


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


def _tracker(suite: str, metric: str) -> Any:
    """The method that asv calls for each point with what `setup_cache` returned."""

    def track(
        self: object,
        found: Found,
        format: str,
        reader: str,
        loader: str,
        precision: str,
        batch: str,
        ranks: int,
        nodes: int,
        other: str,
    ) -> float:
        return _value(found, Key(suite, format, reader, loader, precision, batch, ranks, nodes, other), metric)

    track.__name__ = metric
    track.__dict__.update(unit=UNITS[metric], version=VERSION)
    return track


def _measured_elsewhere(self: object, *params: object) -> None:
    raise NotImplementedError("measured in batch jobs; `benchsuite results export asv` writes it")


def _benchmarks(suite: str, axes: Axes, **methods: Any) -> type:
    """A benchmark class over the product of the axes."""
    trackers = {metric: _tracker(suite, metric) for metric in UNITS}
    fields = {"params": [list(values) for values in axes], "param_names": list(PARAM_NAMES), "timeout": 60.0}
    made = type(suite, (), {**fields, **trackers, **methods})
    made.__qualname__ = suite
    return made


def classes(benchmarks: Path) -> dict[str, type]:
    """The benchmark classes of a folder of benchmarks, by their names: what its module `sweeps` is to hold."""
    nightly = measuring.nightly_of(benchmarks)

    def setup_cache(self: object) -> Found:
        """All sweeps of a night, whose results all benchmarks share: asv runs what stands in one place once."""
        return measuring.measure(nightly)

    setup_cache.__dict__["timeout"] = SETUP_TIMEOUT_S
    exported = exported_axes(nightly.results_dir)
    own = {suite: merged(exported.get(suite), axes) for suite, axes in axes_of(measuring.covered(nightly)).items()}
    others = {suite: axes for suite, axes in exported.items() if suite not in own}
    return {
        **{suite: _benchmarks(suite, axes, setup=_measured_elsewhere) for suite, axes in others.items()},
        **{suite: _benchmarks(suite, axes, setup_cache=setup_cache) for suite, axes in own.items()},
    }
