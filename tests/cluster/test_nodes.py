"""Nodes that drain or die under a sweep."""

import os
import shlex

import psutil
import pytest

from tests.cluster.conftest import ClusterBench
from tests.cluster.processes import wait_for
from tests.cluster.slurm import Slurm
from tests.faults.conftest import COMMAND

OTHER = {"n1": "n2", "n2": "n1"}
LEASE_S = 3


@pytest.mark.full
def test_a_drained_node_ends_its_work_and_gets_no_more(bench: ClusterBench, slurm: Slurm) -> None:
    file = bench.grid(2)
    bench.hold(2)
    job = bench.submit(file)
    bench.wait_held()
    node = slurm.job(job)["BatchHost"]
    slurm.drain(node)
    assert slurm.node(node) == "draining"
    first, running = bench.status(file).splitlines()
    assert first.startswith("session default · 1 done · 0 failed · 1 running · 0 waiting · about ")
    assert running.startswith("running  batch_size 2 · repeat 1: ") and f", job {job}, since " in running
    assert not slurm.own_hosts or f": {node}, process " in running
    bench.release()
    assert slurm.wait(job)["JobState"] == "COMPLETED", bench.said()
    next_job = bench.submit(file, "--session", "next", "--launcher", "rehearsed")
    ended = slurm.wait(next_job)
    assert (ended["JobState"], ended["BatchHost"]) == ("COMPLETED", OTHER[node]), bench.said()
    assert slurm.node(node) == "drained"
    assert bench.statuses() == {(1, "ok"): 2, (2, "ok"): 2}
    assert bench.status(file) == "session default · 2 done · 0 failed · 0 running · 0 waiting\n"


def test_the_trial_of_a_node_that_died_is_done_on_the_other(bench: ClusterBench, slurm: Slurm) -> None:
    file = bench.grid(3)
    bench.hold(2)
    script = bench.folder / "job.sh"
    sweep = [*COMMAND, "sweep", str(file), "--store", str(bench.store), "--lease", str(LEASE_S)]
    script.write_text(f"#!/bin/bash\nexec {shlex.join(sweep)}\n")
    options = ("--requeue", "--open-mode=append", f"--output={bench.folder}/job.out")
    job = slurm.submit(script, *options, env=bench.env)
    bench.wait_held()
    node = slurm.job(job)["BatchHost"]
    slurm.kill_node(node)
    bench.release()
    assert slurm.processes(job) == []
    assert sorted(bench.claims().values()) == ["done", "running"], "it died without a word"
    ended = slurm.wait(job)
    said = (bench.folder / "job.out").read_text()
    assert (ended["JobState"], ended["BatchHost"], ended["Restarts"]) == ("COMPLETED", OTHER[node], "1"), said
    assert slurm.node(node).startswith("down")
    assert bench.statuses() == {(1, "ok"): 1, (2, "ok"): 1, (3, "ok"): 1}
    nodes = {r["spec"]["batch_size"]: r["env"]["scheduler"]["SLURM_JOB_NODELIST"] for r in bench.records()}
    assert nodes == {1: node, 2: OTHER[node], 3: OTHER[node]}
    assert bench.status(file) == "session default · 3 done · 0 failed · 0 running · 0 waiting\n"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["task", pytest.param("node", marks=pytest.mark.full)])
def test_a_sweep_over_two_nodes_goes_on_with_the_one_that_is_left(bench: ClusterBench, slurm: Slurm, how: str) -> None:
    """The agent of n2 is killed, a task of the job that nobody starts again; or n2 dies with all that runs there."""
    file = bench.grid(2, parallelism="ddp", ranks_per_node=1)
    sweep = [*COMMAND, "sweep", str(file), "--store", str(bench.store), "-o", "world_size=[2, 1]"]
    starting = {"task": ["srun", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4"], "node": []}[how]
    script = bench.folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{shlex.join([*starting, *sweep])}\necho code $?\n")
    bench.hold(1)
    options = ["--nodes=2", "--no-kill", "--cpus-per-task=4", f"--output={bench.folder}/job.out"]
    job = slurm.submit(script, *options, env=bench.env)
    wait_for(bench.hold_file.with_suffix(".held").exists, "a trial that is held", 180)  # by agents on both nodes
    if how == "task":
        agents = [
            process
            for process in slurm.processes(job)
            if "benchsuite.launch.zygote" in process.cmdline() and process.environ().get("SLURMD_NODENAME") == "n2"
        ]
        os.kill(min(agents, key=psutil.Process.create_time).pid, 9)
    else:
        assert slurm.job(job)["BatchHost"] == "n1"
        slurm.kill_node("n2")
    bench.release()
    ended = slurm.wait(job, seconds=280)
    said = (bench.folder / "job.out").read_text()
    found = {(record["spec"]["world_size"], record["spec"]["batch_size"]): record for record in bench.records()}
    statuses = {key: record["status"] for key, record in found.items()}
    assert statuses == {(2, 1): "failed", (1, 1): "ok", (2, 2): "skipped", (1, 2): "ok"}, said
    assert found[2, 1]["reason"].startswith("node n2 is gone: ")
    reason = found[2, 2]["reason"]
    assert reason.startswith("needs 2 nodes; 1 is left of 2 (n2 was lost at 20"), reason
    assert ": going on with 1 of 2 nodes: n1" in said and f"1 trial skipped: {reason}; " in said
    told = {"task": "n1: task 0: Exited with exit code 75\n", "node": "\ncode 75\n"}[how]
    assert told in said and ended["JobState"] == "COMPLETED", said
    assert sorted(bench.claims().values()) == ["done", "done", "done", "released"], "skipped: left to others"
    assert slurm.wait_gone(job) == []
