"""Segments with bytes changed, cut, doubled and strewn in: no reader crashes, and no intact record is lost."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import SAMPLES, ResultsStore
from tests.fuzz.mutations import byte_changes, changed_bytes, changed_tree, tree_changes
from tests.fuzz.running import check_said, command
from tests.results.made import made_record

WRITERS, RECORDS = 3, 8
VERBS = (
    "report",
    "report --format json",
    "report --format md",
    "results show",
    "results show --by point --format csv",
    "status",
    "scaling",
    "compare session=default session=default",
    "baseline show",
    "check",
)


@cache
def sound(folder: Path) -> Path:
    """A store of several segments with raw samples; records with all kinds of text and numbers."""
    path = folder / "sound-store"
    for writer in range(WRITERS):
        store = ResultsStore(path)
        for number in range(RECORDS):
            unique = {"record_id": f"w{writer}n{number}" * 4, "trial_id": f"p{number}.default.{writer}"}
            env = {"host": "ünïcode\n", "cores": 2, "moment": {"users": ["ann"], "cpu_mhz": 2600.5}}
            record = made_record(number, **unique, env=env, caveats=["not_steady"] * (number % 2))
            store.append(record, {"ranks": [{"rank": 0, "blocks": [number, 0.5]}]})
    return path


@cache
def originals(folder: Path) -> dict[str, TrialRecord]:
    found = {record.record_id: record for record in ResultsStore(sound(folder)).records()}
    assert len(found) == WRITERS * RECORDS
    return found


def segments_of(path: Path) -> list[Path]:
    return [file for file in sorted((path / "segments").iterdir()) if not file.name.endswith(SAMPLES)]


def intact(damaged: list[Path], sound_lines: dict[bytes, str]) -> set[str]:
    """Records that still stand as whole lines, and of which there is no copy that reads otherwise."""
    lines = {line for path in damaged for line in path.read_bytes().split(b"\n")}
    whole = {name for line, name in sound_lines.items() if line in lines}
    altered = set()
    for line in lines - sound_lines.keys():
        try:
            altered.add(json.loads(line)["record_id"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return whole - {name for name in altered if isinstance(name, str)}


def check_reading(store: ResultsStore, known: dict[str, TrialRecord], expected: set[str]) -> None:
    found_all = store.records()
    found = {record.record_id: record for record in found_all}
    assert len(found) == len(found_all), "doubles are read once"
    assert {name for name in expected if found.get(name) != known[name]} == set(), "intact records were lost"
    for record in found_all:
        samples = store.samples(record)
        assert samples is None or samples["record_id"] == record.record_id


SEGMENTS = st.tuples(
    st.lists(st.tuples(st.integers(0, 2 * WRITERS - 1), byte_changes), max_size=3),
    st.lists(st.tuples(st.integers(0, WRITERS * RECORDS - 1), tree_changes), max_size=2),
    st.sampled_from(("", "", "", "compact", *VERBS)),
)


def check_segments(example: tuple[list[Any], list[Any], str], folder: Path) -> None:
    """Bytes of files change, and records are written whose values are of other types; all verbs read what is left."""
    changes, records, verb = example
    known, path = originals(folder), folder / "damaged-store"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound(folder), path)
    segments = segments_of(path)
    lines = {line: json.loads(line)["record_id"] for file in segments for line in file.read_bytes().splitlines()}
    for number, tree in records:
        line = list(lines)[number]
        with segments[0].open("ab") as file:
            file.write(json.dumps(changed_tree(json.loads(line), tree)).encode() + b"\n")
    files = sorted((path / "segments").iterdir())
    for number, each in changes:
        files[number].write_bytes(changed_bytes(files[number].read_bytes(), each))
    expected = intact(segments, lines)
    store = ResultsStore(path)
    check_reading(store, known, expected)
    if verb in VERBS:
        code, _, err = command(*verb.split(), "--store", path)
        check_said(code, err, (0, 2, 4, 10))
    if verb == "compact":
        altered = [record for record in store.records() if record != known.get(record.record_id)]
        assert altered or expected <= {*store.frame()["record_id"]}, "an altered record may be a trial's latest"
        store.sql("SELECT count(*), max(samples_per_s) FROM trials")
        store.compact()
        check_reading(store, known, expected)
