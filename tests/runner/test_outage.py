"""Trials in a row that a file system has failed: the sweep waits for it, and for nothing else."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from benchsuite.results.store.record import TrialRecord
from benchsuite.runner import outage
from benchsuite.runner.outage import Outages
from benchsuite.storage.dataset.manifest import MANIFEST, Manifest
from benchsuite.storage.errors import GONE_DATASET, OUTAGES
from tests.results.made import made_record

ERRORS = (*map(os.strerror, OUTAGES), GONE_DATASET)


def failed(reason: str, status: str = "failed") -> TrialRecord:
    return made_record(status=status, reason=f"rank 0, in phase evict: /mnt/files/3.jpg: {reason}")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """What is looked at of one: its manifest."""
    names = {"workload": "resnet50", "variant": "tiny", "kind": "image", "format": "files", "dataset_id": "7"}
    folder = tmp_path / "files"
    folder.mkdir()
    made = Manifest(**names, num_samples=1, stored_bytes=1, fields=[], files=[], created={})
    (folder / MANIFEST).write_text(made.model_dump_json())
    return folder


@pytest.mark.parametrize("error", ERRORS)
def test_waits_after_three(dataset: Path, error: str):
    """The folder is away, and comes back once it is said that it is waited for."""
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "waiting for" in text:
            dataset.with_name("away").rename(dataset)

    outages = Outages()
    dataset.rename(dataset.with_name("away"))
    for number in range(3):
        assert said == [], f"{number} failures"
        outages.wait_after(failed(f"[Errno 1] {error}: 'x'"), dataset, say)
    told = "the dataset is gone" if error == GONE_DATASET else error
    assert said == [
        f"3 trials in a row failed ({told}): waiting for {dataset}, at most 60 s",
        f"{dataset} is back: the sweep goes on",
    ]


@pytest.mark.parametrize(
    "records",
    [
        [failed(ERRORS[0]), failed(ERRORS[1]), failed(ERRORS[0]), failed(ERRORS[0])],
        [failed(ERRORS[0]), failed(ERRORS[0]), made_record(), failed(ERRORS[0])],
        [failed(os.strerror(errno.ENOSPC))] * 4,
        [failed("the model has had enough")] * 4,
        [failed(ERRORS[0], "interrupted")] * 4,
    ],
    ids=["two errors", "one ended well", "a full disk", "a fault of its own", "interrupted"],
)
def test_other_failures_go_on_at_once(dataset: Path, records: list[TrialRecord]):
    outages = Outages()
    dataset.rename(dataset.with_name("away"))
    for record in records:
        outages.wait_after(record, dataset, pytest.fail)


def test_a_dataset_that_answers(dataset: Path):
    """Such as where the error is of another file system, or the outage is over by now."""
    outages = Outages()
    for _ in range(4):
        outages.wait_after(failed(ERRORS[0]), dataset, pytest.fail)
        outages.wait_after(failed(ERRORS[0]), None, pytest.fail)


def test_what_does_not_come_back(dataset: Path, monkeypatch: pytest.MonkeyPatch):
    """It is waited for once in three trials."""
    monkeypatch.setattr(outage, "MAX_WAIT_S", 0.0)
    said: list[str] = []
    outages = Outages()
    shutil.rmtree(dataset)
    for _ in range(8):
        outages.wait_after(failed(GONE_DATASET), dataset, said.append)
    assert [text.partition(": ")[2] for text in said] == [
        f"waiting for {dataset}, at most 0 s",
        "the sweep goes on",
    ] * 2
    assert said[1] == f"{dataset} did not come back: the sweep goes on"
