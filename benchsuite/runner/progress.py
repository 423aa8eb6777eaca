"""What a sweep says while it runs: one line per finished trial, one that moves, and what is left. On standard error."""

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
from benchsuite.runner.sweep import Ran, Status

UNKNOWN = "--:--"
TOLD = 5
"""The most points that are named one by one."""


def clock(seconds: float) -> str:
    """1:05 for 65 seconds, 2:00:05 for two hours and five seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def finished_line(record: TrialRecord) -> str:
    """A finished trial in one line."""
    took = clock(record.wall_s or 0)
    if record.status != "ok":
        log = f" · log: {record.work_folder}" if record.work_folder else ""
        return f"{record.label} · {record.status}: {record.reason}{log} · {took}"
    figures = record.figures
    au = "" if figures.au is None else f"AU {figures.au:.2f}"
    rate, hit = figures.io_bytes_per_s, figures.cache_hit_fraction
    parts = [
        record.label,
        au,
        f"{figures.samples_per_s:.0f} samples/s",
        "" if rate is None else f"{rate / 1e6:.1f} MB/s",
        "" if hit is None else f"{1 - hit:.0%} from storage",
        "" if figures.stage_s is None else f"staged in {figures.stage_s:.1f} s",
        (figures.bottleneck or "").replace("_", " "),
        took,
        " ".join(record.caveats),
    ]
    return " · ".join(part for part in parts if part)


def summary(plan: Plan, state: Status) -> str:
    """How much of a plan is done, and what is not in it."""
    done = sum(state.finished.values())
    trials = f"{done} of {done + len(state.todo)} trials done"
    parts = [f"{plan.sweep.name} · {counted(len(plan.points), 'point')} · {trials}"]
    if plan.skipped:
        parts.append(f"{counted(len(plan.skipped), 'point')} skipped")
    if plan.duplicates:
        parts.append(f"{plan.duplicates} duplicate points merged")
    return " · ".join(parts)


def vanished(store: Path, gone: Path) -> str:
    """Words for a file of a store that was removed while the sweep ran."""
    rest = "this record and later ones are kept in a new file"
    return f"warning: store {store}: {gone.name} was removed meanwhile, and what was in it is gone; {rest}"


def left_lines(ran: Ran) -> Iterator[str]:
    """What was not measured here, and why."""
    if ran.none_fits:
        yield f"error: {ran.none_fits}"
    elif ran.out_of_time:
        yield f"{ran.out_of_time} trials left: they could not have ended in time; the same command goes on"
    for reason, count in ran.too_few_nodes.items():
        yield f"{counted(count, 'trial')} skipped: {reason}; with as many nodes again the same command goes on"
    holders = Counter(str(held.claim.holder) for held in ran.held if held.claim)
    for holder, count in holders.items():
        yield f"{count} trials are left to another sweep, which is at them: {holder}"


def not_measured(plan: Plan, trials: Sequence[Mapping[str, Any]]) -> str:
    """Which points of a plan a session has no trial of; empty where it has of all."""
    seen = {trial["point_id"] for trial in trials}
    left = [point.label for point in plan.points if point.point_id not in seen]
    if not left or not seen:
        return ""
    more = f" and {len(left) - TOLD} more" if len(left) > TOLD else ""
    return f"not measured: {len(left)} of {counted(len(plan.points), 'point')}: {'; '.join(left[:TOLD])}{more}"


def nothing_left(state: Status, session: str) -> str:
    """Words for a sweep whose trials are all in the store already."""
    text = f"nothing left to do: all {sum(state.finished.values())} trials of session {session!r} are in the store"
    if state.num_failed:
        text += f", {state.num_failed} of them failed (--retry failed,oom,timeout runs those again)"
    return f"{text}; --session NAME measures anew, `benchsuite report` shows them"


class SweepDisplay:
    """Lines for people; with a terminal also a moving line with step, AU so far and ETA."""

    def __init__(self) -> None:
        self._console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)
        self._status: MovingLine | None = None
        self._number = self._total = 0
        self._own_ends_s = 0.0
        """Time of the monotonic clock when the trial that runs is expected to end."""
        self._rest_s: float | None = None
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
        """A line that stays."""
        self._console.print(Text(one_line(text)))

    def started(self, attempt: Attempt, number: int, total: int, own_s: float | None, rest_s: float | None) -> None:
        """A trial begins."""
        self._number, self._total = number, total
        self._own_ends_s, self._rest_s = time.monotonic() + (own_s or 0.0), rest_s
        self._label = f"{attempt.point.label} · repeat {attempt.repeat + 1}"
        self._show("starting")

    def progress(self, progress: Progress) -> None:
        """A trial goes on."""
        steps = f" · step {progress.step}/{progress.total}" if progress.total else ""
        au = "" if progress.au is None else f" · AU so far {progress.au:.2f}"
        self._show(f"{progress.phase}{steps}{au}")

    def finished(self, record: TrialRecord, rest_s: float | None) -> None:
        """A trial has ended."""
        self._number += 1
        self._own_ends_s, self._rest_s = time.monotonic(), rest_s
        self.say(f"[{self._number}/{self._total}] {finished_line(record)} · ETA {self._eta()}")

    def _eta(self) -> str:
        """The time left: it only falls while a trial runs, and waits for one that takes longer than expected."""
        if self._rest_s is None:
            return UNKNOWN
        return clock(self._rest_s + max(0.0, self._own_ends_s - time.monotonic()))

    def _show(self, what: str) -> None:
        if self._status is not None:
            # a terminal cuts off what is too long, and the time that is left is asked for most
            where = f"[{self._number}/{self._total}] ETA {self._eta()} · {self._label} · {what}"
            self._status.update(Text(one_line(f"{where} · Ctrl-C loses this trial only")))
