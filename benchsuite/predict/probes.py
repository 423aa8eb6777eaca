"""Which probed collectives tell about a series: of its backend, its machine, and its ranks per node."""

import math
from collections.abc import Mapping

from benchsuite.predict.alphabeta import AlphaBeta, Key, host_of, machine_of
from results.report.tables import is_missing
from results.scaling import Row, Series

BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
Probed = Mapping[Key, AlphaBeta]


def comparable(series: Series, probed: Probed) -> tuple[dict[Key, AlphaBeta], list[str]]:
    """The probes that are like the series, and in words those of other machines or hosts that were left out.

    Nodes are those of the series at the same ranks; at ranks that it lacks, as many as its ranks per node ask for.
    A host of its own kind stands for another where it is the only one probed.
    """
    rows = [trial for point in series.points for trial in point.trials]
    if not rows or not probed:
        return {}, []
    backend = BACKENDS.get(str(rows[-1].get("spec.device"))) or _only({key.backend for key in probed})
    like = {key: fit for key, fit in probed.items() if key.backend == backend}
    machine, host = machine_of(rows[-1]), host_of(rows[-1])
    own = {key: fit for key, fit in like.items() if not key.machine or not machine or key.machine == machine}
    notes = _told("another machine", {key.machine for key in {*like} - {*own}})
    chosen = {key: fit for key, fit in own.items() if key.host == host}
    if not chosen and _only({key.host for key in own}) is not None:
        chosen = own
    notes += _told("another host", {key.host for key in {*own} - {*chosen}})
    nodes = {int(row["spec.world_size"]): _nodes(row) for row in rows}
    return {key: fit for key, fit in chosen.items() if key.nodes == _expected(nodes, key.ranks)}, notes


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


def _told(what: str, names: set[str]) -> list[str]:
    return [f"probes of {what} are left out: {', '.join(sorted(names))}"] if names else []


def _nodes(row: Row) -> int:
    nodes, given = row.get("env.nodes"), row.get("spec.nodes")
    if isinstance(nodes, list) and nodes:
        return len(nodes)
    return 1 if given is None or is_missing(given) else int(given)


def _expected(nodes: Mapping[int, int], ranks: int) -> int:
    most = max(nodes)
    if ranks in nodes:
        return nodes[ranks]
    return 1 if nodes[most] == 1 else math.ceil(ranks * nodes[most] / most)
