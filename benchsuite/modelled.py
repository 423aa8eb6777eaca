"""What models say of a store, for its report: predictions of series, schedules of pipelines, storage knees."""

import math
from collections.abc import Sequence

from benchsuite.errors import UserError
from benchsuite.knees import storage_knees
from benchsuite.pipelines import MAX_PIPELINES, pipeline_points, pipeline_steps
from benchsuite.predict import outlook
from benchsuite.predict.alphabeta import from_rows
from benchsuite.predict.curves import from_series
from benchsuite.predict.series import MAX_BEYOND, Curve, fit
from results.report.modelled import Modelled, Predicted
from results.report.scaling import titles
from results.scaling import Series, find_series
from results.store import ResultsStore

PER_DOUBLING = 4
"""Points of a curve."""
MAX_PREDICTED = 24
"""Series that a report predicts: fitting one takes about 0.1 s."""
PREDICTED = "series are predicted, those with the most scales (`benchsuite predict --where KEY=VALUE` predicts any)"
DRAWN = "points with pipelines are drawn, the last ones"


def modelled(store: ResultsStore) -> Modelled:
    """All that a report of a store draws besides what was measured."""
    trials = store.frame()
    found = [] if trials.empty else find_series(trials, mix_environments=True)
    pipelines, num_series = pipeline_points(store), sum(len(series.rates) > 1 for series in found)
    return Modelled(
        predictions(store, found),
        pipeline_steps(store, pipelines),
        storage_knees(found, titles(found)),
        unpredicted=_left_out(num_series, MAX_PREDICTED, PREDICTED),
        undrawn=_left_out(len(pipelines), MAX_PIPELINES, DRAWN),
    )


def _left_out(count: int, most: int, words: str) -> str:
    """How many there are beyond what a report has; empty where none."""
    return f"{most} of {count} {words}; {count - most} left out." if count > most else ""


def predictions(store: ResultsStore, found: Sequence[Series]) -> list[Predicted]:
    """Each series of two scales or more with what is predicted of it, the longest first, MAX_PREDICTED at most."""
    named = [*zip(found, titles(found), strict=True)]
    several = [(series, title) for series, title in named if len(series.rates) > 1]
    several.sort(key=lambda one: -len(one[0].rates))
    probed = from_rows(store.frame(kind="comm")) if several else {}
    return [_predicted(series, title, probed) for series, title in several[:MAX_PREDICTED]]


def _predicted(series: Series, title: str, probed: object) -> Predicted:
    if series.mixed:
        return Predicted(series, title, problem=f"mixed environments: {series.mixed[0]}")
    try:
        curve = from_series(series, title, probed, None, False)  # type: ignore[arg-type]
        model = fit(curve)
        ranks = reach(curve)
        rows = [outlook.row(model, model.at(count)) for count in ranks]
    except UserError as error:
        return Predicted(series, title, problem=str(error).removeprefix(f"{title}: "))
    lines = outlook.assumptions(model, ranks)
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
