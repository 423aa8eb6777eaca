"""Format `webdataset` by the webdataset library: shards, `shuffle`, `decode`."""

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import webdataset as wds

from benchsuite.storage.dataset.fields import KIND_FIELDS, RECORD_KINDS, unpack
from benchsuite.storage.dataset.manifest import Dataset, ReaderShare, data_file, dealt
from benchsuite.storage.dataset.shards import buffer_samples, shards
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.stock.reader import Fields, Stock

DECODED = ("jpg", "jpeg", "png", "cls", "npy", "image.npy", "label.npy")
"""Members that are decoded: the library would unpickle others by their names."""


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[tuple[str, Fields]]:
    """Read a lane's shards: the shards of a node's worker, and a shuffle buffer, as the library documents both."""
    listed = shards(dataset.manifest)
    urls = [os.path.abspath(data_file(dataset, listed[number].path)) for number in dealt(len(listed), lane)]
    seed = f"{lane.seed}:{lane.epoch}:{lane.index}"
    mixed = [wds.shuffle(buffer_samples(dataset, lane), rng=random.Random(seed))] if lane.shuffle else []
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.tarfile_to_samples(),
        *mixed,
        wds.decode("pil", only=DECODED),
    )
    for found in pipeline:
        try:
            yield found["__key__"], _fields(dataset.manifest.kind, found)
        except KeyError as error:
            raise DatasetError(f"{found['__url__']}: sample {found['__key__']!r}: no member {error}") from error


def _fields(kind: str, found: dict[str, Any]) -> Fields:
    """The fields of a sample by the customary extensions."""
    if kind in RECORD_KINDS and "npy" in found:
        return unpack(np.asarray(found["npy"]), KIND_FIELDS[kind])
    if kind != "image":
        return {name: found[f"{name}.npy"] for name in KIND_FIELDS[kind]}
    image = next((extension for extension in ("jpeg", "png") if extension in found), "jpg")
    return {"image": found[image], "label": found["cls"]}


STOCK = Stock("webdataset", stream=read)
