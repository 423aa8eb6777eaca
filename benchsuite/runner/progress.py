"""The lines that a sweep prints on standard error: one per finished trial, one that moves, and what is left."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.status import Status as MovingLine
from rich.text import Text

from benchsuite.analysis.record_builder import Attempt
from benchsuite.contract.console import SafeConsole
from benchsuite.contract.rank_samples import Progress
from benchsuite.contract.terminal import one_line
from benchsuite.grid.point import Plan
from benchsuite.results.render.words import counted
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.sweep import Status, SweepResult

UNKNOWN = "--:--"
MAX_NAMED = 5
"""The most points that are named one by one."""


def format_clock(seconds: float) -> str:
    """Return 1:05 for 65 seconds, 2:00:05 for two hours and five seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def finished_line(record: TrialRecord) -> str:
    """Return a finished trial as one line: its figures, or why it failed."""
    took = format_clock(record.wall_s or 0)
    if record.status != "ok":
        log = f" · log: {record.work_folder}" if record.work_folder else ""
        return f"{record.label} · {record.status}: {record.reason}{log} · {took}"
    figures = record.figures
    au = "" if figures.au is None else f"AU {figures.au:.2f}"
    io_rate, hit_fraction = figures.io_bytes_per_s, figures.cache_hit_fraction
    parts = [
        record.label,
        au,
        f"{figures.samples_per_s:.0f} samples/s",
        "" if io_rate is None else f"{io_rate / 1e6:.1f} MB/s",
        "" if hit_fraction is None else f"{1 - hit_fraction:.0%} from storage",
        "" if figures.stage_s is None else f"staged in {figures.stage_s:.1f} s",
        (figures.bottleneck or "").replace("_", " "),
        took,
        " ".join(record.caveats),
    ]
    return " · ".join(part for part in parts if part)


def summary(plan: Plan, state: Status) -> str:
    """Return one line: how many trials of a plan are done, and how many points it skips."""
    done = sum(state.finished.values())
    trials = f"{done} of {done + len(state.todo)} trials done"
    parts = [f"{plan.sweep.name} · {counted(len(plan.points), 'point')} · {trials}"]
    if plan.skipped:
        parts.append(f"{counted(len(plan.skipped), 'point')} skipped")
    if plan.duplicates:
        parts.append(f"{plan.duplicates} duplicate points merged")
    return " · ".join(parts)


def describe_vanished(store: Path, file: Path) -> str:
    """Return the warning that a file of a store was removed while the sweep ran."""
    return (
        f"warning: store {store}: {file.name} was removed while the sweep ran, and its content is lost; "
        "this record and later ones go to a new file"
    )


def left_lines(result: SweepResult) -> Iterator[str]:
    """Yield a line for each reason why trials were not measured by this sweep."""
    if result.no_time_reason:
        yield f"error: {result.no_time_reason}"
    elif result.out_of_time:
        yield f"{counted(result.out_of_time, 'trial')} left, as they could not end in time; the same command goes on"
    for reason, count in result.too_few_nodes.items():
        yield f"{counted(count, 'trial')} skipped: {reason}; with as many nodes again the same command goes on"
    holders = Counter(str(held.claim.holder) for held in result.held if held.claim)
    for holder, count in holders.items():
        yield f"{counted(count, 'trial')} left to another sweep: {holder}"


def describe_unmeasured(plan: Plan, trials: Sequence[Mapping[str, Any]]) -> str:
    """Return which points of a plan have no trial; empty where all have one, and where none has."""
    measured = {trial["point_id"] for trial in trials}
    labels = [point.label for point in plan.points if point.point_id not in measured]
    if not labels or not measured:
        return ""
    more = f" and {len(labels) - MAX_NAMED} more" if len(labels) > MAX_NAMED else ""
    named = "; ".join(labels[:MAX_NAMED])
    return f"not measured: {len(labels)} of {counted(len(plan.points), 'point')}: {named}{more}"


def describe_nothing_left(state: Status, session: str) -> str:
    """Return the line of a sweep whose trials are all in the store already."""
    text = f"nothing left to do: all {sum(state.finished.values())} trials of session {session!r} are in the store"
    if state.num_failed:
        text += f", {state.num_failed} of them failed (--retry failed,oom,timeout runs those again)"
    return f"{text}; --session NAME measures anew, `benchsuite report` shows them"


class SweepDisplay:
    """Prints a sweep's progress: lines, and on a terminal one that moves, with step, AU so far and ETA."""

    def __init__(self) -> None:
        self._console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)
        self._status: MovingLine | None = None
        self._number = self._total = 0
        self._trial_ends_s = 0.0
        """When the running trial should end, by the monotonic clock."""
        self._remaining_s: float | None = None
        self._label = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(Text(one_line(text)))

    def started(
        self, attempt: Attempt, number: int, total: int, trial_s: float | None, remaining_s: float | None
    ) -> None:
        """Show that a trial begins."""
        self._number, self._total = number, total
        self._trial_ends_s, self._remaining_s = time.monotonic() + (trial_s or 0.0), remaining_s
        self._label = f"{attempt.point.label} · repeat {attempt.repeat + 1}"
        self._show("starting")

    def progress(self, progress: Progress) -> None:
        """Show how far the running trial is."""
        steps = f" · step {progress.step}/{progress.total}" if progress.total else ""
        au = "" if progress.au is None else f" · AU so far {progress.au:.2f}"
        self._show(f"{progress.phase}{steps}{au}")

    def finished(self, record: TrialRecord, remaining_s: float | None) -> None:
        """Print the line of a trial that has ended."""
        self._number += 1
        self._trial_ends_s, self._remaining_s = time.monotonic(), remaining_s
        self.say(f"[{self._number}/{self._total}] {finished_line(record)} · ETA {self._eta()}")

    def _eta(self) -> str:
        """Return the time left: it only falls while a trial runs, and stops at one that takes longer than expected."""
        if self._remaining_s is None:
            return UNKNOWN
        return format_clock(self._remaining_s + max(0.0, self._trial_ends_s - time.monotonic()))

    def _show(self, what: str) -> None:
        """Change the moving line, where there is one."""
        if self._status is not None:
            # the ETA stands first: a terminal cuts off the end of a long line
            where = f"[{self._number}/{self._total}] ETA {self._eta()} · {self._label} · {what}"
            self._status.update(Text(one_line(f"{where} · Ctrl-C loses this trial only")))
