"""(h) Reference variants on a CUDA device, bfloat16, compiled: utilization of its peak, and images per second."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchsuite import run
from benchsuite.results.store.record import TrialFigures
from benchsuite.runner.device_check import plain_step_s

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
    record = run({**common, **spec, "measure": {"steps": STEPS, "warmup_steps": 10}})
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
