"""`benchsuite trial SPEC --validate`: is it valid, where do its ranks stand, what would one of them hold and send?

Nothing of this needs the devices: a layout of 512 ranks is validated on a laptop.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

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


@dataclass(frozen=True)
class Validated:
    """What is known of a trial that has not run."""

    point: Point
    invalid: str | None
    account: Account | None
    not_counted: str | None
    """Why there is no account."""
    ranks_per_node: int
    stage: int = 0
    """The stage of a pipeline that the account is of."""


def examine(spec: TrialSpec) -> Validated:
    """Everything that can be said of a trial without its devices; without data.root, of its computation alone."""
    machine = this_machine()
    if spec.data.root is None and spec.data.source != "synthetic":
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"source": "synthetic"})})
    roomy = Machine(max(machine.cores, spec.ranks), max(machine.cuda_devices, spec.ranks))
    point = resolve(spec, machine, spec.ranks, {})
    per_node = machine.cuda_devices or min(spec.ranks, DEFAULT_RANKS_PER_NODE)
    invalid = why_invalid(point, roomy)
    if invalid:
        return Validated(point, invalid, None, "it cannot run", per_node)
    resolved = point.spec
    if resolved.emulated:
        return Validated(point, None, None, "an emulated device has no model", per_node)
    workload = workload_of(resolved)
    try:
        counted, stage = _fullest(resolved, workload)
    except NotImplementedError as error:
        return Validated(point, None, None, str(error), per_node)
    return Validated(point, None, counted, None, per_node, stage)


def _fullest(spec: TrialSpec, workload: Workload) -> tuple[Account, int]:
    """The account of a rank: in a pipeline, of one in the first or the last stage, whichever holds more."""
    layout, variant = spec.layout, workload.variants[spec.variant]
    ranks = (0, layout.world_size - 1) if layout.pp > 1 else (0,)
    found = [dry_account(workload, variant, layout, spec, spec.rank_batch, rank) for rank in ranks]
    number = max(range(len(found)), key=lambda at: held_bytes(found[at]))
    return found[number], number * (layout.pp - 1)


def held_bytes(account: Account) -> int:
    """All that a rank holds for long."""
    activations = account.activations_bytes
    return account.weights_bytes + account.gradients_bytes + account.optimizer_bytes + activations


def validate(spec: TrialSpec, format: PlainFormat) -> int:
    """Print what is known; exit code 2 where the trial cannot run.

    Raises:
        UserError: it cannot, and no JSON is wanted.
    """
    found = examine(spec)
    if format == "json":
        document(json.dumps(_as_json(found), indent=1))
        return USAGE if found.invalid else OK
    if found.invalid:
        raise UserError(f"this trial cannot run: {found.invalid}")
    echo(*_lines(found))
    return OK


def _as_json(found: Validated) -> dict[str, Any]:
    spec = found.point.spec
    ranks = None if found.invalid else rank_map(spec.layout, found.ranks_per_node)
    return {
        "valid": found.invalid is None,
        "reason": found.invalid,
        "point_id": found.point.point_id,
        "spec": spec.model_dump(exclude_defaults=True),
        "rank_map": ranks,
        "account": asdict(found.account) if found.account else None,
        "not_counted": found.not_counted,
        "stage": found.stage,
    }


def _lines(found: Validated) -> list[str]:
    spec = found.point.spec
    layout = spec.layout
    lines = [
        f"ok: {found.point.point_id} {spec.workload} {spec.variant}, {layout.name}, {spec.ranks} ranks, "
        f"global batch {spec.global_batch}"
    ]
    nodes = rank_map(layout, found.ranks_per_node)
    if spec.ranks > 1:
        lines += [f"node {number}: {' | '.join(row)}" for number, row in enumerate(nodes[:MAX_NODES_SHOWN])]
        lines += [f"... and {len(nodes) - MAX_NODES_SHOWN} more nodes"] if len(nodes) > MAX_NODES_SHOWN else []
    if spec.batch_size == "auto":
        lines.append(f"batch_size auto: counted with the least, {spec.batch_unit} a rank; the devices decide")
    if found.account is None:
        return [*lines, f"not counted: {found.not_counted}"]
    if layout.pp > 1:
        lines.append(f"pipeline: of its ends, stage {found.stage} of {layout.pp} holds the most; that rank is counted")
    return lines + _account_lines(found.account)


def _account_lines(account: Account) -> list[str]:
    parts = {
        "weights": account.weights_bytes,
        "gradients": account.gradients_bytes,
        "optimizer": account.optimizer_bytes,
        "activations": account.activations_bytes,
    }
    held = ", ".join(f"{name} {value / 1e9:.3f}" for name, value in parts.items())
    counts = ", ".join(f"{count} {name}" for name, count in account.collectives.items()) or "none"
    return [
        f"a rank holds {held_bytes(account) / 1e9:.3f} GB: {held}; with what is unsharded for a while besides",
        f"a rank sends {account.wire_bytes / 1e9:.3f} GB a step by ring algorithms; collectives: {counts}",
    ]
