"""(i2) Utilization of a real device beside the truth: paced readers feed a model on the CPU whose step waits.

What a step takes with no pipeline is measured by trials with `source: memory` beside, and what a loader takes to hand
over a batch that is ready by itself, so that the truth owes nothing to the trial that is judged.
"""

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import storage
from bench.au import (
    LOADERS,
    PLUGIN,
    POINTS,
    QUEUES,
    VARIANT,
    Case,
    dataset_of,
    hand_over_s,
    measured,
    pairwise,
    registered,
    undisturbed,
)
from benchsuite.launch import Launcher, load_launcher
from benchsuite.machine import this_machine
from storage.format import open_dataset
from storage.loaders.reader import Reading
from storage.spec import DataSpec
from workloads.gpt_neox import WORKLOAD as NEOX

REPEATS = 6
"""From the least of six to the most is a 95 % interval of their median (`results.frames.median_interval`)."""
RANKS, STEPS = (1, 2, 4), (3, 12)
RANK_CORE_S = 0.001
"""About what a core computes for a step of one rank: marks, backward, exchange, update."""
MAX_TRIAL_S = 2.0
"""Cases whose trials take longer are left out: deep queues of slow readers are filled anew for every ceiling block."""
SETTLE_S, WARM_S = 0.01, 0.0003
"""A loader is left alone so long, and then asked by a core that has been at work."""
MIN_INSIDE, NEAR = 0.95, 0.005
"""So many truths are in their intervals; one so far outside of it is counted apart."""
MEMORY_STEPS = 12


@dataclass(frozen=True)
class Known:
    """What is known of a case's trial before it is run."""

    case: Case
    taking_s: float
    """What its loader takes to hand over a batch that is ready."""

    def truth(self, step_s: float) -> float:
        """Utilization, given what a step takes with no pipeline."""
        case = self.case
        paced_s = case.sample_us * case.batch / max(1, case.workers) / 1e6
        if not case.workers:
            return step_s / (step_s + case.batch_s)
        return step_s / max(step_s + self.taking_s, paced_s)


@dataclass(frozen=True)
class Beside:
    """A case's utilization in each repeat, and the truth by the trial without a pipeline beside it."""

    case: Case
    au: tuple[float, ...]
    truths: tuple[float, ...]

    @property
    def truth(self) -> float:
        """By the median trial without a pipeline."""
        return statistics.median(self.truths)

    @property
    def off(self) -> list[float]:
        """AU of each repeat less the truth beside it: machines drift."""
        return [au - truth for au, truth in zip(self.au, self.truths, strict=True)]

    @property
    def error(self) -> float:
        """The median of that."""
        return statistics.median(self.off)

    @property
    def outside(self) -> float:
        """How far the truth is from the interval of the median; 0 within it."""
        return max(min(self.off), -max(self.off), 0.0)


def changes_of(case: Case) -> dict[str, Any]:
    """What makes an emulated case's trial one of the model that waits."""
    model = {"workload": f"{PLUGIN / 'waits.py'}:WORKLOAD", "variant": f"{case.step_s * 1e3:g}ms"}
    return {**model, "device": "cpu", "threads_per_rank": 1}


def cases() -> list[Case]:
    """A pairwise part of points, queues, ranks, steps and loaders, as far as cores and time allow."""
    every = [
        (point, queue, ranks, steps, loader)
        for point in POINTS
        for queue in QUEUES
        for ranks in RANKS
        for steps in STEPS
        for loader in LOADERS
    ]
    wanted = [found for found in every if _affordable(_case(found))]
    return [_case(found) for found in pairwise(wanted)]


def _case(found: tuple[Any, ...]) -> Case:
    point, queue, ranks, steps, loader = found
    return Case(*point, *queue, ranks=ranks, steps=steps, loader=loader)


def _affordable(case: Case) -> bool:
    cores = case.ranks * RANK_CORE_S / case.step_s
    return cores <= this_machine().cores / 2 and seconds(case) <= MAX_TRIAL_S


def seconds(case: Case) -> float:
    """About what a trial takes: C L C L C, before each C a queue is filled, before each L it is drained."""
    queue = case.workers * case.prefetch
    batch_s = max(case.step_s, case.batch_s) if case.workers else case.step_s + case.batch_s
    loader_steps = 2 * (queue + 1 + max(case.steps / 2, case.workers))
    return 3 * queue * case.batch_s + loader_steps * batch_s + (case.steps + 4) * case.step_s


def taking_s(loader_name: str, folder: Path) -> float:
    """What a loader takes to hand over a batch that is ready: the median of 30."""
    case = Case(0.01, 4, 10.0, workers=2)
    spec = DataSpec(format="paced", num_workers=2, prefetch_factor=2, pin_memory=False)
    params = NEOX.variants[VARIANT].sample
    dataset, kind = open_dataset(dataset_of(case, folder)), storage.load(storage.KINDS, "tokens")
    loader = storage.load(storage.LOADERS, loader_name)(Reading(dataset, spec, kind, params, case.batch, 0, 1, 0))
    taken = []
    for _ in range(30):
        time.sleep(SETTLE_S)
        warm_s = time.perf_counter() + WARM_S
        while (started := time.perf_counter()) < warm_s:
            pass
        next(loader)
        taken.append(time.perf_counter() - started)
    loader.close()
    return statistics.median(taken)


def knowing(cases: Sequence[Case], folder: Path) -> list[Known]:
    """The cases with what their loaders take, measured alone."""
    in_line = {name: hand_over_s(name, folder) for name in LOADERS}
    taking = {name: taking_s(name, folder) for name in LOADERS}
    return [Known(replace(case, hand_over_s=in_line[case.loader]), taking[case.loader]) for case in cases]


def beside(known: Known, folder: Path, launcher: Launcher, repeats: int = REPEATS) -> Beside:
    """A case's trials, each with one without a pipeline before it."""
    case, au, truths = known.case, [], []
    changes = changes_of(case)
    in_memory = {"data": {"root": str(dataset_of(case, folder)), "format": "paced", "source": "memory"}}
    for _ in range(repeats):
        alone = _figure("step_s_mean", replace(case, steps=MEMORY_STEPS), folder, launcher, changes | in_memory)
        truths.append(known.truth(alone))
        au.append(_figure("au", case, folder, launcher, changes))
    return Beside(case, tuple(au), tuple(truths))


def _figure(name: str, case: Case, folder: Path, launcher: Launcher, changes: Mapping[str, Any]) -> float:
    record = measured(case, folder, launcher, changes)
    value = getattr(record.figures, name)
    if value is None:
        raise RuntimeError(f"{case.label}: {record.status}: {record.reason}")
    return float(value)


def measure(folder: Path, wanted: Sequence[Case] | None = None) -> Iterator[Beside]:
    """Each case, as it is measured."""
    with registered(), undisturbed(), load_launcher("auto") as launcher:
        for known in knowing(wanted or cases(), folder):
            yield beside(known, folder, launcher)


def show(folder: Path) -> None:
    """Print the table, as it grows, and how many truths lie in their intervals."""
    print(f"(i2) AU of real steps on the CPU beside the truth; load average {os.getloadavg()[0]:.1f}")
    print("| trial | truth, median | AU, least..most of six | AU - truth, median | truth outside by |")
    print("|---|---|---|---|---|")
    found = []
    for one in measure(folder):
        found.append(one)
        values = f"{one.truth:.3f} | {min(one.au):.3f}..{max(one.au):.3f} | {one.error:+.3f}"
        print(f"| {one.case.label} | {values} | {one.outside:.3f} |", flush=True)
    inside, near = (sum(one.outside <= limit for one in found) for limit in (0.0, NEAR))
    errors = [abs(one.error) for one in found]
    worst = max(one.outside for one in found)
    print(f"    {inside} of {len(found)} truths in the interval, {near} in it or within {NEAR}; farthest {worst:.3f}")
    print(f"    mean distance of the median from the truth {statistics.mean(errors):.4f}, largest {max(errors):.3f}")
    met = inside >= MIN_INSIDE * len(found)
    print(f"   goal: {MIN_INSIDE:.0%} of the truths in their 95 % interval: {'met' if met else 'MISSED'}")
