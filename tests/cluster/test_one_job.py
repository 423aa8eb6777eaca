"""A sweep as one job: `submit` hands it over, its records say where they come from, `status` agrees."""

from tests.cluster.conftest import ClusterBench
from tests.cluster.slurm import Slurm


def test_a_sweep_is_one_job(bench: ClusterBench, slurm: Slurm) -> None:
    file = bench.grid(2, world_size=2, parallelism="ddp")
    job = bench.submit(file, "--partition", "main", "--ranks-per-node", 2, "--time", "00:10:00")
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "0"), bench.said()
    assert bench.statuses() == {(1, "ok"): 1, (2, "ok"): 1}
    for record in bench.records():
        assert record["env"]["scheduler"] == {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_PARTITION": "main",
            "SLURM_JOB_NODELIST": ended["NodeList"],
        }
        if slurm.own_hosts:
            assert record["env"]["host"] == ended["BatchHost"]
    assert bench.status(file) == "session default · 2 done · 0 failed · 0 running · 0 waiting\n"
    assert slurm.wait_gone(job) == []
    assert bench.leftovers() == []


def test_an_allocation_of_both_nodes_is_noted_as_such(bench: ClusterBench, slurm: Slurm) -> None:
    job = bench.submit(bench.grid(1), "--nodes", 2, "--launcher", "rehearsed")
    ended = slurm.wait(job)
    assert ended["JobState"] == "COMPLETED", bench.said()
    (record,) = bench.records()
    assert record["env"]["scheduler"]["SLURM_JOB_NODELIST"] == ended["NodeList"] == "n[1-2]"
    ran = slurm.run_in_allocation(2, ["srun", "printenv", "SLURMD_NODENAME"], bench.folder)
    assert (ran.code, sorted(ran.out.split()), ran.err) == (0, ["n1", "n2"], "")


def test_what_slurm_refuses_is_one_line(bench: ClusterBench) -> None:
    code, out, err = bench.run("submit", "slurm", bench.grid(1), "--store", bench.store, "--partition", "nosuch")
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("error: sbatch ") and "invalid partition specified: nosuch" in last
    assert "warning: no --time" in err and err.count("error") == last.count("error")
