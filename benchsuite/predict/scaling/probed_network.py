"""Which probed collectives tell about a series: of its backend, its machine, and its ranks per node."""

from collections.abc import Mapping

from benchsuite.predict.scaling.nodes import placement_of
from benchsuite.predict.theory.alpha_beta_fit import AlphaBeta, Key, host_of, machine_of
from benchsuite.results.scaling.series import Series

BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
Probed = Mapping[Key, AlphaBeta]


def comparable(series: Series, probed: Probed) -> tuple[dict[Key, AlphaBeta], list[str]]:
    """The probes that are like the series, and in words those of other machines or hosts that were left out.

    Nodes are those of the series at the same ranks; at ranks that it lacks, as many as they fill (`nodes.Placement`).
    A host of its own kind stands for another where it is the only one probed; so of several nodes, whichever was first.
    """
    rows = [trial for point in series.points for trial in point.trials]
    if not rows or not probed:
        return {}, []
    backend = BACKENDS.get(str(rows[-1].get("spec.device"))) or _only({key.backend for key in probed})
    like = {key: fit for key, fit in probed.items() if key.backend == backend}
    machine, host = machine_of(rows[-1]), host_of(rows[-1])
    own = {key: fit for key, fit in like.items() if not key.machine or not machine or key.machine == machine}
    notes = _told("another machine", {key.machine for key in {*like} - {*own}})
    near, far = ({key: fit for key, fit in own.items() if (key.nodes > 1) == several} for several in (False, True))
    chosen = _of_host(near, host) | _of_host(far, host)
    notes += _told("another host", {key.host for key in {*own} - {*chosen}})
    placement = placement_of(rows)
    return {key: fit for key, fit in chosen.items() if key.nodes == placement.at(key.ranks)}, notes


def _of_host(probed: Probed, host: str) -> dict[Key, AlphaBeta]:
    """Those of the host; where it has none, those of the only one that has."""
    own = {key: fit for key, fit in probed.items() if key.host == host}
    return own if own or _only({key.host for key in probed}) is None else {**probed}


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


def _told(what: str, names: set[str]) -> list[str]:
    return [f"probes of {what} are left out: {', '.join(sorted(names))}"] if names else []
