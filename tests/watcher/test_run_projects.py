"""`benchsuite run` around trainings that other projects ship, unmodified, each held back from outside and then ended.

`make projects` installs them with the oldest PyTorch into an environment that knows nothing of benchsuite.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from tests.watcher.test_run import ROOT, RUN, environment

BIN = ROOT / ".venv-projects" / "bin"
STEPS, LONGEST_S = 60, 240.0
"""So many steps are waited for, or so long."""
CHANCE = np.random.default_rng(1)
CPU = Path("/sys/fs/cgroup/cpu")


def photographs(folder: Path, number: int, pixels: int) -> list[Path]:
    """JPEGs that no compression makes small, on the disk and in no cache."""
    folder.mkdir(parents=True)
    paths = [folder / f"{each}.jpg" for each in range(number)]
    for path in paths:
        Image.fromarray(CHANCE.integers(0, 256, (pixels, pixels, 3), np.uint8)).save(path, quality=90)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return paths


def chemprop(folder: Path) -> list[str]:
    chains = ["".join(CHANCE.choice(["C", "CC", "C(=O)", "N", "O", "C(F)", "c1ccccc1"], 20)) for _ in range(3000)]
    rows = "".join(f"{chain},{len(chain)}\n" for chain in chains)
    (folder / "molecules.csv").write_text("smiles,length\n" + rows)
    how = ["--accelerator", "cpu", "--num-workers", "1", "--no-cache", "--epochs", "100", "--batch-size", "64"]
    return ["chemprop", "train", "-i", "molecules.csv", *how, "--split-sizes", "0.98", "0.01", "0.01"]


def ultralytics(folder: Path) -> list[str]:
    for name in ("train", "val"):
        for path in photographs(folder / "images" / name, 200 if name == "train" else 2, 160):
            label = folder / "labels" / name / f"{path.stem}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            label.write_text("0 0.5 0.5 0.4 0.4\n")
    (folder / "boxes.yaml").write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: {{0: box}}\n")
    how = ["imgsz=96", "batch=4", "workers=1", "device=cpu", "epochs=50", "plots=False", "amp=False"]
    return ["yolo", "detect", "train", "model=yolo11n.yaml", "data=boxes.yaml", *how]


def mace(folder: Path) -> list[str]:
    def molecule() -> str:
        at = CHANCE.uniform(-1.5, 1.5, (8, 3))
        rows = "".join("H " + " ".join(f"{one:.4f}" for one in (*each, 0.0, 0.0, 0.0)) + "\n" for each in at)
        told = "Properties=species:S:1:pos:R:3:REF_forces:R:3 REF_energy=-1.0 pbc='F F F'"
        return f"8\n{told}\n{rows}"

    (folder / "atoms.xyz").write_text("".join(molecule() for _ in range(600)))
    model = ["--model", "MACE", "--num_channels", "16", "--max_L", "0", "--r_max", "3.0", "--E0s", "{1: -0.5}"]
    how = ["--batch_size", "4", "--valid_fraction", "0.02", "--max_num_epochs", "50", "--device", "cpu"]
    return ["mace_run_train", "--name", "atoms", "--train_file", "atoms.xyz", *model, *how]


@contextmanager
def neighbours(_folder: Path) -> Iterator[None]:
    """As many programs that compute as there are cores."""
    with ExitStack() as programs:
        for _ in os.sched_getaffinity(0):
            one = programs.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            programs.callback(one.kill)
        yield


@contextmanager
def one_core(_folder: Path) -> Iterator[None]:
    """What is started here is bound to one core; the other ones are idle."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def quota(_folder: Path) -> Iterator[None]:
    """What is started here gets half of a core."""
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    home = CPU / next(where for _, kinds, where in lines if "cpu" in kinds.split(",")).lstrip("/")
    group = home / f"benchsuite-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("50000")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            (home / "cgroup.procs").write_text(process)
        group.rmdir()


class Project(NamedTuple):
    """What a project trains, what holds it back, and the cause that is to be named."""

    command: Callable[[Path], list[str]]
    """Makes its data in a folder."""
    held_back: Callable[[Path], AbstractContextManager[None]]
    cause: tuple[str, str | None]


PROJECTS = {
    "chemprop": Project(chemprop, one_core, ("client_cpu", "affinity")),
    "ultralytics": Project(ultralytics, neighbours, ("cannot_tell", None)),
    "mace": Project(mace, quota, ("client_cpu", "cores")),
}


def ended_by_sigterm(folder: Path, name: str) -> tuple[str, TrialRecord]:
    """What `run` has said and stored of a project's training that was ended by SIGTERM after its first steps."""
    project = PROJECTS[name]
    command, heard = project.command(folder), folder / "heard.txt"
    env = environment({"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder)})
    del env["PYTHONPATH"]
    with project.held_back(folder), heard.open("w") as out:
        process = subprocess.Popen(
            [*RUN, "--store", "store", "--every", "5", "--", *command], cwd=folder, env=env, stdout=out, stderr=out
        )
        deadline_s = time.monotonic() + LONGEST_S
        while process.poll() is None and time.monotonic() < deadline_s and _steps(heard.read_text()) < STEPS:
            time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    records = ResultsStore(folder / "store").trials()
    assert len(records) == 1, heard.read_text()
    return heard.read_text(), records[0]


def _steps(heard: str) -> int:
    return max(
        (int(each.replace(",", "")) for each in re.findall(r"^\d\d:\d\d  step ([\d,]+)", heard, re.M)), default=0
    )


@pytest.mark.weekly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_that_is_held_back(tmp_path: Path, name: str) -> None:
    if not BIN.exists():
        pytest.skip("make projects installs what trains here")
    heard, record = ended_by_sigterm(tmp_path, name)
    assert (record.figures.bottleneck, record.figures.cause) == PROJECTS[name].cause, heard
    assert record.status == "ok" and "SIGTERM" in heard
