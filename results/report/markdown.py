"""The report as Markdown: question, answer, points, trials, what the numbers rest on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchsuite.results.render import operators
from benchsuite.results.render.tables import (
    COLUMNS,
    TRIAL_COLUMNS,
    Column,
    as_markdown,
    au_meaning,
    ends,
    inline,
    troubles,
)
from benchsuite.results.report import provenance, several_gpus
from benchsuite.results.report.modelled import NOTHING, Modelled, Predicted
from benchsuite.results.report.sections import Section, sections
from benchsuite.results.report.summary import LEGEND, remedies, trust
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore

if TYPE_CHECKING:
    from benchsuite.results.scaling.series import Series


def report(store: ResultsStore, modelled: Modelled = NOTHING) -> str:
    """A report on everything in the store, a section per sweep and session; one table row per trial.

    Then series of scaling with their efficiencies, what models say of it (a table for each predicted series, and lines
    of knees and pipelines), and the environments and commands it all comes from.
    """
    parts = [_markdown(section) for section in sections(store)]
    parts += _efficiencies(store)
    parts += [_predicted(one) for one in modelled.predicted]
    parts += [inline(modelled.unpredicted)] if modelled.unpredicted else []
    told = [(knee.title, knee.lines) for knee in modelled.knees]
    told += [(step.title, step.lines) for step in modelled.pipelines]
    parts += [f"## {inline(title)}\n\n{_bullets(lines)}" for title, lines in told]
    parts += [inline(modelled.undrawn)] if modelled.undrawn else []
    parts += [_origins(store.trials())] if parts else []
    return "\n\n".join([*(parts or ["No results yet."]), _bullets(LEGEND.split("\n"))])


def judged_series(store: ResultsStore) -> list["Series"]:
    """The series of scaling that have an efficiency."""
    from benchsuite.results.scaling.series import find_series  # with scipy, which a sweep does without

    trials = store.frame()
    series = [] if trials.empty else find_series(trials, mix_environments=True)
    return [one for one in series if any(point.losses for point in one.points)]


def _efficiencies(store: ResultsStore) -> list[str]:
    from benchsuite.results.report import scaling

    judged = judged_series(store)
    return [scaling.markdown(judged)] if judged else []


def _origins(records: Sequence[TrialRecord]) -> str:
    """The environments of trials, and the commands that measured them."""
    trials = [record for record in records if record.kind == "trial"]
    facts = [f"- {inline(name)}: {inline('; '.join(values))}" for name, values in provenance.environments(trials)]
    commands = [command for told in provenance.commands(trials).values() for command in told]
    return "\n".join(["**Where this comes from**", "", *facts, *(f"- {inline(command)}" for command in commands)])


def _markdown(section: Section) -> str:
    return "\n\n".join(
        [
            f"## {inline(section.title)}",
            *map(inline, section.answer),
            "Median over repeats ± the distance to the farthest; of AU of the epoch also to where its error reaches:",
            as_markdown(section.points, COLUMNS),
            *([inline(meaning)] if (meaning := au_meaning(section.points)) else []),
            *_operators(section),
            *([_bullets(section.beside)] if section.beside else []),
            "\n".join(
                [
                    inline(trust(section.trials)),
                    *(f"- {inline(line)}" for line in (*troubles(section.trials), *remedies(section.points))),
                    *(f"- {inline(line)}" for line in several_gpus.remark(section.points)),
                ]
            ),
            *(["Why:", _bullets(section.why)] if section.why else []),
            "Every trial:",
            as_markdown(section.trials, TRIAL_COLUMNS),
        ]
    )


def _operators(section: Section) -> list[str]:
    """Operator classes and the roofline, where PyTorch's profile was asked for."""
    found = operators.counted(section.points)
    if not found:
        return []
    told = [operators.LEGEND, *operators.sources(found)]
    return ["Operators:", as_markdown(found, operators.COLUMNS), _bullets(told)]


def _predicted(one: Predicted) -> str:
    """What a series' model says of the ranks measured and of powers of two beyond."""
    lines = [*([f"no prediction: {one.problem}"] if one.problem else []), *one.lines]
    wanted = one.ticks
    rows = [row for row in one.rows if row["ranks"] in wanted]
    table = [as_markdown(rows, PREDICTED)] if rows else []
    return "\n\n".join([f"## Predicted: {inline(one.title)}", *table, _bullets(lines)])


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {inline(line)}" for line in lines)


PREDICTED = (
    Column("ranks", lambda row: str(row["ranks"])),
    Column("samples/s [90 %]", lambda row: ends(row, "samples_per_s")),
    Column("efficiency [90 %]", lambda row: ends(row, "efficiency", digits=2)),
)
