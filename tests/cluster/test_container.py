"""Containers, none of which is needed here: jobs whose sweeps run inside, and the install step in a bare Debian."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchsuite.contract.exit_codes import REQUEUE
from tests.cluster.conftest import ClusterBench
from tests.cluster.slurm import Slurm
from tests.helpers.wheels import ROOT, wheelhouse

pytestmark = pytest.mark.cluster
RELEASE, PYTHON = "bookworm", (3, 11)
# In a mount namespace of its own: what a killed test left mounted would be cleared with its folder, /dev among it.
ENTER = """
import os, subprocess, sys
root, *command = sys.argv[1:]
for name in ("proc", "dev", "sys"):
    subprocess.run(["mount", "--rbind", f"/{name}", f"{root}/{name}"], check=True)
os.chroot(root)
os.chdir("/")
os.execvp(command[0], command)
"""
SPEC = "{workload: resnet50, variant: tiny, batch_size: 2, data: {source: synthetic}, measure: {steps: 3}}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A bare Debian with Python and, outside of any environment, PyTorch."""
    if os.geteuid() or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap")
    if sys.version_info[:2] != PYTHON:
        pytest.skip(f"wheels for Python {sys.version_info[:2]} fit no Debian {RELEASE}")
    folder = tmp_path / "root"
    wanted = ["--variant=minbase", "--include=python3,python3-pip,python3-venv", RELEASE, str(folder)]
    made = subprocess.run(["debootstrap", *wanted], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no Debian can be had here: {made.stdout.splitlines()[-1:]}")
    wheelhouse(folder / "wheels", "torch", f"{ROOT}[formats,report]", "hatchling==1.33.0")
    return folder


def inside(root: Path, *command: str) -> str:
    """What a command prints in that root, where pip knows the wheels alone."""
    told = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "EXTRAS": "formats,report", "HOME": "/root"}
    environment = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": "/tmp", **told}
    entered = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", ENTER, root, *command]
    ran = subprocess.run(entered, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


@pytest.fixture
def inside_alone(bench: ClusterBench) -> ClusterBench:
    """Jobs of two nodes whose container has Python and this package, and none of Slurm's commands."""
    container, config = bench.folder / "container", bench.folder / "user.yaml"
    container.write_text(f'#!/bin/bash\nexport PATH={Path(sys.executable).parent}\nexec "$@"\n')
    container.chmod(0o755)
    config.write_text(f"submit: {{container: ['{container}'], nodes: 2, ranks_per_node: 1}}")
    bench.env |= {"BENCHSUITE_USER_CONFIG": str(config)}
    return bench


def test_a_job_near_its_end_tells_a_sweep_inside_and_is_queued_again(inside_alone: ClusterBench, slurm: Slurm) -> None:
    """The script learns through srun that the sweep stopped early."""
    bench = inside_alone
    bench.hold(2)
    job = bench.submit(bench.grid(2, world_size=2, parallelism="ddp"))
    bench.wait_held()
    slurm.call("scancel", "--batch", "--signal=USR1", job)
    slurm.wait_state(job, "PENDING")
    bench.release()
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), bench.said()
    assert bench.statuses() == {(1, "ok"): 1, (2, "interrupted"): 1, (2, "ok"): 1}
    for record in (one for one in bench.records() if one["status"] == "ok"):
        nodes = [(node["node"], node["ranks"]) for node in record["env"]["nodes"]]
        assert (record["env"]["launcher"], nodes) == ("srun", [("n1", [0, 0]), ("n2", [1, 1])])
        assert record["spec"]["ranks_per_node"] is None, "the job says it, as it does without a container"
    assert slurm.wait_gone(job) == []


def test_a_job_that_is_told_to_end_tells_a_sweep_inside(inside_alone: ClusterBench, slurm: Slurm) -> None:
    bench = inside_alone
    bench.hold(1)
    job = bench.submit(bench.grid(1, world_size=2, parallelism="ddp"))
    bench.wait_held()
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    ended = slurm.wait(job)
    assert (ended["ExitCode"], ended["Restarts"]) == (f"{REQUEUE}:0", "0"), bench.said()
    assert bench.statuses() == {(1, "interrupted"): 1}
    assert [*bench.claims().values()] == ["released"]
    assert slurm.wait_gone(job) == []


@pytest.mark.full  # it installs a Debian: minutes
def test_the_install_step_leaves_the_images_torch_alone(root: Path) -> None:
    inside(root, "python3", "-m", "pip", "install", "--quiet", "--break-system-packages", "torch")
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, kept.stdout.split("\0")):
        if not name.startswith(("tests/", "bench/")):
            (root / "tmp/source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / "tmp/source" / name, follow_symlinks=False)
    said = inside(root, "/tmp/source/containers/install.sh", "/tmp/source")
    assert said.splitlines()[-1].startswith("benchsuite 0.2")
    where = inside(root, "/opt/benchsuite/bin/python", "-c", "import torch; print(torch.__file__)")
    assert where.startswith("/usr/local/lib/python3.11/dist-packages/torch/")
    (root / "trial.yaml").write_text(SPEC)
    assert "samples/s" in inside(root, "benchsuite", "trial", "/trial.yaml")
