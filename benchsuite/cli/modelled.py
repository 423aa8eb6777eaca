"""What models say of a store, for its report: predictions of series, schedules of pipelines, storage knees.

Series that differ in staging alone, with their predicted utilization and the knee of the shared storage.

Pipeline schedules of stored trials, drawn at the times that their stages took.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from benchsuite.contract.errors import UserError
from benchsuite.predict import outlook
from benchsuite.predict.curve import Curve
from benchsuite.predict.from_store import from_series
from benchsuite.predict.more_ranks import MAX_BEYOND
from benchsuite.predict.theory.schedules import Timeline, idle_fractions, makespan, schedule
from benchsuite.results.render.tables import Row
from benchsuite.results.report.modelled import Modelled, PipelineStep, Predicted, StorageCurve, StorageKnee
from benchsuite.results.report.scaling import titles
from benchsuite.results.scaling.knee import input_knee, knee_line, staged, staging_pairs
from benchsuite.results.scaling.series import Series, find_series
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.workloads.layout import Layout, LayoutError, layout_of
from benchsuite.workloads.spec import Parallelism

PER_DOUBLING = 4
"""Points of a curve."""
MAX_PREDICTED = 24
"""Series that a report predicts."""
PREDICTED = "series are predicted, those with the most scales (`benchsuite predict --where KEY=VALUE` predicts any)"
DRAWN = "points with pipelines are drawn, the last ones"


def modelled(store: ResultsStore) -> Modelled:
    """All that a report of a store draws besides what was measured."""
    trials = store.frame()
    found = [] if trials.empty else find_series(trials, mix_environments=True)
    pipelines, num_series = pipeline_points(store), sum(len(series.rates) > 1 for series in found)
    predicted = predictions(found)
    return Modelled(
        predicted,
        pipeline_steps(store, pipelines),
        storage_knees(found, titles(found), predicted),
        unpredicted=_left_out(num_series, MAX_PREDICTED, PREDICTED),
        undrawn=_left_out(len(pipelines), MAX_PIPELINES, DRAWN),
    )


def _left_out(count: int, most: int, words: str) -> str:
    """How many there are beyond what a report has; empty where none."""
    return f"{most} of {count} {words}; {count - most} left out." if count > most else ""


def predictions(found: Sequence[Series]) -> list[Predicted]:
    """Each series of two scales or more with what is predicted of it, the longest first, MAX_PREDICTED at most."""
    named = [*zip(found, titles(found), strict=True)]
    several = [(series, title) for series, title in named if len(series.rates) > 1]
    several.sort(key=lambda one: -len(one[0].rates))
    return [predicted(series, title) for series, title in several[:MAX_PREDICTED]]


def predicted(series: Series, title: str) -> Predicted:
    """The curve of a series, up to MAX_BEYOND times its most ranks, or why there is none."""
    if series.mixed:
        return Predicted(series, title, problem=f"mixed environments: {series.mixed[0]}")
    try:
        curve = from_series(series, title)
        ranks = reach(curve)
        rows, lines = outlook.predict(curve, ranks)
    except UserError as error:
        return Predicted(series, title, problem=str(error).removeprefix(f"{title}: "))
    if ranks[-1] < MAX_BEYOND * curve.most_ranks:
        lines.append(f"drawn up to {ranks[-1]} ranks: more have no sample each of the {curve.batch:g} in a batch")
    return Predicted(series, title, rows, lines)


def reach(curve: Curve) -> list[int]:
    """The ranks measured, and PER_DOUBLING in each doubling up to MAX_BEYOND times their most.

    In strong scaling no more than have a sample each, where not all ranks work on the same ones.
    """
    measured = [point.ranks for point in curve.points]
    first, most = min(measured), MAX_BEYOND * curve.most_ranks
    if curve.kind == "strong" and curve.data_share * curve.most_ranks > 1:
        most = max(curve.most_ranks, min(most, int(curve.batch / curve.data_share)))
    steps = range(int(PER_DOUBLING * math.log2(most / first)) + 1)
    return sorted({*measured, most, *(round(first * 2 ** (step / PER_DOUBLING)) for step in steps)})


BEYOND = 2
"""Times the most ranks measured that a storage curve goes to."""


def storage_knees(
    found: Sequence[Series], titles: Sequence[str], predicted: Sequence[Predicted] = ()
) -> list[StorageKnee]:
    """Each series from shared storage that has its like from node-local copies, or a knee."""
    names = {id(series): title for series, title in zip(found, titles, strict=True)}
    rows = {id(one.series): one.rows for one in predicted}
    told = [(shared, copies, input_knee(shared)) for shared, copies in staging_pairs(found)]
    return [
        StorageKnee(
            names[id(shared)],
            [_curve(series, rows.get(id(series), ())) for series in (shared, *copies)],
            knee.ranks,
            [knee_line(shared) or f"no knee: {knee.problem}"],
        )
        for shared, copies, knee in told
        if shared.rates and (copies or knee.ranks is not None)
    ]


def _curve(series: Series, predicted: Sequence[Row]) -> StorageCurve:
    """A series with what is predicted of its utilization."""
    name = "node-local copy" if staged(series) else "shared file system"
    name += " (lazy)" if series.example.get("spec.data.staging") == "lazy" else ""
    drawn = [row for row in predicted if row["au"] is not None and row["ranks"] <= BEYOND * max(series.rates)]
    return StorageCurve(name, series, [row["ranks"] for row in drawn], [row["au"] for row in drawn])


MAX_PIPELINES = 12
"""Points whose schedule a report draws."""
MAX_SLOTS = 100_000
"""Microbatches on stages that a schedule is drawn of."""
PARTS = ("forward", "backward", "bubble")
Times = Mapping[str, Sequence[float]]
"""Seconds per step of each stage, by part."""


def pipeline_points(store: ResultsStore) -> list[list[TrialRecord]]:
    """The ok repeats of each point whose ranks are stages of a pipeline."""
    repeats: dict[tuple[str, str], list[TrialRecord]] = {}
    for record in store.trials():
        if record.status == "ok" and layout(record) is not None:
            repeats.setdefault((record.session, record.point_id), []).append(record)
    return [*repeats.values()]


def pipeline_steps(store: ResultsStore, points: Sequence[list[TrialRecord]] | None = None) -> list[PipelineStep]:
    """The schedule of the last MAX_PIPELINES points, each by its repeat with the median step."""
    last = (pipeline_points(store) if points is None else points)[-MAX_PIPELINES:]
    return [_step(store, sorted(records, key=_seconds)[(len(records) - 1) // 2]) for records in last]


def _seconds(record: TrialRecord) -> float:
    return record.figures.step_s_mean or 0.0


def layout(record: TrialRecord) -> Layout | None:
    """A trial's layout where it has several stages, and not too many to be drawn; None else."""
    given = record.spec.get("parallelism")
    if not isinstance(given, str | dict) or (isinstance(given, str) and given != "pp"):
        return None
    try:
        found = layout_of(given if isinstance(given, str) else Parallelism(**given), record.spec.get("world_size"))
    except (LayoutError, ValueError):
        return None
    return found if found.pp > 1 and found.pp * found.microbatches * found.stages_per_rank <= MAX_SLOTS else None


def _step(store: ResultsStore, record: TrialRecord) -> PipelineStep:
    of = layout(record)
    assert of is not None
    title = f"{record.label} · {record.sweep} · {record.session}"
    times = stage_times(store.steps(record), of)
    try:
        timeline = _timeline(of, times)
    except UserError as error:
        return PipelineStep(title, (), [f"not drawn: {error}"], record.session, record.point_id)
    lines = [_head(of, record), *_stage_lines(of, timeline, times)]
    return PipelineStep(
        title, [*chain.from_iterable(timeline)], lines, record.session, record.point_id, times is not None
    )


def stage_times(samples: Mapping[str, Any] | None, of: Layout) -> Times | None:
    """Mean seconds per step that the ranks of each stage computed and waited, of the loader's blocks; None: unknown."""
    found: dict[str, list[list[float]]] = {part: [[] for _ in range(of.pp)] for part in PARTS}
    for rank in (samples or {}).get("ranks", ()):
        blocks = [block for block in rank["blocks"] if block["kind"] == "loader"] or rank["blocks"]
        for part in PARTS:
            steps = [seconds for block in blocks for seconds in block["parts"].get(part, ())]
            if steps:
                found[part][of.place(rank["rank"]).pp].append(fmean(steps))
    if not all(found["forward"]) or not all(found["backward"]):
        return None
    return {part: [fmean(of_stage) for of_stage in stages] for part, stages in found.items() if all(stages)}


def _timeline(of: Layout, times: Times | None) -> Timeline:
    """With unit times a backward pass takes as long as two forward ones; as measured, half of it is W where split."""
    name = "gpipe" if of.schedule == "naive" and of.microbatches == 1 else of.schedule
    if times is None:
        return schedule(name, of.pp, of.microbatches, of.stages_per_rank)
    forward, backward = ([seconds / of.microbatches for seconds in times[part]] for part in ("forward", "backward"))
    half = [seconds / 2 for seconds in backward]
    return schedule(name, of.pp, of.microbatches, of.stages_per_rank, forward, half, half)


def _head(of: Layout, record: TrialRecord) -> str:
    step = record.figures.step_s_mean
    told = "" if step is None else f"; a step took {step * 1e3:.4g} ms"
    chunks = f", {of.stages_per_rank} chunks each" if of.stages_per_rank > 1 else ""
    return f"{of.schedule}: {of.pp} stages{chunks}, {of.microbatches} microbatches{told}"


def _stage_lines(of: Layout, timeline: Timeline, times: Times | None) -> Iterator[str]:
    """Bubbles as drawn beside those measured."""
    idle = [share * makespan(timeline) for share in idle_fractions(timeline)]
    if times is None:
        yield f"at unit times (the stages' were not kept): {max(idle) / makespan(timeline):.1%} of the step is bubble"
        return
    yield (
        f"as drawn {makespan(timeline) * 1e3:.4g} ms, without transfers and update; measured bubbles hold what a "
        "stage waits for transfers"
    )
    for stage, idle_s in enumerate(idle):
        bubble = f"{times['bubble'][stage] * 1e3:.3g} ms" if "bubble" in times else "not"
        forward, backward = (times[part][stage] / of.microbatches * 1e3 for part in ("forward", "backward"))
        yield (
            f"stage {stage}: forward {forward:.3g} ms, backward {backward:.3g} ms a microbatch; bubble a step "
            f"{idle_s * 1e3:.3g} ms as drawn, {bubble} measured"
        )
