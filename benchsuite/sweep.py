"""Run a plan: skip what is done, launch what is not, append every result to the store."""

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

from benchsuite.autobatch import fitted
from benchsuite.ceilings import Ceilings, of_record, without_model
from benchsuite.errors import UserError
from benchsuite.grid import Plan, Point
from benchsuite.launch import Launcher, Outcome
from benchsuite.outcome import Attempt, conclude, keep_traces, new_attempt, with_ceilings, work_folder
from benchsuite.ranks import Progress
from benchsuite.spec import trial_id
from results.record import TrialRecord
from results.store import ResultsStore, StoreError

FINISHED = frozenset({"ok", "failed", "oom", "timeout"})
"""Trials with these are not run again in their session, unless asked by `retry`."""


class Terminated(BaseException):
    """SIGTERM arrived: stop early, to be requeued."""


class Watcher(Protocol):
    """Who shows a sweep's progress."""

    def started(self, attempt: Attempt, number: int, total: int) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def finished(self, record: TrialRecord) -> None: ...


@dataclass(frozen=True)
class Todo:
    """One trial to run."""

    point: Point
    repeat: int


@dataclass(frozen=True)
class Status:
    """What a session has of a plan: trials to run, and how those that ran have ended."""

    todo: list[Todo]
    finished: dict[str, int]

    @property
    def num_failed(self) -> int:
        return sum(count for status, count in self.finished.items() if status != "ok")


def status(plan: Plan, store: ResultsStore, session: str, retry: frozenset[str] = frozenset()) -> Status:
    """Which trials of a plan its session still lacks, repeats interleaved over the points."""
    known = {_done(record.trial_id, record.spec): record.status for record in store.latest()} if store.exists() else {}
    todo: list[Todo] = []
    finished: dict[str, int] = {}
    repeats = max((point.spec.measure.repeats for point in plan.points), default=0)
    for repeat in range(repeats):
        for point in (point for point in plan.points if repeat < point.spec.measure.repeats):
            before = known.get(_done(trial_id(point.point_id, session, repeat), point.spec.model_dump()))
            if before in FINISHED and before not in retry:
                finished[before] = finished.get(before, 0) + 1
            else:
                todo.append(Todo(point, repeat))
    return Status(todo, finished)


def _done(trial: str, spec: Mapping[str, Any]) -> tuple[str, str | None]:
    """What has been measured: a trial, and how it was observed."""
    return trial, (spec.get("measure") or {}).get("profile")


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that a trial in flight is ended and recorded."""

    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(
    plan: Plan,
    todo: list[Todo],
    store: ResultsStore,
    launcher: Launcher,
    session: str,
    watcher: Watcher,
) -> list[TrialRecord]:
    """Run trials one after another and append a record of each.

    A trial in flight when the sweep is interrupted becomes an `interrupted` record, and the interrupt is passed on.
    """
    record_skipped(plan, store, session)
    records = []
    sizes: dict[str, Point] = {}
    measured: Ceilings = {}
    with terminable():
        for number, item in enumerate(todo):
            attempt = _attempt(plan, item, session)
            watcher.started(attempt, number, len(todo))
            try:
                sized = sizes.setdefault(
                    item.point.point_id, fitted(sizes.get(item.point.point_id, item.point), launcher)
                )
                asked = {"batch_size_asked": "auto"} if item.point.spec.batch_size == "auto" else {}
                attempt = replace(attempt, point=sized, env=attempt.env | asked)
                record = run_one(attempt, store, launcher, watcher.progress, measured)
            except UserError as error:
                record = store.append(attempt.record("failed", reason=str(error)))
            watcher.finished(record)
            records.append(record)
    return records


def run_one(
    attempt: Attempt,
    store: ResultsStore,
    launcher: Launcher,
    on_progress: Callable[[Progress], None],
    ceilings: Ceilings | None = None,
) -> TrialRecord:
    """Launch one attempt and append its record; its work folder stays only when it failed.

    `ceilings` holds what is known of inputs; those of this trial's are measured when it has ended well.
    """
    point = attempt.point
    trial = trial_id(point.point_id, attempt.session, attempt.repeat)
    try:
        folder = work_folder(store.path, trial)
    except OSError as error:
        raise StoreError(f"store {store.path}: cannot be written: {error.strerror}") from error
    try:
        outcome = launcher.run(point.spec, point.dataset, folder, on_progress)
    except (KeyboardInterrupt, Terminated):
        record, _ = conclude(attempt, Outcome(interrupted=True), folder)
        store.append(record)
        _remove(folder)
        raise
    record, samples = conclude(attempt, outcome, folder)
    record = keep_traces(record, folder, store.path / "traces" / record.record_id, store.path)
    if record.status != "ok":
        return store.append(record.model_copy(update={"work_folder": str(folder.relative_to(store.path))}), samples)
    _remove(folder)
    if ceilings is None:
        return store.append(record, samples)
    try:
        found = _ceilings(attempt, store, launcher, ceilings)
    except (KeyboardInterrupt, Terminated):
        store.append(record, samples)
        raise
    return store.append(with_ceilings(attempt, record, found), samples)


def _ceilings(attempt: Attempt, store: ResultsStore, launcher: Launcher, known: Ceilings) -> dict[str, Any]:
    """What the trial's input could give at best: known, in the session's store, or measured now and appended to it."""
    alone = without_model(attempt.point)
    if alone is None:
        return {}
    name = trial_id(alone.point_id, attempt.session, 0)
    if name not in known:
        stored = store.latest() if store.exists() else []
        record = next((record for record in stored if record.trial_id == name and record.status == "ok"), None)
        if record is None:
            again = new_attempt(alone, attempt.session, 0, attempt.sweep, attempt.question)
            record = run_one(replace(again, kind="probe"), store, launcher, lambda progress: None)
        known[name] = of_record(record)
    return known[name]


def _remove(folder: Path) -> None:
    """Remove an attempt's work folder, and its trial's where that was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


def _attempt(plan: Plan, item: Todo, session: str) -> Attempt:
    return new_attempt(item.point, session, item.repeat, plan.sweep.name, plan.sweep.question)


def record_skipped(plan: Plan, store: ResultsStore, session: str) -> None:
    """Let the store know once per session which points were skipped, and why, so that reports show them."""
    known = {record.trial_id: record for record in store.latest()} if store.exists() else {}
    for skipped in plan.skipped:
        before = known.get(trial_id(skipped.point.point_id, session, 0))
        if before is not None and (before.status in FINISHED or before.reason == skipped.reason):
            continue
        attempt = _attempt(plan, Todo(skipped.point, 0), session)
        store.append(attempt.record("skipped", reason=skipped.reason))


def nothing_runs(plan: Plan) -> UserError:
    """The error for a plan whose every point is skipped."""
    reasons = "; ".join(dict.fromkeys(f"{skipped.point.label}: {skipped.reason}" for skipped in plan.skipped))
    return UserError(f"{plan.sweep.name}: nothing can run: {reasons}")
