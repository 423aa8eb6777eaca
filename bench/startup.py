"""(b) What a 2-rank trial costs beyond its own steps, beside torchrun's start; (c) the time of `benchsuite --help`."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.scenes import photographs_in
from bench.tables import goal, spread
from benchsuite.results.store.store import ResultsStore

MAX_TRIAL_COST_S, MAX_HELP_S = 0.5, 0.3
TORCHRUN_SCRIPT = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
HELP_RUNS = 20
TORCHRUN_RUNS = 5


def sweep_of(root: Path) -> dict[str, Any]:
    """Twenty 2-rank tiny trials from memory and twenty from warm files with one worker a rank."""
    return {
        "name": "startup",
        "base": {
            "workload": "resnet50",
            "variant": "tiny",
            "data": {"root": str(root), "format": "files", "cache": "warm", "num_workers": 1},
            "device": "cpu",
            "parallelism": "ddp",
            "world_size": 2,
            "batch_size": 4,
            "measure": {"steps": 10, "warmup_steps": 2, "repeats": 20},
        },
        "grid": {"data.source": ["memory", "storage"]},
    }


def trial_costs(root: Path, folder: Path) -> dict[str, list[float]]:
    """Seconds per trial from launch to stored record, less the steps of its slowest rank; the first is left out."""
    path = folder / "startup.yaml"
    path.write_text(yaml.safe_dump(sweep_of(root)))
    store = ResultsStore(folder / "store")
    command = ["-c", "from benchsuite.cli.app import main; main()", "sweep", str(path), "--store", str(store.path)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    costs: dict[str, list[float]] = {}
    for record in store.latest()[1:]:
        samples = store.samples(record)
        assert samples is not None and record.wall_s is not None
        steps = max(rank["steps_s"] for rank in samples["ranks"])
        costs.setdefault(str(record.spec["data"]["source"]), []).append(record.wall_s - steps)
    return costs


def torchrun_starts(folder: Path) -> list[float]:
    """Seconds of torchrun with two ranks that form a gloo group, meet once and end."""
    script = folder / "empty.py"
    script.write_text(TORCHRUN_SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    return [_timed(command) for _ in range(TORCHRUN_RUNS)]


def help_times() -> list[float]:
    """Seconds of `benchsuite --help`, Python's own start included."""
    return [_timed([str(Path(sys.executable).with_name("benchsuite")), "--help"]) for _ in range(HELP_RUNS)]


def _timed(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def show(folder: Path) -> None:
    """Print what a trial, torchrun's start and `--help` take."""
    photographs_in(folder)
    print("(b) a 2-rank tiny trial beyond its own steps, the sweep under way")
    for source, costs in trial_costs(folder, folder).items():
        print(f"    source {source}: {spread(costs)}")
        print(goal(float(np.median(costs)) <= MAX_TRIAL_COST_S, f"<= {MAX_TRIAL_COST_S} s"))
    print(f"    torchrun, 2 ranks, gloo group, one barrier: {spread(torchrun_starts(folder))}")
    times = help_times()
    print(f"(c) benchsuite --help: {spread(times)}")
    print(goal(float(np.median(times)) <= MAX_HELP_S, f"<= {MAX_HELP_S} s"))
