"""`benchsuite run` around trainings that other projects ship, unmodified, each held back from outside and then ended.

`make projects` installs them with the oldest PyTorch into an environment of their own, which knows nothing of benchsuite.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from bench.throttle import throttled
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


def open_clip(folder: Path) -> list[str]:
    paths = photographs(folder / "images", 1200, 256)
    rows = "".join(f"{path}\ta photograph of nothing\n" for path in paths)
    (folder / "pairs.csv").write_text("filepath\ttitle\n" + rows)
    data = ["--train-data", "pairs.csv", "--dataset-type", "csv", "--batch-size", "8", "--workers", "1"]
    return ["python", "-m", "open_clip_train.main", *data, "--model", "ViT-S-32-alt", "--device", "cpu"]


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


def litgpt(folder: Path) -> list[str]:
    (folder / "text").mkdir()
    for number in range(2):
        words = " ".join(f"{word:x}" for word in CHANCE.integers(0, 4000, 120_000))
        (folder / "text" / f"{number}.txt").write_text(words)
    made = f"""
from tokenizers import ByteLevelBPETokenizer
t = ByteLevelBPETokenizer(); t.train({str(folder / "text" / "1.txt")!r}, 2000); t.save({str(folder / "tokens.json")!r})
"""
    subprocess.run([BIN / "python", "-c", made], check=True, capture_output=True)
    (folder / "tokens").mkdir()
    (folder / "tokens.json").rename(folder / "tokens" / "tokenizer.json")
    (folder / "tokens" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPTNeoXTokenizer", "bos_token": "a"}))
    data = ["--data", "TextFiles", "--data.train_data_path", "text", "--data.num_workers", "1"]
    how = ["--train.micro_batch_size", "1", "--train.global_batch_size", "1", "--train.max_seq_length", "32"]
    often = ["--train.save_interval", "2", "--train.max_tokens", "100000", "--logger_name", "csv"]
    return ["litgpt", "pretrain", "pythia-14m", *data, "--tokenizer_dir", "tokens", *how, *often]


def nnunet(folder: Path) -> list[str]:
    made = """
import os, sys, json, numpy, nibabel
folder = os.path.join(os.environ["nnUNet_raw"], "Dataset001_Made")
for part in ("imagesTr", "labelsTr"): os.makedirs(os.path.join(folder, part))
chance = numpy.random.default_rng(1)
for number in range(12):
    image = chance.normal(size=(64, 64, 24)).astype("float32")
    for part, name, data in (("imagesTr", f"c_{number:03}_0000", image), ("labelsTr", f"c_{number:03}", (image > 1).astype("uint8"))):
        nibabel.save(nibabel.Nifti1Image(data, numpy.eye(4)), os.path.join(folder, part, name + ".nii.gz"))
told = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "made": 1}, "numTraining": 12, "file_ending": ".nii.gz"}
json.dump(told, open(os.path.join(folder, "dataset.json"), "w"))
"""
    env = environment(NNUNET | {"PATH": f"{BIN}:{os.environ['PATH']}"})
    subprocess.run([BIN / "python", "-c", made], cwd=folder, env=env, check=True, capture_output=True)
    plan = [BIN / "nnUNetv2_plan_and_preprocess", "-d", "1", "-c", "3d_fullres", "-np", "1", "-npfp", "1"]
    subprocess.run(plan, cwd=folder, env=env, check=True, capture_output=True)
    return ["nnUNetv2_train", "1", "3d_fullres", "all", "-device", "cpu"]


NNUNET = {"nnUNet_raw": "raw", "nnUNet_preprocessed": "preprocessed", "nnUNet_results": "results", "nnUNet_n_proc_DA": "1"}
"""Where it has its data, and one process that augments."""


@contextmanager
def slow_disk(folder: Path) -> Iterator[None]:
    """Reads of what is started here are slow; what is imported has been read before."""
    subprocess.run([BIN / "python", "-c", "import open_clip_train.main"], check=True)
    with throttled(folder, 300_000):
        yield


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
    env: Mapping[str, str] = {}


PROJECTS = {
    "open_clip": Project(open_clip, slow_disk, ("storage", "reads")),
    "chemprop": Project(chemprop, one_core, ("client_cpu", "affinity")),
    "ultralytics": Project(ultralytics, neighbours, ("cannot_tell", None)),
    "mace": Project(mace, quota, ("client_cpu", "cores")),
    "litgpt": Project(litgpt, nullcontext, ("waiting", "checkpoint")),
    "nnunet": Project(nnunet, nullcontext, ("preprocessing", "decode"), NNUNET),
}


def ended_by_sigterm(folder: Path, name: str) -> tuple[str, TrialRecord]:
    """What `run` has said and stored of a project's training that was ended by SIGTERM after its first steps."""
    project = PROJECTS[name]
    command, heard = project.command(folder), folder / "heard.txt"
    env = environment({"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder), **project.env})
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
    return max((int(each.replace(",", "")) for each in re.findall(r"^\d\d:\d\d  step ([\d,]+)", heard, re.M)), default=0)


@pytest.mark.weekly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_that_is_held_back(tmp_path: Path, name: str) -> None:
    if not BIN.exists():
        pytest.skip("make projects installs what trains here")
    heard, record = ended_by_sigterm(tmp_path, name)
    print(heard)
    assert (record.figures.bottleneck, record.figures.cause) == PROJECTS[name].cause, record.figures.evidence
    assert record.status == "ok" and "SIGTERM" in heard
