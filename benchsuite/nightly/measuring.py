"""The nightly sweep: where its file, data and results are, what it covers, and running it once."""

import contextlib
import importlib
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchsuite import storage
from benchsuite.cli.data import asked, generate
from benchsuite.contract.errors import UserError
from benchsuite.contract.exit_codes import NOTHING_RAN, OK, SOME_FAILED
from benchsuite.contract.trial_spec import SweepSpec
from benchsuite.grid import expand
from benchsuite.grid.blocks import reader_samples
from benchsuite.grid.layers import values_of
from benchsuite.grid.point import Plan, Point
from benchsuite.host.machine import this_machine
from benchsuite.results.export.asv_points import Key, Measured, keys_of, measured
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.manifest import is_dataset

CONFIG = "asv.conf.json"
SHARDS_PER_READER = 2
SPARE = 2
"""Datasets are made with this many times the samples that the sweep reads."""


@dataclass(frozen=True)
class Nightly:
    """A nightly sweep, and where it is at home."""

    sweep_file: Path
    folder: Path
    """The folder with asv.conf.json."""

    @property
    def data_folder(self) -> Path:
        """Where relative data roots of the sweep lie."""
        return self.folder / ".asv" / "data"

    @property
    def store_folder(self) -> Path:
        """The store that nightly sweeps append to: BENCHSUITE_STORE, or .asv/store beside asv.conf.json."""
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

    def sweep(self) -> SweepSpec:
        """What the file asks for."""
        return expand.load_sweep(self.sweep_file, [])


def nightly_of(benchmarks: Path) -> Nightly:
    """The nightly sweep of a folder of benchmarks.

    Its file is BENCHSUITE_NIGHTLY_SWEEP, or nightly.yaml in it; the folder with asv.conf.json is
    BENCHSUITE_NIGHTLY_FOLDER, or the nearest one above it.

    Raises:
        UserError: there is no asv.conf.json.
    """
    file = Path(os.environ.get("BENCHSUITE_NIGHTLY_SWEEP") or benchmarks / "nightly.yaml").expanduser().absolute()
    given = os.environ.get("BENCHSUITE_NIGHTLY_FOLDER")
    for folder in [Path(given).expanduser().absolute()] if given else benchmarks.resolve().parents:
        if (folder / CONFIG).is_file():
            return Nightly(file, folder)
    where = given or f"any folder above {benchmarks}"
    raise UserError(f"no {CONFIG} in {where}; set BENCHSUITE_NIGHTLY_FOLDER to its folder")


def covered(nightly: Nightly) -> list[Key]:
    """The points of the nightly sweep, those that cannot run included."""
    return keys_of([point.spec.model_dump() for point in _points(_plan(nightly))])


def _points(plan: Plan) -> list[Point]:
    everything = [*plan.points, *(skipped.point for skipped in plan.skipped)]
    return sorted(everything, key=lambda point: point.order)


def _plan(nightly: Nightly) -> Plan:
    """The sweep's points on this machine; relative data roots are those of the data folder."""
    sweep = nightly.sweep()
    nightly.data_folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(nightly.data_folder):
        for root in filter(None, values_of(sweep.model_dump()).get("data.root", [])):
            if not Path(root).expanduser().is_absolute():
                Path(root).mkdir(parents=True, exist_ok=True)
        return expand.expand(sweep, this_machine(), nightly.store_folder)


def prepare(nightly: Nightly) -> None:
    """Make the datasets that the sweep lacks in the data folder; the same samples in every format."""
    points = [point for point in _points(_plan(nightly)) if point.dataset]
    for folder, first in {point.dataset: point.spec for point in reversed(points)}.items():
        if folder is None or is_dataset(folder) or not folder.is_relative_to(nightly.data_folder):
            continue
        readers = [point.spec for point in points if point.spec.data.root == first.data.root]
        lanes = max(spec.data_ranks * spec.data.readers for spec in readers)
        samples = SPARE * lanes * max(reader_samples(spec)[1] + spec.data.shuffle_buffer for spec in readers)
        sharded = "shard_samples" in storage.format_of(first.data.format).options
        options = [f"shard_samples={samples // (SHARDS_PER_READER * lanes)}"] if sharded else []
        dataset = asked(first.workload, first.variant, first.data.format, options)
        generate(folder, dataset, samples, 0, "jpeg")


def measure(nightly: Nightly) -> dict[Key, Measured]:
    """Run the nightly sweep in a session of its own, and give what each of its points came to.

    Raises:
        UserError: nothing could run, or the sweep was stopped early.
    """
    from benchsuite.cli.sweep import SweepOptions, sweep_file

    prepare(nightly)
    session = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%S")
    with contextlib.chdir(nightly.data_folder):
        code = sweep_file(SweepOptions(nightly.sweep_file, session, nightly.store_folder))
    if code not in (OK, SOME_FAILED):
        raise UserError(f"{nightly.sweep_file}: {'nothing could run' if code == NOTHING_RAN else 'stopped early'}")
    name = nightly.sweep().name
    trials = ResultsStore(nightly.store_folder).trials()
    return measured([trial for trial in trials if trial.session == session and trial.sweep == name])
