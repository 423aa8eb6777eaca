"""One point measured in ten sessions, each a process of its own that begins without a page cache: how far they differ.

LMDB's own reading handed on mapped pages that nobody read and gave 554, 2230 and 2777 samples/s in three sessions. It
copies whole samples since; `mapped` reads as it did then, by a user's own reader, in the same turns.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from scipy.stats import spearmanr

from bench.loaders import make_one
from benchsuite.results.store.record import TrialRecord
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


class Sessions(NamedTuple):
    """Samples/s of one reader by session, what the machine copied right before each, and the caveats of any."""

    reader: str
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
        """The same of the plain loop."""
        return max(self.copied) / min(self.copied)

    @property
    def correlation(self) -> float:
        """Spearman's, of the rates and the plain loop's."""
        return float(spearmanr(self.rates, self.copied).statistic)


def report(folder: Path) -> list[Sessions]:
    """Ten sessions of three readers, in turns."""
    params = {"patch_size": PATCH, "mean_bytes": MEAN_BYTES, "stdev_bytes": MEAN_BYTES // 5}
    make_one(folder, "unet3d", "volume", params, NUM_SAMPLES, "files", {})
    stored = make_one(folder, "unet3d", "volume", params, NUM_SAMPLES, "lmdb", {})
    (folder / "mapped.py").write_text(MAPPED)
    readers = ("stock", "tuned", f"{folder / 'mapped.py'}:Mapped")
    found = {reader: Sessions(reader.rpartition(":")[2], [], [], []) for reader in readers}
    for _ in range(SESSIONS):
        for reader, sessions in found.items():
            evict(stored.data_files())
            sessions.copied.append(copies_per_s())
            record = measured(folder, reader)
            sessions.rates.append(record.figures.loader_only_samples_per_s or record.figures.samples_per_s or 0.0)
            sessions.caveats.extend(name for name in record.caveats if name not in sessions.caveats)
    return list(found.values())


def copies_per_s() -> float:
    """Copies of MEAN_BYTES a second, over half a second: what the machine gives at the moment."""
    source, target = np.ones(MEAN_BYTES, np.uint8), np.empty(MEAN_BYTES, np.uint8)
    began_s, number = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - began_s) < 0.5:
        np.copyto(target, source)
        number += 1
    return number / passed_s


def measured(folder: Path, reader: str) -> TrialRecord:
    """One trial, in a process of its own."""
    data = {"root": str(folder / "lmdb"), "format": "lmdb", "reader": reader, "cache": "warm", "num_workers": 1}
    spec = {"workload": "unet3d", "variant": "tiny", "device": "emulated:0.1ms", "batch_size": 2, "data": data}
    file = folder / "session.yaml"
    file.write_text(yaml.safe_dump({**spec, "measure": {"steps": 40, "warmup_steps": 2, "ceilings": False}}))
    command = [sys.executable, "-m", "benchsuite", "trial", str(file), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return TrialRecord.model_validate_json(done.stdout)
