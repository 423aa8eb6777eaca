"""What every format must do with damaged datasets: part of the conformance suite."""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from benchsuite.storage.create.convert import in_order
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, open_dataset
from benchsuite.storage.dataset.verify import verify_dataset
from tests.storage.samples import PARAMS, flip


def one_line(call: Callable[[], object]) -> str:
    """The message of the DatasetError that a call ends with."""
    with pytest.raises(DatasetError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


class DamageConformance:
    """`options` and `name` are those of the suite that includes this one."""

    name: ClassVar[str]
    flips: ClassVar[tuple[float, ...]] = (0, 0.13, 0.37, 0.5, 0.77, 1)
    """Where bytes are flipped, as shares of a file's length."""

    def test_a_whole_dataset_verifies(self, made_dataset: Dataset) -> None:
        assert verify_dataset(made_dataset.folder).manifest == made_dataset.manifest

    def test_a_moved_dataset_verifies(self, dataset: Dataset) -> None:
        moved = dataset.folder.rename(dataset.folder.with_name("elsewhere"))
        assert verify_dataset(moved).manifest.dataset_id == dataset.manifest.dataset_id

    def test_a_missing_file_is_named(self, dataset: Dataset) -> None:
        for victim in dataset.data_files():
            hidden = victim.rename(victim.with_name("hidden"))
            assert victim.name in one_line(lambda: verify_dataset(dataset.folder))
            if needed_to_read(self.name, victim):
                assert victim.name in one_line(lambda: list(in_order(dataset)))
            hidden.rename(victim)

    def test_a_file_cut_in_half_is_named_with_sizes(self, dataset: Dataset) -> None:
        for victim in dataset.data_files():
            whole = victim.read_bytes()
            os.truncate(victim, len(whole) // 2)
            messages = [one_line(lambda: verify_dataset(dataset.folder))]
            if needed_to_read(self.name, victim):
                messages.append(one_line(lambda: list(in_order(open_dataset(dataset.folder)))))
            listed = str(victim.relative_to(dataset.folder)) in {info.path for info in dataset.manifest.files}
            for message in messages:
                assert str(victim) in message
                assert not listed or (f"{len(whole) // 2} bytes, " in message and str(len(whole)) in message)
            victim.write_bytes(whole)
        verify_dataset(dataset.folder)

    def test_an_empty_file_is_named(self, dataset: Dataset) -> None:
        for victim in dataset.data_files():
            whole = victim.read_bytes()
            victim.write_bytes(b"")
            assert str(victim) in one_line(lambda: verify_dataset(dataset.folder))
            if needed_to_read(self.name, victim):
                assert str(victim) in one_line(lambda: list(in_order(dataset)))
            victim.write_bytes(whole)

    def test_a_folder_in_place_of_a_file_is_named(self, dataset: Dataset) -> None:
        victim = dataset.data_files()[-1]
        victim.unlink()
        victim.mkdir()
        assert str(victim) in one_line(lambda: verify_dataset(dataset.folder))

    def test_a_flipped_byte_anywhere_in_any_data_file_is_found(self, dataset: Dataset, mask: int) -> None:
        for victim, share in product(dataset.data_files(), self.flips):
            offset = int(share * (victim.stat().st_size - 1))
            flip(victim, offset, mask)
            assert str(dataset.folder) in one_line(lambda: verify_dataset(dataset.folder)), (victim, offset)
            flip(victim, offset, mask)
        verify_dataset(dataset.folder)

    def test_names_that_lead_out_of_the_dataset_are_refused(self, dataset: Dataset) -> None:
        """A dataset from elsewhere must not make us read, evict or warm files outside its folder."""
        (dataset.folder.parent / "out").write_bytes(b"secret")
        if any(info.num_samples is not None for info in dataset.manifest.files):
            for info in dataset.manifest.files:
                info.path = "../out"
            crafted = replace(dataset, index=index_with_file(dataset, b"../out"))
        else:
            crafted = replace(dataset, index=index_with_file(dataset, b"../out"))
        assert "'../out' leads out" in one_line(crafted.data_files)
        if self.name not in ONE_NAME:
            assert "'../out' leads out" in one_line(lambda: list(in_order(crafted)))

    def test_another_sample_length_than_the_manifests_is_refused(self, dataset: Dataset, kind: str) -> None:
        """Whoever edits the manifest's counts gets one line, not a crash."""
        if "seq_len" not in PARAMS[kind] or self.name != "tokens":
            return
        dataset.manifest.params["seq_len"] = 10**6
        assert "need more" in one_line(lambda: list(in_order(dataset)))


ONE_NAME = ("lmdb", "tokens")
"""Formats whose files have fixed names: names in manifest and index are not followed."""


def needed_to_read(name: str, path: Path) -> bool:
    """Whether reading samples needs a file: others use the indices beside shards, our formats do not."""
    return name == "tokens" or path.suffix not in (".idx", ".json")


def index_with_file(dataset: Dataset, name: bytes) -> np.ndarray:
    """The dataset's index, with one file's name in every row."""
    index = np.array(dataset.index)
    index["file"] = name
    return index
