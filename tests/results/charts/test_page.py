"""The HTML report as a file: what stands in it, and that nothing in it loads or runs what it should not."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchsuite.results.charts import page
from benchsuite.results.store.store import ResultsStore, StoreError
from tests.results.made import made_record
from tests.results.report.reported import NASTY, full_store, many

EVERY_CHART = [
    "choices",
    "au",
    "rate",
    "heat",
    "step",
    "weak-scaling",
    "buckets",
    "memory",
    "operators",
    "roofline",
    "io",
    "staging",
    "timeline",
]
MAX_BYTES = 6_000_000


def scripts(text: str) -> list[tuple[str, str]]:
    """Attributes and content of each script, as a browser splits them."""
    return re.findall(r"<script([^>]*)>(.*?)</script", text, re.S)


def data(text: str) -> dict[str, Any]:
    (found,) = [body for attributes, body in scripts(text) if 'id="data"' in attributes]
    return json.loads(found)


def keys(found: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(chart["key"] for chart in found["charts"]))


def without_scripts(text: str) -> str:
    return re.sub(r"<script.*?</script>", "", text, flags=re.S)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a store with something for every section."""
    return page.page(full_store(tmp_path_factory.mktemp("full")))


def test_every_section_has_its_chart(full: str) -> None:
    assert keys(data(full)) == EVERY_CHART


def test_sections_without_anything_are_left_out(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(made_record(0))
    text = page.page(store)
    assert data(text)["charts"] == [] and data(text)["failures"] == []
    assert "files: 100 samples/s." in text


def test_a_store_of_probes_only_says_so(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(made_record(0, kind="probe"))
    text = page.page(store)
    assert "No trials yet; other records: 1 of kind probe." in text and data(text)["rows"] == []


def test_the_verdict_stands_in_words_at_the_top(full: str) -> None:
    text = without_scripts(full)
    assert "It is limited by storage" in text
    assert "<b>communication</b><span>held back 3 points</span>" in text
    assert "<b>storage</b><span>held back 6 points</span>" in text
    assert "<b>1</b><span>trial oom</span>" in text and "<b>2</b><span>trials failed</span>" in text
    assert "pays after 21.7 epochs" in text  # 30 s / (1000 / 360.5 - 1000 / 720) s
    assert text.index("sweep buckets") < text.index("sweep all")  # the newest first


def test_rows_hold_what_tables_say_and_what_they_are_filtered_by(full: str) -> None:
    found = data(full)
    labels = [point["label"] for point in found["points"]]
    lost = found["points"][labels.index("lmdb 4 ranks")]
    assert (lost["format"], lost["status"], lost["workload"]) == (["lmdb"], ["failed"], ["resnet50"])
    headings = [name for name, _ in found["headings"]]
    first = dict(zip(headings, found["rows"][labels.index("files 1 ranks")], strict=True))
    assert (first["AU"], first["samples/s"], first["verdict"]) == ("0.40 ±0.00", "100 ±0", "storage")
    assert "MFU" not in headings  # no point has any


def test_a_point_is_filtered_by_the_statuses_of_all_its_trials(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(made_record(0))
    store.append(made_record(1, status="timeout", figures={}))
    found = data(page.page(store))
    assert [point["status"] for point in found["points"]] == [["ok", "timeout"]]


def test_failures_of_a_point_that_ended_alike_are_told_once(full: str) -> None:
    found = data(full)
    told = [(found["points"][f["point"]]["label"], f["status"], f["count"], f["reason"]) for f in found["failures"]]
    assert told == [("lmdb 4 ranks", "failed", 2, "EIO on part-7"), ("oom", "oom", 1, "CUDA out of memory")]
    assert found["failures"][1]["phase"] == "warm-up"


def test_names_cannot_leave_their_place(tmp_path: Path) -> None:
    text = page.page(full_store(tmp_path, NASTY))
    assert len(scripts(text)) == 3
    assert "<script>document.title" not in text and "<img" not in without_scripts(text)
    assert any(NASTY in point["label"] for point in data(text)["points"])  # as they are, when parsed


def test_json_is_embedded_so_that_it_comes_back_and_ends_nothing() -> None:
    value = {"</script>": ["<!--", "a & b", "\u2028", "ü"]}
    text = page.embedded(value)
    assert json.loads(text) == value
    assert not set("<>&") & set(text)
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.embedded(float("nan"))


def test_the_policy_allows_exactly_the_two_scripts_and_no_loading(full: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', full)
    allowed = re.findall(r"'sha256-([^']*)'", policy)
    run = [body for attributes, body in scripts(full) if "json" not in attributes]
    assert allowed == [base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in run]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r'\b(src|href)="(?!data:,)', without_scripts(full))


def test_provenance_tells_environments_commands_and_a_sweep_file(full: str) -> None:
    text = without_scripts(full)
    for fact in ("2 x H100 (driver 570.1)", "lustre", "2.13.0", "64.0 GB", "abc123"):
        assert fact in text
    assert "benchsuite sweep all.yaml --session default" in text
    assert "data.format: [files, files, files, lmdb, lmdb, lmdb, files, files]" in text


@pytest.mark.parametrize("trials", [100, pytest.param(2000, marks=pytest.mark.full)])
def test_many_trials_fit(tmp_path: Path, trials: int) -> None:
    text = page.page(many(tmp_path, trials=trials, points=trials // 2))
    assert len(text.encode()) < MAX_BYTES
    assert f"<b>{trials}</b><span>trials ok</span>" in text and len(data(text)["points"]) == trials // 2


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    store = full_store(tmp_path / "store")
    with pytest.raises(StoreError, match=r"nowhere/x\.html: cannot be written: No such file or directory"):
        page.write(store, tmp_path / "nowhere" / "x.html")
