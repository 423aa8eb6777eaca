"""What `probe device` and `probe comm` measured of a machine, in the place of what a planner assumes of it."""

from collections.abc import Mapping

from benchsuite.contract.errors import UserError
from benchsuite.predict.layout.machines import PURE, Machine
from benchsuite.predict.theory.alpha_beta_fit import AlphaBeta, Key, from_rows
from benchsuite.predict.theory.collectives import BACKEND, BUSBW
from benchsuite.results.store.store import ResultsStore

PLAUSIBLE = (0.02, 1.5)
"""Of what a machine's file states; beyond it another machine was probed."""


def of_store(store: ResultsStore, machine: Machine, precision: str) -> dict[str, float]:
    """Efficiencies by their names in `assumptions.yaml`: what was measured over what the machine's file states.

    Products and memory are those of the last probe of a device. Links are those of the all_reduce of most ranks, by
    the backend, on one node and on several: the rate at which it approaches large arrays.

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
        if not PLAUSIBLE[0] <= value <= PLAUSIBLE[1]:
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
    stated = {
        "link_efficiency": (machine.intra_node.bytes_per_s, [key for key in rings if key.nodes == 1]),
        "network_efficiency": (machine.node_bytes_per_s, [key for key in rings if key.nodes > 1]),
    }
    found: dict[str, float] = {}
    for name, (rate, keys) in stated.items():
        if keys:
            key = max(keys, key=lambda key: key.ranks)
            beta = probed[key].pieces[-1].beta_s_per_byte
            found |= {name: float(BUSBW["all_reduce"](key.ranks)) / beta / rate} if beta > 0 else {}
    return found
