"""(h) Reference variants on a CUDA device, bfloat16, compiled: utilization of its peak, and images per second."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.tables import goal
from benchsuite import run_trial
from benchsuite.results.store.record import TrialFigures
from benchsuite.runner.device_check import plain_step_s

MAX_STEP_RATIO = 1.02
STEPS = 30


@dataclass(frozen=True)
class Goal:
    """What is measured, and what it should reach."""

    spec: Mapping[str, Any]
    figure: str
    least: float


GOALS = {
    "GPT-NeoX, shape of pythia-1.4b": Goal(
        {"workload": "gpt_neox", "variant": "pythia-1.4b", "batch_size": 8}, "mfu", 0.50
    ),
    "BERT-large": Goal({"workload": "bert", "variant": "reference", "batch_size": 64}, "mfu", 0.45),
    "ResNet-50, channels_last": Goal(
        {"workload": "resnet50", "variant": "reference", "batch_size": 256, "channels_last": True},
        "samples_per_s",
        2800,
    ),
}
UNET3D = {"workload": "unet3d", "variant": "reference", "batch_size": 4, "channels_last": True, "compile": False}


def trial(spec: Mapping[str, Any]) -> TrialFigures:
    """The figures of a trial on synthetic samples.

    Raises:
        RuntimeError: it failed; with its reason.
    """
    common = {"data": {"source": "synthetic"}, "device": "cuda", "precision": "bf16", "compile": True}
    record = run_trial({**common, **spec, "measure": {"steps": STEPS, "warmup_steps": 10}})
    if record.status != "ok":
        raise RuntimeError(record.reason)
    return record.figures


def unet3d_ratio() -> tuple[float, float]:
    """A trial's step over the plainest loop's, and the trial's in seconds; each best of three, taken in turns."""
    plain, ours = [], []
    for _ in range(3):
        plain.append(plain_step_s({"variant": "reference", **UNET3D}))
        ours.append(trial(UNET3D).step_s_mean or float("nan"))
    return min(ours) / min(plain), min(ours)


def show(_folder: Path) -> None:
    """Print the figures of each reference variant, where there is a CUDA device."""
    if not torch.cuda.is_available():
        print("(h) reference variants on a CUDA device: not run; torch sees none")
        return
    print(f"(h) reference variants on {torch.cuda.get_device_name()}, bfloat16, compiled, synthetic samples")
    for name, wanted in GOALS.items():
        found = trial(wanted.spec)
        value = getattr(found, wanted.figure)
        print(
            f"    {name}: {wanted.figure} {value:.3g}, {found.samples_per_s:,.1f} samples/s, {found.step_s_mean:.4f} s"
        )
        print(goal(value is not None and value >= wanted.least, f"{wanted.figure} >= {wanted.least}"))
    ratio, seconds = unet3d_ratio()
    print(f"    UNet3D 128^3 step over the plainest loop's: {ratio:.3f} ({seconds:.4f} s)")
    print(goal(ratio <= MAX_STEP_RATIO, f"<= {MAX_STEP_RATIO}"))
