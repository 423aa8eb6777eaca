"""`data.reader: stock` beside the plainest script with the same library, in interleaved pairs, warm and cold.

The scripts are written from the libraries' documentation and share no code with the product but the random crop and
what is computed of a volume, so that both compute as much; they know how our datasets lie on disk.
"""

import io
import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import lmdb
import numpy as np
import torch
import webdataset as wds
from PIL import Image
from tfrecord.iterator_utils import shuffle_iterator
from tfrecord.reader import tfrecord_loader
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, get_worker_info

from bench.pairs import Ratio, over_processes, pairs
from bench.scenes import make_one
from bench.tables import goal
from benchsuite.storage import KINDS, load, loader_of
from benchsuite.storage.dataset.kinds import VOLUME, decode_one, random_crop
from benchsuite.storage.dataset.manifest import Dataset as Stored
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.observe.page_cache import evict, warm
from benchsuite.workloads.facts import FACTS

MAX_MEDIAN, MAX_APART, MIN_NEAR = 0.02, 0.05, 0.9
FORMATS = ("files", "webdataset", "hdf5", "lmdb", "tfrecord")
SEQUENCE = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids", "next_sentence_label")


class Scene(NamedTuple):
    """What is read: samples of a workload, how many, in what batches."""

    title: str
    workload: str
    params: dict[str, int]
    samples: int
    batch: int
    formats: tuple[str, ...] = FORMATS
    buffer: int = 100
    """Samples that a stream's shuffle buffer holds: few of the dataset, so that what is counted is no filling of it."""
    turn_s: float = 0.7
    """Seconds of a turn: a dozen batches of the largest volumes, some epochs of the smallest samples."""


def volumes(title: str, mean_bytes: int, samples: int, batch: int, patch: int, **how: Any) -> Scene:
    params = {"patch_size": patch, "mean_bytes": mean_bytes, "stdev_bytes": mean_bytes // 5}
    return Scene(title, "unet3d", params, samples, batch, **how)


SCENES = (
    Scene("JPEGs of 110 KB", "resnet50", dict(FACTS["resnet50"].variants["reference"].sample), 1200, 16),
    volumes("volumes of 1.2 MB", 1_200_000, 240, 4, 32, buffer=8),
    volumes("volumes of 15 MB", 15_000_000, 100, 2, 64, buffer=2, turn_s=1.5),
    volumes("volumes of 147 MB", 146_600_628, 30, 1, 128, buffer=1, turn_s=4),
    Scene("BERT sequences of 512", "bert", dict(FACTS["bert"].variants["base"].sample), 8192, 32, turn_s=1.5),
    Scene(
        "windows of 2,049 tokens",
        "gpt_neox",
        dict(FACTS["gpt_neox"].variants["reference"].sample),
        4096,
        8,
        ("tokens",),
        turn_s=1.5,
    ),
)
NUM_PROCESSES, MOST_PROCESSES, NUM_PAIRS, PREFETCH = 3, 9, 6, 2
WIDE = 0.05
"""A cell gets more processes while its interval reaches further than this to a side of its median."""
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
Ready = Callable[..., Any]


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


def sequence_ready(*fields: Any) -> dict[str, torch.Tensor]:
    """Indices as models take them."""
    names = SEQUENCE if len(fields) > 1 else ("tokens",)
    return {
        name: torch.from_numpy(np.asarray(field).astype(np.int64)) for name, field in zip(names, fields, strict=True)
    }


class Rows(Dataset[Any]):
    """A map-style dataset; what it opens, it opens in the worker."""

    def __init__(self, stored: Stored, ready: Ready) -> None:
        index = stored.index
        self.form, self.kind = stored.manifest.format, stored.manifest.kind
        self.image, self.seq_len = self.kind == "image", stored.manifest.params.get("seq_len")
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
        if self.kind == "mlm":
            return as_fields(np.load(self.files[at]))
        return np.load(self.files[at]), np.load(self.files[at].replace("_x.npy", "_y.npy"))

    def from_hdf5(self, at: int) -> Any:
        self.opened = self.opened or h5py.File(self.files[0], "r")
        if self.kind == "mlm":
            return [self.opened[name][at] for name in SEQUENCE]
        if not self.image:
            group = self.opened[self.keys[at]]
            return group["image"][()], group["label"][()]
        start, end = self.opened["image_offsets"][at : at + 2]
        return pil(self.opened["image"][start:end].tobytes()), self.opened["label"][at]

    def from_lmdb(self, at: int) -> Any:
        if self.opened is None:
            self.opened = lmdb.open(self.files[0], subdir=False, readonly=True, lock=False, readahead=False)
        with self.opened.begin() as txn:
            if self.kind == "mlm":
                return as_fields(np.load(io.BytesIO(txn.get(f"{at:010d}/npy".encode()))))
            image, label = (txn.get(f"{at:010d}/{field}".encode()) for field in ("image", "label"))
        return (pil(image), int(label)) if self.image else (np.load(io.BytesIO(image)), np.load(io.BytesIO(label)))

    def from_tokens(self, at: int) -> Any:
        if self.opened is None:
            code = Path(self.files[0]).with_suffix(".idx").read_bytes()[17]
            self.opened = np.memmap(self.files[0], {4: np.int32, 8: np.uint16}[code], "r")
        return (np.array(self.opened[at * self.seq_len : (at + 1) * self.seq_len + 1]),)


def as_fields(record: Any) -> list[Any]:
    return [record[name] for name in SEQUENCE]


def pil(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


class Records(IterableDataset[Any]):
    """TFRecords of a worker's shards by the package's reader, mixed across shards in its shuffle queue."""

    def __init__(self, shards: list[str], ready: Ready, kind: str, buffer: int) -> None:
        self.shards, self.ready, self.kind, self.buffer = shards, ready, kind, buffer

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        mine = self.shards[info.id :: info.num_workers] if info else self.shards
        orders = (random.sample(mine, len(mine)) for _ in itertools.count())  # as WebDataset's shardshuffle
        found = (each for order in orders for shard in order for each in tfrecord_loader(shard, None))
        return map(self.transform, shuffle_iterator(found, self.buffer))

    def transform(self, found: Any) -> Any:
        if self.kind == "mlm":
            fields = [found[name] for name in SEQUENCE]
            return self.ready(*fields[:-1], fields[-1].reshape(()))
        if self.kind == "image":
            return self.ready(pil(bytes(found["image/encoded"])), found["image/class/label"][0])
        image = np.frombuffer(found["X"], np.float32).reshape(found["X_shape"])
        return self.ready(image, np.frombuffer(found["Y"], np.uint8).reshape(found["Y_shape"]))


def plain(stored: Stored, size: int, batch: int, workers: int, buffer: int) -> DataLoader[Any]:
    """The DataLoader of the plainest script."""
    kind = stored.manifest.kind
    made = {"image": partial(image_ready, size=size), "volume": partial(volume_ready, size=size)}
    ready: Ready = made.get(kind, sequence_ready)
    common: dict[str, Any] = {
        "batch_size": batch,
        "num_workers": workers,
        "prefetch_factor": PREFETCH,
        "multiprocessing_context": "fork",  # as in a script that was started, where this process was spawned
    }
    shards = [str(stored.folder / file.path) for file in stored.manifest.files if file.num_samples]
    if stored.manifest.format == "webdataset":
        names = {"image": ("jpg", "cls"), "volume": ("image.npy", "label.npy")}.get(kind, ("npy",))
        tars = wds.WebDataset(shards, shardshuffle=100).repeat().shuffle(buffer).decode("pil").to_tuple(*names)
        parts = tars.map(lambda found: ready(*(as_fields(found[0]) if kind == "mlm" else found)))
        return DataLoader(parts, **common)
    if stored.manifest.format == "tfrecord":
        return DataLoader(Records(shards, ready, kind, buffer), **common)
    rows = Rows(stored, ready)
    return DataLoader(rows, sampler=RandomSampler(rows, num_samples=1 << 30), **common)


def seconds_a_sample(batches: Iterator[Any], scene: Scene, ahead: int, most: int | None) -> float:
    """Seconds a sample for a while, once the queue is as it stays; of at most so many samples, the queue's included."""
    for _ in range(ahead):
        next(batches)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < scene.turn_s and (most is None or done + (ahead + 1) * scene.batch <= most):
        next(batches)
        done += scene.batch
    return (time.perf_counter() - began) / done


@dataclass(frozen=True)
class Turn:
    """One contender's turn at a dataset."""

    scene: Scene
    stored: Stored
    workers: int
    cold: bool

    def __call__(self, start: Callable[[], tuple[Iterator[Any], Callable[[], None]]]) -> float:
        if self.cold:
            evict(self.stored.data_files())
        batches, stop = start()
        try:
            ahead = self.workers * PREFETCH + 1
            return seconds_a_sample(batches, self.scene, ahead, self.scene.samples if self.cold else None)
        finally:
            stop()

    def ours(self) -> tuple[Iterator[Any], Callable[[], None]]:
        """Our reader's batches, and how to stop it."""
        spec = DataSpec(
            reader="stock",
            num_workers=self.workers,
            prefetch_factor=PREFETCH,
            pin_memory=False,
            shuffle_buffer=self.scene.buffer,
        )
        kind = load(KINDS, self.stored.manifest.kind)
        seed = random.getrandbits(31)  # another order in each turn, as the script's: on a disk one order costs more
        loader = loader_of(spec)(LoaderInput(self.stored, spec, kind, self.scene.params, self.scene.batch, 0, 1, seed))
        return iter(lambda: next(loader), None), loader.close

    def script(self) -> tuple[Iterator[Any], Callable[[], None]]:
        """The plain script's batches; its workers end with it."""
        size = self.scene.params.get("image_size") or self.scene.params.get("patch_size") or 0
        loader = plain(self.stored, size, self.scene.batch, self.workers, self.scene.buffer)
        return iter(loader), lambda: None


class Cell(NamedTuple):
    """What is compared: samples, format, workers, cold or warm."""

    title: str
    form: str
    workers: int
    cold: bool


class Compared(NamedTuple):
    """Samples/s of the script, and its seconds over ours: above 1, ours gives more samples/s."""

    rate: Ratio
    ratio: Ratio


Pairs = tuple[list[float], list[float]]
"""The script's rates, and the ratios."""


def cells(folder: Path, scene: Scene, form: str, wanted: Set[Cell] | None = None) -> dict[Cell, Pairs]:
    """The pairs of each cell of a format, or of those wanted, in this process."""
    if not (target := folder / form).exists():
        make_one(folder, scene.workload, FACTS[scene.workload].kind, scene.params, scene.samples, form, {})
    stored, found = open_dataset(target), {}
    for cold, workers in itertools.product((False, True), (1, 2)):
        cell = Cell(scene.title, form, workers, cold)
        if wanted is not None and cell not in wanted:
            continue
        if not cold:
            warm(stored.data_files())
        turn, rates = Turn(scene, stored, workers, cold), []

        def of_script(turn: Turn = turn, rates: list[float] = rates) -> float:
            seconds = turn(turn.script)
            rates.append(1 / seconds)
            return seconds

        found[cell] = rates, pairs(of_script, partial(turn, turn.ours), NUM_PAIRS)
    return found


def wide(ratio: Ratio) -> bool:
    """Whether the interval reaches too far to a side."""
    return max(ratio.median - ratio.low, ratio.high - ratio.median) > WIDE


def compared(folder: Path, scene: Scene, form: str) -> dict[Cell, Compared]:
    """Each cell of a format, over several processes; more of them where its interval stays wide."""
    parts: dict[Cell, list[Pairs]] = {}
    for number in range(MOST_PROCESSES):
        wanted = {cell for cell, found in parts.items() if number < NUM_PROCESSES or wide(pooled(found).ratio)}
        if number and not wanted:
            break
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            for cell, found in pool.submit(cells, folder, scene, form, wanted or None).result().items():
                parts.setdefault(cell, []).append(found)
    return {cell: pooled(found) for cell, found in parts.items()}


def pooled(parts: list[Pairs]) -> Compared:
    """What the processes of a cell gave."""
    return Compared(*(over_processes(found) for found in zip(*parts, strict=True)))


def report(folder: Path) -> dict[Cell, Compared]:
    """Every cell of every scene."""
    found: dict[Cell, Compared] = {}
    for scene in SCENES:
        place = folder / scene.title.replace(" ", "-")
        for form in scene.formats:
            for cell, one in compared(place, scene, form).items():
                found[cell] = one
                print(f"   {cell}: script {one.rate.median:.1f} samples/s, ours / script {one.ratio}", flush=True)
        shutil.rmtree(place, ignore_errors=True)
    return found


def orders(found: dict[Cell, Compared]) -> list[str]:
    """Pairs of formats whose script's intervals do not overlap, and which ours puts in another order."""
    wrong = []
    for (a, one), (b, other) in itertools.combinations(found.items(), 2):
        if a[0] != b[0] or a[2:] != b[2:]:
            continue
        apart = one.rate.high < other.rate.low or one.rate.low > other.rate.high
        of_ours = [each.rate.median * each.ratio.median for each in (one, other)]
        if apart and (one.rate.median < other.rate.median) != (of_ours[0] < of_ours[1]):
            wrong.append(f"{a.title}, {a.workers} workers, {'cold' if a.cold else 'warm'}: {a.form} and {b.form}")
    return wrong


def show(folder: Path) -> None:
    """Print each cell as it is measured, and what all come to."""
    print("(k) reader stock beside the plainest script with the same library: samples/s over the script's")
    found = report(folder)
    off = {cell: abs(compared.ratio.median - 1) for cell, compared in found.items()}
    middle = float(np.median([compared.ratio.median for compared in found.values()]))
    near, wrong = sum(apart <= MAX_APART for apart in off.values()) / len(off), orders(found)
    print(goal(abs(middle - 1) <= MAX_MEDIAN, f"median of all cells within {MAX_MEDIAN:.0%}: {middle:.3f}"))
    print(goal(near >= MIN_NEAR, f"{MIN_NEAR:.0%} of cells within {MAX_APART:.0%}: {near:.0%}"))
    print(goal(not wrong, f"the same order where the scripts' rates are apart: {'; '.join(wrong) or 'everywhere'}"))
