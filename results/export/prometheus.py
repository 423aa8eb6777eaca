"""Figures as Prometheus reads them (text format 0.0.4), for the textfile directory of a node exporter.

Values are those of each point's newest session: medians over its ok repeats. While a training goes on they are its own
so far. Names carry base units as Prometheus
wants them: `_seconds`, `_bytes`, `_ratio`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, get_args

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from benchsuite.results.render.naming import parallelism_of
from benchsuite.results.render.tables import Row, is_missing, whole
from benchsuite.results.store.frames import IN_WORDS
from benchsuite.results.store.place import StoreError
from benchsuite.results.store.record import Status, TrialFigures
from benchsuite.results.store.replacing import write_whole

PREFIX = "benchsuite_"
RUNNING = "running"
"""The status of a row that tells of a training that goes on."""
MEASURED = ("ok", RUNNING)
ENDING = ".prom"
"""The node exporter reads no other files."""
TERA = {"tflops_per_device": "device_flops_per_second", "peak_tflops_per_device": "device_peak_flops_per_second"}
NAMED = {
    "au": "accelerator_utilization_ratio",
    "au_mlperf": "accelerator_utilization_mlperf_ratio",
    "mfu": "model_flops_utilization_ratio",
    "hfu": "hardware_flops_utilization_ratio",
    "cache_resident_before": "cache_resident_before_ratio",
    "cache_resident_after": "cache_resident_after_ratio",
    "read_amplification": "read_amplification_ratio",
    "checkpoint_slowdown": "checkpoint_slowdown_ratio",
    "strong_efficiency": "strong_efficiency_ratio",
    "weak_efficiency": "weak_efficiency_ratio",
    **TERA,
}
UNITS = (
    (re.compile(r"_s_(mean|p\d+)$"), r"_\1_seconds"),
    (re.compile(r"_per_s$"), "_per_second"),
    (re.compile(r"_s_per_"), "_seconds_per_"),
    (re.compile(r"_j_per_"), "_joules_per_"),
    (re.compile(r"_s$"), "_seconds"),
    (re.compile(r"_j$"), "_joules"),
    (re.compile(r"_fraction$"), "_ratio"),
)
SETTINGS = {
    "variant": "spec.variant",
    "device": "spec.device",
    "precision": "spec.precision",
    "world_size": "spec.world_size",
    "batch_size": "spec.batch_size",
    "global_batch_size": "spec.global_batch_size",
    "source": "spec.data.source",
}
"""Labels of every series: with `parallelism`, and of points that read those below, what tells most points apart."""
READING = {
    "format": "spec.data.format",
    "loader": "spec.data.loader",
    "cache": "spec.data.cache",
    "staging": "spec.data.staging",
}
INFO = {"host": "env.host", "commit": "env.commit"}
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
"""Control characters and halves of letters, which no parser need take in a label."""


@dataclass(frozen=True)
class Point:
    """A point: its labels, and the trials of its newest session, oldest first."""

    labels: Mapping[str, str]
    trials: Sequence[Row]


def metric_name(figure: str) -> str:
    """What a figure is called in Prometheus."""
    name = NAMED.get(figure, figure)
    for pattern, unit in UNITS:
        name = pattern.sub(unit, name)
    return PREFIX + name


def prometheus(trials: Sequence[Row]) -> str:
    """The newest session of every point, as text."""
    points = [Point(_labels(found[-1]), found) for found in _newest(trials)]
    families = [family for family in (*_counts(points), *_figures(points)) if family.samples]
    return generate_latest(_Families(families)).decode()


class _Families(Collector):
    """What prometheus_client asks for the metrics that it writes."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Yield every metric once."""
        return self._families


def _newest(trials: Sequence[Row]) -> list[list[Row]]:
    """The trials of each point's newest session, oldest first; where a training goes on, that alone."""
    found: dict[str, list[Row]] = {}
    for row in sorted(trials, key=lambda row: str(row["finished_at"])):
        found.setdefault(str(row["point_id"]), []).append(row)
    going_on = [[row for row in point if row["status"] == RUNNING] for point in found.values()]
    newest = [[row for row in point if row["session"] == point[-1]["session"]] for point in found.values()]
    return [now or ended for now, ended in zip(going_on, newest, strict=True)]


def _labels(row: Row) -> dict[str, str]:
    """The point's name, its id, which alone is unique, and its settings in words."""
    named = {"point": row["label"], "point_id": row["point_id"], "sweep": row["sweep"]}
    named |= {"workload": row.get("spec.workload") or ""}
    return {key: str(value) for key, value in named.items()} | _settings(row)


def _settings(row: Row) -> dict[str, str]:
    """Settings that have a value; those of reading only where something is read."""
    reads = row.get("spec.data.source") in (None, "storage")
    told = {name: row.get(column) for name, column in {**SETTINGS, **(READING if reads else {})}.items()}
    told |= {"parallelism": parallelism_of(row) or None}
    return {name: str(whole(value)) for name, value in told.items() if not is_missing(value)}


def _gauge(name: str, help: str) -> Metric:
    """A metric without a series yet."""
    return Metric(name, UNPRINTABLE.sub("\ufffd", help), "gauge")


def _add(metric: Metric, labels: Mapping[str, str], value: float) -> None:
    """Add a series to a metric."""
    metric.add_sample(metric.name, {key: UNPRINTABLE.sub("\ufffd", text) for key, text in labels.items()}, value)


def _counts(points: Sequence[Point]) -> list[Metric]:
    """What is told of every point, whether it has figures or not."""
    info = _gauge(f"{PREFIX}point_info", "What the point's newest session is and found; the value is always 1")
    ended = _gauge(f"{PREFIX}last_finished_timestamp_seconds", "When the newest trial of the point ended")
    statuses = _gauge(f"{PREFIX}trials", "Trials of the point's newest session, by status")
    caveats = _gauge(f"{PREFIX}caveat_trials", "Of these, ok trials that bear a caveat: why not to trust blindly")
    for point in points:
        newest = point.trials[-1]
        _add(info, {**point.labels, **_info(newest)}, 1)
        _add(ended, point.labels, datetime.fromisoformat(str(newest["finished_at"])).timestamp())
        counts = Counter(row["status"] for row in point.trials)
        for name in (*get_args(Status), RUNNING):
            _add(statuses, {**point.labels, "status": name}, counts[name])
        borne = Counter(name for row in point.trials if row["status"] in MEASURED for name in row["caveats"])
        for name, count in sorted(borne.items()):
            _add(caveats, {**point.labels, "caveat": name}, count)
    return [info, ended, statuses, caveats]


def _info(row: Row) -> dict[str, str]:
    """What is known of a point in words; labels that have no value are left out."""
    told: dict[str, Any] = {"session": row["session"], "bottleneck": row["bottleneck"]}
    told |= {name: row.get(column) for name, column in INFO.items()}
    return {name: str(value) for name, value in told.items() if not is_missing(value)}


def _figures(points: Sequence[Point]) -> list[Metric]:
    """A metric for each figure that any point has."""
    families = []
    for figure, described in TrialFigures.model_fields.items():
        if figure in IN_WORDS:
            continue
        family = _gauge(metric_name(figure), described.description or figure.replace("_", " "))
        scale = 1e12 if figure in TERA else 1.0
        for point in points:
            ok = [row for row in point.trials if row["status"] in MEASURED and not is_missing(row[figure])]
            if ok:
                _add(family, point.labels, median(float(row[figure]) for row in ok) * scale)
        families.append(family)
    return families


def write_textfile(text: str, out: Path) -> Path:
    """Write by rename, so that the node exporter never reads half of it; a folder gets `benchsuite.prom`.

    Raises:
        StoreError: the name ends otherwise than in .prom, which the node exporter passes over; or it cannot be written.
    """
    path = out / f"benchsuite{ENDING}" if out.is_dir() else out
    if path.suffix != ENDING:
        if not path.suffix and not path.exists():
            raise StoreError(f"{path}: no such folder; create it, or name FILE{ENDING}: {path.with_suffix(ENDING)}")
        raise StoreError(f"{path}: a node exporter reads only *{ENDING}: {path.with_suffix(ENDING)}")
    write_whole(path, text)
    return path
