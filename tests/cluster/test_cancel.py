"""A job that is cancelled in mid-trial loses that trial alone, and leaves neither a claim nor a process."""

from tests.cluster.conftest import ClusterBench
from tests.cluster.slurm import Slurm


def test_a_later_job_does_the_trial_at_once(bench: ClusterBench, slurm: Slurm) -> None:
    file = bench.grid(3, world_size=2, parallelism="ddp")
    bench.hold(2)
    cancelled = bench.submit(file, "--ranks-per-node", 2)
    bench.wait_held()
    slurm.cancel(cancelled)
    assert slurm.wait_gone(cancelled) == []
    before = bench.statuses()
    assert before in ({(1, "ok"): 1}, {(1, "ok"): 1, (2, "interrupted"): 1}), bench.said()
    assert sorted(bench.claims().values()) == ["done", "released"]
    assert slurm.job(cancelled)["Restarts"] == "0"
    assert bench.status(file).startswith("session default · 1 done · 0 failed · 0 running · 2 waiting")
    bench.release()
    later = bench.submit(file, "--ranks-per-node", 2)
    assert slurm.wait(later)["JobState"] == "COMPLETED", "it waits for a lease"
    assert bench.statuses() - before == {(2, "ok"): 1, (3, "ok"): 1}
    assert bench.status(file) == "session default · 3 done · 0 failed · 0 running · 0 waiting\n"
    assert bench.leftovers() == []
