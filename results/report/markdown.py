"""The report as Markdown: question, answer, points, trials, what the numbers rest on."""

from results.report.sections import Section, sections
from results.report.summary import LEGEND, answer, remedies, trust
from results.report.tables import COLUMNS, TRIAL_COLUMNS, as_markdown, inline, troubles
from results.staging import lines as staging_lines
from results.store import ResultsStore


def report(store: ResultsStore) -> str:
    """A report on everything in the store, a section per sweep and session; one table row per trial."""
    parts = [_markdown(section) for section in sections(store)]
    return "\n\n".join([*(parts or ["No results yet."]), LEGEND.replace("\n", " ")])


def _markdown(section: Section) -> str:
    return "\n\n".join(
        [
            f"## {inline(section.title)}",
            inline(answer(section.points)),
            "Median over repeats ± the distance to the farthest:",
            as_markdown(section.points, COLUMNS),
            *(["\n".join(f"- {inline(line)}" for line in found)] if (found := staging_lines(section.points)) else []),
            "\n".join(
                [
                    trust(section.trials),
                    *(f"- {inline(line)}" for line in (*troubles(section.trials), *remedies(section.trials))),
                ]
            ),
            "Every trial:",
            as_markdown(section.trials, TRIAL_COLUMNS),
        ]
    )
