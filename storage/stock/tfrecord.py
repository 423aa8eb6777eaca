"""Format `tfrecord` by the `tfrecord` package, which reads such files for PyTorch."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tfrecord.iterator_utils import shuffle_iterator
from tfrecord.reader import tfrecord_loader

from benchsuite.storage.dataset.fields import KIND_FIELDS
from benchsuite.storage.dataset.manifest import Dataset, ReaderShare, data_file, dealt
from benchsuite.storage.dataset.shards import buffer_samples, shards
from benchsuite.storage.formats.tf_example import IMAGE, LABEL, VOLUME
from benchsuite.storage.stock.reader import Fields, Stock, open_image


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[tuple[str, Fields]]:
    """Read a lane's shards, one after the other, mixed in the package's shuffle queue."""
    listed = shards(dataset.manifest)
    numbers = dealt(len(listed), lane)
    paths = [str(data_file(dataset, listed[number].path)) for number in numbers]
    found: Iterator[Mapping[str, Any]] = (each for path in paths for each in tfrecord_loader(path, None))
    if lane.shuffle:
        np.random.seed(random.Random(f"{lane.seed}:{lane.epoch}:{lane.index}").getrandbits(32))
        found = shuffle_iterator(
            found, min(buffer_samples(dataset, lane), sum(listed[n].num_samples or 0 for n in numbers))
        )
    for each in found:
        yield bytes(each["key"]).decode(), _fields(dataset.manifest.kind, each)


def _fields(kind: str, found: Mapping[str, Any]) -> Fields:
    """The fields of an Example by the customary names of its features."""
    if kind == "image":
        return {"image": open_image(found[IMAGE]), "label": found[LABEL][0]}
    if kind == "volume":
        return {
            field: np.frombuffer(found[name], dtype).reshape(found[f"{name}_shape"])
            for field, (name, dtype) in VOLUME.items()
        }
    fields = {name: found[name] for name in KIND_FIELDS[kind]}
    if kind == "mlm":
        fields["next_sentence_label"] = fields["next_sentence_label"].reshape(())
    return fields


STOCK = Stock("tfrecord", stream=read)
