"""What the last version before the rooms wrote stays readable: a store, datasets in every format, the ids of sweeps."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.trial_spec import trial_id
from benchsuite.grid.expand import expand, load_sweep
from benchsuite.host.machine import Machine
from benchsuite.results.render.tables import rows
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage import FORMATS, load
from benchsuite.storage.dataset.manifest import ReaderShare, open_dataset
from benchsuite.storage.dataset.sample import content_digest
from tests.results.former import renamed

BEFORE = Path(__file__).parent / "fixtures" / "before_the_rooms"
"""Never edit it: it stands for what people have."""
SWEEPS = Path(__file__).parents[1] / "benchsuite" / "sweeps"
NODES = Machine(cores=16, cuda_devices=0, nodes=8)
EXPECTED = json.loads(expected.read_text()) if (expected := BEFORE / "expected.json").exists() else {}


def held(store: Path) -> dict[str, list[dict[str, Any]]]:
    """What a store's frames hold, by kind of record, as JSON."""
    kept = ResultsStore(store)
    return {kind: _json(rows(kept.frame(kind=kind))) for kind in ("trial", "probe", "comm", "checkpoint")}


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str, sort_keys=True))


def digests(folder: Path) -> list[str]:
    """The digest of every sample, read by the dataset's format; sorted."""
    dataset = open_dataset(folder)
    lane = ReaderShare(index=0, count=1, epoch=0, seed=0, shuffle=False, shuffle_buffer=0)
    return sorted(content_digest(sample) for sample in load(FORMATS, dataset.manifest.format).read(dataset, lane))


def ids(file: Path) -> list[str]:
    """The ids of a sweep's trials, those of skipped points included, in its order."""
    loaders = ["data.loader=[torch,threads,dali]"] if file.name == "formats.yaml" else []  # what it varied then
    plan = expand(load_sweep(file, ["data.root=/", "data.reader=tuned", *loaders]), NODES)
    points = sorted([*plan.points, *(skipped.point for skipped in plan.skipped)], key=lambda point: point.order)
    repeats = [(point, repeat) for point in points for repeat in range(point.spec.measure.repeats)]
    return [trial_id(point.point_id, "default", repeat) for point, repeat in repeats]


@pytest.mark.parametrize("kept_as", ["segments", "parquet"])
@pytest.mark.parametrize("kind", ["trial", "probe", "comm", "checkpoint"])
def test_a_stores_frames_hold_what_they_held(tmp_path: Path, kind: str, kept_as: str) -> None:
    shutil.copytree(BEFORE / "store", tmp_path / "store")
    if kept_as == "parquet":
        ResultsStore(tmp_path / "store").compact()
    found, want = held(tmp_path / "store")[kind], EXPECTED["store"][kind]
    now = [{name: value for name, value in renamed(row).items() if value is not None} for row in want]
    assert [{name: row[name] for name in before} for row, before in zip(found, now, strict=True)] == now


def test_the_store_holds_every_ending() -> None:
    assert {row["status"] for row in EXPECTED["store"]["trial"]} == {"ok", "failed", "skipped"}


@pytest.mark.parametrize("name", sorted(path.name for path in (BEFORE / "datasets").iterdir()))
def test_datasets_hold_the_same_samples(name: str) -> None:
    assert digests(BEFORE / "datasets" / name) == EXPECTED["datasets"][name]


def test_every_format_is_among_them() -> None:
    assert {open_dataset(folder).manifest.format for folder in (BEFORE / "datasets").iterdir()} == set(FORMATS)


@pytest.mark.parametrize("name", sorted(path.name for path in SWEEPS.glob("*.yaml")))
def test_sweeps_give_the_same_trials(name: str) -> None:
    assert ids(SWEEPS / name) == EXPECTED["trials"][name]
