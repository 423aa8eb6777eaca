"""A job that is queued again in mid-sweep comes back and does what is left."""

import pytest

from benchsuite.results.store.store import ResultsStore
from tests.cluster.conftest import ClusterBench
from tests.cluster.slurm import Slurm


@pytest.mark.full
def test_what_is_left_is_done_once(bench: ClusterBench, slurm: Slurm) -> None:
    """In CI, a job near its time limit and one whose node died are queued again."""
    file = bench.grid(3)
    bench.hold(2)
    job = bench.submit(file)
    bench.wait_held()
    slurm.call("scontrol", "requeue", job)
    slurm.wait_state(job, "PENDING")
    assert slurm.wait_gone(job) == []
    assert bench.status(file).startswith("session default · 1 done · 0 failed · 0 running · 2 waiting"), bench.said()
    bench.release()
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), bench.said()
    assert bench.statuses() == {(1, "ok"): 1, (2, "interrupted"): 1, (2, "ok"): 1, (3, "ok"): 1}
    frame = ResultsStore(bench.store).frame()
    assert sorted(frame["spec.batch_size"]) == [1, 2, 3] and set(frame["status"]) == {"ok"}
    assert {record["env"]["scheduler"]["SLURM_JOB_ID"] for record in bench.records()} == {str(job)}
    assert bench.status(file) == "session default · 3 done · 0 failed · 0 running · 0 waiting\n"
