"""What the last version before the rooms wrote stays readable: a store, datasets in every format, the ids of sweeps."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.exit_codes import NOTHING_RAN, REGRESSION
from benchsuite.contract.trial_spec import match_id, parse_trial, point_id, trial_id
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


ASKED_THEN = {
    **{
        f"{name}.yaml": ["measure.steps=20"]
        for name in ("accelerators", "batch-size", "model-size", "staging", "strong-scaling", "weak-scaling")
    },
    "formats.yaml": ["data.loader=[torch,threads,dali]"],
    "parallelism.yaml": ["batch_size=8", "global_batch_size=null", "measure.steps=20"],
    "demo.yaml": ["measure.steps=24"],
    "node-screen.yaml": ["measure.steps=16"],
}
"""What these sweeps asked then."""
REVISED = {"parallelism.yaml": ["fsdp"]}
"""Points that measure something else since, and have other ids."""


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
    plan = expand(load_sweep(file, ["data.root=/", "data.reader=tuned", *ASKED_THEN.get(file.name, [])]), NODES)
    points = sorted([*plan.points, *(skipped.point for skipped in plan.skipped)], key=lambda point: point.order)
    assert [point.label for point in points if point.spec.revisions] == REVISED.get(file.name, [])
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


@pytest.mark.parametrize("kept_as", ["segments", "parquet"])
def test_records_without_a_reader_read_as_what_they_did(tmp_path: Path, kept_as: str) -> None:
    """Our own reader."""
    shutil.copytree(BEFORE / "store", tmp_path / "store")
    store = ResultsStore(tmp_path / "store")
    if kept_as == "parquet":
        store.compact()
    found = store.sql('select "spec.data.source" as source, "spec.data.reader" as reader from trials')
    told = {(row["source"], row["reader"] if isinstance(row["reader"], str) else None) for row in rows(found)}
    assert told and told <= {("storage", "tuned"), ("memory", None), ("synthetic", None), (None, None)}
    assert ("storage", "tuned") in told


def test_what_a_stock_reader_measures_is_no_repeat_of_what_was_measured_before(tmp_path: Path) -> None:
    """Resuming, comparing and gates go by ids: of the same sweep file none is the same, unless it says tuned."""
    spec = {"workload": "resnet50", "variant": "tiny", "batch_size": 4, "data": {"root": "/", "format": "files"}}
    before, now, tuned = (parse_trial(_with(spec, **data)) for data in ({}, {"reader": "stock"}, {"reader": "tuned"}))
    assert point_id(before, "d") == point_id(tuned, "d") != point_id(now, "d")
    assert match_id(before, "d") == match_id(tuned, "d") != match_id(now, "d")


@pytest.mark.parametrize(
    ("reader", "code", "said"),
    [
        ("tuned", REGRESSION, "samples_per_s"),
        ("stock", NOTHING_RAN, "1 point is new and 1 is gone since 2026-01-20: they differ in data.reader"),
    ],
)
def test_nights_from_before_are_no_baseline_of_a_stock_reader(
    run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path, reader: str, code: int, said: str
) -> None:
    """Twenty nights of a trial that was written before there was a choice, and three at half its rate."""
    lines = [json.loads(line) for path in (BEFORE / "store" / "segments").glob("frozen*") for line in path.open()]
    (trial,) = [line for line in lines if str(line.get("label")).startswith("storage") and line["status"] == "ok"]
    assert trial["spec"]["data"]["source"] == "storage" and "reader" not in trial["spec"]["data"]
    now = parse_trial(_with(trial["spec"], reader=reader))
    dataset_id = trial["dataset"]["dataset_id"]
    made_now = {"point_id": point_id(now, dataset_id), "match_id": match_id(now, dataset_id)}
    assert (made_now == {name: trial[name] for name in made_now}) == (reader == "tuned")
    made = []
    for night in range(23):
        one, session = json.loads(json.dumps(trial)), f"2026-01-{night + 1:02d}"
        one["figures"]["samples_per_s"] *= (1 + 0.01 * (-1) ** night) * (0.5 if night >= 20 else 1)
        if night >= 20:
            one |= {**made_now, "spec": _with(trial["spec"], reader=reader)}
        moment = f"{session}T02:30:00.000000+00:00"
        one |= {"session": session, "trial_id": f"{one['point_id']}.{session}.0", "record_id": f"r{night}"}
        made.append(json.dumps(one | {"started_at": moment, "finished_at": moment}))
    (tmp_path / "store" / "segments").mkdir(parents=True)
    (tmp_path / "store" / "segments" / "nights.jsonl").write_text("\n".join(made) + "\n")
    asked = ("--store", tmp_path / "store")
    assert run_cli("baseline", "set", "--date", "2026-01-01..2026-01-20", *asked)[0] == 0
    found, out, err = run_cli("check", *asked)
    assert (found, said in out) == (code, True), out + err


def _with(spec: dict[str, Any], **data: str) -> dict[str, Any]:
    return {**spec, "data": {**spec["data"], **data}}


def test_the_store_holds_every_ending() -> None:
    assert {row["status"] for row in EXPECTED["store"]["trial"]} == {"ok", "failed", "skipped"}


@pytest.mark.parametrize("name", sorted(path.name for path in (BEFORE / "datasets").iterdir()))
def test_datasets_hold_the_same_samples(name: str) -> None:
    assert digests(BEFORE / "datasets" / name) == EXPECTED["datasets"][name]


SINCE = {"parquet", "mds"}
"""Formats that came later."""


def test_every_format_is_among_them() -> None:
    assert {open_dataset(folder).manifest.format for folder in (BEFORE / "datasets").iterdir()} == set(FORMATS) - SINCE


@pytest.mark.parametrize("name", sorted(EXPECTED["trials"]))
def test_sweeps_give_the_same_trials(name: str) -> None:
    before, now = EXPECTED["trials"][name], ids(SWEEPS / name)
    gone = [each for each in before if each not in now]
    assert [each for each in now if each in before] == [each for each in before if each not in gone]
    assert len({each.partition(".")[0] for each in gone}) == len(REVISED.get(name, []))
