"""What a report is made of: a section per sweep and session, with its points and trials."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from benchsuite.results.render.naming import WORKLOAD, labels_apart, short_workloads
from benchsuite.results.render.tables import Row, rows
from benchsuite.results.report import jobs, readers
from benchsuite.results.report.answer import answer, evidence
from benchsuite.results.report.ranking import Contest, contests, ranked_rows
from benchsuite.results.report.summary import arithmetic
from benchsuite.results.scaling import staging
from benchsuite.results.store.frames import by_point
from benchsuite.results.store.store import ResultsStore


@dataclass(frozen=True)
class Section:
    """One sweep in one session."""

    title: str
    points: Sequence[Row]
    """The best choices first, those without a rank last."""
    trials: Sequence[Row]
    contests: Sequence[Contest]

    @property
    def answer(self) -> list[str]:
        """What its points say, a paragraph for each set of choices that can be compared."""
        return answer(self.points, self.contests)

    @property
    def beside(self) -> list[str]:
        """What its points say of readers and of staging, and its trials of where the time of their jobs went."""
        return [*readers.lines(self.points), *staging.lines(self.points), *jobs.lines(self.trials)]

    @property
    def why(self) -> list[str]:
        """What the answer's verdicts rest on, then the arithmetic of caveats."""
        return [*evidence(self.points, self.contests), *arithmetic(self.trials)]


def points_of(found: Sequence[Section]) -> list[tuple[int, Row]]:
    """The points of all sections, each with its number in the table of the page."""
    return list(enumerate(row for section in found for row in section.points))


def trials_of(found: Sequence[Section]) -> list[Row]:
    """The trials of all sections."""
    return [row for section in found for row in section.trials]


def sections(store: ResultsStore) -> list[Section]:
    """Every sweep and session of a store, as first seen; workloads by their short names."""
    return sections_of(store.frame())


def sections_of(trials: pd.DataFrame) -> list[Section]:
    """As `sections`, of trials as `ResultsStore.frame` gives them."""
    frame = _with_short_workloads(trials)
    found: dict[tuple[str, str], tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for place, of in enumerate((rows(by_point(frame)), rows(frame))):
        for row in of:
            found.setdefault((row["sweep"], row["session"]), ([], []))[place].append(row)
    keys = dict.fromkeys(zip(frame["sweep"], frame["session"], strict=True)) if found else {}
    sessions = Counter(sweep for sweep, _ in keys)
    return [_section(*found[key], f" (session {key[1]})" if sessions[key[0]] > 1 else "") for key in keys]


def _with_short_workloads(frame: pd.DataFrame) -> pd.DataFrame:
    if WORKLOAD not in frame:
        return frame
    names = short_workloads(name for name in frame[WORKLOAD] if isinstance(name, str))
    return frame.assign(**{WORKLOAD: [names.get(name, name) for name in frame[WORKLOAD]]})


def section_of(store: ResultsStore, trial_ids: Collection[str], labels: Mapping[str, str]) -> Section:
    """The trials of one plan, whichever sweep measured them, with the labels (by point id) that this plan gives."""
    frame = store.frame()
    frame = frame[frame["trial_id"].isin(trial_ids)].reset_index(drop=True)
    if frame.empty:
        return Section("", [], [], [])
    frame["label"] = [labels[point] for point in frame["point_id"]]
    return _section(rows(by_point(frame)), rows(frame), "")


def _section(points: Sequence[dict[str, Any]], trials: Sequence[dict[str, Any]], suffix: str) -> Section:
    names = labels_apart(points)
    for row in (*points, *trials):
        row["label"] = names.get(str(row["point_id"]), row["label"])
    question = next((str(row["question"]) for row in trials if row["question"]), str(trials[0]["sweep"]))
    rank_by = next((str(row["rank_by"]) for row in trials if row.get("rank_by")), "samples_per_s")
    found = contests(points, trials, rank_by)
    return Section(question + suffix, ranked_rows(points, found), trials, found)
