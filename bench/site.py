"""Fourteen nights of a site, from a wheel: the disk slows on the tenth, benchsuite changes on the twelfth.

The wheel is installed into an environment of its own. Emulated accelerators read photographs cold from a disk that is
limited to a rate.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.tables import goal
from bench.throttle import throttled
from benchsuite.contract.exit_codes import REGRESSION
from benchsuite.contract.version import VERSION
from benchsuite.nightly import init
from benchsuite.nightly.night import git, publish
from benchsuite.results.export.asv import export
from benchsuite.results.store.record import TrialFigures, TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.storage.create.convert import Wanted, generate_dataset

MAX_PUBLISH_S = 120.0
ROOT = Path(__file__).parents[1]
NIGHTS, SLOW_FROM, UPGRADED_ON = 14, 10, 12
FAST_BYTES_PER_S, SLOW_BYTES_PER_S = 24_000_000, 15_000_000
NEXT = f"{VERSION}.post1"
SAMPLES = 1200
MANY = 2000
AXES: Mapping[str, Sequence[Any]] = {
    "data.format": ("files", "webdataset", "hdf5", "lmdb", "tfrecord", "tokens"),
    "data.reader": ("stock", "tuned"),
    "data.loader": ("torch", "threads", "dali"),
    "precision": ("fp32", "bf16"),
    "batch_size": (8, 16, 32, 64),
    "world_size": (1, 2, 4, 8, 16, 32, 64),
}


class Night(NamedTuple):
    """What one night came to."""

    number: int
    seconds_per_sample: float
    code: int
    said: list[str]
    """What `check` said."""


def sweep(data: Path) -> dict[str, object]:
    """Two points that the disk holds back."""
    reading = {"root": str(data), "cache": "cold", "num_workers": 1, "prefetch_factor": 2, "loader": "torch"}
    measure = {"steps": 24, "warmup_steps": 2, "repeats": 3, "timeout_s": 120, "ceilings": False}
    base = {"workload": "resnet50", "variant": "tiny", "batch_size": 8, "device": "emulated:20ms", "parallelism": "ddp"}
    return {
        "name": "photographs",
        "base": {**base, "threads_per_rank": 1, "data": reading, "measure": measure},
        "grid": {"data.format": ["files"], "data.shuffle": [True], "world_size": [1]},
    }


def wheel(folder: Path, version: str) -> Path:
    """A wheel of this checkout, of such a version."""
    source = folder / f"source-{version}"
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", ".asv", "__pycache__"))
    for name in ("pyproject.toml", "benchsuite/contract/version.py"):
        text = (source / name).read_text()
        assert f'"{VERSION}"' in text
        (source / name).write_text(text.replace(f'"{VERSION}"', f'"{version}"', 1))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / version)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (built,) = (folder / version).glob("*.whl")
    return built


def environment(folder: Path) -> Path:
    """The interpreter of a new environment, which finds the libraries that are here, and no benchsuite."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    # A path in a .pth file is searched, and .pth files in it, such as that of an editable installation, are not read.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def install(python: Path, built: Path) -> None:
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--force-reinstall",
        str(built),
    ]
    subprocess.run(command, check=True, capture_output=True)


def nights(folder: Path) -> tuple[Path, list[Night]]:
    """Run all nights; the site's repository, and what each came to."""
    generate_dataset(
        folder / "data" / "files", Wanted("resnet50", "reference", "files", params={"image_size": 224}), SAMPLES
    )
    (folder / "photographs.yaml").write_text(yaml.safe_dump(sweep(folder / "data")))
    wheels, python = {version: wheel(folder, version) for version in (VERSION, NEXT)}, environment(folder / "env")
    install(python, wheels[VERSION])
    env = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("BENCHSUITE_")
    }

    def benchsuite(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", "benchsuite", *words]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)

    site = folder / "nights"
    made = benchsuite("nightly", "init", str(site), "--sweep", str(folder / "photographs.yaml"))
    assert made.returncode == 0, made.stderr
    found = []
    for number in range(1, NIGHTS + 1):
        if number == UPGRADED_ON:
            install(python, wheels[NEXT])
        with throttled(folder, SLOW_BYTES_PER_S if number >= SLOW_FROM else FAST_BYTES_PER_S):
            done = benchsuite("nightly", "run", str(site), "--session", f"2026-11-{number:02}")
        start = re.search(r"^(nothing judged|compared with|ok:|regression:|\d+ points? ha)", done.stdout, re.MULTILINE)
        said = done.stdout[start.start() :].splitlines() if start else (done.stdout + done.stderr).splitlines()[-3:]
        found.append(Night(number, _seconds(site, number), done.returncode, said))
        took_ms = found[-1].seconds_per_sample * 1e3
        print(f"    night {number:2}: {took_ms:6.2f} ms a sample, exit code {done.returncode}: {said[0]}", flush=True)
    return site, found


def _seconds(site: Path, number: int) -> float:
    """Seconds per sample that asv has of a night."""
    found = ["git", "-C", str(site), "log", "--format=%H", f"--grep=^night 2026-11-{number:02}:", "-1"]
    commit = subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()
    (path,) = (site / ".asv/results").glob(f"*/{commit[:8]}-benchsuite.json")
    results = json.loads(path.read_text())["results"]
    return float(results["sweeps.photographs__resnet50__ddp.track_seconds_per_sample"][0][0])


def regressions(site: Path) -> list[list[object]]:
    """What asv's page of regressions holds."""
    told = json.loads((site / ".asv/html/regressions.json").read_text())
    return list(told["regressions"])


def many_points(folder: Path) -> tuple[float, float]:
    """Seconds of exporting 2,000 points of two nights into asv's history, and of its pages."""
    site, store = folder / "nights", ResultsStore(folder / "store")
    init.make(site, None)
    points = [*itertools.islice(itertools.product(*AXES.values()), MANY)]
    commits = []
    for night in (1, 2):
        for number, point in enumerate(points):
            store.append(_trial(night, number, dict(zip(AXES, point, strict=True))))
        git(site, "commit", "-q", "--allow-empty", "-m", f"night {night}")
        commits.append(git(site, "rev-parse", "HEAD"))
    began_s = time.perf_counter()
    for night, commit in enumerate(commits, start=1):
        export(store, site / "asv.conf.json", "site", commit, session=f"night-{night}")
    exported_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    publish(site)
    return exported_s, time.perf_counter() - began_s


def _trial(night: int, number: int, point: dict[str, Any]) -> TrialRecord:
    """A made-up record of a point."""
    data = {name.removeprefix("data."): value for name, value in point.items() if name.startswith("data.")}
    spec = {name: value for name, value in point.items() if not name.startswith("data.")}
    moment = f"2026-01-0{night}T00:{number // 60 % 60:02d}:{number % 60:02d}.000000+00:00"
    return TrialRecord(
        record_id=f"{night}-{number}",
        trial_id=f"{number}.night-{night}.0",
        point_id=f"point-{number}",
        session=f"night-{night}",
        repeat=0,
        sweep="grid",
        status="ok",
        started_at=moment,
        finished_at=moment,
        spec={
            "workload": "resnet50",
            "parallelism": "ddp",
            "device": "cuda",
            "data": {"source": "storage", **data},
            **spec,
        },
        env={"host": "here", "cores": 2, "libraries": {}},
        figures=TrialFigures(samples_per_s=100.0 + number, au=0.5, peak_memory_bytes=1000),
    )


def show(folder: Path) -> None:
    """Print the nights' alarms, asv's page of regressions, and what many points take."""
    print(f"(n3) {NIGHTS} nights of a site with asv, from a wheel")
    print(f"    the disk slows on the {SLOW_FROM}th, benchsuite changes on the {UPGRADED_ON}th")
    repository, found = nights(folder)
    alarmed = [night for night in found if night.code == REGRESSION]
    for line in alarmed[0].said if alarmed else []:
        print(f"    {line}")
    first = alarmed[0].number if alarmed else 0
    print(goal(first in (SLOW_FROM, SLOW_FROM + 1), f"named by the second slow night (on the {first}th)"))
    early = [night.number for night in alarmed if night.number < SLOW_FROM]
    print(goal(not early, f"no alarm before (alarms: {early})"))
    last = " ".join(found[-1].said)
    print(goal("benchsuite itself changed" not in last, "the new version, two nights later, is no cause of it"))
    names = [str(entry[0]) for entry in regressions(repository)]
    print(goal(any("seconds_per_sample" in name for name in names), f"on asv's page of regressions: {names}"))
    exported_s, published_s = many_points(folder / "many")
    print(f"    {MANY} points: exported in {exported_s:.0f} s, published in {published_s:.0f} s")
    print(goal(exported_s + published_s <= MAX_PUBLISH_S, f"within {MAX_PUBLISH_S:.0f} s"))
