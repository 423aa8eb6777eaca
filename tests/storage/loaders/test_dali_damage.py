"""Loader `dali`: damaged data ends in one line that names it; what DALI cannot do is refused."""

import os
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.kinds import IMAGE, MLM, Kind
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, content_digest
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.dali import DaliLoader
from benchsuite.storage.loaders.reader import LoaderInput
from tests.storage.loaders.test_dali import (
    BATCH,
    PARAMS,
    SEED,
    Made,
    every_format,
    every_format_once,
    loaders,
    made,
    mine,
)

__all__ = ["made", "mine"]


def complaint(dataset: Dataset, workers: int = 1) -> str:
    """The DatasetError of two epochs; it is raised again when asked again."""
    with pytest.raises(DatasetError) as raised, loaders(dataset, workers=workers) as (loader,):
        try:
            for _ in range(2 * dataset.manifest.num_samples // BATCH):
                next(loader)
        except DatasetError as error:
            with pytest.raises(DatasetError) as again:
                next(loader)
            assert again.value is error
            raise
    assert "\n" not in str(raised.value)
    return str(raised.value)


DAMAGED = "its checksum is not the index's: damaged"


def damaged(name: str, victim: str) -> str:
    """What is said of the fourth sample, named as most formats do; TFRecords have checksums of their own."""
    return (
        f"{victim.partition(': sample')[0]}: record 3: its CRC is wrong: damaged"
        if name == "tfrecord"
        else f"{victim}: {DAMAGED}"
    )


class TestDamage:
    def overwrite(self, dataset: Dataset, offset: int, content: bytes) -> tuple[str, Dataset]:
        """Write over the fourth image at an offset (from its end where negative).

        Its file and key, and the dataset with an index that says that the image is as it should be.
        """
        victim = list(in_order(dataset))[3]
        path, image = Path(victim.source), bytes(victim.fields["image"])
        stored = bytearray(path.read_bytes())
        place, offset = stored.index(image), offset % len(image)
        stored[place + offset : place + offset + len(content)] = content
        path.write_bytes(stored)
        index = np.array(dataset.index)
        fields = {**victim.fields, "image": bytes(stored[place : place + len(image)])}
        index["digest"][3] = content_digest(replace(victim, fields=fields)).encode()
        return f"{path}: sample {victim.key!r}", replace(dataset, index=index)

    @every_format_once
    def test_within_a_header_names_file_and_key(self, mine: Callable[[str], Dataset], name: str, workers: int) -> None:
        dataset = mine(name)
        named, recorded = self.overwrite(dataset, 20, b"\xff" * 300)
        assert complaint(dataset, workers) == damaged(name, named)
        assert name == "tfrecord" or complaint(recorded, workers).startswith(f"{named}: not a whole JPEG")

    @every_format
    def test_at_the_end_which_dali_would_pass(self, mine: Callable[[str], Dataset], name: str) -> None:
        dataset = mine(name)
        named, recorded = self.overwrite(dataset, -1000, bytes(1000))
        assert complaint(dataset) == damaged(name, named)
        assert name == "tfrecord" or complaint(recorded).startswith(f"{named}: not a whole JPEG")

    @every_format_once
    def test_within_the_compressed_data_which_decoders_pass(
        self, mine: Callable[[str], Dataset], name: str, workers: int
    ) -> None:
        """Header, size and end are as they were."""
        dataset = mine(name)
        size = len(bytes(list(in_order(dataset))[3].fields["image"]))
        named, _ = self.overwrite(dataset, size // 2, b"\x55" * 400)
        assert size > 2000
        assert complaint(dataset, workers) == damaged(name, named)

    @every_format
    def test_of_a_single_bit(self, mine: Callable[[str], Dataset], name: str) -> None:
        dataset = mine(name)
        image = bytes(list(in_order(dataset))[3].fields["image"])
        named, _ = self.overwrite(dataset, len(image) // 2, bytes([image[len(image) // 2] ^ 1]))
        assert complaint(dataset) == damaged(name, named)

    def test_of_every_image_behind_its_header(self, mine: Callable[[str], Dataset]) -> None:
        dataset = mine("files")
        for path in dataset.data_files():
            image = path.read_bytes()
            start = image.index(b"\xff\xda") + 14
            path.write_bytes(image[:start] + b"\x55" * (len(image) - start - 2) + image[-2:])
        assert complaint(dataset).endswith(DAMAGED)

    @every_format
    def test_that_comes_after_the_first_epoch(self, mine: Callable[[str], Dataset], name: str) -> None:
        """What was compared with the index once is compared with what it was then."""
        dataset = mine(name)
        size = len(bytes(list(in_order(dataset))[3].fields["image"]))
        batches = -(-dataset.manifest.num_samples // BATCH)
        with loaders(dataset, workers=0) as (loader,):
            for _ in range(batches):
                next(loader)
            named, _ = self.overwrite(dataset, size // 2, b"\x55" * 400)
            with pytest.raises(DatasetError) as raised:
                for _ in range(3 * batches):
                    next(loader)
        assert str(raised.value) == damaged(name, named)

    def test_that_only_the_decoder_notices(self, mine: Callable[[str], Dataset]) -> None:
        """A quantisation table is missing, though the header can be read."""
        dataset = mine("files")
        victim = list(in_order(dataset))[3]
        image = bytes(victim.fields["image"])
        named, recorded = self.overwrite(dataset, image.index(b"\xff\xdb"), b"\xff\xec")
        assert complaint(recorded).startswith(f"{named}: not a whole JPEG")

    @every_format_once
    def test_a_file_that_vanished_is_named(self, mine: Callable[[str], Dataset], name: str, workers: int) -> None:
        dataset = mine(name)
        victim = Path(list(in_order(dataset))[3].source)
        victim.unlink()
        assert complaint(dataset, workers) == f"{victim}: No such file or directory"

    @every_format
    def test_a_file_that_was_cut_short_is_named(self, mine: Callable[[str], Dataset], name: str) -> None:
        dataset = mine(name)
        victim = Path(list(in_order(dataset))[3].source)
        os.truncate(victim, victim.stat().st_size // 2)
        assert str(victim) in complaint(dataset) and "truncated" in complaint(dataset)

    def test_a_corrupt_tar_is_named(self, mine: Callable[[str], Dataset]) -> None:
        dataset = mine("webdataset")
        victim = dataset.folder / dataset.manifest.files[2].path
        victim.write_bytes(b"\x01" * victim.stat().st_size)
        assert str(victim) in complaint(dataset)

    @pytest.mark.parametrize(
        ("change", "words", "workers"),
        [
            ({"name": "../{name}"}, "member '../{name}' leads out of its folder", 0),
            ({"name": "/{name}"}, "member '/{name}' leads out of its folder", 1),
            ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "member '{name}' is no regular file", 0),
            ({"name": "other.jpg"}, "lacks .jpg", 1),
        ],
    )
    def test_a_member_that_no_other_loader_takes_is_refused(
        self, mine: Callable[[str], Dataset], change: dict[str, bytes | str], words: str, workers: int
    ) -> None:
        dataset = mine("webdataset")
        sample = list(in_order(dataset))[3]
        path, name = Path(sample.source), f"{sample.key}.jpg"
        stored = bytearray(path.read_bytes())
        with tarfile.open(path) as tar:
            member = tar.getmember(name)
        for attribute, value in change.items():
            setattr(member, attribute, value.format(name=name) if isinstance(value, str) else value)
        stored[member.offset : member.offset + tarfile.BLOCKSIZE] = member.tobuf(tarfile.USTAR_FORMAT)
        path.write_bytes(stored)
        found = complaint(dataset, workers)
        assert str(path) in found
        assert words.format(name=name) in found

    def test_a_member_more_than_the_index_names_is_refused(self, mine: Callable[[str], Dataset]) -> None:
        """It stands where the zeros at the end begin, so the shard's size is still the manifest's."""
        dataset = mine("webdataset")
        path = dataset.folder / dataset.manifest.files[0].path
        with tarfile.open(path) as tar:
            last = tar.getmembers()[-1]
        end = last.offset_data + last.size + -last.size % tarfile.BLOCKSIZE
        stored = bytearray(path.read_bytes())
        stored[end : end + tarfile.BLOCKSIZE] = tarfile.TarInfo("../more.cls").tobuf()
        path.write_bytes(stored)
        assert "member '../more.cls' leads out of its folder" in complaint(dataset)

    def test_an_image_of_another_class_is_refused(self, mine: Callable[[str], Dataset]) -> None:
        dataset = mine("webdataset")
        victim = list(in_order(dataset))[3]
        path, member = Path(victim.source), f"{victim.key}.cls".encode()
        stored = bytearray(path.read_bytes())
        place = stored.index(member) + 512
        assert stored[place : place + 1] == bytes(victim.fields["label"])
        stored[place] = ord("9")
        path.write_bytes(stored)
        assert complaint(dataset) == (
            f"{path}: sample {victim.key!r} (row 3): class 9 stands where the index has {int(victim.fields['label'])}"
        )


class TestRefusals:
    @pytest.mark.parametrize("name", ["tfrecord", "webdataset"])
    def test_more_ranks_than_shards(self, made: Made, name: str) -> None:
        """A rank is one reader, whatever its number of threads."""
        dataset = made["image", name]
        with loaders(dataset, 8, 2):
            pass
        with pytest.raises(DatasetError, match="8 shards < 9 readers") as raised, loaders(dataset, 9, 0):
            pass
        assert str(dataset.folder) in str(raised.value)

    def build(self, dataset: Dataset, kind: Kind) -> None:
        DaliLoader(LoaderInput(dataset, DataSpec(), kind, PARAMS["image"], BATCH, 0, 1, SEED))

    def test_a_kind_that_dali_does_not_decode(self, made: Made) -> None:
        with pytest.raises(DatasetError, match="loader dali decodes image and volume samples, not mlm"):
            self.build(made["image", "files"], MLM)

    def test_without_dali(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("benchsuite.storage.find_spec", lambda module: None)
        with pytest.raises(DatasetError, match=r"not installed: pip install 'benchsuite\[dali\]'"):
            self.build(made["image", "files"], IMAGE)

    def test_with_a_dali_that_cannot_be_imported(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "nvidia.dali.pipeline", None)
        with pytest.raises(DatasetError, match=r"pip install 'benchsuite\[dali\]'"):
            self.build(made["image", "files"], IMAGE)
