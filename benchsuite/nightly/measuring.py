"""The sweeps of a night: where their files, data and results are, what they cover, and running them once."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchsuite import storage
from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import NOTHING_RAN, OK, SOME_FAILED, USAGE
from benchsuite.contract.terminal import echo
from benchsuite.grid import expand
from benchsuite.grid.blocks import reader_samples
from benchsuite.grid.layers import values_of
from benchsuite.grid.point import Plan, Point
from benchsuite.host.machine import Machine, this_machine
from benchsuite.results.export.asv_points import Key, Measured, key_of, measured
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.manifest import is_dataset
from benchsuite.storage.objects.path import path_of
from benchsuite.workloads.revisions import in_words

CONFIG = "asv.conf.json"
SWEEPS = "sweeps"
"""The folder of sweep files, beside that of the benchmarks."""
SHARDS_PER_READER = 2
SPARE = 2
"""Datasets are made with this many times the samples that a sweep reads."""


@dataclass(frozen=True)
class Nightly:
    """The sweeps of a night, and where they are at home."""

    sweep_files: tuple[Path, ...]
    folder: Path
    """The folder with asv.conf.json."""

    @property
    def data_folder(self) -> Path:
        """Where relative data roots of the sweeps lie."""
        return self.folder / ".asv" / "data"

    @property
    def store_folder(self) -> Path:
        """The store that nights append to: BENCHSUITE_STORE, or .asv/store beside asv.conf.json."""
        return Path(os.environ.get("BENCHSUITE_STORE") or self.folder / ".asv" / "store").expanduser().absolute()

    @property
    def results_dir(self) -> Path:
        """Where asv keeps its results."""
        path = self.folder / CONFIG
        try:
            conf = json.loads(path.read_text())
        except ValueError:
            conf = importlib.import_module("asv.util").load_json(str(path), js_comments=True)
        return self.folder / str(conf.get("results_dir", "results"))

    @property
    def names(self) -> list[str]:
        """The names of the sweeps."""
        return [expand.load_sweep(file, []).name for file in self.sweep_files]


def nightly_of(benchmarks: Path) -> Nightly:
    """The sweeps of a folder of benchmarks.

    Their files are BENCHSUITE_NIGHTLY_SWEEP, or those of the folder `sweeps` beside it; the folder with asv.conf.json
    is BENCHSUITE_NIGHTLY_FOLDER, or the nearest one above the benchmarks.

    Raises:
        UserError: there is no asv.conf.json, or no sweep.
    """
    given = os.environ.get("BENCHSUITE_NIGHTLY_FOLDER")
    for folder in [Path(given).expanduser().absolute()] if given else benchmarks.resolve().parents:
        if (folder / CONFIG).is_file():
            return Nightly(_sweep_files(benchmarks.resolve().parent / SWEEPS), folder)
    where = given or f"any folder above {benchmarks}"
    raise UserError(f"no {CONFIG} in {where}; set BENCHSUITE_NIGHTLY_FOLDER to its folder")


def _sweep_files(folder: Path) -> tuple[Path, ...]:
    named = os.environ.get("BENCHSUITE_NIGHTLY_SWEEP")
    found = (Path(named).expanduser().absolute(),) if named else tuple(sorted(folder.glob("*.yaml")))
    if not found:
        raise UserError(f"{folder}: no sweep file (*.yaml)")
    return found


def covered(nightly: Nightly) -> list[Key]:
    """The points of all sweeps, those that cannot run included."""
    return [
        key_of(name, point.spec.model_dump(), revision=in_words(point.spec.revisions))
        for name, file in zip(nightly.names, nightly.sweep_files, strict=True)
        for point in _points(plan_of(nightly, file))
    ]


def _points(plan: Plan) -> list[Point]:
    everything = [*plan.points, *(skipped.point for skipped in plan.skipped)]
    return sorted(everything, key=lambda point: point.order)


def plan_of(nightly: Nightly, file: Path, machine: Machine | None = None) -> Plan:
    """A sweep's points, on this machine by default; relative data roots are those of the data folder."""
    sweep = expand.load_sweep(file, [])
    nightly.data_folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(nightly.data_folder):
        for root in filter(None, values_of(sweep.model_dump()).get("data.root", [])):
            if not path_of(root).expanduser().is_absolute():
                Path(root).mkdir(parents=True, exist_ok=True)
        return expand.expand(sweep, machine or this_machine(), nightly.store_folder)


def prepare(nightly: Nightly, file: Path, machine: Machine | None = None) -> None:
    """Make the datasets that a sweep lacks in the data folder; the same samples in every format.

    Raises:
        UserError: one could not be made, or the sweep cannot be planned.
    """
    points = [point for point in _points(plan_of(nightly, file, machine)) if point.dataset]
    for folder, first in {point.dataset: point.spec for point in reversed(points)}.items():
        if folder is None or is_dataset(folder) or not folder.is_relative_to(nightly.data_folder):
            continue
        readers = [point.spec for point in points if point.spec.data.root == first.data.root]
        lanes = max(spec.data_ranks * spec.data.readers for spec in readers)
        samples = SPARE * lanes * max(reader_samples(spec)[1] + spec.data.shuffle_buffer for spec in readers)
        sharded = "shard_samples" in storage.format_of(first.data.format).options
        options = ["-o", f"shard_samples={samples // (SHARDS_PER_READER * lanes)}"] if sharded else []
        wanted = ["--workload", first.workload, "--variant", first.variant, "--format", first.data.format]
        if run_verb(["data", "generate", str(folder), *wanted, "--samples", str(samples), *options], nightly.folder):
            raise UserError(f"{folder}: could not be made")


def run_verb(words: Sequence[str], folder: Path) -> int:
    """Run a verb as it is typed, in a folder; its exit code."""
    return subprocess.run([sys.executable, "-m", "benchsuite", *words], cwd=folder, check=False).returncode


def run_sweeps(nightly: Nightly, session: str, words: Sequence[str] = ()) -> list[int]:
    """Run each sweep, with more options as they are typed; their exit codes.

    Data that is missing is made first. A sweep that is wrong stops no other.
    """
    return [_run_sweep(nightly, file, session, words) for file in nightly.sweep_files]


def _run_sweep(nightly: Nightly, file: Path, session: str, words: Sequence[str]) -> int:
    try:
        prepare(nightly, file)
    except UserError as error:
        echo(f"error: {file}: {error}", err=True)
        return USAGE
    store = ["--session", session, "--store", str(nightly.store_folder)]
    return run_verb(["sweep", str(file), *store, *words], nightly.data_folder)


def measure(nightly: Nightly) -> dict[Key, Measured]:
    """Run all sweeps in a session of their own, and give what each of their points came to.

    Raises:
        UserError: nothing could run, or a sweep was stopped early.
    """
    session = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%S")
    for file, code in zip(nightly.sweep_files, run_sweeps(nightly, session), strict=True):
        if code not in (OK, SOME_FAILED):
            raise UserError(f"{file}: {'nothing could run' if code == NOTHING_RAN else 'stopped early'}")
    return measured(trials_of(nightly, session))


def trials_of(nightly: Nightly, session: str) -> list[TrialRecord]:
    """The trials of a night."""
    trials = ResultsStore(nightly.store_folder).trials()
    return [trial for trial in trials if trial.session == session and trial.sweep != "watch"]
