"""The report as Markdown: question, answer, points, trials, what the numbers rest on."""

from results.report.summary import LEGEND, answer, trust
from results.report.tables import COLUMNS, TRIAL_COLUMNS, as_markdown, rows, troubles
from results.store import ResultsStore


def report(store: ResultsStore) -> str:
    """A report on everything in the store, a section per sweep; one table row per trial."""
    trials, points = rows(store.frame()), rows(store.frame(by="point"))
    sections = []
    for sweep in dict.fromkeys(row["sweep"] for row in trials):
        of_sweep = [row for row in points if row["sweep"] == sweep]
        its_trials = [row for row in trials if row["sweep"] == sweep]
        question = next((row["question"] for row in its_trials if row["question"]), sweep)
        sections.append(
            "\n\n".join(
                [
                    f"## {question}",
                    answer(of_sweep),
                    "Median over repeats ± the distance to the farthest:",
                    as_markdown(of_sweep, COLUMNS),
                    "\n".join([trust(its_trials), *(f"- {line}" for line in troubles(its_trials))]),
                    "Every trial:",
                    as_markdown(its_trials, TRIAL_COLUMNS),
                ]
            )
        )
    return "\n\n".join([*sections, LEGEND.replace("\n", " ")])
