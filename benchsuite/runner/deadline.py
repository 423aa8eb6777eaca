"""When a sweep has to be over: no trial is started that, by what is known of it, could not end in time."""

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
"""Kept for what follows the last trial before an allocation ends."""


@dataclass(frozen=True)
class Deadline:
    """The end, and how long trials take."""

    ends_s: float | None = None
    """Seconds since 1970 by this node's clock; None: no end."""
    known: Durations = field(default_factory=Durations)

    def left_s(self) -> float:
        """Seconds until the end; infinite without one."""
        return float("inf") if self.ends_s is None else max(0.0, self.ends_s - time.time())

    def allows(self, point_id: str) -> bool:
        """Whether a trial of this point, started now, may end in time; of one that has not run by the fastest."""
        return self.ends_s is None or time.time() + (self.known.least_s(point_id) or 0.0) <= self.ends_s

    def none_fits(self, point_ids: Iterable[str]) -> str:
        """Tell why no trial of these points is started."""
        shortest_s = min((taken for taken in map(self.known.least_s, point_ids) if taken is not None), default=None)
        about = "" if shortest_s is None else f"the shortest takes about {shortest_s:.0f} s, "
        return f"no trial can end in time: {about}{self.left_s():.0f} s are left"


def deadline_of(
    until: str | None, known: Durations | None = None, environment: Mapping[str, str] = os.environ
) -> Deadline:
    """The earlier of what is asked for and of the allocation's end, with how long trials have taken so far.

    Raises:
        UserError: `until` is no time.
    """
    told = environment.get(END_VARIABLE, "")
    ends = [float(end) - RESERVE_S for end in ([told] if told.isdigit() else _asked_end(environment))]
    if until is not None:
        ends.append(parse_until(until, datetime.now()).timestamp())
    return Deadline(min(ends, default=None), known or Durations())


def _asked_end(environment: Mapping[str, str]) -> list[str]:
    """When squeue says that this job ends: Slurm 22.05 and older tell it to no variable."""
    if not environment.get("SLURM_JOB_ID"):
        return []
    array = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    job = f"{array[0]}_{array[1]}" if all(array) else environment["SLURM_JOB_ID"]
    command = ["squeue", "--noheader", "--jobs", job, "--format=%e"]
    told, _ = first_line(command, SQUEUE_S, {**environment, "SLURM_TIME_FORMAT": "%s"})
    return [told] if told and told.isdigit() else []


def parse_until(text: str, now: datetime) -> datetime:
    """A moment: `06:30` (the next one), `2026-01-31T06:30`, or `+90m`, `+2h`, `+45s` from now.

    Raises:
        UserError: it is none of these, or over.
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
    except (ValueError, OverflowError):  # such as of a moment after the year 9999
        raise UserError(f"--until {text!r}: allowed: 06:30, 2026-01-31T06:30, +90m, +2h, +45s") from None
    if moment <= now:
        raise UserError(f"--until {text}: is over; it is {now:%Y-%m-%dT%H:%M} now")
    return moment
