"""Run a plan: skip what is done, launch what is not, append every result to the store."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from benchsuite.analysis.record_builder import Attempt, conclude, keep_traces, new_attempt, with_ceilings
from benchsuite.contract.errors import UserError
from benchsuite.contract.outcome import Outcome
from benchsuite.contract.rank_samples import Progress
from benchsuite.contract.trial_spec import trial_id
from benchsuite.grid.point import Plan, Point
from benchsuite.grid.validity import what_fits_all
from benchsuite.host.interference import Guard
from benchsuite.host.signals import Terminated
from benchsuite.launch.launcher import CannotStart, Launcher, TooFewNodes, machine_of
from benchsuite.launch.work_folder import kept_work, remove_left_work, work_folder
from benchsuite.results.store.outcomes import FINISHED, Ended
from benchsuite.results.store.place import check_same, is_same
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore, StoreError
from benchsuite.runner.attempt import measure
from benchsuite.runner.auto_batch import fitted
from benchsuite.runner.ceilings import Ceilings, of_record, without_model
from benchsuite.runner.claims import Claims, Held, Holding, Turns
from benchsuite.runner.deadline import Deadline
from benchsuite.runner.durations import Durations
from benchsuite.runner.outage import Outages
from benchsuite.runner.roofline import with_roof
from benchsuite.storage.dataset.local_path import is_folder


class Lost(Exception):
    """Another sweep has taken over the trial."""

    def __str__(self) -> str:
        return "dropped: this sweep gave no sign for longer than its lease, and another has taken the trial over"


class Watcher(Protocol):
    """Who shows a sweep's progress."""

    def started(self, attempt: Attempt, number: int, total: int, own_s: float | None, rest_s: float | None) -> None:
        """A trial begins; it is expected to take `own_s`, and those after it `rest_s`, where that is known."""

    def progress(self, progress: Progress) -> None: ...

    def finished(self, record: TrialRecord, rest_s: float | None) -> None:
        """A trial has ended; those after it are expected to take `rest_s`."""

    def say(self, text: str) -> None: ...


@dataclass(frozen=True)
class Todo:
    """One trial to run."""

    point: Point
    repeat: int
    after: str = ""
    """When the record that it replaces was finished, as ISO; none where empty."""
    order_seed: int | None = None
    """What shuffled its round of repeats; None: points in the order of the plan."""


@dataclass(frozen=True)
class Status:
    """What a session has of a plan: trials to run, and how those that ran have ended."""

    todo: list[Todo]
    finished: dict[str, int]

    @property
    def num_failed(self) -> int:
        return sum(count for status, count in self.finished.items() if status != "ok")


def rounds(plan: Plan, order_seed: int | None = None) -> Iterator[Todo]:
    """Every trial of a plan: the first repeat of all points, then the second of all, and so on.

    With a seed each round is shuffled, the same way whenever the plan and the seed are the same.
    """
    points, repeat = plan.points, 0
    while points := [point for point in points if repeat < point.spec.measure.repeats]:
        order = points[:]
        if order_seed is not None:
            random.Random(f"{order_seed}:{repeat}").shuffle(order)
        yield from (Todo(point, repeat, order_seed=order_seed) for point in order)
        repeat += 1


def status(
    plan: Plan,
    store: ResultsStore,
    session: str,
    retry: frozenset[str] = frozenset(),
    order_seed: int | None = None,
) -> Status:
    """Which trials of a plan its session still lacks, repeats interleaved over the points."""
    known = {(ended.trial_id, ended.profile): ended for ended in store.outcomes().values()}
    todo: list[Todo] = []
    finished: dict[str, int] = {}
    for item in rounds(plan, order_seed):
        before = known.get((trial_id(item.point.point_id, session, item.repeat), item.point.spec.measure.profile))
        if before is not None and before.status in FINISHED and before.status not in retry:
            finished[before.status] = finished.get(before.status, 0) + 1
        else:
            todo.append(replace(item, after=before.finished_at if before is not None else ""))
    return Status(todo, finished)


def unclaimed(
    plan: Plan,
    store: ResultsStore,
    session: str,
    retry: frozenset[str],
    claims: Claims,
    order_seed: int | None = None,
) -> Status:
    """Which trials a session still lacks, though other sweeps may be finishing some of them meanwhile."""

    def read() -> tuple[Status, set[str]]:
        found = status(plan, store, session, retry, order_seed)
        return found, claims.over({_claim_of(item, session): item.after for item in found.todo})

    found, unseen = read()
    return read()[0] if unseen else found


def _claim_of(item: Todo, session: str) -> str:
    trial, profile = trial_id(item.point.point_id, session, item.repeat), item.point.spec.measure.profile
    return f"{trial}.{profile}" if profile else trial


@dataclass(frozen=True)
class Ran:
    """What a sweep did."""

    records: list[TrialRecord]
    held: list[Held]
    """Trials that other sweeps were at when this one had no more to do."""
    out_of_time: int
    """Trials that could not have ended in time."""
    too_few_nodes: Mapping[str, int]
    """Why trials were left because nodes are lost, with how many."""
    none_fits: str | None = None
    """Where not one trial was started for that reason: how long the shortest takes, and how long is left."""


def run(
    plan: Plan,
    todo: list[Todo],
    store: ResultsStore,
    launcher: Launcher,
    session: str,
    watcher: Watcher,
    claims: Claims,
    clock: Deadline | None = None,
) -> Ran:
    """Run trials one after another, each once over all sweeps of the session, and append a record of each.

    A trial in flight when the sweep is interrupted becomes an `interrupted` record, and the interrupt is passed on.
    """
    record_skipped(plan, store, session)
    remove_left_work(store.path)
    clock = clock or Deadline()
    bench = _Bench(plan, store, launcher, session, watcher, todo, clock.known)
    asked = [(number, item, _claim_of(item, session)) for number, item in enumerate(todo)]
    turns = Turns(asked, claims, lambda item: clock.allows(item.point.point_id))
    num_started = 0
    try:
        for number, item, holding in turns:
            num_started += 1
            with holding:
                bench.measure(item, number, holding)
    except OSError:
        check_same(store.path)  # else it is no matter of the store
        raise
    finally:
        claims.release()
    none = turns.late and not num_started
    none_fits = clock.none_fits(item.point.point_id for item in turns.late) if none else None
    return Ran(bench.records, turns.held, len(turns.late), bench.too_few_nodes, none_fits)


@dataclass
class _Bench:
    """What the trials of one sweep share."""

    plan: Plan
    store: ResultsStore
    launcher: Launcher
    session: str
    watcher: Watcher
    todo: Sequence[Todo]
    known: Durations
    records: list[TrialRecord] = field(default_factory=list)
    too_few_nodes: Counter[str] = field(default_factory=Counter)
    sizes: dict[str, Point] = field(default_factory=dict)
    ceilings: Ceilings = field(default_factory=dict)
    guard: Guard = field(default_factory=Guard)
    outages: Outages = field(default_factory=Outages)

    def measure(self, item: Todo, number: int, holding: Holding) -> None:
        """Run one trial and append its record, but for one that another sweep has, or had already."""
        last = self._last(item) if holding.taken_over else None
        if last is not None and last.status in FINISHED and last.finished_at > item.after:
            holding.done(last.finished_at)
            return
        item = replace(item, after=max(item.after, holding.finished_at, last.finished_at if last is not None else ""))
        attempt = _attempt(self.plan, item, self.session)
        name, began_s = item.point.point_id, time.monotonic()
        own_s = self.known.estimate_s(name)
        self.watcher.started(attempt, number, len(self.todo), own_s, self._rest_s(number))
        check_same(self.store.path)
        try:
            known = self.sizes.get(name, item.point)
            sized = self.sizes.setdefault(name, fitted(known, self.launcher, self.store.path))
            asked = {"batch_size_asked": "auto"} if item.point.spec.batch_size == "auto" else {}
            attempt = replace(attempt.of(sized), env=attempt.env | asked | _place(self.plan, item, number))
            shown = self.watcher.progress
            record = run_one(attempt, self.store, self.launcher, shown, self.ceilings, holding, self.guard)
        except CannotStart as error:
            holding.wrote(self.store.append(attempt.record("interrupted", reason=str(error))).finished_at)
            raise
        except TooFewNodes as error:  # the claim is left: another sweep may have more of them
            record = self.store.append(attempt.record("skipped", reason=str(error)))
            holding.wrote(record.finished_at)
            self.too_few_nodes[str(error)] += 1
            self.watcher.finished(record, self._rest_s(number))
            return
        except UserError as error:
            record = self.store.append(attempt.record("failed", reason=str(error)))
        except Lost as lost:
            self.watcher.say(f"{attempt.point.label}: {lost}")
            return
        holding.done(record.finished_at)
        self.known.learn(name, time.monotonic() - began_s)
        self.watcher.finished(record, self._rest_s(number))
        self.records.append(record)
        if number + 1 < len(self.todo):
            self.outages.after(record, item.point.dataset, self.watcher.say)

    def _rest_s(self, number: int) -> float | None:
        """How long the trials after this one may take; None where nothing is known yet."""
        return self.known.total_s(item.point.point_id for item in self.todo[number + 1 :])

    def _last(self, item: Todo) -> Ended | None:
        """How the trial's last record in the store ended, which the sweep that held it before may have written."""
        found = self.store.outcomes().get(trial_id(item.point.point_id, self.session, item.repeat))
        return found if found is not None and found.profile == item.point.spec.measure.profile else None


def run_one(
    attempt: Attempt,
    store: ResultsStore,
    launcher: Launcher,
    on_progress: Callable[[Progress], None],
    ceilings: Ceilings | None = None,
    holding: Holding | None = None,
    guard: Guard | None = None,
) -> TrialRecord:
    """Launch one attempt and append its record; its work folder stays only when it failed.

    `ceilings` holds what is known of inputs; those of this trial's are measured when it has ended well. `guard` looks
    at the devices before and after.

    Raises:
        Lost: another sweep has taken the trial meanwhile; nothing is appended.
        StoreVanished: the store is gone; what was measured is kept elsewhere.
    """
    with work_folder(store.path, trial_id(attempt.point.point_id, attempt.session, attempt.repeat)) as folder:

        def keep(record: TrialRecord, samples: dict[str, Any] | None = None) -> TrialRecord:
            if holding is not None and holding.is_lost():
                raise Lost
            if record.status not in ("ok", "interrupted"):
                with suppress(OSError):  # removed while the trial ran
                    kept = str(kept_work(folder, store.path).relative_to(store.path))
                    record = record.model_copy(update={"work_folder": kept})
            stored = store.append(record, samples)
            if holding is not None:
                holding.wrote(stored.finished_at)
            return stored

        try:
            record, samples = measure(attempt, launcher, folder, on_progress, guard)
            if record.status != "ok" and not is_folder(folder):
                check_same(store.path)  # it is no fault of the trial then
        except (KeyboardInterrupt, Terminated):
            record, _ = conclude(attempt, Outcome(interrupted=True), folder)
            with suppress(Lost):
                keep(record)
            raise
        try:
            record = keep_traces(record, folder, store.path / "traces" / record.record_id, store.path)
            record = with_roof(attempt.point.spec, record, store)
            if record.status == "ok" and ceilings is not None:
                record = with_ceilings(attempt, record, _ceilings(attempt, store, launcher, ceilings))
        except (KeyboardInterrupt, Terminated):
            keep(record, samples)
            raise
        except (OSError, StoreError):
            if is_same(store.path):
                raise
        return keep(record, samples)


def _ceilings(attempt: Attempt, store: ResultsStore, launcher: Launcher, known: Ceilings) -> dict[str, Any]:
    """What the trial's input could give at best: known, in the session's store, or measured now and appended to it."""
    alone = without_model(attempt.point, machine_of(launcher))
    if alone is None:
        return {}
    name = trial_id(alone.point_id, attempt.session, 0)
    if name not in known:
        stored = store.latest() if store.exists() else []
        record = next(
            (one for one in stored if isinstance(one, TrialRecord) and (one.trial_id, one.status) == (name, "ok")), None
        )
        if record is None:
            again = new_attempt(alone, attempt.session, 0, attempt.sweep, attempt.question)
            record = run_one(replace(again, kind="probe"), store, launcher, lambda progress: None)
        known[name] = of_record(record)
    return known[name]


def _place(plan: Plan, item: Todo, number: int) -> dict[str, Any]:
    """Tell for a record how many trials of its sweep came before it, what shuffled them, and what it is planned beside.

    `planned_world_sizes` are of points of its workload that give their batch as it does, per rank or for all.
    """
    own = item.point.spec
    alike = [spec for spec in (point.spec for point in plan.points) if spec.workload == own.workload]
    sizes = {spec.world_size for spec in alike if (spec.batch_size is None) == (own.batch_size is None)}
    return {"order": {"number": number, "seed": item.order_seed}, "planned_world_sizes": sorted(filter(None, sizes))}


def _attempt(plan: Plan, item: Todo, session: str) -> Attempt:
    found = new_attempt(item.point, session, item.repeat, plan.sweep.name, plan.sweep.question)
    return replace(found, after=item.after, rank_by=plan.sweep.rank_by)


def record_skipped(plan: Plan, store: ResultsStore, session: str) -> None:
    """Let the store know once per session which points were skipped, and why, so that reports show them."""
    known = store.outcomes()
    for skipped in plan.skipped:
        before = known.get(trial_id(skipped.point.point_id, session, 0))
        if before is not None and (before.status in FINISHED or before.reason == skipped.reason):
            continue
        attempt = _attempt(plan, Todo(skipped.point, 0), session)
        store.append(attempt.record("skipped", reason=skipped.reason))


def nothing_runs(plan: Plan) -> UserError:
    """The error for a plan whose every point is skipped."""
    told = [*filter(None, [remedy_in_words(plan)]), *skipped_in_words(plan)]
    return UserError(f"{plan.sweep.name}: nothing can run: {'; '.join(told)}")


def remedy_in_words(plan: Plan) -> str:
    """What would help all points without enough samples; empty where there are none."""
    few = [skipped.point for skipped in plan.skipped if skipped.reason.startswith(("cold:", "epochs:"))]
    return what_fits_all(few)


def skipped_in_words(plan: Plan) -> list[str]:
    """Each reason to skip, with the points it struck."""
    from benchsuite.results.render.tables import points_in_words

    reasons: dict[str, list[str]] = {}
    for skipped in plan.skipped:
        reasons.setdefault(skipped.reason, []).append(skipped.point.label)
    return [f"{points_in_words(labels)}: {reason}" for reason, labels in reasons.items()]
