"""One point measured in ten sessions, each a process of its own that begins without a page cache: how far they differ.

LMDB's own reading handed on mapped pages that nobody read and gave 554, 2230 and 2777 samples/s in three sessions. It
copies whole samples since; `mapped` reads as it did then, by a user's own reader, in the same turns. So do sessions of
`stock` in which one thing that may differ between sessions is held. Needs root, for file systems in memory.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from scipy.stats import spearmanr

from bench.scenes import make_one
from benchsuite.results.store.record import TrialRecord
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.observe.page_cache import evict

SESSIONS, NUM_SAMPLES, MEAN_BYTES, PATCH = 10, 40, 15_000_000, 64
MAPPED = '''
import ast

import lmdb
import numpy as np


class Mapped:
    """Views of the map: a patch is cut from pages of which the rest is never touched."""

    def __init__(self, dataset):
        path = str(dataset.folder / "data.mdb")
        self.env = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False)

    def __getitem__(self, row):
        with self.env.begin(buffers=True) as txn:
            return {name: self.view(txn, row, name) for name in ("image", "label")}

    def view(self, txn, row, name):
        content = txn.get(f"{row:010d}/{name}".encode())
        length = int.from_bytes(bytes(content[8:10]), "little")
        header = ast.literal_eval(bytes(content[10 : 10 + length]).decode())
        return np.frombuffer(content, header["descr"], offset=10 + length).reshape(header["shape"])
'''

PINNED = '''
import os

from benchsuite.storage.stock.lmdb import STOCK


class Pinned:
    """The stock reader, in a worker that stays on one core."""

    def __init__(self, dataset):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        self.rows = STOCK.by_row(dataset)

    def __getitem__(self, row):
        return self.rows[row]
'''
KEPT = "kept"
TMPFS = ("never", "always")
"""Folders that are file systems in memory, by whether their pages are huge: of 4 KiB each, or of 2 MiB."""
REUSED = "glibc.malloc.mmap_max=0:glibc.malloc.top_pad=268435456:glibc.malloc.trim_threshold=4294967296"


class Condition(NamedTuple):
    """How sessions read, and what they hold."""

    name: str
    reader: str
    variable: str = ""
    """A variable of its environment: NAME=VALUE."""
    dataset: str = "lmdb"
    """The folder that they read: KEPT is never evicted, those of TMPFS are written anew before each session."""


CONDITIONS = (
    Condition("`stock`", "stock"),
    Condition("`stock`, the same pages in every session", "stock", dataset=KEPT),
    Condition("`stock`, in memory, new folios of 4 KiB in every session", "stock", dataset="never"),
    Condition("`stock`, in memory, new folios of 2 MiB in every session", "stock", dataset="always"),
    Condition("`stock`, memory used again, not touched anew", "stock", f"GLIBC_TUNABLES={REUSED}"),
    Condition("`stock`, no huge pages", "stock", "NUMPY_MADVISE_HUGEPAGE=0"),
    Condition("`stock`, the worker pinned to a core", "pinned.py:Pinned"),
    Condition("`tuned`", "tuned"),
    Condition("mapped pages that nobody reads", "mapped.py:Mapped"),
)


class Sessions(NamedTuple):
    """Samples/s of one condition by session, what the machine copied right before each, and the caveats of any."""

    condition: Condition
    rates: list[float]
    copied: list[float]
    """Volumes/s that a plain loop copies from one piece of memory to another."""
    caveats: list[str]

    @property
    def spread(self) -> float:
        """The largest over the least."""
        return max(self.rates) / min(self.rates)

    @property
    def spread_of_copying(self) -> float:
        """The spread of the plain loop's copying over sessions."""
        return max(self.copied) / min(self.copied)

    @property
    def correlation(self) -> float:
        """Spearman's, of the rates and the plain loop's."""
        return float(spearmanr(self.rates, self.copied).statistic)


@contextmanager
def in_memory(folder: Path) -> Iterator[None]:
    """Mount the folders of TMPFS; `man 5 tmpfs` has the option."""
    mounted: list[Path] = []
    try:
        for huge in TMPFS:
            (folder / huge).mkdir()
            options = ["-o", f"size=2g,huge={huge}"]
            subprocess.run(["mount", "-t", "tmpfs", *options, "benchsuite", str(folder / huge)], check=True)
            mounted.append(folder / huge)
        yield
    finally:
        for place in mounted:
            subprocess.run(["umount", str(place)], check=False)


def renew(folder: Path, dataset: str) -> None:
    """What a dataset's pages are before a session: the same, out of memory, or others than in the last."""
    if dataset in TMPFS:
        for old in (folder / dataset).iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        shutil.copytree(folder / "lmdb", folder / dataset, dirs_exist_ok=True)
    elif dataset != KEPT:
        evict(open_dataset(folder / dataset).data_files())


def report(folder: Path) -> list[Sessions]:
    """Ten sessions of each condition, in turns."""
    params = {"patch_size": PATCH, "mean_bytes": MEAN_BYTES, "stdev_bytes": MEAN_BYTES // 5}
    make_one(folder, "unet3d", "volume", params, NUM_SAMPLES, "files", {})
    make_one(folder, "unet3d", "volume", params, NUM_SAMPLES, "lmdb", {})
    shutil.copytree(folder / "lmdb", folder / KEPT)
    (folder / "mapped.py").write_text(MAPPED)
    (folder / "pinned.py").write_text(PINNED)
    found = [Sessions(condition, [], [], []) for condition in CONDITIONS]
    with in_memory(folder):
        for _ in range(SESSIONS):
            for sessions in found:
                one_more(folder, sessions)
    return found


def one_more(folder: Path, sessions: Sessions) -> None:
    """Add a session."""
    renew(folder, sessions.condition.dataset)
    sessions.copied.append(copies_per_s())
    record = measured(folder, sessions.condition)
    sessions.rates.append(record.figures.loader_only_samples_per_s or record.figures.samples_per_s or 0.0)
    sessions.caveats.extend(name for name in record.caveats if name not in sessions.caveats)


def copies_per_s() -> float:
    """Copies of MEAN_BYTES a second, over half a second: what the machine gives at the moment."""
    source, target = np.ones(MEAN_BYTES, np.uint8), np.empty(MEAN_BYTES, np.uint8)
    began_s, number = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - began_s) < 0.5:
        np.copyto(target, source)
        number += 1
    return number / passed_s


def measured(folder: Path, condition: Condition) -> TrialRecord:
    """One trial, in a process of its own."""
    reader = str(folder / condition.reader) if ":" in condition.reader else condition.reader
    data = {
        "root": str(folder / condition.dataset),
        "format": "lmdb",
        "reader": reader,
        "loader": "threads" if reader == "tuned" else "torch",
        "cache": "warm",
        "num_workers": 1,
    }
    spec = {"workload": "unet3d", "variant": "tiny", "device": "emulated:0.1ms", "batch_size": 2, "data": data}
    file = folder / "session.yaml"
    file.write_text(yaml.safe_dump({**spec, "measure": {"steps": 40, "warmup_steps": 2, "ceilings": False}}))
    command = [sys.executable, "-m", "benchsuite", "trial", str(file), "--format", "json"]
    name, _, value = condition.variable.partition("=")
    environment = {**os.environ, **({name: value} if name else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return TrialRecord.model_validate_json(done.stdout)


def show(folder: Path) -> None:
    """Print a row for each condition."""
    print("(o) volumes of 15 MB from LMDB, warm, one worker: samples/s in ten sessions")
    columns = ("sessions", "samples/s", "most over least", "plain copy before each", "correlation with it", "caveats")
    print(f"| {' | '.join(columns)} |\n|---|---|---|---|---|---|")
    for found in report(folder):
        rates, caveats = " ".join(f"{rate:.0f}" for rate in found.rates), ", ".join(found.caveats) or "none"
        beside = f"{found.spread:.2f} | {found.spread_of_copying:.2f} | {found.correlation:.2f}"
        print(f"| {found.condition.name} | {rates} | {beside} | {caveats} |")
