"""One's own data in every format, measured, and the answer."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from benchsuite.cli.sweep import advise_sweep, describe_missing_formats
from benchsuite.cli.sweep_options import SweepOptions
from benchsuite.contract.trial_spec import parse_sweep
from benchsuite.grid.mistakes import sweep_mistakes
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.dataset.manifest import DatasetError, read_manifest
from benchsuite.storage.sources import suggested_kind
from tests.results.made import made_record

Run = Callable[..., tuple[int, str, str]]


def photographs(folder: Path, count: int) -> Path:
    for number in range(count):
        path = folder / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((96, 80), 40 + number).convert("RGB").save(path)
    return folder


def test_the_sweep_is_one(tmp_path: Path) -> None:
    for kind in ("image", "volume", "mlm", "tokens"):
        value = advise_sweep(kind, tmp_path, ["files"], 4, 8)
        assert [*sweep_mistakes(value)] == []
        assert parse_sweep(value).grid["data.num_workers"] == [1, 2, 4, 8]


def test_the_kind_is_what_the_files_look_like(tmp_path: Path) -> None:
    assert suggested_kind(photographs(tmp_path / "photos", 2)) == "image"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "book.txt").write_text("once upon a time")
    assert suggested_kind(tmp_path / "text") == "tokens"
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.exe").write_text("")
    with pytest.raises(DatasetError, match="no data: looked for"):
        suggested_kind(tmp_path / "none")


@pytest.mark.slow
def test_photographs_are_converted_measured_and_answered_for(
    run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the data, at most so many of them; the sweep file repeats it."""
    monkeypatch.setattr("benchsuite.cli.sweep.MAX_SAMPLES", {"image": 60})
    source, store = photographs(tmp_path / "photos", 70), tmp_path / "store"
    few = ("-o", "measure.repeats=1", "-o", "data.num_workers=[1]", "-o", "measure.steps=2", "-o", "variant=nano")
    code, out, err = run_cli("advise", str(source), "--minutes", "2", "--store", str(store), *few)
    assert code == 0, err
    folder = tmp_path / "photos-advise"
    names = ("files", "webdataset", "hdf5", "lmdb")
    assert [read_manifest(folder / name).num_samples for name in names] == [60] * 4
    assert len({read_manifest(folder / name).dataset_id for name in names}) == 1
    assert {record.spec["data"]["format"] for record in ResultsStore(store).trials()} == set(names)
    assert "-> " in out and f"benchsuite sweep {folder / 'advise.yaml'} --session advise-" in out
    assert yaml.safe_load((folder / "advise.yaml").read_text())["base"]["data"]["root"] == str(folder)


def test_too_little_text_is_told_as_what_it_was_taken_for(run_cli: Run, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.txt").write_text("abcd")
    code, _, err = run_cli("advise", str(folder), "--store", str(tmp_path / "store"))
    assert code == 2 and err == (
        f"error: no images (.jpg, .jpeg, .png) were found in {folder}, so it was taken for text; "
        f"{folder}: too little data: 5 tokens, a window needs 129 (seq_len 128 + 1): "
        "give more text, or another folder\n"
    )
    assert not (tmp_path / "photos-advise").exists()
    (tmp_path / "photos-advise").mkdir()
    assert run_cli("advise", str(folder), "--store", str(tmp_path / "store"))[0] == 2
    assert (tmp_path / "photos-advise").is_dir(), "it was there before"


def test_how_many_minutes_would_do(tmp_path: Path) -> None:
    """Two trials of one format took 60 s, so eight of four formats take 240, and converting 30."""
    file, formats = tmp_path / "advise.yaml", ["files", "webdataset", "hdf5", "lmdb"]
    synthetic = {"workload": "resnet50", "variant": "tiny", "data": {"source": "synthetic"}, "measure": {"repeats": 2}}
    file.write_text(yaml.safe_dump({"name": "advise", "base": synthetic, "grid": {"batch_size": [1, 2, 3, 4]}}))
    options, store = SweepOptions("mine", tmp_path / "store"), ResultsStore(tmp_path / "store")
    assert not ResultsStore(tmp_path / "store").exists()
    for number in range(2):
        spec = {"data": {"format": "files"}}
        store.append(made_record(number, session="mine", trial_id=f"files.mine.{number}", spec=spec))
    line = describe_missing_formats(file, options, formats, 30.0, 60.0)
    assert line == "was too short: webdataset, hdf5, lmdb not measured; about --minutes 5 would do"
    assert describe_missing_formats(file, options, ["files"], 30.0, 60.0) == ""


def test_a_workload_that_is_none_is_refused(run_cli: Run, tmp_path: Path) -> None:
    code, _, err = run_cli("advise", str(tmp_path), "--workload", "resnet5", "--store", str(tmp_path / "store"))
    assert code == 2 and "--workload 'resnet5' is unknown; nearest: resnet50; allowed: resnet50, unet3d" in err
