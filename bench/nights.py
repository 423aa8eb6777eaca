"""(n2) The nightly gate on real repeated runs of this machine: sessions of a small sweep, one after another.

Each session is one `benchsuite sweep` in a process of its own. The last ones run on one core, as a job that gets fewer
cores than it did would; everything else stays as it was.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.tables import goal
from benchsuite.results.compare.nights import nights_of
from benchsuite.results.gate.baseline import Check, check_nights
from benchsuite.results.report.compare import check_lines
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.create.convert import Wanted, generate_dataset

MAX_FALSE_ALARMS = 0.01
QUIET, SLOWED, BASELINE = 46, 2, 14
COMMAND = "from benchsuite.cli.app import main; main()"
SAMPLES = 256


@dataclass(frozen=True)
class Nights:
    """What the gate said."""

    num_points: int
    judged: int
    """Quiet nights on which anything could be judged."""
    alarmed: int
    """Quiet nights on which it alarmed."""
    found_after: int | None
    """Nights on one core until it alarmed; None: not within SLOWED."""
    text: list[str]
    """What it said then."""
    false: list[str]
    """What it said on quiet nights on which it alarmed."""


def sweep_of(root: Path) -> dict[str, object]:
    """Four points: two formats, two batches."""
    base = {
        "workload": "resnet50",
        "variant": "tiny",
        "data": {"root": str(root), "cache": "warm", "num_workers": 1, "prefetch_factor": 1},
        "device": "cpu",
        "threads_per_rank": 1,
        "measure": {"steps": 16, "warmup_steps": 2, "repeats": 2, "ceilings": False},
    }
    return {"name": "nights", "base": base, "grid": {"data.format": ["files", "webdataset"], "batch_size": [2, 4]}}


def run_session(file: Path, store: Path, session: str, cores: set[int]) -> None:
    """One night."""
    subprocess.run(
        [sys.executable, "-c", COMMAND, "sweep", str(file), "--store", str(store), "--session", session],
        check=True,
        capture_output=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


def measure(folder: Path) -> Nights:
    """Run the nights, then judge each with what was known by then."""
    generate_dataset(folder / "data" / "files", Wanted("resnet50", "tiny", "files"), SAMPLES)
    generate_dataset(folder / "data" / "webdataset", Wanted("resnet50", "tiny", "webdataset"), SAMPLES)
    file, store = folder / "nights.yaml", folder / "store"
    file.write_text(yaml.safe_dump(sweep_of(folder / "data")))
    cores = os.sched_getaffinity(0)
    for number in range(QUIET + SLOWED):
        run_session(file, store, f"night-{number:02d}", cores if number < QUIET else {min(cores)})
    nights = nights_of(ResultsStore(store).latest())
    checks = [check_nights(nights[:BASELINE], nights[BASELINE : end + 1]) for end in range(BASELINE, len(nights))]
    quiet, slow = checks[: QUIET - BASELINE], checks[QUIET - BASELINE :]
    first = next((number for number, found in enumerate(slow, 1) if found.alarms), None)
    return Nights(
        num_points=len({key for night in nights for key in night.trials}),
        judged=sum(found.num_judged > 0 for found in quiet),
        alarmed=sum(bool(found.alarms) for found in quiet),
        found_after=first,
        text=_said(slow, first),
        false=[line for found in quiet if found.alarms for line in check_lines(found)],
    )


def _said(slow: list[Check], first: int | None) -> list[str]:
    return check_lines(slow[(first or len(slow)) - 1])


def show(folder: Path) -> None:
    """Print the alarms of quiet nights and of slow ones."""
    print("(n2) the nightly gate on real sessions of this machine, the last ones on one core")
    found = measure(folder)
    print(f"    {found.num_points} points; {found.alarmed} alarms on {found.judged} quiet nights that could be judged")
    print("".join(f"    alarmed: {line}\n" for line in found.false), end="")
    print(goal(found.alarmed <= MAX_FALSE_ALARMS * found.judged, f"on less than {MAX_FALSE_ALARMS:.0%} of nights"))
    print(goal(found.found_after is not None, f"the slow-down found within {SLOWED} nights"))
    print("\n".join(f"    {line}" for line in found.text))
