"""A sweep under torchrun whose agent on one of two nodes is killed: it goes on with the other, and says so.

Under Slurm, tests of clusters show the same.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from benchsuite.contract.rank_samples import read_progress
from tests.cluster.daemons import free_ports
from tests.faults.conftest import COMMAND, Bench

BASE = {
    "workload": "gpt_neox",
    "variant": "nano",
    "data": {"source": "synthetic"},
    "parallelism": "ddp",
    "batch_size": 1,
    "device": "cpu",
    "threads_per_rank": 1,
    "ranks_per_node": 1,
    "measure": {"steps": 4, "warmup_steps": 1, "repeats": 1, "timeout_s": 200},
}
POINTS = [
    {"world_size": 2, "measure.steps": 100_000},
    {"world_size": 1, "batch_size": 2},
    {"world_size": 2, "batch_size": 2},
]
START = "import sys; from torch.distributed.run import main; main(sys.argv[1:])"


def torchrun(bench: Bench, node: str, port: int, sweep: list[str]) -> "subprocess.Popen[str]":
    """Start torchrun as on a node of that name; the first one's serves the rendezvous."""
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", bench.mark]
    options = ["--rdzv-conf", f"is_host={int(node == 'n1')}", "--nnodes", "2", "--nproc-per-node", "1", "--no-python"]
    return subprocess.Popen(
        [sys.executable, "-c", START, *meeting, *options, *sweep],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**bench.env, "SLURMD_NODENAME": node},
        cwd=bench.folder,
    )


def agent_of(bench: Bench, node: str) -> psutil.Process:
    """The agent of a node, and not the ranks that it has forked."""
    found = [each for each in bench.processes() if each.environ().get("SLURMD_NODENAME") == node]
    return min((each for each in found if "benchsuite.launch.zygote" in each.cmdline()), key=psutil.Process.create_time)


@pytest.mark.full
def test_a_sweep_goes_on_with_the_nodes_that_are_left(bench: Bench, wait_until: Callable[..., None]) -> None:
    sweep = {"name": "lost", "base": {**BASE, "world_size": 1}, "include": POINTS}
    file = bench.write(sweep)
    (port,) = free_ports(1)
    command = [*COMMAND, "sweep", str(file), "--store", str(bench.store)]
    nodes = {node: torchrun(bench, node, port, command) for node in ("n1", "n2")}

    def training() -> bool:
        found = [read_progress(path.parent, 1) for path in bench.store.glob("work/*/*/progress-1")]
        return any(progress is not None and progress.step > 3 for progress in found)

    wait_until(training, seconds=150)
    os.kill(agent_of(bench, "n2").pid, signal.SIGKILL)
    said = {node: process.communicate(timeout=200)[0] for node, process in nodes.items()}
    found = {(record["spec"]["world_size"], record["spec"]["batch_size"]): record for record in bench.records()}
    assert {key: record["status"] for key, record in found.items()} == {
        (1, 1): "ok",
        (2, 1): "failed",
        (1, 2): "ok",
        (2, 2): "skipped",
    }, said["n1"]
    assert found[2, 1]["reason"] == "node n2 is gone: its agent has ended"
    reason = found[2, 2]["reason"]
    assert reason.startswith("needs 2 nodes; 1 is left of 2 (n2 was lost at 20") and reason.endswith(" UTC)")
    assert [node["node"] for node in found[1, 2]["env"]["nodes"]] == ["n1"]
    assert f"node n2 was lost at {reason.partition('lost at ')[2][:-1]}: going on with 1 of 2 nodes: n1" in said["n1"]
    assert f"1 trial skipped: {reason}; with as many nodes again the same command goes on" in said["n1"]
    assert "exitcode  : 75" in said["n1"], "torchrun tells the sweep's exit code, and has 1 itself"
    assert bench.wait_gone() == []
    assert sorted(bench.claims().values()) == ["done", "done", "done", "released"], "skipped: left to others"
