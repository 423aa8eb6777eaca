"""Every format x loader beside the raw limit and beside the plainest use of its library, warm and cold, in one run.

Contenders take turns for several rounds, since machines drift; a cell is the median over rounds of the rate, and ratios
are medians of ratios within a round. A cold rate is that of a whole epoch, with the start of the loader; a warm one
begins after an epoch.
"""

import gc
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from bench import plain, raw
from benchsuite.storage import KINDS, LOADERS, default_reader, load, loader_of, reader_problem
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset, in_order
from benchsuite.storage.dataset.kinds import Kind
from benchsuite.storage.dataset.manifest import Dataset, open_dataset
from benchsuite.storage.dataset.sample import Sample
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders import LoaderProtocol
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.observe.page_cache import evict, warm
from benchsuite.workloads.facts import FACTS

FORMATS = ("files", "hdf5", "lmdb", "webdataset", "tfrecord")
ROUNDS = 3
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


@dataclass
class Cell:
    """Rates of one contender over rounds, bytes per second, and of what it is compared to in the same rounds."""

    rates: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)

    def ratio(self, others: list[float]) -> float | None:
        """Median of ratios within rounds."""
        return float(np.median(np.divide(self.rates, others))) if others else None


Table = dict[tuple[str, str, bool], Cell]
"""Cells by format, loader, and whether the files are cold."""


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


def make_sequences(folder: Path, workload: str, variant: str, samples: int) -> dict[str, Dataset]:
    """Sequences of a workload in every format that holds such."""
    spec = FACTS[workload]
    names = [*FORMATS, *(["tokens"] if spec.kind == "tokens" else [])]
    made = partial(make_one, folder, workload, spec.kind, spec.variants[variant].sample, samples)
    return {name: made(name, {}, variant) for name in names}


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


def measure(scene: Scene, loaders: tuple[str, ...], rounds: int = ROUNDS) -> Table:
    """All cells of a scene: every cell has its turn before any has its next, since machines drift over minutes."""
    table: Table = {}
    order = [(name, cold) for name in scene.datasets for cold in (False, True)]
    for _, (name, cold) in product(range(rounds), order):
        dataset = scene.datasets[name]
        (evict if cold else warm)(dataset.data_files())
        read = raw.read_rate(dataset, scene.workers, cold)
        limit = read if scene.work is None else raw.decode_rate(scene.samples, scene.work, scene.workers)
        for loader in loaders:
            if reader_problem(spec_of(scene, name, loader), dataset.manifest):
                continue
            cell = table.setdefault((name, loader, cold), Cell())
            cell.raw.append(read)
            cell.limits.append(limit)
            _take_turns(cell, scene, name, loader, cold)
        evict(dataset.data_files())
    cells = ((name, loader, cold) for name, cold in order for loader in loaders)
    return {cell: table[cell] for cell in cells if cell in table}


def _take_turns(cell: Cell, scene: Scene, name: str, loader: str, cold: bool) -> None:
    """One round of a cell: our loader, then the plainest use of its library."""
    cell.rates.append(turn(partial(ours, scene, name, loader), scene, name, cold))
    by_hand = hand_made(scene, name, loader)
    if by_hand is not None:
        cell.plain.append(turn(by_hand, scene, name, cold))


def turn(start: Callable[[], Started], scene: Scene, name: str, cold: bool) -> float:
    """Bytes per second of one contender's turn."""
    dataset = scene.datasets[name]
    gc.collect()
    if not cold:
        return warm_rate(start, dataset, scene.batch, scene.workers * PREFETCH + 2)
    evict(dataset.data_files())
    return cold_rate(start, dataset, scene.batch)


def table_lines(scene: Scene, table: Table) -> list[str]:
    """The cells of a scene as a Markdown table."""
    lines = [
        f"**{scene.title}**",
        "",
        "| format | cache | preadv MB/s | limit MB/s | loader | samples/s | MB/s | / limit | / plain use |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (name, loader, cold), cell in table.items():
        manifest = scene.datasets[name].manifest
        speed = float(np.median(cell.rates))
        by_hand_ratio = cell.ratio(cell.plain)
        lines.append(
            f"| {name} | {'cold' if cold else 'warm'} | {np.median(cell.raw) / 1e6:,.0f} | "
            f"{np.median(cell.limits) / 1e6:,.0f} | {loader} | "
            f"{speed * manifest.num_samples / manifest.stored_bytes:,.1f} | {speed / 1e6:,.0f} | "
            f"{cell.ratio(cell.limits):.2f} | {'-' if by_hand_ratio is None else f'{by_hand_ratio:.2f}'} |"
        )
    return lines


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


def sequence_scene(folder: Path, workload: str, variant: str, samples: int, batch: int, workers: int) -> Scene:
    """BERT's samples, or windows of GPT-NeoX."""
    spec = FACTS[workload]
    datasets = make_sequences(folder, workload, variant, samples)
    params = dict(spec.variants[variant].sample)
    size = datasets["files"].manifest.stored_bytes / samples / 1e3
    title = f"{workload} {variant}, {samples} samples of {params['seq_len']} tokens, {size:.1f} KB"
    return Scene(title, datasets, load(KINDS, spec.kind), params, batch, workers)


VOLUMES, IMAGES, SEQUENCES = 32, 1600, 4096


MIN_WARM_VOLUMES, MIN_IMAGES = 0.80, 0.90
"""Shares of the limit that the best loader has to reach."""


def report(folder: Path, workers: int) -> tuple[str, list[tuple[bool, str]]]:
    """Both scenes' tables as Markdown, and goals: whether each was met."""
    volumes = volume_scene(folder / "volumes", VOLUMES, workers)
    of_volumes = measure(volumes, tuple(LOADERS))
    lines = table_lines(volumes, of_volumes)
    shutil.rmtree(folder / "volumes")
    images = image_scene(folder / "images", IMAGES, workers)
    alone = raw.decode_rate(images.samples, raw.decode_only, workers)
    lines += ["", f"The JPEG library alone decodes {alone / 1e6:,.0f} MB/s.", ""]
    of_images = measure(images, tuple(LOADERS))
    goals = [
        *best_goals("warm volumes", of_volumes, False, MIN_WARM_VOLUMES, ("files", "hdf5", "lmdb")),
        *best_goals("warm JPEGs", of_images, False, MIN_IMAGES, FORMATS),
        *best_goals("cold JPEGs", of_images, True, MIN_IMAGES, FORMATS),
        *plain_goals("volumes", of_volumes),
        *plain_goals("JPEGs", of_images),
    ]
    return "\n".join([*lines, *table_lines(images, of_images)]), goals


def best_goals(
    what: str, table: Table, cold: bool, wanted: float, formats: tuple[str, ...]
) -> Iterator[tuple[bool, str]]:
    """Whether the best loader of each format reaches so much of the limit."""
    for name in formats:
        cells = [cell for (form, _, is_cold), cell in table.items() if (form, is_cold) == (name, cold)]
        best = max(cell.ratio(cell.limits) or 0.0 for cell in cells)
        yield best >= wanted, f"{what}, {name}: best loader / limit {best:.2f} >= {wanted}"


def plain_goals(what: str, table: Table) -> Iterator[tuple[bool, str]]:
    """Whether each loader is as fast as the plainest use of its library, warm, in every format."""
    for loader in LOADERS:
        warm = {name: cell.ratio(cell.plain) for (name, of, cold), cell in table.items() if of == loader and not cold}
        known = {name: ratio for name, ratio in warm.items() if ratio is not None}
        if known:
            least = min(known, key=lambda name: known[name])
            yield known[least] >= 1, f"{what}, {loader}: over its plainest use {known[least]:.2f} >= 1 (least: {least})"


def report_sequences(folder: Path, workers: int) -> str:
    """Tables of the language models' samples, which DALI does not decode, as Markdown."""
    scenes = (
        sequence_scene(folder / "bert", "bert", "reference", SEQUENCES, 32, workers),
        sequence_scene(folder / "gpt", "gpt_neox", "reference", SEQUENCES, 16, workers),
    )
    return "\n\n".join("\n".join(table_lines(scene, measure(scene, ("torch", "threads")))) for scene in scenes)
