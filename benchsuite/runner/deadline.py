"""The time when a sweep must end: no trial is started that is expected to end later."""

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from benchsuite.contract.errors import UserError
from benchsuite.host.environment import first_line
from benchsuite.runner.durations import Durations

END_VARIABLE = "SLURM_JOB_END_TIME"
"""Seconds since 1970 at which the allocation ends."""
SQUEUE_S = 20.0
RESERVE_S = 30.0
"""Time that is kept before an allocation ends, for what follows the last trial."""


@dataclass(frozen=True)
class Deadline:
    """The time when a sweep must end, and how long trials take."""

    ends_s: float | None = None
    """Seconds since 1970 by this node's clock; None: no end."""
    durations: Durations = field(default_factory=Durations)

    def left_s(self) -> float:
        """Return the seconds until the end; infinite where there is none."""
        return float("inf") if self.ends_s is None else max(0.0, self.ends_s - time.time())

    def allows(self, point_id: str) -> bool:
        """Return whether a trial of this point, started now, may end in time."""
        return self.ends_s is None or time.time() + (self.durations.lower_estimate_s(point_id) or 0.0) <= self.ends_s

    def explain_no_fit(self, point_ids: Iterable[str]) -> str:
        """Return why no trial of these points is started."""
        estimates_s = [self.durations.lower_estimate_s(point) for point in point_ids]
        shortest_s = min((seconds for seconds in estimates_s if seconds is not None), default=None)
        about = "" if shortest_s is None else f"the shortest takes about {shortest_s:.0f} s, "
        return f"no trial can end in time: {about}{self.left_s():.0f} s are left"


def deadline_of(
    until: str | None, durations: Durations | None = None, environment: Mapping[str, str] = os.environ
) -> Deadline:
    """Return the earlier of `until` and the end of the allocation, with how long trials have taken so far.

    Raises:
        UserError: `until` is no time.
    """
    ends_s = []
    if (allocation_end := _allocation_end(environment)) is not None:
        ends_s.append(float(allocation_end) - RESERVE_S)
    if until is not None:
        ends_s.append(parse_until(until, datetime.now()).timestamp())
    return Deadline(min(ends_s, default=None), durations or Durations())


def _allocation_end(environment: Mapping[str, str]) -> str | None:
    """Return when this Slurm job ends, in seconds since 1970; None outside of a job, or where Slurm gives no end.

    Slurm 22.05 and older set no variable, so squeue is asked.
    """
    end = environment.get(END_VARIABLE, "")
    if end.isdigit():
        return end
    if not environment.get("SLURM_JOB_ID"):
        return None
    array = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    job = f"{array[0]}_{array[1]}" if all(array) else environment["SLURM_JOB_ID"]
    command = ["squeue", "--noheader", "--jobs", job, "--format=%e"]
    end_line, _ = first_line(command, SQUEUE_S, {**environment, "SLURM_TIME_FORMAT": "%s"})
    return end_line if end_line and end_line.isdigit() else None


def parse_until(text: str, now: datetime) -> datetime:
    """Return the time that a text means: `06:30` (the next one), `2026-01-31T06:30`, or `+90m`, `+2h`, `+45s` from now.

    Raises:
        UserError: the text is none of these, or the time is past.
    """
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        if span := re.fullmatch(r"\+(\d+\.?\d*)([smh])", text, re.ASCII):
            return now + timedelta(seconds=float(span[1]) * units[span[2]])
        if len(text) <= len("06:30:00"):
            moment = datetime.combine(
                now.date(), datetime.strptime(text, "%H:%M" if text.count(":") == 1 else "%H:%M:%S").time()
            )
            return moment if moment > now else moment + timedelta(days=1)
        moment = datetime.fromisoformat(text).astimezone().replace(tzinfo=None)
    except (ValueError, OverflowError):  # the time may lie after the year 9999
        raise UserError(f"--until {text!r}: allowed: 06:30, 2026-01-31T06:30, +90m, +2h, +45s") from None
    if moment <= now:
        raise UserError(f"--until {text} is past: it is {now:%Y-%m-%dT%H:%M} now")
    return moment
