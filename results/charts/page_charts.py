"""Every chart of the HTML report, in the order of the page."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchsuite.results.charts import chart, comm, knee, pipeline, predicted, scaling, step, storage
from benchsuite.results.charts.chart import Chart, Numbered, places
from benchsuite.results.render.tables import is_missing, rows
from benchsuite.results.report.io_profile import is_known
from benchsuite.results.report.modelled import NOTHING, Modelled
from benchsuite.results.report.sections import Section, points_of, trials_of
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore

MAX_TIMELINES = MAX_PROFILES = 12
"""Trials that have a timeline, or an I/O profile, in the page; the rest is left to other verbs."""


def charts(store: ResultsStore, found: Sequence[Section], modelled: Modelled = NOTHING) -> list[Chart]:
    """Every chart of a store's sections that has something to show, in the order of the page."""
    points, trials = points_of(found), trials_of(found)
    records = store.trials()
    place = places(points)
    return [
        *chart.against_ranks(points, "au", "Accelerator utilization against ranks", "au", "AU"),
        *chart.against_ranks(points, "rate", "Throughput against ranks", "samples_per_s", "samples/s"),
        *chart.against_batch(points),
        *storage.formats_by_loaders(points),
        *step.breakdown(points),
        *scaling.efficiencies(trials, points),
        *predicted.charts(modelled.predicted, place, modelled.unpredicted),
        *step.buckets(points),
        *step.memory(points),
        *_profiles(points, records),
        *storage.staging(points),
        *knee.charts(modelled.knees, place),
        *pipeline.charts(modelled.pipelines, place, modelled.undrawn),
        *comm.charts([*rows(store.frame(by="point", kind="comm"))]),
        *_timelines(store, points, records),
    ]


def _profiles(points: Sequence[Numbered], records: Sequence[TrialRecord]) -> Iterator[Chart]:
    place = places(points)
    profiled = [record for record in records if is_known(record.io_profile)]
    for record in profiled[-MAX_PROFILES:]:
        number = place[record.session, record.point_id]
        yield from storage.io_profile(record.io_profile or {}, number, points[number][1])


def _timelines(store: ResultsStore, points: Sequence[Numbered], records: Sequence[TrialRecord]) -> Iterator[Chart]:
    """Of the points that wait most for input, the repeat with the median step."""
    kept = [record for record in records if record.samples_file and record.status == "ok" and record.sweep != "watch"]
    repeats: dict[tuple[str, str], list[TrialRecord]] = {}
    for record in kept:
        repeats.setdefault((record.session, record.point_id), []).append(record)
    place = places(points)
    worst = sorted(repeats, key=lambda key: _or(points[place[key]][1].get("au"), 2.0))
    for key in sorted(worst[:MAX_TIMELINES], key=lambda key: place[key]):
        steps = sorted(repeats[key], key=lambda record: _or(record.figures.step_s_mean, 0.0))
        samples = store.steps(steps[(len(steps) - 1) // 2])
        if samples and samples.get("ranks"):
            yield from step.timeline(samples, place[key], points[place[key]][1])


def _or(value: Any, default: float) -> float:
    return default if is_missing(value) else float(value)
