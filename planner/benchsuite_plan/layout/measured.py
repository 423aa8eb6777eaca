"""What `probe device` and `probe comm` measured of a machine, in the place of what a planner assumes of it."""

from collections.abc import Mapping

from benchsuite.contract.errors import UserError
from benchsuite.predict.theory.alpha_beta_fit import AlphaBeta, Key, Piece, from_rows
from benchsuite.predict.theory.collectives import BACKEND, BUSBW, terms
from benchsuite.results.store.store import ResultsStore
from benchsuite_plan.layout.machines import PURE, Machine

PLAUSIBLE = (0.02, 1.5)
"""Shares of what a machine's file states; beyond it another machine was probed."""


def of_store(store: ResultsStore, machine: Machine, precision: str) -> dict[str, float]:
    """Figures by their names in `assumptions.yaml`; of efficiencies what was measured over what the machine states.

    Products and memory are those of the last probe of a device. Links are those of the all_reduce of most ranks, by
    the backend, on one node and on several: the rate at which it approaches large arrays, and the latency with it.

    Raises:
        UserError: the store has no such probe, or those of another machine.
    """
    found = _of_device(store, machine, precision) | _of_links(from_rows(store.frame(kind="comm")), machine)
    if not found:
        raise UserError(
            f"--measured {store.path}: no probe of a device at {precision}, nor of an all_reduce; "
            "allowed: a store of `benchsuite probe device` or `probe comm`"
        )
    for name, value in found.items():
        if name.endswith("efficiency") and not PLAUSIBLE[0] <= value <= PLAUSIBLE[1]:
            allowed = f"allowed: {PLAUSIBLE[0]} to {PLAUSIBLE[1]}, so probes of this machine"
            raise UserError(f"--measured {store.path}: {name} {value:.3g} of what {machine.name} states; {allowed}")
    return found


def _of_device(store: ResultsStore, machine: Machine, precision: str) -> dict[str, float]:
    probes = [one for one in store.latest() if one.kind == "device" and one.status == "ok"]
    wide = "bf16" if precision in (PURE, "fp8") else precision
    for probe in sorted(probes, key=lambda one: one.finished_at, reverse=True):
        products, memory = (probe.figures.get(name) for name in (f"gemm_{wide}_tflops", "memory_bytes_per_s"))
        if products and memory:
            peak = machine.peak_flops(wide) * (machine.device.matrix_efficiency_factor or 1.0)
            return {
                "matrix_efficiency": products * 1e12 / peak,
                "memory_efficiency": memory / machine.device.memory_bytes_per_s,
            }
    return {}


def _of_links(probed: Mapping[Key, AlphaBeta], machine: Machine) -> dict[str, float]:
    """All_reduces on one node tell its links, those on several the network, whose adapters a ring's node shares."""
    rings = [key for key in probed if key.op == "all_reduce" and key.algorithm == BACKEND and key.ranks > 1]
    near, far = ([key for key in rings if (key.nodes > 1) == several] for several in (False, True))
    found: dict[str, float] = {}
    for keys, name, rate in (
        (near, "link", machine.intra_node.bytes_per_s),
        (far, "network", machine.node_bytes_per_s),
    ):
        if keys:
            key = max(keys, key=lambda key: key.ranks)
            line = probed[key].pieces[-1]
            if line.beta_s_per_byte > 0:
                busbw = float(BUSBW["all_reduce"](key.ranks)) / line.beta_s_per_byte
                found[f"{name}_efficiency"] = busbw / rate
            latency_s = _latency_s(key, line, found.get("link_latency_s"))
            found |= {} if latency_s is None else {f"{name}_latency_s": latency_s}
    return found


def _latency_s(key: Key, line: Piece, link_s: float | None) -> float | None:
    """Seconds of one of the messages that follow each other, as `step` counts them; None where noise hides it.

    Over nodes an exchange has messages within a node, too, whose time must be known.
    """
    if line.alpha_interval_s[0] <= 0:
        return None
    within, between = float(terms("all_reduce", key.ranks // key.nodes).latency), terms("all_reduce", key.nodes).latency
    if key.nodes == 1:
        return line.alpha_s / within
    if within and link_s is None:
        return None
    left_s = line.alpha_s - within * (link_s or 0.0)
    return left_s / float(between) if left_s > 0 else None
