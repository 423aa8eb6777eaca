"""AU against a known truth: readers that take a known time per sample feed steps that take a known time.

Both wait by sleeping, so the truth is arithmetic. What is asserted is a ratio of times of one run.
"""

import random
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchsuite.blocks import layout
from benchsuite.clock import HostClock
from benchsuite.measure import Feed, Stepper, interleaved_blocks
from benchsuite.metrics import figures
from benchsuite.ranks import Heartbeat, RankResult
from benchsuite.spec import TrialSpec, parse_trial
from storage import LOADERS, load
from storage.format import Sample, open_dataset
from storage.kinds import Kind
from storage.loaders import Batch
from workloads.parallel.apply import StepClock, Training
from workloads.precision import Scaler

BATCH = 4
SAMPLE_S = 0.008
SPIN_S = 0.0003
"""sleep() is up to 0.2 ms late: the last part of a wait is spun."""
TOLERANCE = 0.08


def wait(seconds: float) -> None:
    """Wait exactly."""
    end = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - SPIN_S))
    while time.perf_counter() < end:
        pass


def slow_decode(sample: Sample, params: Mapping[str, int], rng: random.Random, row: Mapping[str, Tensor]) -> None:
    wait(SAMPLE_S)
    row["image"].zero_()


def measured(
    root: Path, folder: Path, workers: int, prefetch: int, step_s: float, steps: int, loader_name: str = "torch"
) -> dict[str, float]:
    """Figures of a trial whose every duration is known."""
    spec: TrialSpec = parse_trial(
        {
            "workload": "resnet50",
            "data": {
                "root": str(root),
                "loader": loader_name,
                "num_workers": workers,
                "prefetch_factor": prefetch,
                "pin_memory": False,
            },
            "batch_size": BATCH,
            "measure": {"steps": steps},
        }
    )

    def step(batch: Batch, clock: StepClock) -> Tensor:
        clock.mark("h2d")
        wait(step_s)
        for part in ("forward", "backward", "update"):
            clock.mark(part)
        return torch.zeros(())

    dataset = open_dataset(root / "files")
    kind = Kind("slow", lambda params: {"image": (torch.float32, (3,))}, slow_decode)
    loader = load(LOADERS, loader_name)(dataset, spec.data, kind, {}, BATCH, 0, 1, 0)
    feed = Feed(loader, dataset, BATCH)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    training = Training(step, dict, [], optimizer, Scaler("fp32", torch.device("cpu")))
    stepper = Stepper(training, HostClock(), Heartbeat(folder, 0))
    blocks = interleaved_blocks(stepper, feed, feed(), layout(spec))
    loader.close()
    return figures(spec, [RankResult(0, "ok", blocks=blocks, final_loss=0.0)])


@pytest.mark.parametrize("loader", ["torch", "threads"])
@pytest.mark.parametrize(
    ("workers", "prefetch", "step_s", "truth"),
    [
        (1, 2, 0.064, 1.0),  # a reader takes 32 ms a batch: it keeps up
        (1, 2, 0.016, 0.5),
        (2, 4, 0.008, 0.5),  # a full queue of eight batches must not flatter
        (4, 4, 0.004, 0.5),
        (0, 2, 0.032, 0.5),  # no worker: reading and computing take turns
        (0, 2, 0.096, 0.75),
    ],
)
def test_au_is_the_truth(
    dataset_root: Path, tmp_path: Path, workers: int, prefetch: int, step_s: float, truth: float, loader: str
) -> None:
    found = measured(dataset_root, tmp_path, workers, prefetch, step_s, 24, loader)
    assert found["au"] == pytest.approx(truth, abs=TOLERANCE)
    parts = [found[f"{name}_s"] for name in ("load", "h2d", "forward", "backward", "update")]
    assert sum(parts) == pytest.approx(found["step_s_mean"])


def test_few_steps_and_a_deep_queue_do_not_flatter(dataset_root: Path, tmp_path: Path) -> None:
    found = measured(dataset_root, tmp_path, workers=2, prefetch=4, step_s=0.008, steps=4)
    assert found["au"] == pytest.approx(0.5, abs=0.15)
