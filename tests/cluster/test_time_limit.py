"""Jobs that come to their time limit stop before it, and are queued again for what is left."""

import yaml

from tests.cluster.conftest import ClusterBench
from tests.cluster.slurm import Slurm

TRIAL_S = 46
"""Of the job's 120 s a sweep keeps 30: there is time for one such trial, not for two, however late the first begins."""
SLOW_AT_FIRST = f'export REHEARSED_S=$([ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] && echo {TRIAL_S} || echo 0.05)'
NO_EARLY_WARNING = "--signal=B:CONT@1"
"""A signal that does nothing. Slurm would send its warning up to a minute before the time that the job asks for."""


def start_slow(bench: ClusterBench, slurm: Slurm) -> int:
    """A job of three trials with a limit of two minutes, in which one of them fits."""
    user = bench.folder / "user.yaml"
    user.write_text(yaml.safe_dump({"submit": {"setup": [SLOW_AT_FIRST], "launcher": "rehearsed"}}))
    bench.env["BENCHSUITE_USER_CONFIG"] = str(user)
    options = ("--store", bench.store, "--time", "00:02:00", "--dry-run")
    code, out, err = bench.run("submit", "slurm", bench.grid(3), *options)
    assert code == 0, err
    return slurm.submit(out.removeprefix("written: ").strip(), NO_EARLY_WARNING, env=bench.env)


def start_held(bench: ClusterBench, slurm: Slurm) -> int:
    """A job of two trials, the second of which is held; its limit is near."""
    bench.hold(2)
    job = bench.submit(bench.grid(2), "--time", "01:00:00")
    bench.wait_held()
    slurm.call("scontrol", "update", f"jobid={job}", "timelimit=2")
    return job


def test_what_is_left_is_done_by_the_job_when_it_is_back(
    bench: ClusterBench, other_bench: ClusterBench, slurm: Slurm
) -> None:
    """One starts no trial that could not end in time; the other is warned in mid-trial."""
    slow, held = start_slow(bench, slurm), start_held(other_bench, slurm)
    slurm.wait_state(held, "PENDING")
    slurm.call("scontrol", "update", f"jobid={held}", "timelimit=60")  # else a slow machine is warned again
    assert slurm.wait_gone(held) == []
    assert other_bench.statuses() == {(1, "ok"): 1, (2, "interrupted"): 1}, other_bench.said()
    assert sorted(other_bench.claims().values()) == ["done", "released"]
    other_bench.release()
    for job, one in ((slow, bench), (held, other_bench)):
        ended = slurm.wait(job)
        assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1"), one.said()
    said = bench.said()
    assert "2 trials left, as they could not end in time; the same command goes on" in said
    assert bench.statuses() == {(1, "ok"): 1, (2, "ok"): 1, (3, "ok"): 1}, said
    assert said.count("[1/3] ") == 1 and "1 of 3 trials done" in said
    assert other_bench.statuses() == {(1, "ok"): 1, (2, "interrupted"): 1, (2, "ok"): 1}
