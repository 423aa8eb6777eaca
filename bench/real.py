"""(i2) Utilization of a real device beside the truth: paced readers feed a model on the CPU whose step waits.

What a step takes with no pipeline is measured by trials with `source: memory` beside, and what a loader takes to hand
over a batch that is ready by itself, so that the truth owes nothing to the trial that is judged.
"""

import importlib
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.au import (
    LOADERS,
    PLUGIN,
    POINTS,
    QUEUES,
    VARIANT,
    Case,
    dataset_of,
    measured,
    pairwise,
    registered,
    undisturbed,
)
from bench.tables import goal
from benchsuite import storage
from benchsuite.host.machine import this_machine
from benchsuite.launch.launcher import Launcher, load_launcher
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.workloads.gpt_neox import WORKLOAD as NEOX
from benchsuite.workloads.workload import Batch

REPEATS = 6
"""From the least of six to the most is a 95 % interval of their median (`results.store.frames.median_interval`)."""
RANKS, STEPS = (1, 2, 4), (3, 12)
RANK_CORE_S = 0.001
"""About what a core computes for a step of one rank: marks, backward, communication, optimizer."""
MAX_TRIAL_S = 2.0
"""Cases whose trials take longer are left out: deep queues of slow readers are filled anew for every ceiling block."""
TAKING_STEPS = 12
MIN_INSIDE, NEAR = 0.95, 0.005
"""So many truths are in their intervals; one so far outside of it is counted apart."""
MEMORY_STEPS = 12
SHORTEST_S = min(step_s for step_s, *_ in POINTS)


@dataclass(frozen=True)
class Known:
    """What is known of a case's trial before it is run."""

    case: Case
    taking_s: float
    """What its loader takes to hand over a batch that is ready, or for one read in line besides its samples' time."""

    def truth(self, step_s: float) -> float:
        """Utilization, given what a step takes with no pipeline.

        Ranks that read in line do so at the same time, and share the cores.
        """
        case = self.case
        paced_s = case.sample_us * case.batch / max(1, case.workers) / 1e6
        if not case.workers:
            sharing = max(1.0, case.ranks / this_machine().cores)
            return step_s / (step_s + paced_s + self.taking_s * sharing)
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


def taking_s(case: Case, folder: Path) -> float:
    """What the case's loader takes to hand over a batch, besides its samples' time: the median of a plain loop's steps.

    In line, with the case's own readers; else with two that are far faster than its steps, so that batches are ready.
    """
    asked = replace(case, step_s=SHORTEST_S, batch=4, ratio=10.0, workers=2, prefetch=2) if case.workers else case
    spec = DataSpec(format="paced", num_workers=asked.workers, prefetch_factor=2, pin_memory=False)
    params = NEOX.variants[VARIANT].sample
    dataset, kind = open_dataset(dataset_of(asked, folder)), storage.load(storage.KINDS, "tokens")
    loader = storage.load(storage.LOADERS, case.loader)(LoaderInput(dataset, spec, kind, params, asked.batch, 0, 1, 0))
    samples_s = 0.0 if asked.workers else asked.batch * asked.sample_us / 1e6
    taken = []
    for step in _plain_steps(asked.step_s, TAKING_STEPS):
        started = time.perf_counter()
        batch = next(loader).batch
        taken.append(time.perf_counter() - started - samples_s)
        step(batch)
    loader.close()
    return statistics.median(taken)


def _plain_steps(step_s: float, steps: int) -> Iterator[Callable[[Batch], None]]:
    """Steps of the model that waits, with nothing of ours around them."""
    workload = importlib.import_module("waits").WORKLOAD
    model = workload.build(workload.variants[f"{step_s * 1e3:g}ms"])
    optimizer = workload.optimizer(model.parameters())

    def step(batch: Batch) -> None:
        workload.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    yield from itertools.repeat(step, steps)


def beside(case: Case, folder: Path, launcher: Launcher, repeats: int = REPEATS) -> Beside:
    """A case's trials, each after one without a pipeline, and after its loader alone."""
    au, truths = [], []
    changes = changes_of(case)
    in_memory = {"data": {"root": str(dataset_of(case, folder)), "format": "paced", "source": "memory"}}
    for _ in range(repeats):
        known = Known(case, taking_s(case, folder))
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
        for case in wanted or cases():
            yield beside(case, folder, launcher)


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
    print(goal(met, f"{MIN_INSIDE:.0%} of the truths in their 95 % interval"))
