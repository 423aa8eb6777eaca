"""Every format x loader beside the raw limit and beside the plainest use of its library, warm and cold, in one run.

Contenders take turns for several rounds, since machines drift; a cell is the median over rounds of the rate, and ratios
are medians of ratios within a round. A cold rate is that of a whole epoch, with the start of the loader; a warm one
begins after an epoch.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from bench import raw
from bench.scenes import FORMATS, Scene, hand_made, image_scene, ours, spec_of, turn, volume_scene
from bench.tables import goal
from benchsuite.storage import LOADERS, reader_problem
from benchsuite.storage.observe.page_cache import evict, warm

ROUNDS, WORKERS = 3, 2
VOLUMES, IMAGES = 32, 1600
MIN_WARM_VOLUMES, MIN_IMAGES = 0.80, 0.90
"""Shares of the limit that the best loader has to reach."""


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


def show(folder: Path) -> None:
    """Print both scenes' tables, and whether each goal was met."""
    volumes = volume_scene(folder / "volumes", VOLUMES, WORKERS)
    of_volumes = measure(volumes, tuple(LOADERS))
    print("\n".join(table_lines(volumes, of_volumes)))
    shutil.rmtree(folder / "volumes")
    images = image_scene(folder / "images", IMAGES, WORKERS)
    alone = raw.decode_rate(images.samples, raw.decode_only, WORKERS)
    print(f"\nThe JPEG library alone decodes {alone / 1e6:,.0f} MB/s.\n")
    of_images = measure(images, tuple(LOADERS))
    print("\n".join(table_lines(images, of_images)))
    goals = (
        *best_goals("warm volumes", of_volumes, False, MIN_WARM_VOLUMES, ("files", "hdf5", "lmdb")),
        *best_goals("warm JPEGs", of_images, False, MIN_IMAGES, FORMATS),
        *best_goals("cold JPEGs", of_images, True, MIN_IMAGES, FORMATS),
        *plain_goals("volumes", of_volumes),
        *plain_goals("JPEGs", of_images),
    )
    for met, what in goals:
        print(goal(met, what))
