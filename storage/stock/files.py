"""Format `files` as torchvision's ImageFolder reads images, and `np.load` arrays; in a bucket by s3torchconnector."""

import os
from io import BytesIO

import numpy as np
from PIL import Image
from torch.utils.data import Dataset as TorchDataset

from benchsuite.storage.dataset.fields import KIND_FIELDS, unpack
from benchsuite.storage.dataset.manifest import Dataset, inside, text
from benchsuite.storage.formats.files import VOLUME_SUFFIXES, bring
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.profile import settings
from benchsuite.storage.stock.reader import ByRow, Fields, Stock, load_array, named, open_image


class Files(TorchDataset[Fields]):
    """A file, or a pair of them, per sample; a list of paths made once, as ImageFolder's."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.kind, folder = dataset, dataset.manifest.kind, os.fspath(dataset.folder)
        names = _names(dataset)
        self.paths = [f"{folder}/{name}" for name in names]
        self.labels = dataset.index["label"].tolist()

    def __getitem__(self, row: int) -> Fields:
        bring(self.dataset, row)
        path = self.paths[row]
        if self.kind == "image":
            with open(path, "rb") as file:
                return {"image": Image.open(file).convert("RGB"), "label": self.labels[row]}
        if self.kind != "volume":
            return unpack(np.load(path), KIND_FIELDS[self.kind])
        if path.endswith(".npz"):
            with np.load(path) as arrays:
                return {field: arrays[suffix] for field, suffix in VOLUME_SUFFIXES.items()}
        stem = path.removesuffix("_x.npy")
        return {field: np.load(f"{stem}_{suffix}.npy") for field, suffix in VOLUME_SUFFIXES.items()}


class Objects(TorchDataset[Fields]):
    """An object, or a pair of them, per sample: a map-style dataset of the connector, whose readers are read whole."""

    def __init__(self, dataset: Dataset, bucket: str) -> None:
        from s3torchconnector import S3ClientConfig, S3MapDataset

        self.kind, self.labels = dataset.manifest.kind, dataset.index["label"].tolist()
        names = _names(dataset)
        self.pairs = self.kind == "volume" and not names[0].endswith(".npz")
        if self.pairs:
            stems = [name.removesuffix("_x.npy") for name in names]
            names = [f"{stem}_{suffix}.npy" for stem in stems for suffix in VOLUME_SUFFIXES.values()]
        found = settings(bucket)
        self.objects = S3MapDataset.from_objects(
            [f"{dataset.folder}/{name}" for name in names],
            region=found.region or "us-east-1",
            endpoint=found.endpoint,
            transform=lambda reader: reader.read(),
            s3client_config=S3ClientConfig(
                force_path_style=not found.virtual, profile=os.environ.get("AWS_PROFILE") or None
            ),
        )

    def __getitem__(self, row: int) -> Fields:
        if self.pairs:
            fields = enumerate(VOLUME_SUFFIXES)
            return {field: load_array(self.objects[2 * row + number]) for number, field in fields}
        content = self.objects[row]
        if self.kind == "image":
            return {"image": open_image(content), "label": self.labels[row]}
        if self.kind != "volume":
            return unpack(load_array(content), KIND_FIELDS[self.kind])
        with np.load(BytesIO(content)) as arrays:
            return {field: arrays[suffix] for field, suffix in VOLUME_SUFFIXES.items()}


def _names(dataset: Dataset) -> list[str]:
    """The files of the index, none of which leads out of the dataset."""
    names = [text(name) for name in dataset.index["file"]]
    for name in names:
        if ".." in name or name.startswith("/") or "\0" in name:
            inside(dataset.folder, name)
    return names


def by_row(dataset: Dataset) -> ByRow:
    """Open a dataset of files, or of objects."""
    folder = dataset.folder
    return Objects(dataset, folder.bucket) if isinstance(folder, ObjectPath) else Files(dataset)


STOCK = Stock("numpy", by_row=by_row, of_images="pillow", asks_buckets=lambda: named("s3torchconnector"))
