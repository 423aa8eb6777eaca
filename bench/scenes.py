"""Datasets of reference samples in every format, and loaders that read them, for the sections that time loaders."""

import gc
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import plain, raw
from benchsuite.storage import KINDS, default_reader, load, loader_of
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset, in_order
from benchsuite.storage.dataset.kinds import Kind
from benchsuite.storage.dataset.manifest import Dataset, open_dataset
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders import LoaderProtocol
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.observe.page_cache import evict
from benchsuite.workloads.facts import FACTS

FORMATS = ("files", "hdf5", "lmdb", "webdataset", "tfrecord")
WARM_S = 1.0
PREFETCH = 2
Batches = Iterator[plain.Counted]
Started = tuple[Batches, Callable[[], None]]
"""Batches, and how to stop them."""


@dataclass(frozen=True)
class Scene:
    """What is loaded: a dataset in every format, and how."""

    title: str
    datasets: dict[str, Dataset]
    kind: Kind
    params: dict[str, int]
    batch: int
    workers: int
    samples: list[Sample] = field(default_factory=list)
    """Samples in memory, for `work`: what decoding and augmenting them is the limit, where reading is not."""
    work: Callable[[list[Sample]], float] | None = None


def photographs_in(folder: Path) -> Path:
    """Generate a small dataset of files; its folder."""
    generate_dataset(folder / "files", Wanted("resnet50", "tiny", "files"), 256)
    return folder / "files"


def make_volumes(folder: Path, samples: int) -> dict[str, Dataset]:
    """Volumes of UNet3D's reference size in every format, and as .npz."""
    spec = FACTS["unet3d"]
    params = spec.variants["reference"].sample
    made = partial(make_one, folder, "unet3d", spec.kind, params, samples)
    return {name: made(name, {}) for name in FORMATS} | {"files npz": made("files npz", {"array": "npz"})}


def make_images(folder: Path, samples: int) -> dict[str, Dataset]:
    """Photographs like ImageNet's in every format."""
    spec = FACTS["resnet50"]
    return {
        name: make_one(folder, "resnet50", spec.kind, spec.variants["reference"].sample, samples, name, {})
        for name in FORMATS
    }


def make_one(
    folder: Path,
    workload: str,
    kind: str,
    params: object,
    samples: int,
    name: str,
    options: dict[str, int | str],
    variant: str = "reference",
) -> Dataset:
    """A dataset by a format's name, `npz` after it or not: generated where it is the first, else converted."""
    target, form = folder / name.replace(" ", "-"), name.partition(" ")[0]
    if form in ("webdataset", "tfrecord"):
        options = {"shard_samples": max(1, samples // 8)}
    wanted = Wanted(workload, variant, form, kind, params, options)  # type: ignore[arg-type]
    if not (folder / "files").exists():
        generate_dataset(target, wanted, samples)
    else:
        convert_dataset(folder / "files", target, wanted)
    return open_dataset(target)


def volume_scene(folder: Path, samples: int, workers: int) -> Scene:
    """UNet3D at its reference size."""
    spec = FACTS["unet3d"]
    datasets = make_volumes(folder, samples)
    title = f"UNet3D volumes, {samples} samples of {datasets['files'].manifest.stored_bytes / samples / 1e6:.0f} MB"
    return Scene(title, datasets, load(KINDS, spec.kind), dict(spec.variants["reference"].sample), 2, workers)


def image_scene(folder: Path, samples: int, workers: int) -> Scene:
    """ResNet-50 at its reference size."""
    spec = FACTS["resnet50"]
    datasets = make_images(folder, samples)
    title = (
        f"ImageNet-like JPEGs, {samples} samples of {datasets['files'].manifest.stored_bytes / samples / 1e3:.0f} KB"
    )
    stored = in_order(datasets["files"])
    held = [Sample(sample.key, {name: bytes(value) for name, value in sample.fields.items()}) for sample in stored]
    kind, params = load(KINDS, spec.kind), dict(spec.variants["reference"].sample)
    work = partial(raw.decode_and_augment, kind=kind, params=params)
    return Scene(title, datasets, kind, params, 16, workers, held, work)


def spec_of(scene: Scene, name: str, loader: str) -> DataSpec:
    """What a loader is asked for, by its own reader."""
    return DataSpec(
        format=name.partition(" ")[0],
        reader=default_reader(loader),
        loader=loader,
        num_workers=scene.workers,
        prefetch_factor=PREFETCH,
        pin_memory=False,
    )


def ours(scene: Scene, name: str, loader: str) -> Started:
    """The batches of a loader, and how to stop it."""
    spec = spec_of(scene, name, loader)
    built: LoaderProtocol = loader_of(spec)(
        LoaderInput(scene.datasets[name], spec, scene.kind, scene.params, scene.batch, 0, 1, 0)
    )

    def batches() -> Batches:
        while True:
            delivered = next(built)
            yield delivered.batch, delivered.rows

    return batches(), built.close


def hand_made(scene: Scene, name: str, loader: str) -> "Callable[[], Started] | None":
    """How to start the plainest use of the same library; None where there is none, or section `stock` has it."""
    dataset = scene.datasets[name]
    common = (dataset, scene.kind, scene.params, scene.batch, scene.workers)
    if loader == "threads":
        return partial(_closing, plain.thread_batches, *common) if plain.getter(dataset) else None
    if dataset.manifest.kind == "image" and dataset.manifest.format in ("files", "webdataset", "tfrecord"):
        return partial(_closing, plain.dali_batches, dataset, scene.params, scene.batch, scene.workers)
    return None


def _closing(make: Callable[..., Generator[plain.Counted]], *arguments: object) -> Started:
    made = make(*arguments)
    return made, made.close


def turn(start: Callable[[], Started], scene: Scene, name: str, cold: bool) -> float:
    """Bytes per second of one contender's turn."""
    dataset = scene.datasets[name]
    gc.collect()
    if not cold:
        return warm_rate(start, dataset, scene.batch, scene.workers * PREFETCH + 2)
    evict(dataset.data_files())
    return cold_rate(start, dataset, scene.batch)


def warm_rate(start: Callable[[], Started], dataset: Dataset, batch_size: int, queued: int) -> float:
    """Bytes of samples, as stored, per second for WARM_S after an epoch and what was queued by then."""
    batches, close = start()
    try:
        for _ in range(queued + dataset.manifest.num_samples // batch_size):
            next(batches)
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < WARM_S:
            done += _stored_bytes(dataset, next(batches), batch_size)
        return done / (time.perf_counter() - begin)
    finally:
        close()


def cold_rate(start: Callable[[], Started], dataset: Dataset, batch_size: int) -> float:
    """Bytes of samples, as stored, per second of an epoch's whole batches, the start of the loader included."""
    begin = time.perf_counter()
    batches, close = start()
    try:
        wanted = range(dataset.manifest.num_samples // batch_size)
        done = sum(_stored_bytes(dataset, next(batches), batch_size) for _ in wanted)
        return done / (time.perf_counter() - begin)
    finally:
        close()


def _stored_bytes(dataset: Dataset, counted: plain.Counted, batch_size: int) -> int:
    """Bytes of a batch's samples; their mean where the library does not tell which they are."""
    _, rows = counted
    mean_bytes = dataset.manifest.stored_bytes // dataset.manifest.num_samples
    return int(dataset.index["bytes"][rows].sum()) if rows else mean_bytes * batch_size
