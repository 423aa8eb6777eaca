"""Photographs of every format, beside decoding and augmenting the same bytes in memory: interleaved pairs.

The table of `loaders` takes the limit once a round; here every turn of a loader has one beside it, in swapped order.
Cold epochs, which begin with the start of the loader, are of more samples here, so that this is a small part of them.
DALI, whose decoder is another, stands beside its own plainest use.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import raw
from bench.pairs import Ratio, interleaved, print_best
from bench.scenes import FORMATS, PREFETCH, Scene, Started, cold_rate, hand_made, image_scene, ours, warm_rate
from benchsuite.storage.observe.page_cache import evict, warm

MIN_RATIO = 0.9
SAMPLES = 800
PAIRS = 10
COLD_SAMPLES = 4800
COLD_PAIRS = 6
LOADERS = ("torch", "threads")


def seconds(scene: Scene, name: str, start: Callable[[], Started]) -> float:
    """Seconds a byte of a loader's turn."""
    return 1.0 / warm_rate(start, scene.datasets[name], scene.batch, scene.workers * PREFETCH + 2)


def of_dali(scene: Scene) -> dict[tuple[str, str], Ratio]:
    """The rate of our `dali` over that of its plainest use by hand, of the formats that DALI reads itself."""
    found = {}
    for name, dataset in scene.datasets.items():
        by_hand = hand_made(scene, name, "dali")
        if by_hand is not None:
            warm(dataset.data_files())
            plainly, loaded = partial(seconds, scene, name, by_hand), partial(ours, scene, name, "dali")
            found[name, "dali"] = interleaved(plainly, partial(seconds, scene, name, loaded), PAIRS)
    return found


def measure(scene: Scene) -> dict[tuple[str, str], Ratio]:
    """The rate of each format's loaders over that of decoding and augmenting, by format and loader."""
    found = {}
    for name in FORMATS:
        warm(scene.datasets[name].data_files())
        for loader in LOADERS:
            loaded = partial(seconds, scene, name, partial(ours, scene, name, loader))
            found[name, loader] = interleaved(partial(limit, scene), loaded, PAIRS)
    return found


def limit(scene: Scene) -> float:
    """Seconds a byte of decoding and augmenting in memory, in as many processes as there are workers."""
    assert scene.work is not None
    return 1.0 / raw.decode_rate(scene.samples[:SAMPLES], scene.work, scene.workers)


def measure_cold(scene: Scene) -> dict[tuple[str, str], Ratio]:
    """Measure whole epochs of evicted files in the same way, the start of the loader included."""

    def loaded(name: str, loader: str) -> float:
        evict(scene.datasets[name].data_files())
        return 1.0 / cold_rate(partial(ours, scene, name, loader), scene.datasets[name], scene.batch)

    return {
        (name, loader): interleaved(partial(limit, scene), partial(loaded, name, loader), COLD_PAIRS)
        for name in FORMATS
        for loader in LOADERS
    }


def show(folder: Path) -> None:
    """Print the ratios of warm and cold photographs, and DALI's."""
    print("(f2) warm photographs through two workers over decoding and augmenting them in memory in two processes")
    scene = image_scene(folder / "warm", SAMPLES, 2)
    print_best(measure(scene), MIN_RATIO)
    print("    DALI over its own plainest use")
    print_best(of_dali(scene), 1.0)
    print("    cold: whole epochs with the start of the loader")
    print_best(measure_cold(image_scene(folder / "cold", COLD_SAMPLES, 2)), MIN_RATIO)
