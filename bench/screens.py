"""(m) Screens of nodes by simulation: how many of healthy nodes accuse one, and how many find the slow one.

Six measures on each node, three samples of each. Nodes differ by chance, their samples too: normal, or with the tails
of Student's t of 5 degrees.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.tables import goal
from benchsuite.results.compare.slow_nodes import NODE, PROBED, outliers

MAX_FALSE_ALARMS = 0.01
NODES = (3, 4, 8, 16, 64)
NOISE = ((0.005, 0.005, 0), (0.01, 0.01, 0), (0.03, 0.01, 0), (0.02, 0.01, 5))
"""Between nodes, within a node, degrees of the tails (0: normal)."""
SLOWER = (0.1, 0.2, 0.4)
MEASURES, SAMPLES, SCREENS = 6, 3, 2000
COLUMNS = [measure.columns[0] for measure in PROBED[:MEASURES]]


def rows(nodes: int, noise: tuple[float, float, int], rng: np.random.Generator, slower: float) -> list[dict[str, Any]]:
    """A screen in which the first node is slower in one measure."""
    between, within, tails = noise

    def chance(*shape: int) -> Any:
        return rng.standard_t(tails, shape) / math.sqrt(tails / (tails - 2)) if tails else rng.standard_normal(shape)

    values = 100 * (1 + between * chance(nodes, MEASURES, 1)) * (1 + within * chance(nodes, MEASURES, SAMPLES))
    values[0, 0] *= 1 - slower
    return [
        {NODE: str(node), **dict(zip(COLUMNS, values[node, :, sample].tolist(), strict=True))}
        for node in range(nodes)
        for sample in range(SAMPLES)
    ]


def share(nodes: int, noise: tuple[float, float, int], slower: float = 0.0) -> float:
    """Of screens: those that accuse a node; with a slow one, those that name it."""
    rng = np.random.default_rng(nodes)
    screens = SCREENS if nodes < 20 else SCREENS // 4
    found = 0
    for _ in range(screens):
        accused = outliers(rows(nodes, noise, rng, slower), PROBED)
        found += any(each.who == "0" for each in accused) if slower else bool(accused)
    return found / screens


def lines() -> Iterator[tuple[int, tuple[float, float, int], list[float]]]:
    """By nodes and noise: false accusations, and the share found of nodes slower by so much."""
    for nodes in NODES:
        for noise in NOISE:
            yield nodes, noise, [share(nodes, noise), *(share(nodes, noise, slower) for slower in SLOWER)]


def show(_folder: Path) -> None:
    """Print a row for each number of nodes and noise, as it is simulated."""
    print("(m) screens of nodes: between nodes, within one, tails; false accusations; found that are slower by")
    print("| nodes | noise | healthy ones accused | " + " | ".join(f"{slower:.0%} slower" for slower in SLOWER) + " |")
    print("|---:|---|---:|" + "---:|" * len(SLOWER))
    worst = 0.0
    for nodes, (between, within, tails), (false, *found) in lines():
        worst = max(worst, false)
        noise = f"{between:.1%}, {within:.1%}{', heavy tails' if tails else ''}"
        print(f"| {nodes} | {noise} | {false:.1%} | " + " | ".join(f"{each:.0%}" for each in found) + " |", flush=True)
    print(goal(worst < MAX_FALSE_ALARMS, f"false accusations < {MAX_FALSE_ALARMS:.0%}"))
