"""A dataset is in a bucket whole or not at all, and an interrupted writing goes on."""

import os
from pathlib import Path

import pytest

from benchsuite.storage.create.convert import Wanted, convert_dataset
from benchsuite.storage.dataset.manifest import DatasetError, is_dataset
from benchsuite.storage.dataset.verify import same_samples, verify_dataset
from benchsuite.storage.objects.apart import apart
from benchsuite.storage.objects.client import PART_BYTES, bucket_of
from benchsuite.storage.objects.path import ObjectPath
from tests.helpers.object_store import Fault, Proxy
from tests.storage.conftest import Made

WANTED = Wanted("resnet50", "tiny", "files")


def test_the_manifest_is_written_last(root: ObjectPath, proxy: Proxy, made: Made) -> None:
    convert_dataset(made("files", "image").folder, root, WANTED)
    puts = [target for method, target in proxy.asked if method == "PUT" and "prefix" in target]
    assert len(puts) == 28 and puts[-1].endswith("manifest.json") and "index.npy" in "".join(puts[:-1])


def test_an_interrupted_writing_is_no_dataset_and_goes_on(root: ObjectPath, proxy: Proxy, made: Made) -> None:
    source = made("files", "image").folder
    proxy.faults.append(Fault("expired", "PUT", passed=10))
    with pytest.raises(DatasetError, match="ExpiredToken"):
        convert_dataset(source, root, WANTED)
    assert not is_dataset(root)
    assert not [*Path(os.environ["TMPDIR"]).glob(".benchsuite-upload*")]
    proxy.faults.clear()
    sent = proxy.count("PUT", "prefix")
    convert_dataset(source, root, WANTED)
    assert proxy.count("PUT", "prefix") - sent == 28 - 10
    same_samples(verify_dataset(root), made("files", "image"))


def test_what_lies_there_already_is_never_mixed_with(root: ObjectPath, made: Made) -> None:
    source = made("files", "image").folder
    bucket_of(root).put((root / "raw" / "x.jpg").key, b"somebody's")
    with pytest.raises(DatasetError, match=r"prefix/raw/x.jpg: is no part of this dataset"):
        convert_dataset(source, root, WANTED)
    assert [info.key for info in bucket_of(root).listing(root.key)] == [(root / "raw" / "x.jpg").key]
    convert_dataset(source, root / "made", WANTED)
    with pytest.raises(DatasetError, match="exists already"):
        convert_dataset(source, root / "made", WANTED)


def test_changed_leftovers_are_written_anew(root: ObjectPath, made: Made) -> None:
    dataset = made("files", "image")
    name = str(dataset.data_files()[0].relative_to(dataset.folder))
    content = dataset.data_files()[0].read_bytes()
    bucket_of(root).put((root / name).key, bytes(len(content)), "blake3:another")
    convert_dataset(dataset.folder, root, WANTED)
    verify_dataset(root)


def test_a_damaged_object_is_told_by_verify(root: ObjectPath, made: Made) -> None:
    convert_dataset(made("files", "image").folder, root, WANTED)
    victim = next(info for info in bucket_of(root).listing(root.key) if info.key.endswith(".jpg"))
    content = bytearray(bucket_of(root).get(victim.key).data)
    content[len(content) // 2] ^= 1
    bucket_of(root).put(victim.key, bytes(content))
    with pytest.raises(DatasetError, match=r"s3://.*\.jpg.*checksum is not the index's"):
        verify_dataset(root)


def test_large_objects_go_in_parts(root: ObjectPath, proxy: Proxy, tmp_path: Path) -> None:
    content = os.urandom(2 * PART_BYTES + 17)
    (tmp_path / "large").write_bytes(content)
    proxy.faults.append(Fault("slow_down", "PUT", within="partNumber=2", times=1))
    bucket_of(root).put("large", tmp_path / "large", "blake3:x")
    assert proxy.count("PUT", "partNumber") == 4, "three, and one of them twice"
    assert bytes(bucket_of(root).get("large").data) == content
    assert bucket_of(root).head("large").digest == "blake3:x"


def test_a_process_that_was_forked_after_use_says_so(root: ObjectPath) -> None:
    bucket_of(root).put("x", b"y")
    pid = os.fork()
    if not pid:
        try:
            bucket_of(root).get("x")
        except DatasetError as error:
            os._exit(7 if "before this process was forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert apart(lambda: bytes(bucket_of(root).get("x").data)) == b"y"
