"""Damaged datasets fail their trial with file and sample named, and the sweep goes on; planning errors are one line."""

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.workloads.facts import FACTS
from tests.conftest import SHARD_SAMPLES
from tests.faults.conftest import Bench, Here


def damaged_sweep(root: Path) -> dict[str, object]:
    return {
        "name": "damaged",
        "base": {
            "workload": "resnet50",
            "variant": "nano",
            "data": {"root": str(root), "cache": "warm", "shuffle": False},
            "batch_size": 8,
            "device": "cpu",
            "measure": {"steps": 8, "warmup_steps": 1, "repeats": 1, "ceilings": False},
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
    shard = root / "mds" / "shard.00000.mds"
    pages = root / "parquet" / "shard-000000.parquet"
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
        "mds": (flipped(shard, 6), ["places in its head", "damaged"]),
        "parquet": (flipped(pages, pages.stat().st_size // 2), ["row group 0", "CRC checksum verification failed"]),
        "tfrecord": (flipped(record, record.stat().st_size // 8 // 2), ["damaged"]),
    }


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)], ids=["in pairs", "every one"])
def test_every_damaged_format_is_a_failed_trial_that_names_file_and_sample(
    bench: Bench, here: Here, copy: Path, every: bool
) -> None:
    """Each format with threads that read, and in turns in line; in the full matrix both."""
    expected = damage_every_format(copy)
    sweep = damaged_sweep(copy)
    sweep["base"]["data"]["loader"] = "threads"  # type: ignore[index]
    sweep["grid"] = {"data.format": list(expected)}
    include = [{"data.format": name, "data.num_workers": 0} for at, name in enumerate(expected) if every or at % 2]
    sweep["include"] = include
    code, out, err = here("sweep", bench.write(sweep), "--store", bench.store)
    assert code == 3, err
    assert "Traceback" not in out + err
    records = bench.records()
    assert len(records) == len(expected) + len(include)
    for record in records:
        path, words = expected[record["spec"]["data"]["format"]]
        assert record["status"] == "failed", record["spec"]["data"]
        assert str(path) in record["reason"], record["reason"]
        assert all(word in record["reason"] for word in words), record["reason"]
        assert len(record["reason"].splitlines()) == 1


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)], ids=["in turns", "every one"])
def test_stock_readers_name_file_and_sample_too(bench: Bench, here: Here, copy: Path, every: bool) -> None:
    """All but those that look at no checksum unless asked to: a JPEG with another byte in it may be decoded.

    And `mds`, whose library is not installed everywhere.
    """
    expected = damage_every_format(copy)
    expected["webdataset"] = (expected["webdataset"][0], ["sample 'class0001/00000001': no member 'jpg'"])
    del expected["tfrecord"], expected["parquet"], expected["mds"]
    sweep = damaged_sweep(copy)
    sweep["base"]["data"]["reader"] = "stock"  # type: ignore[index]
    sweep |= {"grid": {}, "zip": {"data.format": list(expected), "data.num_workers": [0, 1] * (len(expected) // 2)}}
    if every:
        sweep |= {"grid": {"data.format": list(expected), "data.num_workers": [0, 1]}, "zip": {}}
    code, out, err = here("sweep", bench.write(sweep), "--store", bench.store)
    assert code == 3, err
    assert "Traceback" not in out + err
    assert len(bench.records()) == len(expected) * (2 if every else 1)
    for record in bench.records():
        path, words = expected[record["spec"]["data"]["format"]]
        assert record["status"] == "failed", record["spec"]["data"]
        assert all(word in record["reason"] for word in (str(path), *words)), record["reason"]
        assert len(record["reason"].splitlines()) == 1


def made(root: Path, workload: str, variant: str, name: str, count: int) -> Path:
    """A dataset of a workload's own kind."""
    samples = FACTS[workload]
    params = samples.variants[variant].sample
    generate_dataset(root, Wanted(workload, variant, name, kind=samples.kind, params=params), count)
    return root


def agree(root: Path, path: Path) -> None:
    """Have the manifest say what a file's size has become."""
    lie(
        root,
        files=[info | ({"bytes": path.stat().st_size} if info["path"] == path.name else {}) for info in infos(root)],
    )


def infos(root: Path) -> list[dict[str, Any]]:
    return list(json.loads((root / "manifest.json").read_text())["files"])


def lie(root: Path, **changes: object) -> None:
    path = root / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def overwritten(path: Path, at: int, content: bytes) -> Path:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)
    return path


Damaged = tuple[dict[str, Any], Path, list[str]]
"""What a trial reads, the file that its reason must name, and words it must hold."""


def damaged_volumes(root: Path) -> Iterator[Damaged]:
    """A pickled array in place of a volume, and one that is cut."""
    whole = made(root / "whole", "unet3d", "nano", "files", 8)
    volumes = {"workload": "unet3d", "variant": "nano", "data.format": "files"}
    for name, damage, words in (
        ("pickled", lambda path: np.save(path, np.array([print], object)), ["'case_00003'", "allow_pickle=False"]),
        ("cut", cut, ["'case_00003'"]),
    ):
        victim = Path(shutil.copytree(whole, root / name)) / "case_00003_x.npy"
        damage(victim)
        yield {**volumes, "data.root": str(root / name)}, victim, words


def damaged_streams(root: Path) -> Iterator[Damaged]:
    """An .idx that is cut, also where the manifest agrees; one of another type; ids of no word; a manifest's type."""
    whole = made(root / "whole", "gpt_neox", "tiny", "tokens", 64)
    streams = {"workload": "gpt_neox", "variant": "tiny", "data.format": "tokens"}
    key = repr(f"{3:08d}")
    for name, file, words in (
        ("cut", "tokens.idx", ["truncated or changed"]),
        ("agrees", "tokens.idx", ["its header promises", "truncated"]),
        ("type", "tokens.idx", ["token ids of type int16, the manifest says uint16"]),
        ("ids", "tokens.bin", [f"sample {key}: tokens holds 60000, needed: 0..511"]),
        ("manifest", "tokens.idx", ["token ids of type uint16, the manifest says int32"]),
    ):
        folder = Path(shutil.copytree(whole, root / name))
        if name in ("cut", "agrees"):
            os.truncate(folder / file, (folder / file).stat().st_size - 100)
        if name == "agrees":
            agree(folder, folder / file)
        if name == "type":
            overwritten(folder / file, 17, b"\x03")
        if name == "ids":
            overwritten(folder / file, 2 * (3 * 128 + 5), (60000).to_bytes(2, "little"))
        if name == "manifest":
            lie(folder, fields=[{"name": "tokens", "dtype": "int32", "shape": [129]}])
        yield {**streams, "data.root": str(folder)}, folder / file, words


def damaged_images(root: Path) -> Iterator[Damaged]:
    """An LMDB cut at a page, with which the manifest agrees; another class; counts that are not the index's.

    The last, a shard that holds another sample, only our own reader knows.
    """
    data = root / "lmdb" / "data.mdb"
    os.truncate(data, data.stat().st_size // 2 // 4096 * 4096)
    agree(root / "lmdb", data)
    yield {"data.format": "lmdb"}, data, ["its tree needs", "truncated"]
    index = np.load(root / "hdf5" / "index.npy")
    with h5py.File(root / "hdf5" / "samples.h5", "r+") as file:
        file["label"][3] = 5000
    words = [f"sample {index['key'][3].decode()!r}: class 5000 stands where the index has {index['label'][3]}"]
    yield {"data.format": "hdf5"}, root / "hdf5" / "samples.h5", words
    lie(root / "files", num_samples=95)
    yield {"data.format": "files"}, root / "files", ["the manifest says 95 samples, the index 96"]
    shards = infos(root / "webdataset")
    first, second = (info for info in shards if info["path"] in ("shard-000000.tar", "shard-000001.tar"))
    first["num_samples"], second["num_samples"] = first["num_samples"] - 1, second["num_samples"] + 1
    lie(root / "webdataset", files=shards)
    words = [repr(index["key"][SHARD_SAMPLES].decode()), "not the one that the index names"]
    yield {"data.format": "webdataset", "data.loader": "threads"}, root / "webdataset" / second["path"], words


@pytest.mark.full
def test_damage_of_other_kinds_is_a_failed_trial_that_names_file_and_sample(
    bench: Bench, here: Here, copy: Path, tmp_path: Path
) -> None:
    volumes, streams = tmp_path / "volumes", tmp_path / "streams"
    asked = [*damaged_images(copy), *damaged_volumes(volumes), *damaged_streams(streams)]
    sweep = damaged_sweep(copy) | {"grid": {}, "include": [change for change, _, _ in asked]}
    sweep["base"] |= {"batch_size": 2}  # type: ignore[operator]
    code, out, err = here("sweep", bench.write(sweep), "--store", bench.store)
    assert code == 3, out + err
    assert "Traceback" not in out + err
    records = {tuple(record["spec"]["data"][key] for key in ("format", "root")): record for record in bench.records()}
    assert len(records) == len(bench.records()) == len(asked)
    for change, path, words in asked:
        record = records[change["data.format"], change.get("data.root", str(copy))]
        assert record["status"] == "failed", change | {"reason": record["reason"]}
        assert str(path) in record["reason"], record["reason"]
        assert all(word in record["reason"] for word in words), record["reason"]
        assert len(record["reason"].splitlines()) == 1


def test_a_missing_file_is_a_failed_trial_that_names_it(bench: Bench, here: Here, copy: Path) -> None:
    row = np.load(copy / "files" / "index.npy")[5]
    (copy / "files" / row["file"].decode()).unlink()
    shutil.rmtree(copy / "webdataset")
    code, _, err = here("sweep", bench.write(damaged_sweep(copy)), "--store", bench.store)
    assert code == 3, err
    by_status = {record["status"] for record in bench.records()}
    assert by_status == {"failed", "skipped"}
    for record in bench.records():
        expected = row["file"].decode() if record["status"] == "failed" else "webdataset: no dataset there"
        assert expected in record["reason"]


def test_a_root_that_is_not_there_is_one_line(bench: Bench, here: Here) -> None:
    code, out, err = here("sweep", bench.write(damaged_sweep(Path("/nowhere"))), "--store", bench.store)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: data.root /nowhere: no such folder")


def test_a_manifest_that_lies_is_found(run_cli: Here, copy: Path) -> None:
    path = copy / "files" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"num_samples": 95}))
    code, _, err = run_cli("data", "verify", copy / "files")
    assert code == 2 and len(err.splitlines()) == 1
    assert "the manifest says 95 samples, the index 96" in err


def test_an_unwritable_store_is_one_line(bench: Bench, here: Here, dataset_root: Path) -> None:
    bench.store.write_text("a file where the store should be")
    code, _, err = here("sweep", bench.write(damaged_sweep(dataset_root)), "--store", bench.store)
    assert code == 2 and len(err.splitlines()) == 1
    assert f"store {bench.store}: cannot be written" in err
