"""`data.reader: stock` beside the plainest script with the same library, in interleaved pairs, page cache warm.

The scripts are written from the libraries' documentation and share no code with the product but the random crop and
what is computed of a volume, so that both compute as much; they know how our datasets lie on disk.
"""

import io
import itertools
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import torch
import webdataset as wds
from PIL import Image
from tfrecord.torch.dataset import TFRecordDataset
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, get_worker_info

from bench.loaders import make_one
from bench.pairs import Ratio, interleaved
from benchsuite.storage import KINDS, load, loader_of
from benchsuite.storage.dataset.kinds import VOLUME, decode_one, random_crop
from benchsuite.storage.dataset.manifest import Dataset as Stored
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.observe.page_cache import warm
from benchsuite.workloads.facts import FACTS

FORMATS = ("files", "webdataset", "hdf5", "lmdb", "tfrecord")
NUM_PAIRS, SECONDS, BUFFER, PREFETCH = 10, 1.0, 100, 2
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
Ready = Callable[[Any, Any], tuple[torch.Tensor, torch.Tensor]]


def image_ready(image: Image.Image, label: Any, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What torchvision's RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize do."""
    left, top, width, height = random_crop(image.width, image.height, random.Random())
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    return (pixels.float().div(255) - MEAN).div_(STD), torch.tensor(int(label))


def volume_ready(image: Any, label: Any, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A patch as MLPerf Training's UNet3D takes one: what the job computes is the product's, what reads is not."""
    sample = Sample("", {"image": image, "label": label})
    row = decode_one(VOLUME, sample, {"patch_size": size}, random.Random(random.random()))
    return row["image"], row["label"]


class Rows(Dataset[Any]):
    """A map-style dataset; what it opens, it opens in the worker."""

    def __init__(self, stored: Stored, ready: Ready) -> None:
        index = np.asarray(stored.index)
        self.form, self.image = stored.manifest.format, stored.manifest.kind == "image"
        self.files = [str(stored.folder / name.decode()) for name in index["file"]]
        self.keys, self.labels = [key.decode() for key in index["key"]], index["label"].tolist()
        self.ready, self.opened = ready, None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, at: int) -> Any:
        return self.ready(*getattr(self, f"from_{self.form}")(at))

    def from_files(self, at: int) -> Any:
        if self.image:
            with open(self.files[at], "rb") as file:
                return Image.open(file).convert("RGB"), self.labels[at]
        return np.load(self.files[at]), np.load(self.files[at].replace("_x.npy", "_y.npy"))

    def from_hdf5(self, at: int) -> Any:
        self.opened = self.opened or h5py.File(self.files[0], "r")
        if not self.image:
            group = self.opened[self.keys[at]]
            return group["image"][()], group["label"][()]
        start, end = self.opened["image_offsets"][at : at + 2]
        return pil(self.opened["image"][start:end].tobytes()), self.opened["label"][at]

    def from_lmdb(self, at: int) -> Any:
        if self.opened is None:
            self.opened = lmdb.open(self.files[0], subdir=False, readonly=True, lock=False, readahead=False)
        with self.opened.begin() as txn:
            image, label = (txn.get(f"{at:010d}/{field}".encode()) for field in ("image", "label"))
        return (pil(image), int(label)) if self.image else (np.load(io.BytesIO(image)), np.load(io.BytesIO(label)))


def pil(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


class Records(IterableDataset[Any]):
    """TFRecords of a worker's shards, by the package's dataset."""

    def __init__(self, shards: list[str], ready: Ready, image: bool) -> None:
        self.shards, self.ready, self.image = shards, ready, image

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        mine = self.shards[info.id :: info.num_workers] if info else self.shards
        for shard in itertools.cycle(mine):
            for found in TFRecordDataset(shard, None, shuffle_queue_size=BUFFER // 2):
                if self.image:
                    yield self.ready(pil(bytes(found["image/encoded"])), found["image/class/label"][0])
                else:
                    image = np.frombuffer(found["X"], np.float32).reshape(found["X_shape"])
                    yield self.ready(image, np.frombuffer(found["Y"], np.uint8).reshape(found["Y_shape"]))


def plain(stored: Stored, size: int, batch: int, workers: int) -> DataLoader[Any]:
    """The DataLoader of the plainest script."""
    image = stored.manifest.kind == "image"
    ready: Ready = partial(image_ready if image else volume_ready, size=size)
    common: dict[str, Any] = {"batch_size": batch, "num_workers": workers, "prefetch_factor": PREFETCH}
    shards = [str(stored.folder / file.path) for file in stored.manifest.files if file.num_samples]
    if stored.manifest.format == "webdataset":
        names = ("jpg", "cls") if image else ("image.npy", "label.npy")
        tars = wds.WebDataset(shards, shardshuffle=100).repeat().shuffle(BUFFER).decode("pil").to_tuple(*names)
        return DataLoader(tars.map(lambda pair: ready(*pair)), **common)
    if stored.manifest.format == "tfrecord":
        return DataLoader(Records(shards, ready, image), **common)
    rows = Rows(stored, ready)
    return DataLoader(rows, sampler=RandomSampler(rows, num_samples=1 << 30), **common)


def seconds_a_sample(batches: Iterator[Any], batch: int, ahead: int) -> float:
    """Seconds a sample for a while, once the queue is as it stays."""
    for _ in range(ahead):
        next(batches)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        next(batches)
        done += batch
    return (time.perf_counter() - began) / done


def of_ours(stored: Stored, params: dict[str, int], batch: int, workers: int) -> float:
    """Our reader's turn."""
    spec = DataSpec(reader="stock", num_workers=workers, prefetch_factor=PREFETCH, pin_memory=False)
    kind = load(KINDS, stored.manifest.kind)
    loader = loader_of(spec)(LoaderInput(stored, spec, kind, params, batch, 0, 1, 0))
    try:
        return seconds_a_sample(iter(lambda: next(loader), None), batch, spec.queue_batches + 1)
    finally:
        loader.close()


def of_script(stored: Stored, size: int, batch: int, workers: int) -> float:
    """The plain script's turn."""
    loader = plain(stored, size, batch, workers)
    return seconds_a_sample(iter(loader), batch, workers * PREFETCH + 1)


def report(folder: Path) -> dict[tuple[str, str, int], Ratio]:
    """The plain script's seconds over ours, by samples, format and workers: above 1, ours gives more samples/s."""
    found: dict[tuple[str, str, int], Ratio] = {}
    for title, workload, variant, samples, batch, size in (
        ("JPEGs of 110 KB", "resnet50", "reference", 1200, 16, 224),
        ("volumes of 1.2 MB", "unet3d", "tiny", 240, 4, 32),
    ):
        spec = FACTS[workload]
        params = dict(spec.variants[variant].sample)
        for form in FORMATS:
            target = folder / workload / form
            if not target.exists():
                make_one(folder / workload, workload, spec.kind, params, samples, form, {}, variant)
            stored = open_dataset(target)
            for workers in (1, 2):
                warm(stored.data_files())
                script = partial(of_script, stored, size, batch, workers)
                ours = partial(of_ours, stored, params, batch, workers)
                found[title, form, workers] = interleaved(script, ours, NUM_PAIRS)
                print(f"   {title}, {form}, {workers} workers: {found[title, form, workers]}", flush=True)
    return found
