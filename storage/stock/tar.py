"""Format `webdataset` by the webdataset library: shards, `shuffle`, `decode`; in a bucket by `pipe:aws s3 cp`.

Batches are made by torch's DataLoader, which the library's WebLoader wraps: a loop with that gave the same rates.
"""

import os
import random
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import webdataset as wds

from benchsuite.storage import command_path
from benchsuite.storage.dataset.fields import KIND_FIELDS, RECORD_KINDS, unpack
from benchsuite.storage.dataset.manifest import Dataset, ReaderShare, data_file, dealt, inside
from benchsuite.storage.dataset.shards import buffer_samples, shards
from benchsuite.storage.errors import DatasetError
from benchsuite.storage.formats.tar import AWS
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.objects.profile import settings
from benchsuite.storage.stock.reader import Fields, Stock

DECODED = ("jpg", "jpeg", "png", "cls", "npy", "image.npy", "label.npy")
"""Members that are decoded: the library would unpickle others by their names."""


def read(dataset: Dataset, lane: ReaderShare) -> Iterator[tuple[str, Fields]]:
    """Read a lane's shards: the shards of a node's worker, and a shuffle buffer, as the library documents both."""
    listed = shards(dataset.manifest)
    numbers = dealt(len(listed), lane)
    urls = [_url(dataset, listed[number].path) for number in numbers]
    seed = f"{lane.seed}:{lane.epoch}:{lane.index}"
    mixed = [wds.shuffle(buffer_samples(dataset, lane), rng=random.Random(seed))] if lane.shuffle else []
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.tarfile_to_samples(),
        *mixed,
        wds.decode("pil", only=DECODED),
    )
    missing = sum(listed[number].num_samples or 0 for number in numbers)
    for found in pipeline:
        try:
            yield found["__key__"], _fields(dataset.manifest.kind, found)
        except KeyError as error:
            raise DatasetError(f"{found['__url__']}: sample {found['__key__']!r}: no member {error}") from error
        missing -= 1
    if missing:  # a pipe may end between two members, which the library takes for the end of the shard
        raise DatasetError(f"{dataset.folder}: {missing} samples fewer came from {len(urls)} shards than they hold")


def _url(dataset: Dataset, name: str) -> str:
    """A file's path, or what streams an object, as the library's documentation has it; a shell runs it."""
    path = inside(dataset.folder, name)
    if not isinstance(path, ObjectPath):
        return os.path.abspath(data_file(dataset, name))
    found = settings(path.bucket)
    found.to_environment()
    command = [command_path(AWS) or AWS, *([] if found.verify_tls else ["--no-verify-ssl"]), "s3", "cp", str(path), "-"]
    return f"pipe:{shlex.join(command)} 2>/dev/null"  # what it says may name a key of the user's


def _asks_buckets() -> str:
    """The command's name and version."""
    said = subprocess.run(
        [command_path(AWS) or AWS, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    return said.stdout.partition(" ")[0].replace("/", " ") or "aws"


def _fields(kind: str, found: dict[str, Any]) -> Fields:
    """The fields of a sample by the customary extensions."""
    if kind in RECORD_KINDS and "npy" in found:
        return unpack(np.asarray(found["npy"]), KIND_FIELDS[kind])
    if kind != "image":
        return {name: found[f"{name}.npy"] for name in KIND_FIELDS[kind]}
    image = next((extension for extension in ("jpeg", "png") if extension in found), "jpg")
    return {"image": found[image], "label": found["cls"]}


STOCK = Stock("webdataset", stream=read, asks_buckets=_asks_buckets)
