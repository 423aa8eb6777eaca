"""`benchsuite run` in jobs of a cluster: around srun and within it, to the end and to the time limit."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from tests.cluster.conftest import ClusterBench
from tests.cluster.processes import wait_for
from tests.cluster.slurm import Slurm

RUN = [str(Path(sys.executable).with_name("benchsuite")), "run", "--every", "5"]
TRAIN = """
import os, sys, time, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ["SLURM_PROCID"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
torch.manual_seed(rank)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(400, 64), torch.randn(400, 1))
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(int(sys.argv[2])):
    for x, y in DataLoader(data, 4):
        loss = (net(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not rank:
        open(sys.argv[1] + ".trained", "w").close()
    time.sleep(0.2)
if not rank:
    print("trained", flush=True)
dist.barrier()
dist.destroy_process_group()
"""
SRUN = ["srun", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]


def submit(bench: ClusterBench, slurm: Slurm, epochs: int, within_srun: bool) -> int:
    """A job of two ranks, one on each node, that is measured."""
    path, script = bench.folder / "train.py", bench.folder / "job.sh"
    path.write_text(TRAIN)
    train = [sys.executable, str(path), str(bench.folder / "meeting"), str(epochs)]
    run = [*RUN, "--store", str(bench.store), "--"]
    script.write_text(
        f"#!/bin/bash\nexec {shlex.join([*SRUN, *run, *train] if within_srun else [*run, *SRUN, *train])}\n"
    )
    return slurm.submit(script, "--nodes=2", "--cpus-per-task=2", f"--output={bench.folder}/job.out", env=bench.env)


def record(bench: ClusterBench) -> TrialRecord:
    (found,) = ResultsStore(bench.store).trials()
    return found


@pytest.mark.parametrize("within_srun", [False, True], ids=["run srun", "srun run"])
def test_two_nodes_give_one_answer(bench: ClusterBench, slurm: Slurm, within_srun: bool) -> None:
    job = submit(bench, slurm, 3, within_srun)
    ended = slurm.wait(job)
    said = (bench.folder / "job.out").read_text()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), said
    assert said.count("trained\n") == 1 and said.count("294 steps counted on each of 2 ranks, 6 before") == 1, said
    found = record(bench)
    assert found.spec["world_size"] == 2 and "ranks_missing" not in found.caveats, said
    assert not [*(bench.store / "runs").iterdir()]
    assert slurm.wait_gone(job) == []


def test_jobs_that_reach_their_time_limit_have_answers(
    bench: ClusterBench, other_bench: ClusterBench, slurm: Slurm
) -> None:
    """A `run` around srun hears SIGTERM. One within it may be killed at once: `report` finds what ranks have left."""
    benches = {False: bench, True: other_bench}
    jobs = {within: submit(one, slurm, 10_000, within) for within, one in benches.items()}
    for within, one in benches.items():
        wait_for((one.folder / "meeting.trained").exists, "the first epoch", 120)
        slurm.call("scontrol", "update", f"jobid={jobs[within]}", "timelimit=1")
    for job in jobs.values():
        assert slurm.wait(job)["JobState"] == "TIMEOUT"
        assert slurm.wait_gone(job) == []
    said = (bench.folder / "job.out").read_text()
    assert "steps counted on each of 2 ranks" in said and "the loop ended by SIGTERM" in said, said
    for path in other_bench.store.glob("runs/*/*.json"):
        os.utime(path, (0, 0))  # it is long ago that anything was heard of it
    code, out, err = other_bench.run_cli("report", "--store", other_bench.store)
    assert code == 0 and "train.py" in out, err
    assert all("cut_short" in record(one).caveats for one in benches.values())


ALONE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

net = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(torch.randn(200, 64)), 4):
    net(x).mean().backward()
    optimizer.step()
print("trained", flush=True)
"""


def test_a_job_that_a_job_submits_is_not_measured(bench: ClusterBench, slurm: Slurm) -> None:
    """It inherits the environment of the one that is."""
    outer, inner, script, within = (bench.folder / name for name in ("outer.py", "inner.py", "job.sh", "inner.sh"))
    for path in (outer, inner):
        path.write_text(ALONE)
    within.write_text(f"#!/bin/bash\nenv | grep -c ^BENCHSUITE_RUN=\nexec {shlex.join([sys.executable, str(inner)])}\n")
    submits = f"{shlex.join([sys.executable, str(outer)])} && sbatch --output={bench.folder}/inner.out {within}"
    run = [*RUN, "--store", str(bench.store), "--", "bash", "-c", submits]
    script.write_text(f"#!/bin/bash\nexec {shlex.join(run)}\n")
    job = slurm.submit(script, f"--output={bench.folder}/job.out", env=bench.env)
    slurm.wait(job)
    said = (bench.folder / "job.out").read_text()
    slurm.wait(int(said.split("Submitted batch job ")[1].split()[0]))
    assert (bench.folder / "inner.out").read_text() == "1\ntrained\n"
    assert record(bench).spec["workload"] == "outer.py"
