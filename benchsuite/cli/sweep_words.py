"""What a sweep says of its plan: every trial of a dry run, one line for a start, what was left and why."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchsuite.cli.damage import warn_of_damage
from benchsuite.contract.exit_codes import NOTHING_RAN, OK
from benchsuite.contract.terminal import echo
from benchsuite.contract.trial_spec import trial_id
from benchsuite.grid.point import Plan
from benchsuite.grid.warnings import crowd_of
from benchsuite.results.render.plain import counted
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import sweep as sweeping


def print_plan(plan: Plan, store: ResultsStore, session: str, order_seed: int | None) -> int:
    """Every trial with its id in the order of running, what is done already, what is skipped and why; the exit code.

    Trials that would run on too few cores say so.
    """
    state = sweeping.status(plan, store, session)
    waiting = {trial_id(item.point.point_id, session, item.repeat) for item in state.todo}
    for item in sweeping.rounds(plan, order_seed):
        name = trial_id(item.point.point_id, session, item.repeat)
        crowd = crowd_of(plan, item.point)
        but = f"  (oversubscribed: {crowd})" if crowd else ""
        echo(f"{'run ' if name in waiting else 'done'}  {name}  {item.point.label}{but}")
    for skipped in plan.skipped:
        echo(f"skip  {skipped.point.point_id}  {skipped.point.label}: {skipped.reason}")
    echo(summary(plan, state), err=True)
    warn_of_damage(store)
    return OK if plan.points else NOTHING_RAN


def summary(plan: Plan, state: sweeping.Status) -> str:
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
    """Said where a store, or a file in it, was removed while the sweep ran."""
    what, new = ("", "store") if gone == store else (f": {gone.name}", "file")
    rest = f"this record and later ones are kept in a new {new}"
    return f"warning: store {store}{what} was removed meanwhile, and what was in it is gone; {rest}"


def skipped_lines(plan: Plan) -> list[str]:
    """A line for each reason to skip, with the points it struck."""
    if not plan.skipped:
        return []
    from benchsuite.results.render.tables import points_in_words

    reasons = sweeping.skipped_by_reason(plan)
    return [f"skipped {points_in_words(labels)}: {reason}" for reason, labels in reasons.items()]


def left_lines(ran: sweeping.Ran) -> Iterator[str]:
    """What was not measured here, and why."""
    if ran.none_fits:
        yield f"error: {ran.none_fits}"
    elif ran.out_of_time:
        yield f"{ran.out_of_time} trials left: they could not have ended in time; the same command goes on"
    holders = Counter(str(held.claim.holder) for held in ran.held if held.claim)
    for holder, count in holders.items():
        yield f"{count} trials are left to another sweep, which is at them: {holder}"


def nothing_left(state: sweeping.Status, session: str) -> str:
    """Said where all trials are in the store already."""
    text = f"nothing left to do: all {sum(state.finished.values())} trials of session {session!r} are in the store"
    if state.num_failed:
        text += f", {state.num_failed} of them failed (--retry failed,oom,timeout runs those again)"
    return f"{text}; --session NAME measures anew, `benchsuite report` shows them"
