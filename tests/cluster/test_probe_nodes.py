"""`probe nodes` over the nodes of a job, and Slurm leaving out those that it names."""

from benchsuite.results.store.store import ResultsStore
from tests.cluster.conftest import ClusterBench
from tests.cluster.slurm import Slurm
from tests.faults.conftest import COMMAND


def test_nodes_of_a_job_are_measured_and_a_named_one_is_left_out(bench: ClusterBench, slurm: Slurm) -> None:
    """Both nodes are this machine, so a threshold that nothing reaches names them both; one is taken off the list."""
    slow, site = bench.folder / "slow", bench.folder / "site.yaml"
    site.write_text("memory_bytes_per_s: 1e15\n")
    words = ["probe", "nodes", "--launcher", "srun", "--store", str(bench.store), "--seconds", "0.05"]
    words += ["--path", str(bench.folder), "--size", "16MB", "--thresholds", str(site), "--exclude-list", str(slow)]
    ran = slurm.run_in_allocation(2, [*COMMAND, *words], bench.folder)
    assert ran.code == 10, ran.err
    assert slow.read_text() == "n1\nn2\n"
    records = [record.model_dump() for record in ResultsStore(bench.store).records()]
    assert sorted(record["spec"]["node"] for record in records) == ["n1", "n2"]
    assert all(record["figures"]["pair_bytes_per_s"] > 0 for record in records)

    slow.write_text("n1\n")
    script = bench.folder / "job.sh"
    script.write_text("#!/bin/bash\ntrue\n")
    job = slurm.submit(script, f"--exclude={slow}", f"--output={bench.folder}/job.out")
    assert slurm.wait(job)["BatchHost"] == "n2"
