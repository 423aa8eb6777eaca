"""An array of jobs on both nodes shares the trials of one sweep."""

from collections import Counter

from tests.cluster.conftest import ClusterBench
from tests.cluster.slurm import NODES, Slurm

POINTS, TASKS = 20, 4


def test_four_tasks_on_two_nodes_measure_each_trial_once(bench: ClusterBench, slurm: Slurm) -> None:
    bench.env["REHEARSED_S"] = "0.2"
    file = bench.grid(POINTS)
    two_a_node = ["--cpus-per-rank", 2]
    job = bench.submit(file, "--mode", "array", "--array-tasks", TASKS, "--launcher", "rehearsed", *two_a_node)
    slurm.wait(job)
    tasks = slurm.jobs(job)
    assert [task["JobState"] for task in tasks] == ["COMPLETED"] * TASKS, bench.said()
    assert Counter(task["BatchHost"] for task in tasks) == dict.fromkeys(NODES, 2)
    records = bench.records()
    assert bench.statuses() == {(point, "ok"): 1 for point in range(1, POINTS + 1)}
    placed = {(r["env"]["scheduler"]["SLURM_JOB_ID"], r["env"]["scheduler"]["SLURM_JOB_NODELIST"]) for r in records}
    assert placed <= {(task["JobId"], task["NodeList"]) for task in tasks}
    assert {node for _, node in placed} == {*NODES}, "both nodes had their share"
    assert bench.status(file) == f"session default · {POINTS} done · 0 failed · 0 running · 0 waiting\n"
    assert "Traceback" not in bench.said()
