"""Warm photographs of every format, beside decoding and augmenting the same bytes in memory: interleaved pairs.

The table of `loaders` takes the limit once a round; here every turn of a loader has one beside it, in swapped order.
"""

from functools import partial
from pathlib import Path

from bench import raw
from bench.loaders import FORMATS, PREFETCH, image_scene, ours, warm_rate
from bench.pairs import Ratio, interleaved
from storage.pagecache import warm

SAMPLES = 800
PAIRS = 10
LOADERS = ("torch", "threads")


def measure(folder: Path, workers: int) -> dict[tuple[str, str], Ratio]:
    """The rate of each format's loaders over that of decoding and augmenting, by format and loader."""
    scene = image_scene(folder, SAMPLES, workers)
    assert scene.work is not None
    work = scene.work
    queued = workers * PREFETCH + 2
    found = {}
    for name in FORMATS:
        dataset = scene.datasets[name]
        warm(dataset.data_files())
        for loader in LOADERS:
            start = partial(ours, scene, name, loader)

            def limit() -> float:
                return 1.0 / raw.decode_rate(scene.samples, work, workers)

            def loaded(start: object = start, dataset: object = dataset) -> float:
                return 1.0 / warm_rate(start, dataset, scene.batch, queued)  # type: ignore[arg-type]

            found[name, loader] = interleaved(limit, loaded, PAIRS)
    return found
