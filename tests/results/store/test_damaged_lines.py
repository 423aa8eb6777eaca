"""A verb that passes over lines of a store says so."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from benchsuite.results.store.store import SAMPLES, ResultsStore
from tests.bounded import MEMORY_BYTES, run_bounded
from tests.results.made import made_record


def test_a_verb_warns_of_lines_that_it_passed_over(
    tmp_path: Path, run_cli: Callable[..., tuple[int, str, str]]
) -> None:
    path = tmp_path / "store"
    for writer in range(2):
        store = ResultsStore(path)
        for number in range(4):
            store.append(made_record(number, record_id=f"w{writer}n{number}", trial_id=f"p{number}.default.{writer}"))
    segment = next(file for file in sorted((path / "segments").iterdir()) if not file.name.endswith(SAMPLES))
    segment.write_bytes(segment.read_bytes()[:-40] + b"\nnot json\n")
    code, out, err = run_cli("report", "--store", path, "--format", "json")
    assert code == 0 and f"warning: 2 lines of {path} could not be read" in err
    assert len(json.loads(out)) >= 1


def test_what_is_no_file_is_passed_over_and_told(tmp_path: Path) -> None:
    """A folder, a pipe or a link to nothing or to itself where a segment would be ends no reading or compaction."""
    store = ResultsStore(tmp_path)
    store.append(made_record(0))
    folder = tmp_path / "segments"
    (folder / "a.jsonl").mkdir()
    (folder / "b.jsonl").symlink_to(tmp_path / "gone")
    os.mkfifo(folder / "c.jsonl")
    (folder / "d.jsonl").symlink_to("d.jsonl")
    for _ in range(2):
        reader = ResultsStore(tmp_path)
        assert len(reader.records()) == 1
        assert [(line.segment, line.reason) for line in reader.passed] == [
            (f"{name}.jsonl", "not a file") for name in "abcd"
        ]
        assert reader.compact().num_records == 1


def test_zeros_without_end_cost_no_other_record(tmp_path: Path) -> None:
    """A damaged file may be one line that is larger than the memory."""
    store = tmp_path / "store"
    ResultsStore(store).append(made_record(0))
    with (store / "segments" / "zeros.jsonl").open("wb") as file:
        file.truncate(MEMORY_BYTES * 3 // 4)
        file.seek(0, os.SEEK_END)
        file.write(f"\n{made_record(1).json_line()}\n".encode())
    code, out, err = run_bounded(tmp_path, "results", "query", "select count(*) as n from trials", "--store", store)
    assert code == 0 and "2" in out.split() and "could not be read" in err, (code, out, err)
