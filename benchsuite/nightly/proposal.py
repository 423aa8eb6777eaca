"""`nightly init --hours H --nodes N`: a sweep cut to what fits into a night, by what trials of it take.

First repeats above three go, then values in the middle of the longest axis, then the third repeat, then whole axes from
the last in the file on. What is left over is spent on repeats.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchsuite.contract.errors import UserError
from benchsuite.contract.yaml_file import Values, read_yaml
from benchsuite.grid.point import Plan, Point
from benchsuite.host.machine import Machine, this_machine
from benchsuite.nightly.measuring import Nightly, plan_of, prepare
from benchsuite.results.render.words import counted, duration
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.durations import Durations, durations_of

FILLED = 0.9
"""The share of the hours that trials may take; the rest is for planning, exports and what takes longer than it did."""
REPEATS, ENOUGH_REPEATS, MOST_REPEATS = 2, 3, 5
"""The least of a proposal, what intervals want, and more than which a night's time is better spent on other points."""
OVER_NODES = ("nodes", "world_size", "node", "ranks_per_node")
"""Settings by which a sweep says itself on how many nodes its trials run."""


def propose(nightly: Nightly, hours: float, nodes: int) -> list[str]:
    """Cut each sweep of a new repository so that all of them fit; what was done, in lines.

    Raises:
        UserError: not even two points of each fit, or no point of a sweep can be tried here and none was before.
    """
    said = []
    for file in nightly.sweep_files:
        said += _fit(nightly, file, hours * 3600 * FILLED / len(nightly.sweep_files), nodes)
    return said


def _fit(nightly: Nightly, file: Path, budget_s: float, nodes: int) -> list[str]:
    values, said = _over_nodes(read_yaml(file), nodes, this_machine())
    machine = replace(this_machine(), nodes=nodes)

    def planned() -> Plan:
        file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return plan_of(nightly, file, machine)

    prepare(nightly, file, machine)
    plan = planned()
    _set_repeats(values, max((point.spec.measure.repeats for point in plan.points), default=ENOUGH_REPEATS))
    known, by = _durations(nightly, plan)
    whole_s = total_s = _total_s(plan, known)
    while total_s > budget_s:
        said.append(_cut(values, file))
        total_s = _total_s(planned(), known)
    cut_to = _repeats(values)
    while total_s * (_repeats(values) + 1) / _repeats(values) <= budget_s and _repeats(values) < MOST_REPEATS:
        total_s *= (_repeats(values) + 1) / _repeats(values)
        _set_repeats(values, _repeats(values) + 1)
    said += [f"there is time for {_repeats(values)} repeats in place of {cut_to}"] if _repeats(values) > cut_to else []
    points = len(planned().points)
    trials = f"{counted(points * _repeats(values), 'trial')} of {counted(points, 'point')}"
    head = f"{trials}, about {duration(total_s)} by {by}; the sweep as it was: {duration(whole_s)}"
    lines = [f"{file.name}: {line}" for line in (head, *said)]
    text = "".join(f"# {line}\n" for line in lines)
    file.write_text(text + yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return lines


def _over_nodes(values: Values, nodes: int, machine: Machine) -> tuple[Values, list[str]]:
    """The sweep with an axis of nodes, where there are several and it says nothing of them."""
    base = values.setdefault("base", {})
    told = {*base, *values.get("grid", {}), *values.get("zip", {})}
    if nodes == 1:
        return values, []
    own = sorted(told & {*OVER_NODES}) or (["parallelism"] if isinstance(base.get("parallelism"), dict) else [])
    if own:
        return values, [f"{', '.join(own)} stay as they are: no axis of nodes was added"]
    powers = [1 << power for power in range(nodes.bit_length()) if 1 << power < nodes]
    values["grid"] = {**values.get("grid", {}), "nodes": [*powers, nodes]}
    said = [f"nodes {', '.join(map(str, values['grid']['nodes']))} were added as an axis"]
    if machine.cuda_devices:
        base["ranks_per_node"] = machine.cuda_devices
    else:
        said.append(
            "a node has one rank, since this machine has no CUDA device: name base.ranks_per_node where others do"
        )
    if "parallelism" not in told or base.get("parallelism") == "none":
        base["parallelism"] = "ddp"
    return values, said


def _durations(nightly: Nightly, plan: Plan) -> tuple[Durations, str]:
    """What trials take, and how that is known: from the store, else from one trial of few ranks, run now."""
    known = durations_of(ResultsStore(nightly.store_folder).outcomes().values(), plan)
    if plan.points and known.estimate_s(plan.points[0].point_id) is not None:
        return known, f"what trials in {nightly.store_folder} took"
    here = [
        point for point in plan.points if not point.spec.ranks_per_node or point.spec.ranks <= point.spec.ranks_per_node
    ]
    if not here:
        reason = plan.skipped[0].reason if plan.skipped else "it has none"
        raise UserError(f"{plan.sweep.name}: no point can run here, so it is not known how long one takes: {reason}")
    point = min(here, key=lambda point: point.spec.ranks)
    taken_s = _tried_s(point)
    known.learn(point.point_id, taken_s)
    return known, f"one trial ({point.label or plan.sweep.name}) that took {duration(taken_s)}"


def _tried_s(point: Point) -> float:
    """Seconds of one trial of a point, started as in a sweep.

    Raises:
        UserError: it fails.
    """
    from benchsuite.runner.single_trial import run_in_processes  # torch

    began = time.perf_counter()
    record, _ = run_in_processes(point)
    if record.status != "ok":
        raise UserError(f"a trial, to see how long one takes, ended as {record.status}: {record.reason}")
    return time.perf_counter() - began


def _total_s(plan: Plan, known: Durations) -> float:
    """Seconds of all trials of a plan."""
    return sum((known.estimate_s(point.point_id) or 0.0) * point.spec.measure.repeats for point in plan.points)


def _repeats(values: Values) -> int:
    found: int = values["base"]["measure"]["repeats"]
    return found


def _set_repeats(values: Values, repeats: int) -> str:
    values["base"].setdefault("measure", {})["repeats"] = repeats
    return f"measure.repeats is {repeats}"


def _cut(values: Values, file: Path) -> str:
    """Leave out what a night misses least; what that was.

    Raises:
        UserError: nothing can be left out any more.
    """
    grid: dict[str, list[Any]] = values.get("grid", {})
    longest = max(grid, key=lambda axis: len(grid[axis]), default="")
    if _repeats(values) > ENOUGH_REPEATS:
        return _set_repeats(values, _repeats(values) - 1)
    if len(grid.get(longest, [])) > 2:
        return _without(grid, longest, len(grid[longest]) // 2)
    if _repeats(values) > REPEATS:
        return _set_repeats(values, REPEATS)
    if longest:
        return _without_axis(values, grid)
    kept = f" of {', '.join(values['zip'])}, which vary together and stay" if values.get("zip") else ""
    raise UserError(
        f"{file.name}: what is left{kept} takes longer than --hours allows; name a smaller sweep, or more hours"
    )


def _without(grid: dict[str, list[Any]], axis: str, at: int) -> str:
    left_out = grid[axis].pop(at)
    return f"{axis} {left_out} is left out"


def _without_axis(values: Values, grid: dict[str, list[Any]]) -> str:
    """Keep the first value of the last axis, in the base."""
    axis = [*grid][-1]
    kept, *left_out = grid.pop(axis)
    part = values["base"]
    *above, name = axis.split(".")
    for key in above:
        part = part.setdefault(key, {})
    part[name] = kept
    return f"{axis} is {kept}: {', '.join(map(str, left_out)) or 'nothing'} left out"
