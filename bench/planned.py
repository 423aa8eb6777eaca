"""(g) Steps and memory of one CUDA device as `plan` says them, assumed and with `--measured`, beside the trials."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchsuite.grid.expand import plan_trial
from benchsuite.probe.device import verb
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner.single_trial import run_in_processes
from benchsuite_plan.layout import machines, models
from benchsuite_plan.layout.candidates import Choices, Job
from benchsuite_plan.layout.layout_search import Planned, plan
from benchsuite_plan.layout.measured import of_store

MACHINES = {"H100": "dgx-h100", "H200": "dgx-h200", "A100": "dgx-a100"}
CELLS = (
    ("bert-large", 32, 1, "none"),
    ("gpt2", 4, 1, "none"),
    ("gpt2", 32, 1, "none"),
    ("gpt2-medium", 8, 1, "none"),
    ("gpt2-medium", 8, 1, "selective"),
    ("gpt2-medium", 8, 1, "full"),
    ("gpt2-large", 8, 1, "none"),
    ("gpt2-large", 8, 4, "none"),
    ("gpt2-xl", 4, 1, "none"),
    ("gpt2-xl", 16, 1, "full"),
)
"""Model, samples of a microbatch, microbatches, recompute."""


@dataclass(frozen=True)
class Row:
    """One layout: planned as assumed and as measured, and what the trial took; or why it did not run."""

    name: str
    assumed: Planned
    measured: Planned
    step_s: float | None
    memory_bytes: float | None
    reason: str | None


def rows(folder: Path) -> Iterator[Row]:
    """Probe the device, then plan and run one layout after the other."""
    name = torch.cuda.get_device_name()
    machine = machines.load(next(file for word, file in MACHINES.items() if word in name))
    verb("cuda:0", 0.5, folder / "store", "planned", "json")
    told = of_store(ResultsStore(folder / "store"), machine, "bf16")
    print(f"    {name}, as {machine.title}; measured: {told}")
    for model, size, count, recompute in CELLS:
        job = Job(models.load(model), machine, 1, size * count, "bf16", recipe="trial")
        choices = Choices(zero=(0,), recompute=(recompute,), microbatch=(size,))
        both = [plan(each, choices).first for each in (job, replace(job, measured=told))]
        record, _ = run_in_processes(
            plan_trial({**(both[0].trial or {}), "measure": {"steps": 20, "warmup_steps": 10}})
        )
        found, words = record.figures, f"{model}, {size} x {count}, recompute {recompute}"
        yield Row(words, both[0], both[1], found.step_s_mean, found.peak_memory_bytes, record.reason)


def show(folder: Path) -> None:
    """Print each layout's interval and whether it holds what was measured."""
    if not torch.cuda.is_available():
        print("(g) plans beside trials on a CUDA device: not run; torch sees none")
        return
    print("(g) plans beside trials on a CUDA device, bfloat16, not compiled")
    for row in rows(folder):
        if row.step_s is None or row.memory_bytes is None:
            print(f"    {row.name}: {row.reason}")
            continue
        ours, by_probes = row.assumed.step_s, row.measured.step_s
        print(
            f"    | {row.name} | {1e3 * row.step_s:.1f} ms | "
            f"{1e3 * ours.value:.1f} [{1e3 * ours.low:.1f} {1e3 * ours.high:.1f}] | {1e3 * by_probes.value:.1f} | "
            f"{row.memory_bytes / 1e9:.2f} GB | {row.assumed.memory_bytes / 1e9:.2f} |"
        )
