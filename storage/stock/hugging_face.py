"""Format `parquet` by Hugging Face's `datasets`: `load_dataset` with streaming, which looks for nothing elsewhere."""

import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from torch.utils.data import get_worker_info

from benchsuite.storage.dataset.fields import KIND_FIELDS
from benchsuite.storage.dataset.manifest import Dataset, ReaderShare, data_file, dealt
from benchsuite.storage.dataset.shards import buffer_samples, shards
from benchsuite.storage.formats.parquet import KEY
from benchsuite.storage.stock.reader import Fields, Stock


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[tuple[str, Fields]]:
    """Read a lane's files: those of its rank, of which the library gives each of the DataLoader's workers a share.

    With shuffling, the library mixes a rank's files anew every epoch, then rows in a buffer.
    """
    kind = dataset.manifest.kind
    found = _opened(_files(dataset, lane))
    if kind != "image":
        found = found.with_format("numpy")
    if lane.shuffle:
        found = found.shuffle(seed=lane.seed, buffer_size=buffer_samples(dataset, lane))
    found.set_epoch(lane.epoch)
    for row in found:
        if kind == "image":
            yield row[KEY], {"image": row["image"].convert("RGB"), "label": row["label"]}
        else:
            yield str(row[KEY]), {name: row[name] for name in KIND_FIELDS[kind]}


def _files(dataset: Dataset, lane: ReaderShare) -> tuple[str, ...]:
    """The files of all lanes of a rank, in turn: worker i of n is given every n-th of them, from the i-th on."""
    worker, listed = get_worker_info(), shards(dataset.manifest)
    number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
    first = lane.index - number
    lanes = [dealt(len(listed), ReaderShare(first + each, lane.count)).tolist() for each in range(workers)]
    numbers = [each for turn in zip_longest(*lanes) for each in turn if each is not None]
    return tuple(str(data_file(dataset, listed[each].path)) for each in numbers)


@lru_cache(maxsize=1)
def _opened(paths: tuple[str, ...]) -> Any:
    """Have the library open files, without the network and without leaving anything in the user's cache."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    with tempfile.TemporaryDirectory() as cache:
        return datasets.load_dataset("parquet", data_files=list(paths), split="train", streaming=True, cache_dir=cache)


STOCK = Stock("datasets", stream=read)
