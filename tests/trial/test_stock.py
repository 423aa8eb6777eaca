"""Trials whose input is read by a format's own library."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import match_id, parse_trial, point_id
from benchsuite.grid.expand import expand, load_sweep, plan_trial
from benchsuite.host.machine import Machine
from benchsuite.launch.launcher import load_launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.single_trial import run_in_processes, run_with_launcher
from benchsuite.storage import FORMATS, format_of, stock_reader
from benchsuite.storage.dataset.manifest import file_digest
from tests.storage.samples import IMAGE_FORMATS


def spec(root: Path, **data: Any) -> dict[str, Any]:
    """A small trial on a dataset of images."""
    return {
        "workload": "resnet50",
        "variant": "tiny",
        "batch_size": 2,
        "threads_per_rank": 1,
        "data": {"root": str(root), "cache": "warm", "num_workers": 1, **data},
        "measure": {"steps": 4, "warmup_steps": 1, "timeout_s": 120, "ceilings": False},
    }


Run = Callable[[dict[str, Any]], TrialRecord]
TRIED = ("files", "hdf5", "webdataset")
"""A file for each sample, one for all, and shards; the suite of the loaders reads every format by its library."""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs trials in processes that are forked from one: most of what starting them takes is importing torch."""
    with load_launcher("auto") as launcher:
        yield lambda values: run_with_launcher(plan_trial(values), launcher)[0]


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=() if form in TRIED else pytest.mark.full) for form in IMAGE_FORMATS]
)
def test_a_trial_trains_on_what_the_library_reads_and_names_it(run: Run, dataset_root: Path, form: str) -> None:
    stock = format_of(form).stock
    module = stock and stock.module
    if module is not None and find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    record = run(spec(dataset_root, format=form, reader="stock"))
    assert record.status == "ok", record.reason
    assert record.env["reader"] == stock_reader(form).implementation("image")
    assert record.spec["data"]["reader"] == "stock"
    figures = record.figures
    assert figures.au and figures.samples_per_s and figures.read_s_per_sample is not None
    assert figures.decode_s_per_sample is not None and figures.delivered_bytes


def test_ids_tell_stock_from_tuned_and_tuned_is_what_was_before(tmp_path: Path) -> None:
    before = parse_trial(spec(tmp_path))
    tuned, stock = (parse_trial(spec(tmp_path, reader=reader)) for reader in ("tuned", "stock"))
    for digest in (point_id, match_id):
        assert digest(before, "d") == digest(tuned, "d") != digest(stock, "d")


def test_what_goes_with_tuned_alone_is_skipped_and_says_what_helps(dataset_root: Path, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        f"""
name: readers
base:
  workload: resnet50
  variant: tiny
  batch_size: 2
  data: {{root: {dataset_root}, cache: warm, reader: stock}}
grid:
  data.loader: [torch, threads]
"""
    )
    plan = expand(load_sweep(file, []), Machine(cores=4, cuda_devices=0))
    assert len(plan.points) == 1
    (skipped,) = plan.skipped
    assert "set data.loader: torch, or data.reader: tuned" in skipped.reason


OWN = """
from torch.utils.data import Dataset
from PIL import Image


class Mine(Dataset):
    def __init__(self, dataset):
        self.paths = [dataset.folder / name.decode() for name in dataset.index["file"]]
        self.labels = dataset.index["label"].tolist()

    def __getitem__(self, row):
        return {"image": Image.open(self.paths[row]).convert("RGB"), "label": self.labels[row]}


READER = Mine
"""


def test_a_users_own_reader(run: Run, dataset_root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    reader = f"{tmp_path / 'mine.py'}:READER"
    record = run(spec(dataset_root, reader=reader))
    assert record.status == "ok", record.reason
    assert record.env["reader"] == f"{reader}, {file_digest(tmp_path / 'mine.py')}" and record.figures.au


def test_an_epoch_on_an_emulated_device_is_taken_to_its_end(dataset_root: Path) -> None:
    """Every sample's batch is stepped on once, the first excepted, which is the one in memory."""
    asked = {**spec(dataset_root, format="files", reader="stock", cache="cold"), "device": "emulated:2ms"}
    point = plan_trial({**asked, "measure": {"epochs": 1, "warmup_steps": 1, "timeout_s": 120, "ceilings": False}})
    record, raw = run_in_processes(point)
    assert record.status == "ok" and raw is not None, record.reason
    blocks = raw["ranks"][0]["blocks"]
    assert [block["kind"] for block in blocks] == ["loader", "loader", "rest"]
    taken = [len(block["uncounted_step_s"]) + len(block["parts"]["load"]) for block in blocks]
    assert point.manifest is not None and 1 + sum(taken) == point.manifest.num_samples // 2
    assert record.figures.au_epoch is not None and record.figures.au_epoch_rule == "epoch"
    seconds = sum(sum(block["uncounted_step_s"]) + sum(map(sum, block["parts"].values())) for block in blocks)
    elapsed_s = raw["ranks"][0]["first_batch_s"] + 0.002 + seconds
    assert record.figures.au_epoch == pytest.approx((1 + sum(taken)) * 0.002 / elapsed_s)


def test_an_own_reader_that_is_not_there_is_told(dataset_root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reader .*mine\.py:READER: .*: there is no such file"):
        plan_trial(spec(dataset_root, reader=f"{tmp_path / 'mine.py'}:READER"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OWN, r"mine\.py:Reader: .*mine\.py has no Reader; it has Mine, READER"),
        ("import json\n", r"has no Reader; it has no names of its own"),
        ("class Reader\n", r"mine\.py cannot be read: expected ':'"),
        ("from json import JSONDecoder as Reader\n", None),
        ("from json import *\n", None),
        ("\ufeffclass Reader: pass\n", None),
        ("# coding: latin-1\nReader = 'ä'\n", None),
        ("def make():\n    global Reader\n    Reader = 1\nmake()\n", None),
    ],
)
def test_a_name_that_is_not_in_the_file_is_told_before_anything_runs(
    dataset_root: Path, tmp_path: Path, text: str, said: str | None
) -> None:
    (tmp_path / "mine.py").write_bytes(text.encode("latin-1" if "latin" in text else "utf-8"))
    asked = spec(dataset_root, reader=f"{tmp_path / 'mine.py'}:Reader")
    if said is None:
        assert plan_trial(asked).spec.data.reader == asked["data"]["reader"]
        return
    with pytest.raises(UserError, match=said):
        plan_trial(asked)


def test_the_default_is_the_loaders(dataset_root: Path) -> None:
    def reader(**data: Any) -> str | None:
        device = data.pop("device", "cpu")
        return plan_trial({**spec(dataset_root, **data), "device": device}).spec.data.reader

    assert (reader(), reader(loader="threads")) == ("stock", "tuned")
    assert (reader(device="emulated:5ms"), reader(loader="threads", device="emulated:5ms")) == ("stock", "tuned")
    assert reader(source="memory") is None
    assert reader(loader="threads", reader="tuned") == "tuned"


@pytest.mark.parametrize("loader", ["torch", "dali"])
def test_our_own_reading_under_another_loader_is_one_line(dataset_root: Path, loader: str) -> None:
    said = f"this trial cannot run: reader tuned goes with loader threads, not with {loader}; set data.loader: threads"
    with pytest.raises(UserError, match=said):
        plan_trial(spec(dataset_root, loader=loader, reader="tuned"))


def test_an_unknown_reader_is_one_line_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"data\.reader.*'stok'.*stock"):
        parse_trial(spec(Path("/"), reader="stok"))


def test_formats_are_all_read(dataset_root: Path) -> None:
    assert {path.name for path in dataset_root.iterdir()} == set(IMAGE_FORMATS) <= set(FORMATS)
