"""(f4) The same samples read by DLIO, the benchmark of MLPerf Storage, and by our loaders, in turns with equal workers.

DLIO's worker processes hand none of the bytes on; ours hand every batch to the training process, JPEGs decoded and
augmented. For every sample DLIO writes out the names of all files, which costs it more the more there are: hence JPEGs
twice. DLIO runs under an interpreter of its own, named by DLIO_PYTHON.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench.scenes import PREFETCH, Scene, make_one, ours, turn
from bench.tables import goal
from benchsuite.storage import KINDS, load
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.observe.page_cache import evict, warm
from benchsuite.workloads.facts import FACTS

WORKERS = (1, 2)
ROUNDS = 3
WARM_EPOCHS = 2
VOLUMES, IMAGES, MANY_IMAGES = 24, 1600, 10_000
OURS = ("torch", "threads")
EXTENSIONS = {"files": "npy", "files npz": "npz", "hdf5": "hdf5"}
"""What DLIO reads beside our format, of volumes."""
GOALS = {("npy", False): 1.5, ("hdf5", False): 1.5, ("npy", True): 2.0, ("hdf5", True): 2.0, ("jpeg", False): 4.0}
"""Least ratio of our best loader to DLIO, by extension and whether cold."""


@dataclass
class Compared:
    """Bytes per second over rounds: DLIO's, and those of our loaders by name."""

    extension: str
    num_samples: int
    workers: int
    cold: bool
    dlio: list[float] = field(default_factory=list)
    ours: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, loader: str) -> float:
        """Median of ratios within rounds."""
        return float(np.median(np.divide(self.ours[loader], self.dlio)))

    @property
    def best(self) -> float:
        """The rate of our best loader."""
        return max(map(self.ratio, self.ours))


def interpreter() -> str | None:
    """The interpreter that has DLIO; None without."""
    return os.environ.get("DLIO_PYTHON") or None


def laid_out(folder: Path, dataset: Dataset, extension: str) -> list[Path]:
    """A folder as DLIO wants it, one file a sample: links to a dataset's images, or HDF5 files of its form with them.

    Returns:
        the files that hold the images.
    """
    train = folder / "train"
    shutil.rmtree(folder, ignore_errors=True)
    train.mkdir(parents=True)
    (folder / "valid").mkdir()
    images = sorted(path for path in dataset.data_files() if not path.stem.endswith("_y"))
    found = []
    for number, path in enumerate(images):
        target = train / f"img_{number:05d}.{extension}"
        if extension == "hdf5":
            with h5py.File(target, "w") as file:
                file["records"] = np.load(path, mmap_mode="r", allow_pickle=False)[None]
        else:
            target.symlink_to(path.resolve())
        found.append(target.resolve())
    return found


def dlio_rate(folder: Path, files: list[Path], extension: str, batch: int, workers: int, cold: bool) -> float:
    """Bytes of files per second by DLIO's own clock: of the last of WARM_EPOCHS epochs, or of a first, cold one.

    Raises:
        DatasetError: DLIO failed; with the end of what it said.
    """
    (evict if cold else warm)(files)
    num_bytes, out = sum(path.stat().st_size for path in files), folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    values: dict[str, Any] = {
        "framework": "pytorch",
        "workflow": {"generate_data": False, "train": True, "evaluation": False, "checkpoint": False},
        "dataset": {
            "data_folder": str(folder),
            "format": extension,
            "num_files_train": len(files),
            "num_files_eval": 0,
            "num_samples_per_file": 1,
            "num_subfolders_train": 0,
            "num_subfolders_eval": 0,
            "record_length": num_bytes // len(files),
        },
        "reader": {
            "data_loader": "pytorch",
            "batch_size": batch,
            "read_threads": workers,
            "prefetch_size": PREFETCH * workers,
            "multiprocessing_context": "fork",
            "file_shuffle": "seed",
            "sample_shuffle": "seed",
        },
        "train": {"epochs": 1 if cold else WARM_EPOCHS, "computation_time": 0.0},
    }
    words = [f"++workload.{name}={value}" for name, value in flat(values)]
    command = [str(interpreter()), "-m", "dlio_benchmark.main", "workload=default", *words, f"hydra.run.dir={out}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    try:
        summary = json.loads((out / "summary.json").read_text())
        return float(summary["metric"]["train_throughput_samples_per_second"][-1]) * num_bytes / len(files)
    except (OSError, ValueError, LookupError) as error:
        raise DatasetError(f"DLIO: {(done.stderr + done.stdout).strip()[-1000:]}") from error


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names with dots, and values as Hydra writes them."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, str(value).lower() if isinstance(value, bool) else str(value)


def compared(folder: Path, scene: Scene, name: str, extension: str, cold: bool, rounds: int) -> Compared:
    """One row: both read in turns."""
    dataset = scene.datasets[name]
    found = Compared(extension, dataset.manifest.num_samples, scene.workers, cold, ours={loader: [] for loader in OURS})
    files = laid_out(folder / "dlio", scene.datasets["files"] if extension == "hdf5" else dataset, extension)
    for _ in range(rounds):
        found.dlio.append(dlio_rate(folder / "dlio", files, extension, scene.batch, scene.workers, cold))
        evict(files)
        warm(dataset.data_files())
        for loader in OURS:
            found.ours[loader].append(turn(partial(ours, scene, name, loader), scene, name, cold))
        evict(dataset.data_files())
    return found


def scenes(folder: Path) -> Iterator[tuple[Scene, dict[str, str]]]:
    """Volumes and photographs, and what of each is read."""
    jpeg = {"files": "jpeg"}
    asked = (
        ("unet3d", VOLUMES, 2, EXTENSIONS),
        ("resnet50", IMAGES, 16, jpeg),
        ("resnet50", MANY_IMAGES, 16, jpeg),
    )
    for workload, samples, batch, read in asked:
        spec = FACTS[workload]
        target = folder / workload
        make = partial(make_one, target, workload, spec.kind, spec.variants["reference"].sample, samples)
        datasets = {name: make(name, {"array": "npz"} if "npz" in name else {}) for name in read}
        params = dict(spec.variants["reference"].sample)
        yield Scene(workload, datasets, load(KINDS, spec.kind), params, batch, 1), read
        shutil.rmtree(target)


def measure(folder: Path, rounds: int = ROUNDS) -> Iterator[Compared]:
    """Every row, with one and two workers, warm and cold."""
    for scene, read in scenes(folder):
        for (name, extension), workers, cold in product(read.items(), WORKERS, (False, True)):
            yield compared(folder, replace(scene, workers=workers), name, extension, cold, rounds)


def table(rows: list[Compared]) -> str:
    """Markdown: rates in GB/s and ratios."""
    lines = [
        f"| files | samples | workers | cache | DLIO GB/s | {' | '.join(f'`{name}` GB/s | / DLIO' for name in OURS)} |",
        f"|---|---:|---|---|---|{'---|---|' * len(OURS)}",
    ]
    for row in rows:
        ours = " | ".join(f"{np.median(row.ours[name]) / 1e9:.3g} | {row.ratio(name):.2f}" for name in OURS)
        case = f"{row.extension} | {row.num_samples:,} | {row.workers} | {'cold' if row.cold else 'warm'}"
        lines.append(f"| {case} | {np.median(row.dlio) / 1e9:.3g} | {ours} |")
    return "\n".join(lines)


def show(folder: Path) -> None:
    """Print the table, where DLIO_PYTHON names an interpreter that has DLIO."""
    print("(f4) our loaders beside DLIO: the same samples, as many workers, turns in one run")
    if not interpreter():
        return print("     not run; DLIO_PYTHON names no interpreter that has dlio_benchmark")
    rows = list(measure(folder))
    print(table(rows))
    for (extension, cold), wanted in GOALS.items():
        asked = [row for row in rows if (row.extension, row.cold) == (extension, cold)]
        for num_samples in sorted({row.num_samples for row in asked}):
            least = min(row.best for row in asked if row.num_samples == num_samples)
            what = f"{num_samples:,} of {extension} {'cold' if cold else 'warm'}, best loader / DLIO"
            print(goal(least >= wanted, f"{what} >= {wanted}"))
