"""A trial's copy of its dataset on a node-local disk: made, or begun, once per node and removed after the trial.

Each trial with `data.staging: copy` stages anew, so that stage_s is measured every time. Where the trial is to be cold,
its source is evicted before, so that stage_s is a cold read, and the copy afterwards. With `lazy` the first epoch fills
the copy: its first reads are the source's, so it is the source that is evicted, and stage_s is null.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchsuite.metrics import MAX_COLD_RESIDENT
from benchsuite.ranks import RankIdentity, RankResult
from benchsuite.spec import TrialSpec
from storage import pagecache
from storage.format import Dataset, open_dataset
from storage.lazily import open_lazily
from storage.partial import partial_folder, remove_abandoned
from storage.staging import copy_name, node_local_folder, refuse_small_disk, stage

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

NAME = "benchsuite-staged"
"""What copies of trials are called, with their writers beside it."""


@dataclass(frozen=True)
class Placed:
    """Where a trial reads its dataset."""

    dataset: Dataset | None
    """What its readers open."""
    read_first: Dataset | None
    """Whose files the first reads come from."""

    @property
    def folder(self) -> Path | None:
        """Of the files that are read first."""
        return self.read_first.folder if self.read_first else None


@dataclass(frozen=True)
class TrialCopy:
    """A folder that one process made for one trial."""

    folder: Path

    def remove(self) -> None:
        """Remove it, whatever is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def copies_folder(spec: TrialSpec) -> Path:
    """Where the copies of trials on this node go; named after their writers beside `NAME`."""
    return node_local_folder(spec.data.staging_dir)


def remove_left(spec: TrialSpec, folder: Path | None = None) -> None:
    """Remove copies of trials whose processes have ended on this node."""
    if spec.data.staging != "none":
        remove_abandoned((folder or copies_folder(spec)) / NAME)


def place(
    spec: TrialSpec, dataset: Dataset | None, me: RankIdentity, rendezvous: "Store", keep: list[object]
) -> tuple[Placed, dict[str, Any]]:
    """Stage a trial's dataset by the first rank of every node while the others wait; fields of its result.

    What is to be removed after the trial is put into `keep`.
    """
    if dataset is None or spec.data.staging == "none":
        return Placed(dataset, dataset), {}
    key, found = f"stage-{me.rank - me.local_rank}", {}
    if me.local_rank == 0:
        folder = me.staging_dir or copies_folder(spec)
        folder.mkdir(parents=True, exist_ok=True)
        remove_left(spec, folder)
        copy = TrialCopy(partial_folder(folder / NAME))
        copy.folder.mkdir(0o700)  # new, and nobody else's: what has a file's name in it is believed
        keep.append(copy)
        target = copy.folder / copy_name(dataset.manifest)
        if spec.data.staging == "copy":
            found = _copied(spec, dataset, target)
        else:
            refuse_small_disk(dataset, folder)
            open_lazily(dataset, target)
        rendezvous.set(key, str(target))
    rendezvous.wait([key])
    target = Path(rendezvous.get(key).decode())
    if spec.data.staging == "lazy":
        return Placed(open_lazily(dataset, target), dataset), found
    copied = open_dataset(target)
    return Placed(copied, copied), found


def _copied(spec: TrialSpec, dataset: Dataset, target: Path) -> dict[str, Any]:
    """Stage, from a cold source unless the trial is to be warm."""
    resident = None
    if spec.data.cache != "warm":
        files = dataset.data_files()
        pagecache.evict(files)
        resident = pagecache.residency(files).fraction
    staged = stage(dataset.folder, target)
    return {"stage_s": staged.seconds, "stage_bytes": staged.num_bytes, "stage_source_resident": resident}


def figures(results: Sequence[RankResult]) -> dict[str, float | None]:
    """Seconds of the slowest node, and bytes per second of all nodes."""
    known = [(result.stage_s, result.stage_bytes) for result in results if result.stage_s]
    if not known:
        return {}
    seconds = max(seconds for seconds, _ in known if seconds)
    return {"stage_s": seconds, "stage_bytes_per_s": sum(size or 0 for _, size in known) / seconds}


def caveats(spec: TrialSpec, results: Sequence[RankResult]) -> list[tuple[str, str]]:
    """Where stage_s may be no cold read though the trial is."""
    nodes = [result for result in results if result.stage_s]
    if spec.data.cache == "warm" or not nodes:
        return []
    resident = [result.stage_source_resident for result in nodes]
    if None in resident:
        return [("cache_unverified", "stage_s: the kernel hides from this user how much of the source was in memory")]
    most = max(share for share in resident if share is not None)
    if most > MAX_COLD_RESIDENT:
        return [("not_cold", f"stage_s: {most:.0%} of the source stayed in the page cache")]
    return []
