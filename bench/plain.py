"""The plainest use of each library by hand: what a tutorial would write, with the same decoding and augmentation."""

import io
import itertools
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import default_collate

from benchsuite.storage.dataset.fields import KIND_FIELDS, RECORD_KINDS
from benchsuite.storage.dataset.kinds import Kind, decode_one, sample_rng
from benchsuite.storage.dataset.manifest import Dataset, text
from benchsuite.storage.dataset.sample import Array, Sample, Value

Get = Callable[[int], dict[str, Value]]
Counted = tuple[dict[str, Any], list[int]]
"""A batch, and the rows of the index in it, or none where the library does not tell."""


def getter(dataset: Dataset) -> Get | None:
    """Reads the fields of a row with the format's library; None where the format is read in sequence."""
    image = dataset.manifest.kind == "image"
    if dataset.manifest.kind in RECORD_KINDS:
        return record_getter(dataset, [dataset.folder / text(name) for name in dataset.index["file"]])
    keys = [text(key) for key in dataset.index["key"]]
    labels = [str(label).encode() for label in dataset.index["label"]]
    files = [dataset.folder / text(name) for name in dataset.index["file"]]
    opened: dict[str, Any] = {}

    def from_files(row: int) -> dict[str, Value]:
        path = files[row]
        if image:
            return {"image": path.read_bytes(), "label": labels[row]}
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                return {"image": arrays["x"], "label": arrays["y"]}
        return {"image": np.load(path), "label": np.load(str(path).replace("_x.npy", "_y.npy"))}

    def from_hdf5(row: int) -> dict[str, Value]:
        import h5py

        file = opened.setdefault("file", None) or h5py.File(files[0])
        opened["file"] = file
        if not image:
            group = file[keys[row]]
            return {"image": group["image"][...], "label": group["label"][...]}
        offsets = opened.setdefault("offsets", file["image_offsets"][...])
        return {"image": file["image"][offsets[row] : offsets[row + 1]].tobytes(), "label": labels[row]}

    def from_lmdb(row: int) -> dict[str, Value]:
        import lmdb

        if "environment" not in opened:
            opened["environment"] = lmdb.open(str(files[0]), subdir=False, readonly=True, lock=False)
        with opened["environment"].begin() as transaction:
            content = transaction.get(f"{row:010d}/image".encode())
            if image:
                return {"image": content, "label": labels[row]}
            label = transaction.get(f"{row:010d}/label".encode())
            return {"image": np.load(io.BytesIO(content)), "label": np.load(io.BytesIO(label))}

    return {"files": from_files, "hdf5": from_hdf5, "lmdb": from_lmdb}.get(dataset.manifest.format)


def record_getter(dataset: Dataset, files: list[Path]) -> Get | None:
    """Reads the fields of a row, in `files[row]`, with the format's library; None where that reads in sequence."""
    names = KIND_FIELDS[dataset.manifest.kind]
    opened: dict[str, Any] = {}

    def from_files(row: int) -> dict[str, Value]:
        return _fields(np.load(files[row]), names)

    def from_hdf5(row: int) -> dict[str, Value]:
        import h5py

        file = opened["file"] = opened.get("file") or h5py.File(files[0])
        return {name: np.asarray(file[name][row]) for name in names}

    def from_lmdb(row: int) -> dict[str, Value]:
        import lmdb

        if "map" not in opened:
            opened["map"] = lmdb.open(str(files[0]), subdir=False, readonly=True, lock=False)
        with opened["map"].begin() as transaction:
            return _fields(np.load(io.BytesIO(transaction.get(f"{row:010d}/npy".encode()))), names)

    def from_tokens(row: int) -> dict[str, Value]:
        if "stream" not in opened:
            opened["stream"] = np.memmap(files[0], dataset.manifest.fields[0].dtype, "r")
        length = dataset.manifest.params["seq_len"]
        return {"tokens": opened["stream"][row * length : (row + 1) * length + 1]}

    ways: Mapping[str, Get] = {"files": from_files, "hdf5": from_hdf5, "lmdb": from_lmdb, "tokens": from_tokens}
    return ways.get(dataset.manifest.format)


def _fields(stored: Array, names: tuple[str, ...]) -> dict[str, Value]:
    return {name: stored[name] for name in names} if stored.dtype.names else {names[0]: stored}


class _Map(TorchDataset[tuple[dict[str, Any], int]]):
    """A map-style dataset: read a row, decode it, return tensors."""

    def __init__(self, dataset: Dataset, kind: Kind, params: Mapping[str, int]) -> None:
        self._dataset, self._kind, self._params = dataset, kind, params
        self._get: Get | None = None

    def __len__(self) -> int:
        return self._dataset.manifest.num_samples

    def __getitem__(self, row: int) -> tuple[dict[str, Any], int]:
        self._get = self._get or getter(self._dataset)
        assert self._get is not None
        key = self._dataset.key(row)
        sample = Sample(key, self._get(row))
        return decode_one(self._kind, sample, self._params, sample_rng(0, 0, key)), row


def thread_batches(
    dataset: Dataset, kind: Kind, params: Mapping[str, int], batch: int, workers: int
) -> Generator[Counted]:
    """A thread pool's map over rows, and default_collate."""
    source = _Map(dataset, kind, params)
    source[0]  # opens the files before threads could do so twice
    rng = np.random.default_rng(0)

    def one(row: int) -> tuple[dict[str, Any], int]:
        torch.set_num_threads(1)
        return source[row]

    with ThreadPoolExecutor(workers) as pool:
        pending: list[Any] = []
        rows = (int(row) for _ in itertools.count() for row in rng.permutation(len(source)))
        while True:
            while len(pending) < batch * 2 * workers:
                pending.append(pool.submit(one, next(rows)))
            ready = [future.result() for future in pending[:batch]]
            del pending[:batch]
            tensors, numbers = default_collate(ready)
            yield tensors, numbers.tolist()


def dali_batches(dataset: Dataset, params: Mapping[str, int], batch: int, threads: int) -> Generator[Counted]:
    """DALI's own readers and random crop for JPEGs in files, tars and TFRecord, as its examples show."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali import tfrecord as tfrec
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    shards = [str(dataset.folder / file.path) for file in dataset.manifest.files if file.num_samples]
    paths = [str(path) for path in dataset.data_files()] if not shards else []

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=None)
    def pipe() -> Any:
        if paths:
            jpegs, labels = fn.readers.file(files=paths, labels=list(range(len(paths))), random_shuffle=True, name="r")
        elif dataset.manifest.format == "webdataset":
            indices = [f"{path}.idx" for path in shards]
            jpegs, labels = fn.readers.webdataset(paths=shards, index_paths=indices, ext=["jpg", "cls"], name="r")
            labels = fn.pad(labels)
        else:
            features = {
                "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
                "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
            }
            read = fn.readers.tfrecord(
                path=shards, index_path=[f"{path}.idx" for path in shards], features=features, name="r"
            )
            jpegs, labels = read["image/encoded"], read["image/class/label"]
        images = fn.decoders.image_random_crop(jpegs, device="cpu", output_type=types.RGB)
        size = params["image_size"]
        images = fn.resize(images, resize_x=size, resize_y=size)
        mean, std = [0.485 * 255, 0.456 * 255, 0.406 * 255], [0.229 * 255, 0.224 * 255, 0.225 * 255]
        mirror = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, mean=mean, std=std, mirror=mirror, output_layout="CHW"), labels

    unknown: list[int] = []
    for ready in DALIGenericIterator([pipe()], ["image", "label"], auto_reset=True):
        yield ready[0], unknown
