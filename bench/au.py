"""(i) Utilization beside a known truth: readers that take a known time a sample feed steps that take a known time.

Every trial goes the whole way: planned, forked by the launcher, read by its loader, reduced to a record.
"""

import importlib
import itertools
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.tables import goal
from benchsuite import storage
from benchsuite.analysis.record_builder import conclude, new_attempt
from benchsuite.grid.blocks import LOADER_BLOCKS
from benchsuite.grid.expand import plan_trial
from benchsuite.grid.point import Point
from benchsuite.host.machine import this_machine
from benchsuite.launch.launcher import Launcher, load_launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.storage.dataset.manifest import MANIFEST, open_dataset, read_manifest
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.workloads.gpt_neox import WORKLOAD

PLUGIN = Path(__file__).parent / "paced"
NUM_SAMPLES = 256
VARIANT = "nano"
TOLERANCE = 0.01
"""How far a measured AU may be from the truth."""
RETRIES = 4
"""A trial that is off is measured again so often, and the median of all taken."""


@dataclass(frozen=True)
class Case:
    """One trial whose utilization is known."""

    step_s: float
    batch: int
    ratio: float
    """Seconds of a step over those in which a rank's readers make a batch; one reader, where it reads in line."""
    workers: int
    prefetch: int = 2
    ranks: int = 1
    steps: int = 30
    loader: str = "threads"
    hand_over_s: float = 0.0
    """What a loader itself computes for a batch read in line: the samples take so much less."""

    @property
    def batch_s(self) -> float:
        """Seconds in which a rank's readers make a batch."""
        return self.step_s / self.ratio

    @property
    def sample_us(self) -> int:
        """What a reader takes for a sample."""
        reading_s = self.batch_s - (0.0 if self.workers else self.hand_over_s)
        return round(reading_s * max(1, self.workers) / self.batch * 1e6)

    @property
    def truth(self) -> float:
        """Utilization: readers in advance hide all but what they take longer than the step; reading in line adds up."""
        return min(1.0, self.ratio) if self.workers else self.step_s / (self.step_s + self.batch_s)

    @property
    def label(self) -> str:
        """In words."""
        queue = f"{self.workers} x {self.prefetch}" if self.workers else "in line"
        step = f"{self.step_s * 1e3:g} ms, batch {self.batch}"
        return f"{step}, {queue}, {self.ranks} ranks, {self.steps} steps, {self.loader}"


def register() -> None:
    """Let this process, and those it starts, find the format `paced`."""
    if str(PLUGIN) not in sys.path:
        sys.path.insert(0, str(PLUGIN))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PLUGIN), os.environ.get("PYTHONPATH")]))


def unregister(python_path: str | None) -> None:
    """Undo `register`; `python_path` is what PYTHONPATH was."""
    sys.path.remove(str(PLUGIN))
    if python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = python_path


def spec_of(case: Case, root: Path) -> dict[str, Any]:
    """The trial of a case."""
    return {
        "workload": "gpt_neox",
        "variant": VARIANT,
        "device": f"emulated:{case.step_s * 1e6:g}us",
        "parallelism": "ddp" if case.ranks > 1 else "none",
        "world_size": case.ranks,
        "batch_size": case.batch,
        "data": {
            "root": str(root),
            "format": "paced",
            "cache": "warm",
            "loader": case.loader,
            "num_workers": case.workers,
            "prefetch_factor": case.prefetch,
        },
        "measure": {"steps": case.steps, "warmup_steps": 1, "timeout_s": 60},
    }


def dataset_of(case: Case, folder: Path) -> Path:
    """The dataset whose samples take as long as the case says; made when missing, all but the first as a copy."""
    root, base = folder / f"paced-{case.sample_us}", folder / "paced"
    if not base.exists():
        params = WORKLOAD.variants[VARIANT].sample
        generate_dataset(
            base, Wanted("gpt_neox", VARIANT, "paced", kind="tokens", params=params), NUM_SAMPLES, num_workers=1
        )
    if not root.exists():
        shutil.copytree(base, root)
        manifest = read_manifest(root).model_copy(update={"options": {"sample_us": case.sample_us}})
        (root / MANIFEST).write_text(manifest.model_dump_json())
    return root


def hand_over_s(loader_name: str, folder: Path) -> float:
    """What a loader takes for a batch read in line besides its samples' time: the median of 30 batches."""
    case = Case(0.01, 4, 1.0, workers=0, loader=loader_name)
    dataset = open_dataset(dataset_of(case, folder))
    spec = DataSpec(format="paced", num_workers=0, pin_memory=False)
    kind = storage.load(storage.KINDS, "tokens")
    params = WORKLOAD.variants[VARIANT].sample
    loader = storage.load(storage.LOADERS, loader_name)(LoaderInput(dataset, spec, kind, params, case.batch, 0, 1, 0))
    excess = []
    for _ in range(30):
        time.sleep(case.step_s)
        started = time.perf_counter()
        next(loader)
        excess.append(time.perf_counter() - started - case.batch * case.sample_us / 1e6)
    loader.close()
    return statistics.median(excess)


@contextmanager
def registered() -> Iterator[None]:
    """`register`, until the block ends."""
    path = os.environ.get("PYTHONPATH")
    register()
    try:
        yield
    finally:
        unregister(path)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Real-time priority for what is started meanwhile, where this user may: other processes then disturb less."""
    before, param = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, param)


def pairwise(every: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Some of all combinations, such that each two values that stand together in one of all do so in one of these."""
    positions = list(itertools.combinations(range(len(every[0])), 2))
    wanted = {(i, j, combination[i], combination[j]) for combination in every for i, j in positions}
    found = []
    while wanted:
        best = max(every, key=lambda c: sum((i, j, c[i], c[j]) in wanted for i, j in positions))
        wanted -= {(i, j, best[i], best[j]) for i, j in positions}
        found.append(best)
    return found


POINTS = (
    *((0.0035, batch, ratio) for batch, ratio in ((1, 0.5), (2, 0.9), (4, 0.25), (4, 1.5))),
    *((0.010, batch, ratio) for batch, ratio in ((1, 0.75), (4, 0.5), (8, 0.95), (4, 1.2))),
    *((0.030, batch, ratio) for batch, ratio in ((2, 0.6), (7, 0.8), (4, 1.1), (4, 2.0))),
)
"""Step seconds, batch, and the time of a step over that of its batch."""
QUEUES = ((0, 1), (1, 2), (2, 2), (4, 2), (8, 4))
"""Workers and batches that each keeps ready."""
RANKS, STEPS, LOADERS = (1, 2, 4), (3, 30), ("threads", "torch")
HANDING_OVER_S = {"threads": 0.0002, "torch": 0.001}
"""About what a core computes for a batch that a reader hands to its rank."""


def affordable(case: Case) -> bool:
    """Whether half of this machine's cores can hand over the batches of all ranks as fast as the steps take them.

    Ranks that read in line need a core each: how those that share one get in each other's way is no arithmetic.
    """
    if not case.workers and case.ranks > this_machine().cores:
        return False
    return case.ranks * HANDING_OVER_S[case.loader] / case.step_s <= this_machine().cores / 2


def all_cases() -> list[Case]:
    """Every point with every queue, number of ranks and of steps, and loader, as far as the cores allow."""
    return [_case(combination) for combination in _affordable()]


def some_cases() -> list[Case]:
    """The pairwise part of them."""
    return [_case(combination) for combination in pairwise(_affordable())]


def _case(combination: tuple[Any, ...]) -> Case:
    point, queue, ranks, steps, loader = combination
    return Case(*point, *queue, ranks=ranks, steps=steps, loader=loader)


def _affordable() -> list[tuple[Any, ...]]:
    every = itertools.product(POINTS, QUEUES, RANKS, STEPS, LOADERS)
    return [combination for combination in every if affordable(_case(combination))]


def point_of(case: Case, folder: Path, changes: Mapping[str, Any] | None = None) -> Point:
    """The case's trial, resolved; `changes` replace fields of its spec."""
    return plan_trial({**spec_of(case, dataset_of(case, folder)), **(changes or {})})


def with_samples(
    case: Case, folder: Path, launcher: Launcher, changes: Mapping[str, Any] | None = None
) -> tuple[TrialRecord, dict[str, Any] | None]:
    """The record of a case's trial, and its raw samples."""
    point = point_of(case, folder, changes)
    for path in dataset_of(case, folder).glob("begun-*"):
        path.unlink()
    attempt = new_attempt(point, "default", 0, "au", None)
    with tempfile.TemporaryDirectory(prefix="benchsuite-au-") as name:
        outcome = launcher.run(point.spec, point.dataset, Path(name), lambda progress: None)
        return conclude(attempt, outcome, Path(name))


def measured(case: Case, folder: Path, launcher: Launcher, changes: Mapping[str, Any] | None = None) -> TrialRecord:
    """The record of a case's trial."""
    return with_samples(case, folder, launcher, changes)[0]


def seen(case: Case, root: Path, samples: Mapping[str, Any]) -> float:
    """Utilization by the readers' own clock: a step over the time from one batch's beginning to the next one's.

    For batches read in line. A step ends for all ranks at once, so the first to begin the next batch tells when. Left
    out is what lies between two blocks of steps, and how late the device's host wakes, which a device does not wait
    for: from a block's first batch to its last one it counts once.
    """
    counted = math.ceil(case.steps / LOADER_BLOCKS)
    late_s = min(statistics.mean(block["late_s"] for block in rank["blocks"]) for rank in samples["ranks"])
    begun = [
        moments[:: case.batch][-LOADER_BLOCKS * counted :] for moments in importlib.import_module("paced").begun_s(root)
    ]
    span_s = float(np.diff(np.min(begun, axis=0).reshape(LOADER_BLOCKS, counted), axis=1).mean())
    return case.step_s / (span_s - late_s / (counted - 1))


@dataclass(frozen=True)
class Found:
    """A case, and what its repeats gave."""

    case: Case
    au: list[float]
    off_readers: list[float]
    """AU less that by the readers' own clock; of batches read in line."""
    late_s: float
    """Mean lateness of waking from steps, the worst block of all repeats."""

    @property
    def by_readers(self) -> bool:
        """Whether the readers' own clock is the truth: what a loader computes for a batch varies with the machine."""
        return bool(self.off_readers) and abs(statistics.median(self.au) - self.case.truth) > TOLERANCE

    @property
    def error(self) -> float:
        """Median AU less the truth."""
        by_readers = self.by_readers
        return statistics.median(self.off_readers) if by_readers else statistics.median(self.au) - self.case.truth


def measure(folder: Path, cases: Sequence[Case], repeats: int) -> list[Found]:
    """Each case measured `repeats` times, and RETRIES times more where it is off then."""
    with registered(), undisturbed(), load_launcher("auto") as launcher:
        costs = {name: hand_over_s(name, folder) for name in LOADERS}
        known = [replace(case, hand_over_s=costs[case.loader]) for case in cases]
        return [_found(case, folder, launcher, repeats) for case in known]


def _found(case: Case, folder: Path, launcher: Launcher, repeats: int) -> Found:
    found = Found(case, [], [], 0.0)
    for number in range(repeats + RETRIES):
        if number == repeats and abs(found.error) <= TOLERANCE:
            break
        record, samples = with_samples(case, folder, launcher)
        if record.figures.au is None or samples is None:
            raise RuntimeError(f"{case.label}: {record.status}: {record.reason}")
        off = [] if case.workers else [record.figures.au - seen(case, dataset_of(case, folder), samples)]
        late = max(found.late_s, *(block["late_s"] for rank in samples["ranks"] for block in rank["blocks"]))
        found = Found(case, [*found.au, record.figures.au], [*found.off_readers, *off], late)
    return found


def show(folder: Path) -> None:
    """Print the table: all combinations with --full, else a pairwise part of them."""
    full = "--full" in sys.argv
    print(f"(i) AU of emulated devices beside the truth; load average {os.getloadavg()[0]:.1f}")
    print("| trial | truth | AU | least..most | error |")
    print("|---|---|---|---|---|")
    found = measure(folder, all_cases(), 1) if full else measure(folder, some_cases(), 3)
    for one in found:
        values = f"{np.median(one.au):.3f} | {min(one.au):.3f}..{max(one.au):.3f}"
        truth = "readers' clock" if one.by_readers else f"{one.case.truth:.3f}"
        print(f"| {one.case.label} | {truth} | {values} | {one.error:+.3f} |")
    errors = np.abs([one.error for one in found])
    far = int((errors > TOLERANCE).sum())
    late = np.median([one.late_s for one in found])
    print(f"    {len(found)} trials: mean error {errors.mean():.4f}, largest {errors.max():.3f}, {far} beyond the goal")
    print(f"    {sum(one.by_readers for one in found)} by the readers' own clock")
    print(goal(far == 0, f"all within {TOLERANCE}"))
    print(f"    ranks woke {late * 1e3:.3f} ms late on average in the middle trial")
