"""Cold volumes of three formats, beside preadv of the same cold files by as many threads: interleaved pairs.

The table of `loaders` takes the limit once a round, and the disk wanders meanwhile; here each turn has one beside it.
"""

from functools import partial
from pathlib import Path

from bench import raw
from bench.pairs import Ratio, interleaved, print_best
from bench.scenes import cold_rate, ours, volume_scene
from benchsuite.storage.dataset.manifest import Dataset
from benchsuite.storage.observe.page_cache import evict

MIN_RATIO = 0.95
SAMPLES = 24
PAIRS = 8
FORMATS = ("files", "hdf5", "lmdb")
LOADERS = ("torch", "threads")


def measure(folder: Path, workers: int) -> dict[tuple[str, str], Ratio]:
    """The rate of each format's loaders over that of preadv, by format and loader."""
    scene = volume_scene(folder, SAMPLES, workers)

    def limit(dataset: Dataset) -> float:
        evict(dataset.data_files())
        return 1.0 / raw.read_rate(dataset, workers, cold=True)

    def loaded(name: str, loader: str, dataset: Dataset) -> float:
        evict(dataset.data_files())
        return 1.0 / cold_rate(partial(ours, scene, name, loader), dataset, scene.batch)

    return {
        (name, loader): interleaved(
            partial(limit, scene.datasets[name]), partial(loaded, name, loader, scene.datasets[name]), PAIRS
        )
        for name in FORMATS
        for loader in LOADERS
    }


def show(folder: Path) -> None:
    """Print the ratios by format and loader."""
    print("(f3) cold volumes through two workers over preadv of the same files by two threads")
    print_best(measure(folder, 2), MIN_RATIO)
