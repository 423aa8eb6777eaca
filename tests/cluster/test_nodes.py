"""Nodes that drain or die under a sweep."""

import shlex

from tests.cluster.conftest import ClusterBench
from tests.cluster.slurm import Slurm
from tests.faults.conftest import COMMAND

OTHER = {"n1": "n2", "n2": "n1"}
LEASE_S = 3


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
