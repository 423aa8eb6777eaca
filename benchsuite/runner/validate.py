"""`benchsuite trial SPEC --validate`: is it valid, where do its ranks stand, what would one of them hold and send?

Nothing of this needs the devices: a layout of 512 ranks is validated on a laptop.
"""

import json
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
"""What a rank holds for long."""


def examine(spec: TrialSpec) -> tuple[Point, dict[str, Any]]:
    """Everything that can be said of a trial without its devices; without data.root, of its computation alone.

    `not_counted` is why there is no account, `stage` the stage of a pipeline that the account is of.
    """
    machine = this_machine()
    if spec.data.root is None and spec.data.source != "synthetic":
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"source": "synthetic"})})
    cores, devices = max(machine.cores, spec.ranks), max(machine.cuda_devices, spec.ranks)
    roomy = Machine(cores, devices, nodes=spec.ranks, elsewhere=True)
    usual = machine.cuda_devices or min(spec.ranks, DEFAULT_RANKS_PER_NODE)
    like_this = replace(machine, nodes=-(-spec.ranks // usual), ranks_per_node=usual)
    point = resolve(spec, like_this, spec.ranks, {})
    invalid = why_invalid(point, roomy)
    per_node = point.spec.ranks_per_node or usual
    account, not_counted, stage = (None, "it cannot run", 0) if invalid else _counted(point.spec)
    parameters = None if invalid or point.spec.emulated else num_parameters(point.spec)
    return point, {
        "valid": invalid is None,
        "reason": invalid,
        "point_id": point.point_id,
        "spec": point.spec.model_dump(exclude_defaults=True),
        "parameters": parameters,
        "rank_map": None if invalid else rank_map(point.spec.layout, per_node),
        "account": asdict(account) if account else None,
        "not_counted": not_counted,
        "stage": stage,
    }


def _counted(spec: TrialSpec) -> tuple[Account | None, str | None, int]:
    """The account of a trial that can run, or why it has none, and the stage that the account is of."""
    if spec.emulated:
        return None, "an emulated device has no model", 0
    try:
        account, stage = _fullest(spec, workload_of(spec))
    except NotImplementedError as error:
        return None, str(error), 0
    return account, None, stage


def num_parameters(spec: TrialSpec) -> int:
    """Parameters of a trial's model, which is built without memory for them."""
    workload = workload_of(spec)
    with torch.device("meta"):
        model = workload.build(spec.variant_in(workload.variants))
    return sum(parameter.numel() for parameter in model.parameters())


def _fullest(spec: TrialSpec, workload: Workload) -> tuple[Account, int]:
    """The account of a rank: in a pipeline, of one in the first or the last stage, whichever holds more."""
    layout, variant = spec.layout, spec.variant_in(workload.variants)
    ranks = (0, layout.world_size - 1) if layout.pp > 1 else (0,)
    cuda = spec.device == "cuda"
    found = [dry_account(workload, variant, layout, spec, spec.rank_batch, rank, cuda) for rank in ranks]
    number = max(range(len(found)), key=lambda at: held_bytes(asdict(found[at])))
    return found[number], number * (layout.pp - 1)


def held_bytes(account: Mapping[str, Any]) -> int:
    """All that a rank holds for long."""
    return sum(account[f"{name}_bytes"] for name in HELD)


def validate(spec: TrialSpec, format: PlainFormat) -> int:
    """Print what is known; exit code 2 where the trial cannot run.

    Raises:
        UserError: it cannot, and no JSON is wanted.
    """
    point, found = examine(spec)
    if format == "json":
        document(json.dumps(found, indent=1))
        return OK if found["valid"] else USAGE
    if not found["valid"]:
        raise UserError(f"this trial cannot run: {found['reason']}")
    echo(*_lines(point, found))
    return OK


def _lines(point: Point, found: Mapping[str, Any]) -> list[str]:
    spec, layout, nodes = point.spec, point.spec.layout, found["rank_map"]
    lines = [
        f"ok: {point.point_id} {spec.workload} {spec.variant}, {layout.name}, {spec.ranks} ranks, "
        f"global batch {spec.global_batch}"
    ]
    if found["parameters"] is not None:
        lines.append(f"{found['parameters']:,} parameters")
    if spec.ranks > 1:
        lines += [f"node {number}: {' | '.join(row)}" for number, row in enumerate(nodes[:MAX_NODES_SHOWN])]
        lines += [f"... and {len(nodes) - MAX_NODES_SHOWN} more nodes"] if len(nodes) > MAX_NODES_SHOWN else []
    if spec.batch_size == "auto":
        lines.append(f"batch_size auto: counted with the least, {spec.batch_unit} a rank; the devices decide")
    account = found["account"]
    if account is None:
        return [*lines, f"not counted: {found['not_counted']}"]
    if layout.pp > 1:
        stage = f"stage {found['stage']} of {layout.pp}"
        lines.append(f"pipeline: of its ends, {stage} holds the most; that rank is counted")
    held = ", ".join(f"{name} {account[f'{name}_bytes'] / 1e9:.3f}" for name in HELD)
    counts = ", ".join(f"{count} {name}" for name, count in account["collectives"].items()) or "none"
    return [
        *lines,
        f"a rank holds {held_bytes(account) / 1e9:.3f} GB: {held}; with what is unsharded for a while besides",
        f"a rank sends {account['wire_bytes'] / 1e9:.3f} GB a step by ring algorithms; collectives: {counts}",
    ]
