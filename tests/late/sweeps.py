"""Sweeps of two nodes on one store, each by way of a late mount of its own."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Bench
from tests.late.mounts import LATE_S, LateMounts, shifted

LEASE_S = 2 * LATE_S + 5
"""A beat is seen when it is as old as the mounts are late."""
DEADLINE_S = 200
MEASURE = {"steps": 3, "warmup_steps": 1, "repeats": 1}
BASE = {"workload": "resnet50", "variant": "nano", "device": "cpu", "batch_size": 2, "measure": MEASURE}
AHEAD = pytest.param(shifted("+7h"), id="+7h")
BEHIND = pytest.param(shifted("-7h"), id="-7h", marks=pytest.mark.full)


def on(mount: Path) -> Path:
    """The store, by way of a mount."""
    return mount / "store"


def start(bench: Bench, mount: Path, file: Path, *options: object, before: list[str] | None = None) -> Any:
    bench.before = before or []
    return bench.start("sweep", file, "--store", on(mount), "--lease", LEASE_S, *options)


def ended(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """What a sweep said until it ended with this code."""
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code and "Traceback" not in err, err
    return err


def records(mounts: LateMounts, bench: Bench) -> list[dict[str, Any]]:
    """Every trial's record, as it lies in the folder that both mounts show."""
    bench.store = on(mounts.source)
    return bench.records()


def rehearsed(points: int) -> dict[str, Any]:
    """A sweep whose trials take as long as REHEARSED_S says."""
    base = {**BASE, "workload": "faulty", "variant": "sound", "data": {"source": "synthetic"}}
    return {"name": "rehearsed", "base": base, "grid": {"batch_size": [*range(1, points + 1)]}}
