"""Back-test over shaped links: computation is emulated, exchange is real, and eight nodes are predicted from fewer.

Nodes are network namespaces of this host; a sweep is started on them by torchrun, as its user would. Layers take their
time whoever waits for a core (`waiting`), and both they and the links are slow enough that eight nodes' packets leave
cores free: CPU quotas for each node would throttle its exchange, by tenths of a second at a time.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.network import COMMAND, Network, missing
from benchsuite.results.store.store import ResultsStore

PLUGIN = Path(__file__).parent / "waiting" / "waiting.py"
NODES = (1, 2, 4, 8)
MODES: Mapping[str, Mapping[str, Any]] = {
    "ddp": {"base": {"parallelism": "ddp", "batch_size": 4, "bucket_cap_mb": 1}, "scaling": "weak"},
    "fsdp": {"base": {"parallelism": "fsdp", "batch_size": 4}, "scaling": "weak"},
    "tp": {
        "base": {"parallelism": "tp", "global_batch_size": 4},
        "scaling": "strong",
        "workload": "TENSOR_PARALLEL",
        "steps": 12,
    },
    "pp": {"base": {"parallelism": "pp", "global_batch_size": 8}, "scaling": "strong"},
}
RATE = "50mbit"
"""Faster links would keep the cores of this host busy at eight nodes."""
STEPS = 8
"""Steps of a trial. Tensor parallelism has more: its 32 exchanges a step vary more than one."""
BURST_BYTES = 16 * 1024
"""An eighth of what tensor-parallel ranks exchange at a time. What a link saves up while ranks compute it lets through
at once afterwards, as no network card does: with 128 KiB half of the exchange of two ranks took no time at all."""
MEDIAN_GOAL, WORST_GOAL = 0.08, 0.15


def sweep(mode: str, repeats: int, nodes: Sequence[int]) -> dict[str, Any]:
    """The sweep of a mode over these numbers of nodes."""
    asked = dict(MODES[mode])
    base = {
        "workload": f"{PLUGIN}:{asked.pop('workload', 'WORKLOAD')}",
        "variant": "links",
        "data": {"source": "synthetic"},
        "device": "cpu",
        "threads_per_rank": 1,
        "ranks_per_node": 1,
        "measure": {"steps": asked.pop("steps", STEPS), "warmup_steps": 3, "repeats": repeats, "timeout_s": 300},
        **asked.pop("base"),
    }
    grid: dict[str, Any] = {"world_size": list(nodes)}
    return {"name": f"links-{mode}", "base": base, "grid": grid, **asked}


@dataclass(frozen=True)
class Held:
    """What was predicted of the nodes that were left out, beside what was measured."""

    mode: str
    ranks: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def within(self) -> bool:
        """Whether the 90 % interval holds it."""
        return self.low_s <= self.measured_s <= self.high_s


def run_sweep(network: Network, folder: Path, mode: str, asked: Mapping[str, Any]) -> None:
    """Start torchrun with a sweep on every node, and wait.

    Raises:
        RuntimeError: it failed on one of them; with the end of what that said.
    """
    file, store = folder / f"{mode}.yaml", folder / "store"
    file.write_text(yaml.safe_dump(asked))
    env = {**os.environ, "BENCHSUITE_SITE": "", "BENCHSUITE_USER_CONFIG": ""}
    network.run(mode, [*COMMAND, "sweep", str(file), "--store", str(store)], folder, env)


def back_test(store: Path) -> list[Held]:
    """Every series fitted to at most half of its nodes, and held against the others, by `benchsuite predict`."""
    command = [*COMMAND, "predict", "--back-test", "--store", str(store), "--format", "json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [(_mode(series["series"]), row) for series in json.loads(said) for row in series["rows"]]
    ends = ("measured_s", "step_s", "step_s_low", "step_s_high")
    return [Held(mode, row["ranks"], *(row[name] for name in ends)) for mode, row in rows]


def _mode(title: str) -> str:
    return next((mode for mode in MODES if f" {mode} " in title), title)


def measure(folder: Path, repeats: int = 2, rate: str = RATE) -> None:
    """Sweeps of all modes over links of `rate`."""
    with closing(Network(max(NODES), rate, BURST_BYTES)) as network:
        for mode in MODES:
            run_sweep(network, folder, mode, sweep(mode, repeats, NODES))


def table(rows: Sequence[Held]) -> str:
    """Markdown."""
    lines = ["| mode | nodes | measured ms | predicted ms [90 %] | error |", "|---|---|---|---|---|"]
    for row in rows:
        ends = f"{row.predicted_s * 1e3:.0f} [{row.low_s * 1e3:.0f} {row.high_s * 1e3:.0f}]"
        lines.append(f"| {row.mode} | {row.ranks} | {row.measured_s * 1e3:.0f} | {ends} | {row.error:+.1%} |")
    return "\n".join(lines)


def show(folder: Path) -> None:
    """(p)"""
    reason = missing()
    if reason:
        print(f"(p) eight nodes predicted from one, two and four: not run: {reason}")
        return
    print("(p) eight nodes predicted from one, two and four, links of 50 Mbit/s: emulated computation, real exchange")
    measure(folder)
    rows = back_test(folder / "store")
    print(table(rows))
    show_goals(rows)
    print(f"    waiting for a core, of the step of eight nodes: {waited(folder / 'store')}")


def waited(store: Path) -> str:
    """Share of the step of the most nodes in which a rank that could run did not, by mode."""
    trials = ResultsStore(store).frame()
    most = trials[trials["spec.world_size"] == NODES[-1]]
    shares = most.groupby("spec.parallelism")["cpu_contention_fraction"].max()
    return ", ".join(f"{mode} {share:.0%}" for mode, share in shares.items())


def show_goals(rows: Sequence[Held]) -> None:
    """How many intervals hold, and whether errors are as small as they should be."""
    held = sum(row.within for row in rows)
    print(f"   coverage: {held} of {len(rows)} 90 % intervals hold what was measured ({held / len(rows):.0%})")
    errors = np.abs([row.error for row in rows])
    for name, error, wanted in (("median", np.median(errors), MEDIAN_GOAL), ("worst", errors.max(), WORST_GOAL)):
        print(f"   goal: {name} error <= {wanted:.0%}: {'met' if error <= wanted else 'MISSED'} ({error:.1%})")
