"""Where the wall time of jobs under `benchsuite run` went, by the rows of their records."""

from collections.abc import Sequence

from benchsuite.results.render.job_time import IN_WORDS, Seconds, of_job
from benchsuite.results.render.tables import Row, is_missing


def parts_of(row: Row) -> Seconds:
    """The seconds of each part of a run, as the row of its record has them."""
    names = {part: f"wall_time_s.{part}" for part in IN_WORDS}
    return {part: float(row[name]) for part, name in names.items() if not is_missing(row.get(name))}


def lines(trials: Sequence[Row]) -> list[str]:
    """A line for each job of a session: runs that `--name` gives one name are one job that went on."""
    jobs: dict[object, list[Row]] = {}
    for row in trials:
        if parts_of(row):
            jobs.setdefault(row["record_id"] if is_missing(row.get("job")) else ("job", row["job"]), []).append(row)
    return [
        of_job([(str(row["started_at"]), parts_of(row)) for row in runs], str(runs[0]["label"]))
        for runs in jobs.values()
    ]
