"""What the storage tests are made of: small samples of every kind, datasets of them, and what they hold."""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import simplejpeg
from PIL import Image

from benchsuite.storage import FORMATS, format_of, load
from benchsuite.storage.create.convert import Wanted, _store, in_order
from benchsuite.storage.create.volumes import volume_sample
from benchsuite.storage.dataset.manifest import Dataset, Sample, content_digest, open_dataset
from benchsuite.storage.dataset.sample import fresh
from benchsuite.storage.dataset.token_samples import mlm_sample, token_sample
from benchsuite.storage.sources import Source

VOLUME_PARAMS = {"patch_size": 8, "mean_bytes": 20_000, "stdev_bytes": 5_000}
MLM_PARAMS = {"seq_len": 32, "max_predictions": 5, "vocab_size": 600}
TOKEN_PARAMS = {"seq_len": 24, "vocab_size": 600}
PARAMS: Mapping[str, Mapping[str, int]] = {
    "image": {"image_size": 16},
    "volume": VOLUME_PARAMS,
    "mlm": MLM_PARAMS,
    "tokens": TOKEN_PARAMS,
}
"""What the samples of each kind are made for."""
WORKLOADS = {"image": "resnet50", "volume": "unet3d", "mlm": "bert", "tokens": "gpt_neox"}
PAGES_MAY_GO = pytest.mark.weekly
"""For tests of what stays in memory: a kernel may drop clean pages at any time, and they then fail by chance."""
SHARDED = ("webdataset", "tfrecord", "parquet", "mds")
IMAGE_FORMATS = sorted(name for name in FORMATS if "image" in load(FORMATS, name).kinds)
STORED = [(name, kind) for name in sorted(FORMATS) for kind in sorted(load(FORMATS, name).kinds)]
"""Every format with every kind that it stores."""


def library_of(name: str) -> str | None:
    """The module that a format's own reader needs, where it may be missing."""
    stock = format_of(name).stock
    return stock.module if stock else None


READABLE = [(name, kind) for name, kind in STORED if not (needed := library_of(name)) or find_spec(needed)]
"""Those whose own library is installed here."""


def skip_without_library(name: str) -> None:
    """Skip a test that reads a format with its own library where that is not installed."""
    needed = library_of(name)
    if needed and find_spec(needed) is None:
        pytest.skip(f"format {name}: {needed} is not installed")


def small_shards(name: str, samples: int = 2) -> dict[str, int]:
    """The option that makes a format's shards hold so many samples, where it has shards."""
    return {"shard_samples": samples} if name in SHARDED else {}


def jpeg(seed: int, height: int = 24, width: int = 32) -> bytes:
    """A small JPEG whose content depends on the seed."""
    blocks = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return bytes(simplejpeg.encode_jpeg(np.kron(blocks, np.ones((8, 8, 1), dtype=np.uint8)), quality=90))


def some_samples(count: int, kind: str = "image") -> list[Sample]:
    """Samples before they are stored, in memory of their own."""
    return [_sample(kind, number) for number in range(count)]


@cache
def _sample(kind: str, number: int) -> Sample:
    if kind == "volume":
        return volume_sample(number, fresh, 0, VOLUME_PARAMS)
    if kind == "mlm":
        return mlm_sample(number, fresh, 0, MLM_PARAMS)
    if kind == "tokens":
        return token_sample(number, fresh, 0, TOKEN_PARAMS)
    fields = {"image": jpeg(number), "label": str(number % 3).encode()}
    return Sample(f"class{number % 3}/{number:04d}", fields)


def store(
    samples: list[Sample], kind: str, folder: Path, name: str, options: Mapping[str, int | str] | None = None
) -> Dataset:
    """A dataset of given samples."""
    size = sum(sample.stored_bytes for sample in samples)
    known = {name: value for name, value in PARAMS[kind].items() if name in ("seq_len", "max_predictions")}
    source = Source(len(samples), size, iter(samples), known)
    wanted = Wanted(WORKLOADS[kind], "tiny", name, kind, options=options or {})
    _store(source, folder, wanted, {"how": "convert"}, lambda done, total: None)
    return open_dataset(folder)


def contents(dataset: Dataset) -> dict[str, tuple[bytes, int]]:
    """Image bytes and label of every sample, by key."""
    return {
        sample.key: (bytes(sample.fields["image"]), int(bytes(sample.fields["label"]))) for sample in in_order(dataset)
    }


def facts(sample: Sample) -> tuple[object, ...]:
    """All that a sample holds, as values that compare: names, dtypes, shapes and bytes of its fields."""
    return (
        sample.key,
        *sorted(
            (name, value.dtype.str, value.shape, value.tobytes())
            if isinstance(value, np.ndarray)
            else (name, "bytes", (), bytes(value))
            for name, value in sample.fields.items()
        ),
    )


def check_stock_fields(found: Mapping[str, Mapping[str, Any]], kind: str, count: int) -> None:
    """What a library gave of the first samples of a kind: arrays to the bit, images as PIL decodes what was stored."""
    assert len(found) == count
    for sample in some_samples(count, kind):
        for name, value in sample.fields.items():
            given = found[sample.key][name]
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(np.asarray(given), value)
            elif name == "image":
                assert given.tobytes() == Image.open(BytesIO(bytes(value))).convert("RGB").tobytes()
            else:
                assert int(given) == int(bytes(value))


def digests(samples: list[Sample]) -> dict[str, str]:
    """Content digests by key."""
    return {sample.key: content_digest(sample) for sample in samples}


def flip(path: Path, offset: int, mask: int = 0xFF) -> None:
    """Change bits of one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def file_system(path: Path) -> str:
    """Type of the file system that holds a path."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next(mounts[parent] for parent in [path.resolve(), *path.resolve().parents] if parent in mounts)
