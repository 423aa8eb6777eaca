"""torchrun over nodes with networks of their own: rendezvous, interfaces, and a cable that is taken out."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import pytest

from bench.network import Network
from benchsuite.contract.rank_samples import read_progress
from tests.faults.conftest import COMMAND, Bench

BASE = {
    "workload": "gpt_neox",
    "variant": "tiny",
    "data": {"source": "synthetic"},
    "parallelism": "ddp",
    "batch_size": 1,
    "device": "cpu",
    "threads_per_rank": 1,
    "measure": {"steps": 4, "warmup_steps": 1, "repeats": 1},
}


def torchrun(network: Network, bench: Bench, sweep: dict[str, Any]) -> None:
    """Start `torchrun benchsuite sweep` on every node, as its user would."""
    file = bench.write({"name": "net", "base": BASE, **sweep})
    command = [*COMMAND, "sweep", str(file), "--store", str(bench.store)]
    network.torchrun("bench", command, bench.folder, bench.env)


def ours(bench: Bench) -> list[psutil.Process]:
    """Processes of the product that run, torchrun's own left out."""
    found = []
    for process in bench.processes():
        with suppress(psutil.Error):
            if "torch.distributed.run" not in process.cmdline() and process.name() != "pt_elastic":
                found.append(process)
    return found


def said(bench: Bench) -> str:
    return "\n".join(path.read_text() for path in sorted(bench.folder.glob("node-*.out")))


@pytest.mark.parametrize("nodes", [2, pytest.param(8, marks=pytest.mark.full)])
def test_a_sweep_over_nodes(network: Callable[[int], Network], bench: Bench, nodes: int) -> None:
    net = network(nodes)
    torchrun(net, bench, {"grid": {"world_size": [1, nodes]}, "base": BASE | {"ranks_per_node": 1}})
    for process in net.processes:
        assert process.wait(240) == 0, said(bench)
    found = {record["spec"]["world_size"]: record for record in bench.records()}
    assert {ranks: record["status"] for ranks, record in found.items()} == {1: "ok", nodes: "ok"}, said(bench)
    many = found[nodes]
    assert [node["ranks"] for node in many["env"]["nodes"]] == [[rank, rank] for rank in range(nodes)]
    assert {node["node"] for node in many["env"]["nodes"]} == {f"node-{node}" for node in net.nodes}
    assert many["env"]["launcher"] == "torchrun" and [len(found[1]["env"]["nodes"])] == [1]
    steps = BASE["measure"]["steps"] + BASE["measure"]["warmup_steps"]  # type: ignore[index]
    for node in net.nodes:
        assert net.sent_bytes(node) > steps * many["figures"]["wire_bytes_per_step"], "gradients went over the fabric"
    assert bench.wait_gone() == [] and not list(bench.store.glob("work/*/*"))


@pytest.mark.full
def test_a_cable_that_is_taken_out_costs_one_trial(
    network: Callable[[int], Network], bench: Bench, wait_until: Callable[..., None]
) -> None:
    """torchrun itself waits for minutes for a node that it has lost, and is not waited for."""
    net = network(2)
    endless = {"steps": 100_000, "warmup_steps": 100_000, "repeats": 1, "timeout_s": 200}
    torchrun(net, bench, {"base": BASE | {"ranks_per_node": 1, "world_size": 2, "measure": endless}})

    def training() -> bool:
        found = [read_progress(path.parent, 1) for path in bench.store.glob("work/*/*/progress-1")]
        return any(progress is not None and progress.step > 3 for progress in found)

    wait_until(training, seconds=90)
    net.cut(2)
    wait_until(lambda: bool(bench.records()), seconds=60)
    (record,) = bench.records()
    assert record["status"] == "failed", said(bench)
    assert re.match("node node-2 is gone|rank [01], in phase warmup, step .*: .*(Connection|closed)", record["reason"])
    wait_until(lambda: "written: " in said(bench) or "stopped" in said(bench), seconds=60)
    wait_until(lambda: not ours(bench), seconds=60)
