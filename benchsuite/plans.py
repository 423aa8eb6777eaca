"""What sweeps of a session have planned, kept in the store: `status` may be asked where their nodes' devices are not.

STORE/plans/<session>/<sweep>.json holds the label of each trial by its id. The same sweep, planned on nodes of another
kind, gives trials with other ids: the last plan counts.
"""

import json
import os
from pathlib import Path

from benchsuite.grid import Plan
from benchsuite.spec import trial_id
from results.segments import StoreError

PLANS = "plans"


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
    path = store / PLANS / session / f"{plan.sweep.name}.json"
    partial = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(labels(plan, session)))
        partial.rename(path)
    except OSError as error:
        raise StoreError(f"store {store}: cannot be written: {error.strerror}") from error


def kept_plans(store: Path, session: str) -> dict[str, dict[str, str]]:
    """The plans of a session, by sweep; what cannot be read is left out."""
    found = {}
    for path in sorted((store / PLANS / session).glob("[!.]*.json")):
        try:
            found[path.stem] = dict(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
    return found
