"""Pipeline schedules of stored trials, drawn at the times that their stages took."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchsuite.errors import UserError
from benchsuite.predict.schedules import Timeline, idle_fractions, makespan, schedule
from results.record import TrialRecord
from results.report.modelled import PipelineStep, Slot
from results.store import ResultsStore
from workloads.layout import Layout, LayoutError, layout_of
from workloads.spec import Parallelism

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
    for record in store.latest():
        if record.kind == "trial" and record.status == "ok" and layout(record) is not None:
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
    return PipelineStep(title, slots(timeline), lines, record.session, record.point_id, times is not None)


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


def slots(timeline: Timeline) -> list[Slot]:
    """As the report draws them."""
    return [
        Slot(slot.stage, slot.kind, slot.microbatch, slot.chunk, slot.start, slot.end)
        for stage in timeline
        for slot in stage
    ]


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
