"""What somebody on call is told of a regression: a message, and a picture of the nights of what got worse most."""

from collections.abc import Sequence
from pathlib import Path

from benchsuite.results.compare.nights import nights_of, value_of
from benchsuite.results.gate.baseline import Check, Regression
from benchsuite.results.gate.halved import Halved
from benchsuite.results.render.words import typed
from benchsuite.results.report.compare import check_lines
from benchsuite.results.store.record import Kind
from benchsuite.results.store.store import ResultsStore

MAX_NIGHTS = 60


def message(store: Path, check: Check) -> str:
    """What got worse, since when, what changed with it, and what to type next; the first line is a subject."""
    worst = check.alarms[0]
    subject = f"benchsuite: {worst.label}: {worst.metric} {worst.worse:.0%} worse since {worst.since}"
    more = f" (and {len(check.alarms) - 1} more)" if len(check.alarms) > 1 else ""
    sides = (f"session={name}" for name in (check.baseline[-1], check.session))
    steps = [
        typed("benchsuite", "report", "--store", store, "--session", check.session),
        typed("benchsuite", "compare", *sides, "--store", store),
        f"{typed('benchsuite', 'baseline', 'set', '--store', store)} --session ...   # if the new level is meant to be",
    ]
    return "\n".join([subject + more, "", *check_lines(check), "", "Next:", *(f"  {step}" for step in steps), ""])


def history(store: ResultsStore, found: Regression | Halved, kind: Kind = "trial") -> list[tuple[str, float]]:
    """The values of what got worse, night by night, with their sessions."""
    nights = nights_of(store.latest(), kind)
    told = [(night.session, value_of(night.trials.get(found.point, ()), found.metric)) for night in nights]
    return [(session, value) for session, value in told if value is not None][-MAX_NIGHTS:]


def draw(values: Sequence[tuple[str, float]], found: Regression | Halved, path: Path) -> Path:
    """A picture of the nights, with the level before and the night of the step.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    names = [session for session, _ in values]
    axes.plot(range(len(values)), [value for _, value in values], "o-", markersize=3)
    axes.axhline(found.before, linestyle="--", linewidth=1, color="grey")
    if found.since in names:
        axes.axvline(names.index(found.since), linestyle=":", color="tab:red")
    every = max(1, len(names) // 12)
    axes.set_xticks(range(0, len(names), every), names[::every], rotation=30, ha="right", fontsize=7)
    axes.set_ylabel(found.metric)
    axes.set_ylim(bottom=0)
    title = f"{found.label}: {found.metric} {found.worse:.0%} worse since {found.since}"
    axes.set_title(title, fontsize=9, parse_math=False)
    figure.savefig(path, dpi=120)
    return path
