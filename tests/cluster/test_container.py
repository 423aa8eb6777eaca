"""The containers' install step, in the root of a bare Debian that has PyTorch: no image and no container are needed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.wheels import ROOT, wheelhouse

pytestmark = [pytest.mark.cluster, pytest.mark.full]  # it installs a Debian: minutes
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
