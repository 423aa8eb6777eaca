"""Format `parquet` by pyarrow: `iter_batches` of each file, as its documentation shows, in one thread a worker.

Objects are opened by `pyarrow.fs.S3FileSystem`.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from pyarrow.fs import S3FileSystem
from pyarrow.parquet import ParquetFile

from benchsuite.storage.dataset.fields import KIND_FIELDS
from benchsuite.storage.dataset.manifest import Dataset, ReaderShare, data_file, dealt, inside
from benchsuite.storage.dataset.shards import mixed, shards
from benchsuite.storage.formats.parquet import KEY
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.profile import settings
from benchsuite.storage.stock.reader import Fields, Stock, open_image

BATCH_ROWS = 128


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[tuple[str, Fields]]:
    """Read a lane's files, one after the other, mixed in a shuffle buffer of rows."""
    listed = shards(dataset.manifest)
    names = (listed[number].path for number in dealt(len(listed), lane))
    for key, row in mixed((row for name in names for row in _rows(dataset, name, lane)), dataset, lane):
        yield key, _fields(dataset.manifest.kind, row)


def _opened(dataset: Dataset, name: str) -> ParquetFile:
    path = inside(dataset.folder, name)
    if not isinstance(path, ObjectPath):
        return ParquetFile(data_file(dataset, name))
    found = settings(path.bucket)
    scheme, _, host = (found.endpoint or "https://").partition("://")
    system = S3FileSystem(
        region=found.region, scheme=scheme, endpoint_override=host or None, force_virtual_addressing=found.virtual
    )
    return ParquetFile(f"{path.bucket}/{path.key}", filesystem=system)


def _rows(dataset: Dataset, name: str, lane: ReaderShare) -> Iterator[tuple[str, dict[str, Any]]]:
    """Key and columns of each row; the lane is told how long pyarrow computed."""
    with _opened(dataset, name) as file:
        batches = file.iter_batches(batch_size=BATCH_ROWS, use_threads=False)
        while True:
            began_s = time.thread_time()
            batch = next(batches, None)
            if batch is None:
                return
            columns = {name: batch[name].to_numpy(zero_copy_only=False) for name in batch.schema.names}
            lane.unpacked(time.thread_time() - began_s)
            keys = columns.pop(KEY)
            for row, key in enumerate(keys):
                yield key, {name: values[row] for name, values in columns.items()}


def _fields(kind: str, row: dict[str, Any]) -> Fields:
    if kind == "image":
        return {"image": open_image(row["image"]["bytes"]), "label": row["label"]}
    return {name: np.asarray(row[name]) for name in KIND_FIELDS[kind]}


STOCK = Stock("pyarrow", stream=read)
