"""Jobs whose scripts are kept in tests/batch/submitted."""

from pathlib import Path
from typing import Any

from benchsuite.batch.job_script import Job, Scheduler
from benchsuite.host.site import JobSpec

SWEEP: dict[str, Any] = {
    "base": {
        "workload": "resnet50",
        "variant": "tiny",
        "parallelism": "ddp",
        "batch_size": 4,
        "data": {"source": "synthetic"},
        "measure": {"repeats": 1},
    },
    "grid": {"world_size": [1, 2, 8]},
}
SLURM: Scheduler = "slurm"
PBS: Scheduler = "pbs"
PLAIN = Job("bs-mine", 1, 1, ["benchsuite", "sweep", "/w/mine.yaml"], Path("/scratch/store"), Path("/w"), Path("/o"))
FULL = JobSpec(
    time="1-02:00:00",
    account="proj42",
    partition="boost",
    cpus_per_rank=8,
    modules=["cuda/12.4", "nccl"],
    setup=["source /apps/venv/bin/activate"],
    container=["apptainer", "exec", "--nv", "/images/bench suite.sif"],
)
CASES = {
    "slurm.sh": (SLURM, PLAIN, JobSpec()),
    "slurm-array.sh": (
        SLURM,
        Job(**(vars(PLAIN) | {"nodes": 2, "ranks_per_node": 4, "num_tasks": 3, "search": Path("/venv/bin")})),
        JobSpec(
            **FULL.model_dump(exclude_defaults=True)
            | {"qos": "high", "constraint": "a100&nvme", "gres": "gpu:4", "max_requeues": 3}
            | {"options": {"reservation": "x", "comment": "it's a test", "exclusive": None}}
        ),
    ),
    "pbs.sh": (
        PBS,
        Job(**(vars(PLAIN) | {"environment": {"BENCHSUITE_DATA__ROOT": "/my data"}, "search": Path("/venv/bin")})),
        JobSpec(time="02:00:00", gres="ngpus=4", constraint="model=skl", options={"place": "scatter", "M": "me@x.org"}),
    ),
    "pbs-array.sh": (PBS, Job(**(vars(PLAIN) | {"nodes": 2, "ranks_per_node": 4, "num_tasks": 3})), FULL),
}
