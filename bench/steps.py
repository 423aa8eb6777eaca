"""(a) The step time of a trial over that of the shortest plain PyTorch loop doing the same work."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from bench.pairs import Ratio, interleaved
from bench.scenes import photographs_in
from bench.tables import goal
from benchsuite.contract.rank_samples import Heartbeat
from benchsuite.storage.dataset.kinds import IMAGE, decode_one, sample_rng
from benchsuite.storage.dataset.manifest import Dataset as StoredDataset
from benchsuite.storage.dataset.manifest import Sample, open_dataset
from benchsuite.storage.dataset.spec import DataSpec
from benchsuite.storage.loaders import Batch
from benchsuite.storage.loaders.reader import LoaderInput
from benchsuite.storage.loaders.torch import TorchLoader
from benchsuite.trial.clock import HostClock
from benchsuite.trial.feed import Feed, Stepper
from benchsuite.workloads.layout import Layout
from benchsuite.workloads.parallel.apply import prepare
from benchsuite.workloads.parallel.step import StepClock, Training
from benchsuite.workloads.precision import Scaler
from benchsuite.workloads.resnet50 import WORKLOAD
from benchsuite.workloads.spec import ComputeSpec

MAX_RATIO, MAX_OWN_RATIO = 1.02, 1.01
BATCH = 8
STEPS = 4
"""Steps per block; a pair is one block of each."""
PAIRS = 100
DIRECT_STEPS = 20_000
OWN_BATCH = 13
"""Makes a step of about 50 ms."""
OWN_STEPS = 2
OWN_PAIRS = 300
VARIANT = WORKLOAD.variants["tiny"]


class PlainImages(Dataset[tuple[Tensor, Tensor]]):
    """The shortest dataset of the same JPEGs: one read, the same decoding."""

    def __init__(self, dataset: StoredDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset.index)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        entry = self.dataset.index[row]
        image = (self.dataset.folder / entry["file"].decode()).read_bytes()
        key = entry["key"].decode()
        sample = Sample(key, {"image": image, "label": str(entry["label"]).encode()})
        decoded = decode_one(IMAGE, sample, VARIANT.sample, sample_rng(0, 0, key))
        return decoded["image"], decoded["label"]


def endless(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Epoch after epoch."""
    while True:
        yield from loader


def plain_loop(model: torch.nn.Module, next_batch: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], float]:
    """A block of the shortest loop; returns its seconds."""
    optimizer = WORKLOAD.optimizer(model.parameters())

    def run() -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            images, labels = next_batch()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - start

    return run


def harness(training: Training, folder: Path, next_batch: Callable[[], Batch]) -> Callable[[], float]:
    """A block of the trial's loop; returns its seconds."""
    stepper = Stepper(training, HostClock(), Heartbeat(folder, 0))

    def run() -> float:
        start = time.perf_counter()
        stepper.run(next_batch, STEPS)
        return time.perf_counter() - start

    return run


def file_loops(
    training: Training, model: torch.nn.Module, folder: Path, dataset: StoredDataset, workers: int
) -> tuple[Callable[[], float], Callable[[], float]]:
    """Blocks of the trial's loop and of the plain one, on the same JPEG files with as many workers."""
    spec = DataSpec(num_workers=workers, pin_memory=False)
    loader = TorchLoader(LoaderInput(dataset, spec, IMAGE, VARIANT.sample, BATCH, 0, 1, 0))
    images = endless(
        DataLoader(
            PlainImages(dataset),
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=spec.prefetch_factor if workers else None,
        )
    )
    return harness(training, folder, Feed(loader, dataset, BATCH)), plain_loop(model, lambda: next(images))


def direct_cost_us(folder: Path) -> float:
    """Microseconds a step costs the harness when the step itself does nothing but mark its parts."""
    zero = torch.zeros(())
    batch: Batch = {}

    def step(_batch: Batch, clock: StepClock) -> Tensor:
        for part in ("h2d", "forward", "backward", "communication", "optimizer"):
            clock.mark(part)
        return zero

    optimizer = torch.optim.SGD([torch.nn.Parameter(zero)])
    training = Training(step, dict, torch.nn.Module(), optimizer, Scaler("fp32", torch.device("cpu")))
    stepper = Stepper(training, HostClock(), Heartbeat(folder, 0))
    start = time.perf_counter()
    stepper.run(lambda: batch, DIRECT_STEPS)
    return (time.perf_counter() - start) / DIRECT_STEPS * 1e6


class Bare:
    """A clock that notes nothing."""

    def mark(self, part: str) -> None:
        pass


def bare_loop(training: Training, batch: Batch) -> Callable[[], float]:
    """A block of the trial's own steps without its clock, counters and heartbeat; returns its seconds."""
    bare = Bare()

    def run() -> float:
        start = time.perf_counter()
        for _ in range(OWN_STEPS):
            training.step(batch, bare)
        return time.perf_counter() - start

    return run


def own_cost() -> tuple[dict[str, Ratio], float]:
    """Instrumented over bare steps of about 50 ms, and the bare step in milliseconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = WORKLOAD.build(VARIANT)
    device = torch.device("cpu")
    training = prepare(WORKLOAD, model, Layout("none"), ComputeSpec(), device, OWN_BATCH)
    batch = WORKLOAD.synthetic(VARIANT, OWN_BATCH, device)
    with tempfile.TemporaryDirectory() as name:
        stepper = Stepper(training, HostClock(), Heartbeat(Path(name), 0))

        def instrumented() -> float:
            start = time.perf_counter()
            stepper.run(lambda: batch, OWN_STEPS)
            return time.perf_counter() - start

        bare, other = bare_loop(training, batch), bare_loop(training, batch)
        for warm_up in (instrumented, bare, other):
            warm_up()
        ratios = {
            "instrumented / bare": interleaved(instrumented, bare, OWN_PAIRS),
            "null run: bare / bare": interleaved(other, bare, OWN_PAIRS),
        }
        return ratios, bare() / OWN_STEPS * 1e3


def measure(files: Path) -> tuple[dict[str, Ratio], float, float]:
    """Ratios by name, the direct cost in microseconds, and the plain step in milliseconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = WORKLOAD.build(VARIANT)
    device = torch.device("cpu")
    training = prepare(WORKLOAD, model, Layout("none"), ComputeSpec(), device, BATCH)
    batch = WORKLOAD.synthetic(VARIANT, BATCH, device)
    pair = (batch["image"], batch["label"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, other = plain_loop(model, lambda: pair), plain_loop(model, lambda: pair)
        ours = harness(training, folder, lambda: batch)
        dataset = open_dataset(files)
        pairs = {workers: file_loops(training, model, folder, dataset, workers) for workers in (0, 1)}
        for warm_up in (plain, other, ours, *pairs[0], *pairs[1]):
            warm_up()
        ratios = {
            "trial / plain loop, batch in memory": interleaved(ours, plain, PAIRS),
            "null run: plain / plain": interleaved(other, plain, PAIRS),
            "trial / plain loop, reading JPEG files in the same process": interleaved(*pairs[0], PAIRS),
            "trial / plain loop, JPEG files through one worker each": interleaved(*pairs[1], PAIRS),
        }
        return ratios, direct_cost_us(folder), plain() / STEPS * 1e3


def show(folder: Path) -> None:
    """Print the ratios, the direct cost of a step and the harness's own."""
    ratios, direct_us, step_ms = measure(photographs_in(folder))
    print(f"(a) step time of a trial over the shortest plain PyTorch loop (plain step {step_ms:.1f} ms, 1 thread)")
    for name, ratio in ratios.items():
        print(f"    {name}: {ratio}")
        if name.startswith("trial"):
            print(goal(ratio.low <= MAX_RATIO, f"lower bound <= {MAX_RATIO}"))
    print(f"    direct cost of clock, counters and heartbeat: {direct_us:.1f} us a step")
    own, bare_ms = own_cost()
    print(f"    own cost of the harness in steps of {bare_ms:.0f} ms: with clock and heartbeat over without")
    for name, ratio in own.items():
        print(f"    {name}: {ratio}")
    print(goal(own["instrumented / bare"].high <= MAX_OWN_RATIO, f"whole interval <= {MAX_OWN_RATIO}"))
    print(f"    overhead_fraction by direct cost: {direct_us / bare_ms / 1e3:.5%}")
