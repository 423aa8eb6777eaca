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
from benchsuite.runner.auto_batch import fit_batch_size
from benchsuite.runner.ceilings import Ceilings, ceiling_figures, without_model
from benchsuite.runner.claims import Claims, HeldElsewhere, Holding, Turns
from benchsuite.runner.deadline import Deadline
from benchsuite.runner.durations import Durations
from benchsuite.runner.outage import Outages
from benchsuite.runner.roofline import with_roof
from benchsuite.storage.dataset.local_path import is_folder


class TrialLost(Exception):
    """Another sweep has taken over the trial while this one ran it."""

    def __str__(self) -> str:
        return "dropped: this sweep gave no sign for longer than its lease, and another has taken the trial over"


class Display(Protocol):
    """What shows a sweep's progress."""

    def started(
        self, attempt: Attempt, number: int, total: int, trial_s: float | None, remaining_s: float | None
    ) -> None:
        """Show that a trial begins.

        The trial should take `trial_s` and those after it `remaining_s`; None where no trial has run yet.
        """

    def progress(self, progress: Progress) -> None:
        """Show how far the running trial is."""

    def finished(self, record: TrialRecord, remaining_s: float | None) -> None:
        """Show that a trial has ended; those after it should take `remaining_s`."""

    def say(self, text: str) -> None:
        """Print a line that stays."""


@dataclass(frozen=True)
class Todo:
    """One trial to run."""

    point: Point
    repeat: int
    after: str = ""
    """When the record that it replaces was finished, in ISO format; empty where it replaces none."""
    order_seed: int | None = None
    """The seed that shuffled its round of repeats; None where points keep the order of the plan."""


@dataclass(frozen=True)
class Status:
    """How much of a plan a session has measured."""

    todo: list[Todo]
    finished: dict[str, int]
    """The number of finished trials by their status."""

    @property
    def num_failed(self) -> int:
        return sum(count for status, count in self.finished.items() if status != "ok")


def interleave_repeats(plan: Plan, order_seed: int | None = None) -> Iterator[Todo]:
    """Yield every trial of a plan: the first repeat of all points, then the second of all, and so on.

    A seed shuffles each round; the same plan and seed always give the same order.
    """
    points, repeat = plan.points, 0
    while points := [point for point in points if repeat < point.spec.measure.repeats]:
        order = points[:]
        if order_seed is not None:
            random.Random(f"{order_seed}:{repeat}").shuffle(order)
        yield from (Todo(point, repeat, order_seed=order_seed) for point in order)
        repeat += 1


def session_status(
    plan: Plan,
    store: ResultsStore,
    session: str,
    retry: frozenset[str] = frozenset(),
    order_seed: int | None = None,
) -> Status:
    """Return which trials of a plan its session still lacks, repeats interleaved over the points."""
    outcomes = {(ended.trial_id, ended.profile): ended for ended in store.outcomes().values()}
    todo: list[Todo] = []
    finished: dict[str, int] = {}
    for item in interleave_repeats(plan, order_seed):
        last = outcomes.get((trial_id(item.point.point_id, session, item.repeat), item.point.spec.measure.profile))
        if last is not None and last.status in FINISHED and last.status not in retry:
            finished[last.status] = finished.get(last.status, 0) + 1
        else:
            todo.append(replace(item, after=last.finished_at if last is not None else ""))
    return Status(todo, finished)


def shared_status(
    plan: Plan,
    store: ResultsStore,
    session: str,
    retry: frozenset[str],
    claims: Claims,
    order_seed: int | None = None,
) -> Status:
    """Return which trials a session still lacks while other sweeps run some of them.

    Where a claim says that a trial is done and its record was not seen, the store is read a second time.
    """

    def read() -> tuple[Status, set[str]]:
        state = session_status(plan, store, session, retry, order_seed)
        return state, claims.find_unseen({_claim_name(item, session): item.after for item in state.todo})

    state, unseen = read()
    return read()[0] if unseen else state


def _claim_name(item: Todo, session: str) -> str:
    """Return the name of a trial's claim: a profiled trial has a claim of its own."""
    trial, profile = trial_id(item.point.point_id, session, item.repeat), item.point.spec.measure.profile
    return f"{trial}.{profile}" if profile else trial


@dataclass(frozen=True)
class SweepResult:
    """What a sweep measured, and what it left."""

    records: list[TrialRecord]
    held: list[HeldElsewhere]
    """Trials that other sweeps still ran when this one had no more to do."""
    out_of_time: int
    """The number of trials that could not have ended in time."""
    too_few_nodes: Mapping[str, int]
    """The number of trials that lost nodes prevented, by reason."""
    no_time_reason: str | None = None
    """Why no trial at all could end in time; None where one was started."""


def run(
    plan: Plan,
    todo: list[Todo],
    store: ResultsStore,
    launcher: Launcher,
    session: str,
    display: Display,
    claims: Claims,
    deadline: Deadline | None = None,
) -> SweepResult:
    """Run trials one after another, each once over all sweeps of the session, and append a record of each.

    An interrupt is passed on, after the trial in flight is appended as an `interrupted` record.
    """
    record_skipped(plan, store, session)
    remove_left_work(store.path)
    deadline = deadline or Deadline()
    sweep_run = _SweepRun(plan, store, launcher, session, display, todo, deadline.durations)
    named = [(number, item, _claim_name(item, session)) for number, item in enumerate(todo)]
    turns = Turns(named, claims, lambda item: deadline.allows(item.point.point_id))
    num_started = 0
    try:
        for number, item, holding in turns:
            num_started += 1
            with holding:
                sweep_run.measure(item, number, holding)
    except OSError:
        check_same(store.path)  # a store that is gone is the better explanation
        raise
    finally:
        claims.release()
    no_time_reason = None
    if turns.late and not num_started:
        no_time_reason = deadline.explain_no_fit(item.point.point_id for item in turns.late)
    return SweepResult(sweep_run.records, turns.held, len(turns.late), sweep_run.too_few_nodes, no_time_reason)


@dataclass
class _SweepRun:
    """What the trials of one sweep share."""

    plan: Plan
    store: ResultsStore
    launcher: Launcher
    session: str
    display: Display
    todo: Sequence[Todo]
    durations: Durations
    records: list[TrialRecord] = field(default_factory=list)
    too_few_nodes: Counter[str] = field(default_factory=Counter)
    sized_points: dict[str, Point] = field(default_factory=dict)
    """Points with the batch size that was found for them, by the id of the point in the plan."""
    ceilings: Ceilings = field(default_factory=dict)
    guard: Guard = field(default_factory=Guard)
    outages: Outages = field(default_factory=Outages)

    def measure(self, item: Todo, number: int, holding: Holding) -> None:
        """Run one trial and append its record.

        Nothing is run where the sweep that held the trial before has finished it, and nothing is appended where
        another sweep takes it over meanwhile.

        Raises:
            CannotStart: the launcher starts no ranks; the trial is appended as `interrupted`.
        """
        last = self._last_outcome(item) if holding.taken_over else None
        if last is not None and last.status in FINISHED and last.finished_at > item.after:
            holding.finish(last.finished_at)
            return
        item = replace(item, after=max(item.after, holding.finished_at, last.finished_at if last is not None else ""))
        attempt = _new_attempt(self.plan, item, self.session)
        point_id, began_s = item.point.point_id, time.monotonic()
        trial_s = self.durations.estimate_s(point_id)
        self.display.started(attempt, number, len(self.todo), trial_s, self._remaining_s(number))
        check_same(self.store.path)
        try:
            attempt = self._with_batch_size(attempt, item, number)
            show = self.display.progress
            record = run_attempt(attempt, self.store, self.launcher, show, self.ceilings, holding, self.guard)
        except CannotStart as error:
            holding.note_record(self.store.append(attempt.record("interrupted", reason=str(error))).finished_at)
            raise
        except TooFewNodes as error:  # the claim is released: another sweep may have more nodes
            record = self.store.append(attempt.record("skipped", reason=str(error)))
            holding.note_record(record.finished_at)
            self.too_few_nodes[str(error)] += 1
            self.display.finished(record, self._remaining_s(number))
            return
        except UserError as error:
            record = self.store.append(attempt.record("failed", reason=str(error)))
        except TrialLost as lost:
            self.display.say(f"{attempt.point.label}: {lost}")
            return
        holding.finish(record.finished_at)
        self.durations.learn(point_id, time.monotonic() - began_s)
        self.display.finished(record, self._remaining_s(number))
        self.records.append(record)
        if number + 1 < len(self.todo):
            self.outages.wait_after(record, item.point.dataset, self.display.say)

    def _with_batch_size(self, attempt: Attempt, item: Todo, number: int) -> Attempt:
        """Return the attempt with its batch size and its place in the sweep; `auto` is tried once per point."""
        point_id = item.point.point_id
        if point_id not in self.sized_points:
            self.sized_points[point_id] = fit_batch_size(item.point, self.launcher, self.store.path)
        batch = {"batch_size_asked": "auto"} if item.point.spec.batch_size == "auto" else {}
        env = attempt.env | batch | _order_facts(self.plan, item, number)
        return replace(attempt.of(self.sized_points[point_id]), env=env)

    def _remaining_s(self, number: int) -> float | None:
        """Return how long the trials after this one may take; None where no trial has run yet."""
        return self.durations.total_s(item.point.point_id for item in self.todo[number + 1 :])

    def _last_outcome(self, item: Todo) -> Ended | None:
        """Return how the trial's last record ended; None where the store has none.

        The sweep that held the trial before may have written it.
        """
        last = self.store.outcomes().get(trial_id(item.point.point_id, self.session, item.repeat))
        return last if last is not None and last.profile == item.point.spec.measure.profile else None


def run_attempt(
    attempt: Attempt,
    store: ResultsStore,
    launcher: Launcher,
    on_progress: Callable[[Progress], None],
    ceilings: Ceilings | None = None,
    holding: Holding | None = None,
    guard: Guard | None = None,
) -> TrialRecord:
    """Launch one attempt and append its record; its work folder stays only when it failed.

    Args:
        ceilings: what was measured of inputs so far; those of this trial's input are added when it has ended well.
            None: they are not measured.
        holding: the claim on the trial; None where no other sweep can run it.
        guard: what looks at the devices before and after.

    Raises:
        TrialLost: another sweep has taken the trial meanwhile; nothing is appended.
        StoreVanished: the store is gone; what was measured is kept elsewhere.
    """
    with work_folder(store.path, trial_id(attempt.point.point_id, attempt.session, attempt.repeat)) as folder:

        def append(record: TrialRecord, samples: dict[str, Any] | None = None) -> TrialRecord:
            if holding is not None and holding.is_lost():
                raise TrialLost
            if record.status not in ("ok", "interrupted"):
                with suppress(OSError):  # someone may have removed the folder while the trial ran
                    work = str(kept_work(folder, store.path).relative_to(store.path))
                    record = record.model_copy(update={"work_folder": work})
            stored = store.append(record, samples)
            if holding is not None:
                holding.note_record(stored.finished_at)
            return stored

        try:
            record, samples = measure(attempt, launcher, folder, on_progress, guard)
            if record.status != "ok" and not is_folder(folder):
                check_same(store.path)  # a trial whose store vanished has not failed by itself
        except (KeyboardInterrupt, Terminated):
            record, _ = conclude(attempt, Outcome(interrupted=True), folder)
            with suppress(TrialLost):
                append(record)
            raise
        try:
            record = keep_traces(record, folder, store.path / "traces" / record.record_id, store.path)
            record = with_roof(attempt.point.spec, record, store)
            if record.status == "ok" and ceilings is not None:
                record = with_ceilings(attempt, record, _find_ceilings(attempt, store, launcher, ceilings), samples)
        except (KeyboardInterrupt, Terminated):
            append(record, samples)
            raise
        except (OSError, StoreError):
            if is_same(store.path):
                raise
        return append(record, samples)


def _find_ceilings(attempt: Attempt, store: ResultsStore, launcher: Launcher, ceilings: Ceilings) -> dict[str, Any]:
    """Return what the trial's input can give at best, as figures; empty where that cannot be measured.

    What neither `ceilings` nor the session's store has is measured now, appended to the store and put into `ceilings`.
    """
    loader_alone = without_model(attempt.point, machine_of(launcher))
    if loader_alone is None:
        return {}
    trial = trial_id(loader_alone.point_id, attempt.session, 0)
    if trial not in ceilings:
        record = _measured_ceiling(store, trial)
        if record is None:
            probe = new_attempt(loader_alone, attempt.session, 0, attempt.sweep, attempt.question)
            record = run_attempt(replace(probe, kind="probe"), store, launcher, lambda progress: None)
        ceilings[trial] = ceiling_figures(record)
    return ceilings[trial]


def _measured_ceiling(store: ResultsStore, trial: str) -> TrialRecord | None:
    """Return the record of a trial with no model that ended well; None where the store has none."""
    records = store.latest() if store.exists() else []
    for record in records:
        if isinstance(record, TrialRecord) and record.trial_id == trial and record.status == "ok":
            return record
    return None


def _order_facts(plan: Plan, item: Todo, number: int) -> dict[str, Any]:
    """Return what a record keeps of its trial's place in the sweep: its number, the seed, and the planned ranks.

    `planned_world_sizes` are those of points of the same workload whose batch is given in the same way: per rank, or
    for all ranks.
    """
    spec = item.point.spec
    alike = [point.spec for point in plan.points if point.spec.workload == spec.workload]
    sizes = {other.world_size for other in alike if (other.batch_size is None) == (spec.batch_size is None)}
    return {"order": {"number": number, "seed": item.order_seed}, "planned_world_sizes": sorted(filter(None, sizes))}


def _new_attempt(plan: Plan, item: Todo, session: str) -> Attempt:
    attempt = new_attempt(item.point, session, item.repeat, plan.sweep.name, plan.sweep.question)
    return replace(attempt, after=item.after, rank_by=plan.sweep.rank_by)


def record_skipped(plan: Plan, store: ResultsStore, session: str) -> None:
    """Append a record of each skipped point with its reason, once per session, so that reports show them."""
    outcomes = store.outcomes()
    for skipped in plan.skipped:
        last = outcomes.get(trial_id(skipped.point.point_id, session, 0))
        if last is not None and (last.status in FINISHED or last.reason == skipped.reason):
            continue
        attempt = _new_attempt(plan, Todo(skipped.point, 0), session)
        store.append(attempt.record("skipped", reason=skipped.reason))


def nothing_runs_error(plan: Plan) -> UserError:
    """Return the error for a plan whose every point is skipped."""
    remedy = describe_remedy(plan)
    sentences = [*([remedy] if remedy else []), *describe_skipped(plan)]
    return UserError(f"{plan.sweep.name}: nothing can run: {'; '.join(sentences)}")


def describe_remedy(plan: Plan) -> str:
    """Return what would help all points that lack samples; empty where no point lacks any."""
    points = [skipped.point for skipped in plan.skipped if skipped.reason.startswith(("cold:", "epochs:"))]
    return what_fits_all(points)


def describe_skipped(plan: Plan) -> list[str]:
    """Return a line for each reason to skip, which names the points that it concerns."""
    from benchsuite.results.render.tables import points_in_words

    reasons: dict[str, list[str]] = {}
    for skipped in plan.skipped:
        reasons.setdefault(skipped.reason, []).append(skipped.point.label)
    return [f"{points_in_words(labels)}: {reason}" for reason, labels in reasons.items()]
