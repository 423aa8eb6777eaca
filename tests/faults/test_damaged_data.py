"""Damaged datasets fail their trial with file and sample named, and the sweep goes on; planning errors are one line."""

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from storage import LOADERS
from tests.faults.conftest import Bench


def damaged_sweep(root: Path) -> dict[str, object]:
    return {
        "name": "damaged",
        "base": {
            "workload": "resnet50",
            "variant": "tiny",
            "data": {"root": str(root), "cache": "warm", "shuffle": False},
            "batch_size": 8,
            "device": "cpu",
            "measure": {"steps": 8, "warmup_steps": 1, "repeats": 1},
        },
        "grid": {"data.format": ["files", "webdataset"], "data.num_workers": [0, 1]},
    }


@pytest.fixture
def copy(dataset_root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset_root, tmp_path / "data"))


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 100])
    return path


def flipped(path: Path, at: int) -> Path:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)
    return path


def damage_every_format(root: Path) -> dict[str, tuple[Path, list[str]]]:
    """Damage a dataset in each format; the file that an error must name, and words it must hold, by format."""
    row = np.load(root / "files" / "index.npy")[3]
    image, key = root / "files" / row["file"].decode(), row["key"].decode()
    tar, record = root / "webdataset" / "shard-000000.tar", root / "tfrecord" / "shard-000000.tfrecord"
    with tarfile.open(tar) as members:
        member = members.getmembers()[3]
    name, member.name = member.name, f"../{member.name[3:]}"
    content = bytearray(tar.read_bytes())
    content[member.offset : member.offset + tarfile.BLOCKSIZE] = member.tobuf(tarfile.USTAR_FORMAT)
    tar.write_bytes(content)
    return {
        "files": (cut(image), [repr(key), "truncated"]),
        "webdataset": (tar, [repr(f"../{name[3:]}"), "leads out of its folder"]),
        "hdf5": (cut(root / "hdf5" / "samples.h5"), ["truncated"]),
        "lmdb": (cut(root / "lmdb" / "data.mdb"), ["truncated"]),
        "tfrecord": (flipped(record, record.stat().st_size // 8 // 2), ["damaged"]),
    }


def test_every_damaged_format_is_a_failed_trial_that_names_file_and_sample(bench: Bench, copy: Path) -> None:
    expected = damage_every_format(copy)
    sweep = damaged_sweep(copy)
    sweep["grid"] = {"data.format": list(expected), "data.loader": list(LOADERS)}
    sweep["include"] = [{"data.format": name, "data.num_workers": 0} for name in expected]
    code, out, err = bench.sweep(bench.write(sweep))
    assert code == 3, err
    assert "Traceback" not in out + err
    records = bench.records()
    assert len(records) == len(expected) * (len(LOADERS) + 1)
    for record in records:
        path, words = expected[record["spec"]["data"]["format"]]
        assert record["status"] == "failed", record["spec"]["data"]
        assert str(path) in record["reason"], record["reason"]
        assert all(word in record["reason"] for word in words), record["reason"]
        assert len(record["reason"].splitlines()) == 1


def test_a_missing_file_is_a_failed_trial_that_names_it(bench: Bench, copy: Path) -> None:
    row = np.load(copy / "files" / "index.npy")[5]
    (copy / "files" / row["file"].decode()).unlink()
    shutil.rmtree(copy / "webdataset")
    code, _, err = bench.sweep(bench.write(damaged_sweep(copy)))
    assert code == 3, err
    by_status = {record["status"] for record in bench.records()}
    assert by_status == {"failed", "skipped"}
    for record in bench.records():
        expected = row["file"].decode() if record["status"] == "failed" else "webdataset: no dataset there"
        assert expected in record["reason"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"root": "/nowhere/at/all"}, ["/nowhere/at/all", "no such folder"]),
        ({"rout": "x"}, ["unknown key 'data.rout'", "nearest: data.root"]),
        ({"cache": "cool"}, ["data.cache 'cool'", "cold, warm", "nearest: cold"]),
        (
            {"format": "webdatset"},
            ["data.format 'webdatset'", "files, hdf5", "nearest: webdataset"],
        ),
    ],
)
def test_mistakes_are_one_line(bench: Bench, dataset_root: Path, change: dict[str, str], words: list[str]) -> None:
    sweep = damaged_sweep(dataset_root)
    sweep["grid"] = {}
    sweep["base"]["data"].update(change)  # type: ignore[index]
    code, out, err = bench.sweep(bench.write(sweep))
    assert code == 2
    assert out == "" and len(err.splitlines()) == 1 and err.startswith("error: ")
    assert all(word in err for word in words), err


def test_a_manifest_that_lies_is_found(bench: Bench, copy: Path) -> None:
    path = copy / "files" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"num_samples": 95}))
    code, _, err = bench.run("data", "verify", copy / "files")
    assert code == 2 and len(err.splitlines()) == 1
    assert "the manifest says 95 samples, the index 96" in err


def test_an_unwritable_store_is_one_line(bench: Bench, dataset_root: Path) -> None:
    bench.store.write_text("a file where the store should be")
    code, _, err = bench.sweep(bench.write(damaged_sweep(dataset_root)))
    assert code == 2 and len(err.splitlines()) == 1
    assert f"store {bench.store}: cannot be written" in err
