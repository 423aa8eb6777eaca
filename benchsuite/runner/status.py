"""Where a session stands: what its sweeps have planned, done and begun.

`status` may be asked where the devices of the sweeps' nodes are not, so plans are kept in the store:
STORE/plans/<session>/<sweep>.<digest>.json holds the label of each trial by its id. One sweep may be planned several
times: by jobs for one world size each, with other overrides, on nodes of another kind.
Each plan has a file of its own, named by its content, and all of them count.
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
from benchsuite.results.store.outcomes import FAILED, FINISHED, alike_of
from benchsuite.results.store.place import folder_in, share_open
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.segments import StoreError
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.claims import CLAIMS, Claim, running
from benchsuite.runner.durations import learnt, point_of
from benchsuite.storage.dataset.owned_files import read_plain, write_new

PLANS = "plans"
DIGEST_DIGITS = 16
LABELS = TypeAdapter(dict[str, str])


def labels(plan: Plan, session: str) -> dict[str, str]:
    """The label of each trial of a plan, by its id."""
    return {
        trial_id(point.point_id, session, repeat): f"{point.label} · repeat {repeat + 1}"
        for point in plan.points
        for repeat in range(point.spec.measure.repeats)
    }


def keep_plan(store: Path, session: str, plan: Plan) -> None:
    """Leave a plan in a store, whole or not at all.

    Raises:
        StoreError: the store cannot be written.
    """
    text = json.dumps(labels(plan, session))
    digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]
    try:
        folder = folder_in(store, PLANS, session)
        write_new(folder / f"{plan.sweep.name}.{digest}.json", text, made=partial(share_open, store=store))
    except OSError as error:
        raise StoreError(f"store {store}: cannot be written: {error.strerror}") from error


def kept_plans(store: Path, session: str) -> dict[str, dict[str, str]]:
    """The trials that each sweep of a session has planned, with their labels; what cannot be read is left out."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((store / PLANS / session).glob("[!.]*.*.json")):
        try:
            plan = LABELS.validate_json(read_plain(path, own=False))
        except (OSError, ValueError):
            continue
        found.setdefault(path.stem.rpartition(".")[0], {}).update(plan)
    return found


@dataclass(frozen=True)
class Running:
    """A trial that a sweep is at."""

    trial: str
    label: str
    holder: str
    since: str
    gone: bool
    """Whether its sweep has ended without leaving it, as far as this machine can tell."""


@dataclass(frozen=True)
class Failed:
    """A trial that failed."""

    label: str
    reason: str


@dataclass(frozen=True)
class Standing:
    """A session as it stands."""

    session: str
    done: int
    """Trials that ended well."""
    failed: Mapping[str, Failed]
    """What failed, by trial."""
    running: Sequence[Running]
    waiting: int | None
    """None where neither a sweep file nor a plan in the store says what is still to come."""
    rest_s: float | None
    """Estimated seconds until all is done, with as many sweeps as there are now; None where nothing tells."""


def planned(asked: SweepSpec | None, session: str, store: ResultsStore) -> dict[str, str] | None:
    """The trials that a sweep comes to, or all sweeps of a session, with their labels; None where nothing is known.

    Where this machine would plan none of the trials that the sweep has planned on its nodes, theirs are meant.
    """
    store.exists()  # else a store that does not answer is told by the path of a folder in it
    kept = kept_plans(store.path, session)
    if asked is None:
        return {trial: label for plan in kept.values() for trial, label in plan.items()} or None
    here = labels(expand(asked, this_machine(), store.path), session)
    there = kept.get(asked.name, {})
    return there if there and not here.keys() & there.keys() else here


def examine(asked: Mapping[str, str] | None, session: str, store: ResultsStore, whole: bool) -> Standing:
    """Where a session stands: all of it, or what is asked of it."""
    stored = store.trials() if asked is None or store.exists() else []
    mine = [record for record in stored if record.session == session]
    trials = mine if whole or asked is None else [record for record in mine if record.trial_id in asked]
    done = [record for record in trials if record.status == "ok"]
    over = {record.trial_id for record in done}
    held = {
        name: claim
        for name, claim in running(store.path / CLAIMS / session).items()
        if (whole or asked is None or _trial(name) in asked) and not (name in over and claim.holder.is_gone())
    }
    waiting = None
    if asked is not None:
        over = {record.trial_id for record in trials if record.status in FINISHED}
        waiting = asked.keys() - over - {_trial(name) for name in held}
    return Standing(
        session=session,
        done=len(done),
        failed={record.trial_id: _failed(record) for record in trials if record.status in FAILED},
        running=[_running(name, claim, asked or {}) for name, claim in held.items()],
        waiting=None if waiting is None else len(waiting),
        rest_s=_rest_s(trials, waiting, held, store) if done else None,
    )


def _failed(record: TrialRecord) -> Failed:
    label = f"{record.label} · repeat {record.repeat + 1}" if record.label else record.trial_id
    return Failed(label, record.reason or "")


def _trial(name: str) -> str:
    """The trial of a claim's name, which may end with how it is observed: point, session and repeat come first."""
    head, _, last = name.rpartition(".")
    return name if last.isdigit() else head


def _running(name: str, claim: Claim, labels: Mapping[str, str]) -> Running:
    trial = _trial(name)
    return Running(trial, labels.get(trial, trial), str(claim.holder), claim.since, claim.holder.is_gone())


def _rest_s(
    trials: Sequence[TrialRecord], waiting: Collection[str] | None, held: Mapping[str, Claim], store: ResultsStore
) -> float | None:
    """What waits, and half of what is running, shared among the sweeps that are at it; as a dry run estimates it."""
    if waiting is None:
        return None
    points = {point_of(name) for name in (*waiting, *held)}
    alike = {alike_of(record.spec) for record in trials}
    known = learnt(store.outcomes().values(), points, {record.sweep for record in trials}, alike)
    waits_s, runs_s = (known.total_s(point_of(name) for name in names) for names in (waiting, held))
    if waits_s is None or runs_s is None:
        return None
    sweeps = len({(claim.holder.host, claim.holder.pid) for claim in held.values() if not claim.holder.is_gone()})
    return (waits_s + runs_s / 2) / max(1, sweeps)
