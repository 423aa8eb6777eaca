"""Records: the JSON codec, and what it owes to older and newer versions."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchsuite.results.store.record import SCHEMA_VERSION, TrialFigures, TrialRecord
from benchsuite.results.store.store import ResultsStore
from tests.results.made import made_record

VERSION_1 = Path(__file__).parent / "fixtures" / "version-1"
"""Written by the first version. Never edit it: it stands for stores that people have."""


def test_round_trip():
    record = made_record(
        question='Is it "fast"?\nReally | truly, µs?',
        caveats=["not_steady", "oversubscribed"],
        caveat_details=["not_steady: the queue lost 12%"],
        reason="line one\nline two",
        wall_s=12.5,
        phase="done",
        dataset={"dataset_id": "ab", "num_samples": 3},
        figures={"samples_per_s": 0.1 + 0.2, "au": 1.02, "peak_memory_bytes": 2**53 + 1, "bottleneck": "mixed"},
        samples_file="made.samples.jsonl",
    )
    line = record.model_dump_json()
    assert "\n" not in line
    assert TrialRecord.model_validate_json(line) == record


def test_bytes_of_names_that_are_no_utf_8_lose_no_record(tmp_path: Path):
    store = ResultsStore(tmp_path)
    store.append(made_record(command=["sweep", "\udcff/data \U0001f600"], figures={"samples_per_s": float("nan")}))
    (found,) = store.records()
    assert found.command == ["sweep", "\\udcff/data \U0001f600"]


def test_what_was_not_measured_is_null_not_zero():
    assert set(TrialFigures().model_dump().values()) == {None}
    stored = json.loads(made_record(figures={}).model_dump_json())["figures"]
    assert set(stored) == set(TrialFigures.model_fields)
    assert set(stored.values()) == {None}


def test_a_measured_zero_stays_zero():
    line = made_record(figures={"cache_hit_fraction": 0.0, "load_s": 0.0}).model_dump_json()
    figures = TrialRecord.model_validate_json(line).figures
    assert figures.cache_hit_fraction == 0.0
    assert figures.load_s == 0.0
    assert figures.au is None


def test_not_a_number_is_stored_as_null():
    figures = made_record(figures={"final_loss": float("nan"), "au": float("inf")}).model_dump_json()
    assert json.loads(figures)["figures"]["final_loss"] is None
    assert json.loads(figures)["figures"]["au"] is None


def test_fields_of_a_newer_version_are_ignored():
    value = json.loads(made_record().model_dump_json())
    value |= {"schema_version": SCHEMA_VERSION + 1, "weather": "fair"}
    value["figures"]["cosmic_rays_per_s"] = 3
    record = TrialRecord.model_validate(value)
    assert record.schema_version == SCHEMA_VERSION + 1
    assert record.figures.samples_per_s == 100.0
    assert not hasattr(record, "weather")


def test_fields_an_older_version_lacked_take_their_defaults():
    value = json.loads(made_record().model_dump_json())
    for later in ("label", "caveats", "caveat_details", "wall_s", "phase", "dataset", "samples_file", "question"):
        del value[later]
    del value["figures"]["au"]
    record = TrialRecord.model_validate(value)
    assert (record.label, record.caveats, record.wall_s, record.figures.au) == ("", [], None, None)


@pytest.mark.parametrize("missing", ["record_id", "trial_id", "status", "spec", "env", "finished_at"])
def test_what_identifies_a_record_is_required(missing: str):
    value = json.loads(made_record().model_dump_json())
    del value[missing]
    with pytest.raises(ValidationError, match=missing):
        TrialRecord.model_validate(value)


def test_version_1_stays_readable():
    records = ResultsStore(VERSION_1).records()
    assert [(record.sweep, record.label, record.repeat, record.status) for record in records] == [
        ("frozen", "2 ranks", 0, "skipped"),
        ("frozen", "storage", 0, "ok"),
        ("frozen", "memory", 0, "ok"),
        ("frozen", "storage", 1, "ok"),
        ("frozen", "memory", 1, "ok"),
        ("late", "resnet50", 0, "timeout"),
    ]
    skipped, storage, memory, *_, late = records
    assert skipped.reason == "parallelism none has 1 rank, world_size is 2"
    assert late.reason is not None and late.reason.startswith("killed at its time limit in phase measure")
    assert storage.trial_id == "f6ef9fdcd96b.default.0"
    assert storage.figures.samples_per_s == 122.39486872665381
    assert storage.figures.au == 1.0126734527531365
    assert storage.figures.cache_hit_fraction == 0.0
    assert storage.figures.bottleneck == "compute"
    assert memory.figures.au is None
    assert storage.spec["data"]["num_workers"] == 1
    assert storage.dataset is not None and storage.dataset["dataset_id"] == "0edfedfed38f2266f6dca05b2a293db1"


def test_version_1_samples_stay_readable():
    store = ResultsStore(VERSION_1)
    storage = store.records()[1]
    samples = store.samples(storage)
    assert samples is not None
    blocks = samples["ranks"][0]["blocks"]
    assert [block["kind"] for block in blocks] == ["ceiling", "loader", "ceiling", "loader", "ceiling"]
    assert blocks[0]["parts"]["forward"][0] == 0.015942309999900317


def test_version_1_gives_frames():
    points = ResultsStore(VERSION_1).frame(by="point").set_index("label")
    assert points.loc["storage", "repeats"] == 2
    assert points.loc["2 ranks", "status"] == "skipped"
    assert points.loc["storage", "spec.data.format"] == "files"
