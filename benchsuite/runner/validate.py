"""`benchsuite trial SPEC --validate`: is the trial valid, on which nodes are its ranks, what does a rank hold and send?

It needs no devices: a layout of 512 ranks can be validated on a laptop.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import OK, USAGE
from benchsuite.contract.terminal import PlainFormat, document, echo
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.expand import resolve
from benchsuite.grid.point import Point
from benchsuite.grid.validity import why_invalid, workload_of
from benchsuite.host.machine import Machine, this_machine
from benchsuite.workloads.layout import rank_map
from benchsuite.workloads.parallel.account import Account
from benchsuite.workloads.parallel.dry import dry_account
from benchsuite.workloads.workload import Workload

DEFAULT_RANKS_PER_NODE = 8
MAX_NODES_SHOWN = 8
HELD = ("weights", "gradients", "optimizer", "activations")
"""Memory that a rank keeps for the whole run."""


def examine(spec: TrialSpec) -> tuple[Point, dict[str, Any]]:
    """Return a trial's point, and its facts that need no devices; without data.root those of its computation alone.

    `not_counted` is why there is no `account`; `stage` is the stage of a pipeline whose rank the account counts.
    """
    machine = this_machine()
    if spec.data.root is None and spec.data.source != "synthetic":
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"source": "synthetic"})})
    cores, devices = max(machine.cores, spec.ranks), max(machine.cuda_devices, spec.ranks)
    # a machine with room for every rank: too few devices here do not make a trial invalid
    large_machine = Machine(cores, devices, nodes=spec.ranks, elsewhere=True)
    ranks_per_node = machine.cuda_devices or min(spec.ranks, DEFAULT_RANKS_PER_NODE)
    num_nodes = math.ceil(spec.ranks / ranks_per_node)
    point = resolve(spec, replace(machine, nodes=num_nodes, ranks_per_node=ranks_per_node), spec.ranks, {})
    invalid = why_invalid(point, large_machine)
    account, not_counted, stage = (None, "it cannot run", 0) if invalid else _count(point.spec)
    parameters = None if invalid or point.spec.emulated else num_parameters(point.spec)
    return point, {
        "valid": invalid is None,
        "reason": invalid,
        "point_id": point.point_id,
        "spec": point.spec.model_dump(exclude_defaults=True),
        "parameters": parameters,
        "rank_map": None if invalid else rank_map(point.spec.layout, point.spec.ranks_per_node or ranks_per_node),
        "account": asdict(account) if account else None,
        "not_counted": not_counted,
        "stage": stage,
    }


def _count(spec: TrialSpec) -> tuple[Account | None, str | None, int]:
    """Return the account of a trial that can run, or None and why it has none; then the stage that is counted."""
    if spec.emulated:
        return None, "an emulated device has no model", 0
    try:
        account, stage = _count_fullest_rank(spec, workload_of(spec))
    except NotImplementedError as error:
        return None, str(error), 0
    return account, None, stage


def num_parameters(spec: TrialSpec) -> int:
    """Return the number of parameters of a trial's model, which is built without memory for them."""
    workload = workload_of(spec)
    with torch.device("meta"):
        model = workload.build(spec.variant_in(workload.variants))
    return sum(parameter.numel() for parameter in model.parameters())


def _count_fullest_rank(spec: TrialSpec, workload: Workload) -> tuple[Account, int]:
    """Return the account and the stage of a rank: in a pipeline, of the first or last stage, whichever holds more."""
    layout, variant = spec.layout, spec.variant_in(workload.variants)
    ranks = (0, layout.world_size - 1) if layout.pp > 1 else (0,)
    cuda = spec.device == "cuda"
    accounts = [dry_account(workload, variant, layout, spec, spec.rank_batch, rank, cuda) for rank in ranks]
    number = max(range(len(accounts)), key=lambda index: held_bytes(asdict(accounts[index])))
    return accounts[number], number * (layout.pp - 1)


def held_bytes(account: Mapping[str, Any]) -> int:
    """Return the bytes that a rank keeps for the whole run."""
    return sum(account[f"{name}_bytes"] for name in HELD)


def validate(spec: TrialSpec, format: PlainFormat) -> int:
    """Print the facts of a trial; return exit code 2 where JSON is printed of a trial that cannot run.

    Raises:
        UserError: the trial cannot run, and the format is not JSON.
    """
    point, facts = examine(spec)
    if format == "json":
        document(json.dumps(facts, indent=1))
        return OK if facts["valid"] else USAGE
    if not facts["valid"]:
        raise UserError(f"this trial cannot run: {facts['reason']}")
    echo(*_lines(point, facts))
    return OK


def _lines(point: Point, facts: Mapping[str, Any]) -> list[str]:
    """Return the facts of a trial as lines for people."""
    spec, layout, nodes = point.spec, point.spec.layout, facts["rank_map"]
    lines = [
        f"ok: {point.point_id} {spec.workload} {spec.variant}, {layout.name}, {spec.ranks} ranks, "
        f"global batch {spec.global_batch}"
    ]
    if facts["parameters"] is not None:
        lines.append(f"{facts['parameters']:,} parameters")
    if spec.ranks > 1:
        lines += [f"node {number}: {' | '.join(row)}" for number, row in enumerate(nodes[:MAX_NODES_SHOWN])]
        lines += [f"... and {len(nodes) - MAX_NODES_SHOWN} more nodes"] if len(nodes) > MAX_NODES_SHOWN else []
    if spec.batch_size == "auto":
        lines.append(f"batch_size auto: counted with the smallest, {spec.batch_unit} per rank; the devices decide")
    account = facts["account"]
    if account is None:
        return [*lines, f"not counted: {facts['not_counted']}"]
    if layout.pp > 1:
        stage = f"stage {facts['stage']} of {layout.pp}"
        lines.append(f"pipeline: {stage} holds the most of its two ends, so its rank is counted")
    held = ", ".join(f"{name} {account[f'{name}_bytes'] / 1e9:.3f}" for name in HELD)
    counts = ", ".join(f"{count} {name}" for name, count in account["collectives"].items()) or "none"
    return [
        *lines,
        f"a rank holds {held_bytes(account) / 1e9:.3f} GB: {held}; weights that are unsharded for a while come on top",
        f"a rank sends {account['wire_bytes'] / 1e9:.3f} GB per step by ring algorithms; collectives: {counts}",
    ]
