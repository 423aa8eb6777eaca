"""The report as nested values for programs: what the page says, with every field of points and trials."""

from typing import Any

from benchsuite.results.render.tables import troubles
from benchsuite.results.report import jobs, provenance, readers, several_gpus
from benchsuite.results.report.answer import evidence
from benchsuite.results.report.markdown import judged_series
from benchsuite.results.report.modelled import NOTHING, Modelled
from benchsuite.results.report.ranking import Contest
from benchsuite.results.report.scaling import as_objects
from benchsuite.results.report.sections import Section, sections
from benchsuite.results.report.summary import arithmetic, remedies, trust
from benchsuite.results.scaling.staging import lines as staging_lines
from benchsuite.results.store.store import ResultsStore


def report(store: ResultsStore, modelled: Modelled = NOTHING) -> dict[str, Any]:
    """Everything in a store: a section per sweep and session, series of scaling, what models say, where it comes from.

    Points and trials are flat, as `ResultsStore.frame` has them; null is missing.
    """
    records = store.trials()
    return {
        "sections": [_section(section) for section in sections(store)],
        "scaling": as_objects(judged_series(store)),
        "predicted": [
            {"series": one.title, "problem": one.problem, "points": list(one.rows), "notes": list(one.lines)}
            for one in modelled.predicted
        ],
        "knees": [{"title": one.title, "ranks": one.knee_ranks, "notes": list(one.lines)} for one in modelled.knees],
        "pipelines": [{"title": one.title, "notes": list(one.lines)} for one in modelled.pipelines],
        "left_out": [text for text in (modelled.unpredicted, modelled.undrawn) if text],
        "environments": dict(provenance.environments(records)),
        "commands": provenance.commands(records),
    }


def _contest(contest: Contest) -> dict[str, Any]:
    """Choices that can be compared, the best first."""
    return {
        "title": contest.title,
        "unit": contest.measure.unit,
        "choices": [
            {
                "point_id": choice.row["point_id"],
                "label": choice.label,
                "value": choice.value,
                "low": choice.low,
                "high": choice.high,
                "rank": choice.rank,
                "against_best": choice.against_best,
                "told_apart": choice.told_apart,
                "more_repeats": choice.more_repeats,
                "not_ranked": choice.why_unranked,
            }
            for choice in contest.choices
        ],
    }


def _section(section: Section) -> dict[str, Any]:
    first = section.trials[0]
    return {
        "sweep": first["sweep"],
        "session": first["session"],
        "title": section.title,
        "answer": " ".join(section.answer),
        "ranking": [_contest(contest) for contest in section.contests],
        "readers": readers.lines(section.points),
        "staging": staging_lines(section.points),
        "wall_time": jobs.lines(section.trials),
        "trust": trust(section.trials),
        "remedies": remedies(section.points),
        "untested": several_gpus.remark(section.points),
        "why": evidence(section.points, section.contests),
        "caveats": arithmetic(section.trials),
        "failures": troubles(section.trials),
        "points": list(section.points),
        "trials": list(section.trials),
    }
