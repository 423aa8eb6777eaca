"""Charts of pipeline schedules: what each stage does when in one step, with the bubbles between."""

from collections.abc import Mapping, Sequence

from benchsuite.results.charts.chart import Chart, Trace, axis, lying_bars, rounded
from benchsuite.results.charts.scaling import Place
from benchsuite.results.report.modelled import PipelineStep, Slot

KINDS: Mapping[str, tuple[str, str]] = {
    "F": ("forward", "0, 114, 178"),
    "B": ("backward", "86, 180, 233"),
    "W": ("weight gradients", "0, 158, 115"),
}
"""Names and colours (red, green, blue)."""
LATER_CHUNK = 0.5
"""Opacity of chunks after the first."""
MAX_SLOTS = 1200
"""Pieces of work up to which a schedule is drawn."""
NOTE = "One step; numbers are microbatches, gaps are bubbles. Paler: a later chunk of the same stage."
META = {"of": "schedule"}


def charts(found: Sequence[PipelineStep], place: Place, left_out: str = "") -> list[Chart]:
    """A chart of each step of a pipeline. `left_out`: what else there is, told with each."""
    note = f"{NOTE} {left_out}" if left_out else NOTE
    return [_chart(step, place, note) for step in found]


def _chart(step: PipelineStep, place: Place, note: str) -> Chart:
    own = (step.session, step.point_id)
    meta = META if None in own else {"point": place[own]}  # type: ignore[index]
    drawn = step.slots if len(step.slots) <= MAX_SLOTS else ()
    left = (
        [f"{len(step.slots)} pieces of work: more than the {MAX_SLOTS} that are drawn"]
        if step.slots and not drawn
        else []
    )
    stages = sorted({slot.stage for slot in drawn})
    longest = max((slot.end_s for slot in drawn), default=0.0)
    scale, unit = (1e3, "ms") if step.timed else (1.0, "units of time")
    traces = [_bars(name, [s for s in drawn if (s.kind, s.chunk) == name], meta, scale) for name in _names(drawn)]
    layout = {
        "xaxis": axis(unit, range=[0, rounded(longest, scale)]),
        "yaxis": axis("stage", tickvals=stages, range=[len(stages) - 0.4, -0.6], showgrid=False),
        "barmode": "overlay",
        "bargap": 0.12,
        "margin": {"t": 34},
        "height": 170 + 34 * max(len(stages), 1),
        "uniformtext": {"minsize": 7, "mode": "hide"},
    }
    empty: list[Trace] = [{"type": "scatter", "x": [], "y": [], "meta": meta}]
    lines = [step.title, *step.lines, *left]
    return Chart("pipeline", "Pipeline schedules", traces or empty, layout, note, lines, choice=step.title)


def _names(slots: Sequence[Slot]) -> list[tuple[str, int]]:
    """Kinds in the order of the legend, each with its chunks."""
    there = {(slot.kind, slot.chunk) for slot in slots}
    return sorted(there, key=lambda name: (list(KINDS).index(name[0]), name[1]))


def _bars(name: tuple[str, int], slots: Sequence[Slot], meta: Mapping[str, object], scale: float) -> Trace:
    kind, chunk = name
    word, color = KINDS[kind]
    return lying_bars(
        word if chunk == 0 else f"{word}, chunk {chunk + 1}",
        [rounded(slot.end_s - slot.start_s, scale) for slot in slots],
        [slot.stage for slot in slots],
        base=[rounded(slot.start_s, scale) for slot in slots],
        text=[str(slot.microbatch) for slot in slots],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        constraintext="none",
        hovertext=[f"stage {slot.stage}: {kind} of microbatch {slot.microbatch}" for slot in slots],
        marker={"color": f"rgba({color}, {1 if chunk == 0 else LATER_CHUNK})"},
        meta=meta,
    )
