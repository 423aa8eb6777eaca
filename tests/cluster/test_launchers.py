"""Trials over the nodes of an allocation: by srun, by mpiexec, and as the tasks of a job that either has started."""

import os
import shlex
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import ClusterBench
from tests.cluster.daemons import wait_for
from tests.cluster.slurm import Slurm
from tests.faults.conftest import COMMAND

ROOT = Path(__file__).parents[2]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SUITE_S = 300.0
"""A suite of six, some of which wait for what is to end by itself."""
NANO = {"parallelism": "ddp", "workload": "gpt_neox"}


@pytest.mark.parametrize("name", ["Srun", pytest.param("Mpiexec", marks=pytest.mark.full)])
def test_a_launcher_does_what_all_launchers_do(slurm: Slurm, tmp_path: Path, name: str) -> None:
    suite = ROOT / "tests" / "helpers" / "launchers_of_jobs.py"
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(ROOT), f"{suite}::Test{name}"]
    ran = slurm.run_in_allocation(2, pytest_, tmp_path, "--cpus-per-task=4", env=AS_ROOT, seconds=SUITE_S)
    assert ran.code == 0, ran.out + ran.err
    assert "6 passed" in ran.out.replace("passed,", "passed"), ran.out


def test_a_sweep_takes_the_nodes_that_each_trial_needs(bench: ClusterBench, slurm: Slurm) -> None:
    file = bench.grid(1, **NANO)
    sweep = [
        "sweep",
        str(file),
        "--store",
        str(bench.store),
        "-o",
        "world_size=[1, 2, 4, 16]",
        "-o",
        "ranks_per_node=2",
    ]
    ran = slurm.run_in_allocation(2, [*COMMAND, *sweep], bench.folder, "--cpus-per-task=4", env=bench.env)
    assert ran.code == 0, ran.err
    assert " · srun (job " in ran.err and ": 2 nodes) · time: not known before the first trials" in ran.err
    found = {record["spec"]["world_size"]: record for record in bench.records()}
    assert {ranks: record["status"] for ranks, record in found.items()} == {1: "ok", 2: "ok", 4: "ok", 16: "skipped"}
    nodes = {ranks: [(node["node"], node["ranks"]) for node in found[ranks]["env"]["nodes"]] for ranks in (1, 2, 4)}
    assert nodes == {1: [("n1", [0, 0])], 2: [("n1", [0, 1])], 4: [("n1", [0, 1]), ("n2", [2, 3])]}
    assert found[16]["reason"] == "16 ranks, 2 a node, need 8 nodes; this launcher has 2 nodes"
    assert {found[ranks]["env"]["launcher"] for ranks in (1, 2, 4)} == {"srun"}
    assert found[4]["figures"]["final_loss"] > 0 and found[4]["env"]["nodes"][1]["cores"] == min(4, os.cpu_count() or 1)


@pytest.mark.parametrize("starter", [pytest.param("srun", marks=pytest.mark.full), "mpiexec"])
def test_the_tasks_of_a_job_become_the_agents_of_its_first(bench: ClusterBench, slurm: Slurm, starter: str) -> None:
    starting = {
        "srun": ["srun", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4"],
        "mpiexec": ["mpiexec", "-n", "2", "--map-by", "ppr:1:node", "--bind-to", "none"],
    }
    sweep = ["sweep", str(bench.grid(1, **NANO)), "--store", str(bench.store), "-o", "world_size=4"]
    command = [*starting[starter], *COMMAND, *sweep]
    ran = slurm.run_in_allocation(2, command, bench.folder, "--cpus-per-task=4", env={**bench.env, **AS_ROOT})
    assert ran.code == 0, ran.err
    (record,) = bench.records()
    assert (record["status"], record["reason"]) == ("ok", None)
    assert record["env"]["launcher"] == starter
    assert ran.err.count("[1/1]") == 1, "one of them plans and records"
    assert not list(bench.store.glob("work/meetings/*")), "no invitation is left"


def test_an_agent_that_is_killed_costs_one_trial(bench: ClusterBench, slurm: Slurm) -> None:
    bench.hold(1)
    file = bench.grid(2, **{"parallelism": "ddp", "world_size": 2, "ranks_per_node": 1})
    job = bench.submit(file, "--nodes", 2, "--launcher", "srun")
    bench.wait_held()
    agents = [
        process
        for process in slurm.processes(job)
        if "benchsuite.launch.zygote" in process.cmdline() and process.environ().get("SLURMD_NODENAME") == "n2"
    ]
    oldest = min(agents, key=psutil.Process.create_time)
    os.kill(oldest.pid, 9)
    bench.release()
    slurm.wait(job)
    assert bench.statuses() == {(1, "failed"): 1, (2, "ok"): 1}, bench.said()
    (failed,) = (record for record in bench.records() if record["status"] == "failed")
    assert failed["reason"].startswith("node n2 is gone"), failed["reason"]
    wait_for(lambda: slurm.wait_gone(job) == [], "an end of all processes")


@pytest.mark.full
def test_each_node_is_screened(bench: ClusterBench, slurm: Slurm) -> None:
    file = bench.grid(2, workload="gpt_neox", node="each")
    sweep = ["sweep", str(file), "--store", str(bench.store)]
    ran = slurm.run_in_allocation(2, [*COMMAND, *sweep], bench.folder, "--cpus-per-task=4", env=bench.env)
    assert ran.code == 0, ran.err
    found = sorted(
        (record["spec"]["node"], record["spec"]["batch_size"], record["status"]) for record in bench.records()
    )
    assert found == [("n1", 1, "ok"), ("n1", 2, "ok"), ("n2", 1, "ok"), ("n2", 2, "ok")]
    for record in bench.records():
        assert [node["node"] for node in record["env"]["nodes"]] == [record["spec"]["node"]]
    assert "2 nodes: an outlier can be told from 3 nodes on" in ran.out


def test_what_disturbs_another_node_is_a_caveat(bench: ClusterBench, slurm: Slurm) -> None:
    """A process that keeps n2 busy, which a sweep on n1 cannot see; it has a core even where others want them all."""
    busy = ["chrt", "--rr", "1", sys.executable, "-c", "while True: pass"]
    sweep = ["sweep", str(bench.grid(3, node="each")), "--store", str(bench.store), "-o", "node=[n2]"]
    words = shlex.join([*COMMAND, *sweep])
    script = (
        f"srun --overlap --nodes=1 --ntasks=1 --nodelist=n2 {shlex.join(busy)} &\n{words}\ncode=$?\nkill %1\nexit $code"
    )
    ran = slurm.run_in_allocation(2, ["bash", "-c", script], bench.folder, "--cpus-per-task=4", env=bench.env)
    assert ran.code == 0, ran.err
    details = [text for record in bench.records() for text in record["caveat_details"]]
    assert any(text.startswith("unclean_devices: n2: CPU: process ") for text in details), details
    for record in bench.records():
        (node,) = record["env"]["nodes"]
        assert node["node"] == "n2" and node["moment"]["memory_available_bytes"] > 0, "its state, too"


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.full), 2])
def test_salloc_measures_the_nodes_and_not_the_host_it_was_typed_on(
    bench: ClusterBench, slurm: Slurm, nodes: int
) -> None:
    sweep = ["sweep", str(bench.grid(2, parallelism="ddp", world_size=nodes)), "--store", str(bench.store)]
    slurm.call(
        "salloc", f"--nodes={nodes}", "--cpus-per-task=4", *COMMAND, *sweep, "-o", "ranks_per_node=1", env=bench.env
    )
    assert [record["status"] for record in bench.records()] == ["ok", "ok"], bench.records()
    for record in bench.records():
        assert record["env"]["launcher"] == "srun"
        assert [node["node"] for node in record["env"]["nodes"]] == ["n1", "n2"][:nodes]
        assert not {"left_behind", "unclean_devices"} & {*record["caveats"]}, record["caveat_details"]
        if slurm.own_hosts:
            assert record["env"]["host"] == "n1"
