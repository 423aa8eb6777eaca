"""Records of version 1, of each kind and with all its fields set, stay readable for ever: from segments and Parquet."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.render.tables import rows
from benchsuite.results.store.record import FIGURES, Kind, Record
from benchsuite.results.store.store import ResultsStore
from tests.results.former import renamed

KINDS = Path(__file__).parent / "fixtures" / "version-1-kinds"
"""Written by the first version, and what its frames held. Never edit it: it stands for stores that people have."""
ROWS = {row["kind"]: renamed(row) for row in json.loads((KINDS / "rows.json").read_text())}


def of_its_kind(kind: Kind, fields: dict[str, Any]) -> dict[str, Any]:
    """Without figures of other kinds, which the fixture has, too, and no record ever had."""
    others = {name for own in FIGURES.values() for name in own.model_fields} - {*FIGURES[kind].model_fields}
    return {name: value for name, value in fields.items() if name not in others}


@pytest.fixture(params=["segments", "parquet"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> ResultsStore:
    shutil.copytree(KINDS / "segments", tmp_path / "segments")
    store = ResultsStore(tmp_path)
    if request.param == "parquet":
        assert store.compact().num_parts == len(ROWS)
    return store


def test_the_fixture_has_every_field_of_its_version():
    lines = (KINDS / "segments" / "kinds.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        assert None not in line.values() and None not in line["figures"].values()
        assert len(line["figures"]) == 85 and len(line) == 27
        assert set(line) <= set(Record.model_fields)
        assert set(renamed(line["figures"])) <= {name for own in FIGURES.values() for name in own.model_fields}


@pytest.mark.parametrize("kind", ["trial", "probe", "comm", "checkpoint"])
def test_frames_hold_what_they_held(store: ResultsStore, kind: Kind):
    (found,) = rows(store.frame(kind=kind))
    want = of_its_kind(kind, ROWS[kind])
    assert {name: found[name] for name in want} == want
    assert found["spec.parallelism.dp"] == 2 and found["env.devices"] == ["A100"]


def test_records_and_samples_hold_what_they_held(store: ResultsStore):
    lines = [json.loads(line) for line in (KINDS / "segments" / "kinds.jsonl").read_text().splitlines()]
    for number, (record, line) in enumerate(zip(store.records(), lines, strict=True)):
        found = record.model_dump()
        assert {name: found[name] for name in line if name != "figures"} == {
            name: value for name, value in line.items() if name != "figures"
        }
        figures = of_its_kind(record.kind, renamed(line["figures"]))
        assert figures
        assert {name: found["figures"][name] for name in figures} == figures
        assert store.samples(record) == {"record_id": line["record_id"], "raw": [number]}
