"""Which trials of a session are done, failed, running and waiting.

`benchsuite status` may run on a machine without the devices of the sweeps' nodes, so sweeps keep their plans in the
store: STORE/plans/<session>/<sweep>.<digest>.json holds the label of each trial by its id. One sweep may be planned
several times: by jobs for one world size each, with other overrides, on nodes of another kind. Each plan has its own
file, named by its content, and all of them count.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from benchsuite.contract.trial_spec import SweepSpec, trial_id
from benchsuite.grid.expand import expand
from benchsuite.grid.point import Plan
from benchsuite.host.machine import this_machine
from benchsuite.inside.files import read_plain, write_new
from benchsuite.results.store.outcomes import FAILED, FINISHED, alike_of
from benchsuite.results.store.place import folder_in, share_open, written_to
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.claims import CLAIMS, Claim, running_claims
from benchsuite.runner.durations import learn_durations, point_of

PLANS = "plans"
DIGEST_DIGITS = 16
LABELS = TypeAdapter(dict[str, str])


def labels(plan: Plan, session: str) -> dict[str, str]:
    """Return the label of each trial of a plan, by its id."""
    return {
        trial_id(point.point_id, session, repeat): f"{point.label} · repeat {repeat + 1}"
        for point in plan.points
        for repeat in range(point.spec.measure.repeats)
    }


def keep_plan(store: Path, session: str, plan: Plan) -> None:
    """Write a plan into a store, whole or not at all.

    Raises:
        StoreVanished: the store is gone.
        StoreError: the store cannot be written.
    """
    text = json.dumps(labels(plan, session))
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]
    with written_to(store):
        folder = folder_in(store, PLANS, session)
        write_new(folder / f"{plan.sweep.name}.{digest}.json", text, made=partial(share_open, store=store))


def kept_plans(store: Path, session: str) -> dict[str, dict[str, str]]:
    """Return the labels of the trials that each sweep of a session has planned; a plan that cannot be read is ignored.

    The first key is the sweep's name, the second the id of the trial.
    """
    plans: dict[str, dict[str, str]] = {}
    for path in sorted((store / PLANS / session).glob("[!.]*.*.json")):
        try:
            plan = LABELS.validate_json(read_plain(path, own=False))
        except (OSError, ValueError):
            continue
        plans.setdefault(path.stem.rpartition(".")[0], {}).update(plan)
    return plans


@dataclass(frozen=True)
class Running:
    """A trial that a sweep is running."""

    trial: str
    label: str
    holder: str
    since: str
    gone: bool
    """Whether its sweep has ended without releasing it, as far as this machine can tell."""


@dataclass(frozen=True)
class Failed:
    """A trial that failed."""

    label: str
    reason: str


@dataclass(frozen=True)
class Standing:
    """The trials of a session, by what has become of them."""

    session: str
    done: int
    """Trials that ended well."""
    failed: Mapping[str, Failed]
    """Failed trials by their ids."""
    running: Sequence[Running]
    waiting: int | None
    """The number of trials still to come; None where neither a sweep file nor a plan in the store names them."""
    rest_s: float | None
    """Estimated seconds until all is done, with as many sweeps as there are now; None where no trial has run."""


def planned_trials(sweep: SweepSpec | None, session: str, store: ResultsStore) -> dict[str, str] | None:
    """Return the labels of the trials that a sweep plans, or all sweeps of a session, by id; None where none is known.

    Where the sweep's nodes have planned other trials than this machine would, return theirs.
    """
    store.exists()  # raises for a store that does not answer, and names it rather than a folder in it
    plans = kept_plans(store.path, session)
    if sweep is None:
        return {trial: label for plan in plans.values() for trial, label in plan.items()} or None
    local_plan = labels(expand(sweep, this_machine(), store.path), session)
    kept_plan = plans.get(sweep.name, {})
    return kept_plan if kept_plan and not local_plan.keys() & kept_plan.keys() else local_plan


def session_standing(planned: Mapping[str, str] | None, session: str, store: ResultsStore, whole: bool) -> Standing:
    """Return where a session stands.

    Args:
        planned: labels of planned trials by id; None where no plan is known: then every trial counts, and how many
            wait is unknown.
        whole: whether trials that are not planned count too.
    """
    records = store.trials() if planned is None or store.exists() else []
    trials = [record for record in records if record.session == session]
    if planned is not None and not whole:
        trials = [record for record in trials if record.trial_id in planned]
    done = [record for record in trials if record.status == "ok"]
    done_ids = {record.trial_id for record in done}
    held = {
        name: claim
        for name, claim in running_claims(store.path / CLAIMS / session).items()
        if (whole or planned is None or _trial_of(name) in planned)
        and not (name in done_ids and claim.holder.is_gone())
    }
    waiting = None
    if planned is not None:
        finished = {record.trial_id for record in trials if record.status in FINISHED}
        waiting = planned.keys() - finished - {_trial_of(name) for name in held}
    return Standing(
        session=session,
        done=len(done),
        failed={record.trial_id: _failed_trial(record) for record in trials if record.status in FAILED},
        running=[_running_trial(name, claim, planned or {}) for name, claim in held.items()],
        waiting=None if waiting is None else len(waiting),
        rest_s=_remaining_s(trials, waiting, held, store) if done else None,
    )


def _failed_trial(record: TrialRecord) -> Failed:
    label = f"{record.label} · repeat {record.repeat + 1}" if record.label else record.trial_id
    return Failed(label, record.reason or "")


def _trial_of(name: str) -> str:
    """Return the trial id in a claim's name, which is point.session.repeat and, where it has one, the profile."""
    head, _, last = name.rpartition(".")
    return name if last.isdigit() else head


def _running_trial(name: str, claim: Claim, labels: Mapping[str, str]) -> Running:
    trial = _trial_of(name)
    return Running(trial, labels.get(trial, trial), str(claim.holder), claim.since, claim.holder.is_gone())


def _remaining_s(
    trials: Sequence[TrialRecord], waiting: Collection[str] | None, held: Mapping[str, Claim], store: ResultsStore
) -> float | None:
    """Return the seconds until all is done, as a dry run estimates them, shared among the sweeps that run now.

    None where how many wait is unknown, or where no trial like them has run.
    """
    if waiting is None:
        return None
    points = {point_of(name) for name in (*waiting, *held)}
    alike = {alike_of(record.spec) for record in trials}
    durations = learn_durations(store.outcomes().values(), points, {record.sweep for record in trials}, alike)
    waiting_s = durations.total_s(point_of(name) for name in waiting)
    running_s = durations.total_s(point_of(name) for name in held)
    if waiting_s is None or running_s is None:
        return None
    sweeps = len({(claim.holder.host, claim.holder.pid) for claim in held.values() if not claim.holder.is_gone()})
    return (waiting_s + running_s / 2) / max(1, sweeps)  # a running trial is on average half done
