"""What sweeps of a session have planned, kept in the store: `status` may be asked where their nodes' devices are not.

STORE/plans/<session>/<sweep>.<digest>.json holds the label of each trial by its id. One sweep may be planned several
times: by jobs for one world size each, with other overrides, by lanes each for its own nodes, on nodes of another kind.
Each plan has a file of its own, named by its content, and all of them count.
"""

import hashlib
import json
from pathlib import Path

from pydantic import TypeAdapter

from benchsuite.contract.trial_spec import trial_id
from benchsuite.grid.point import Plan
from benchsuite.results.store.segments import StoreError
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
    path = store / PLANS / session / f"{plan.sweep.name}.{digest}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, text)
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
