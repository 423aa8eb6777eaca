"""A trial's copy of its dataset on a node-local disk: made, or begun, once per node and removed after the trial.

Each trial with `data.staging: copy` stages anew, so that stage_s is measured every time. Where the trial is to be cold,
its source is evicted before, so that stage_s is a cold read, and the copy afterwards. With `lazy` the first epoch fills
the copy: its first reads are the source's, so it is the source that is evicted, and stage_s is null.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.host.staged_copies import NAME, copies_folder, remove_left
from benchsuite.storage.dataset.manifest import Dataset, open_dataset
from benchsuite.storage.dataset.partial import partial_folder
from benchsuite.storage.objects.apart import apart
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.observe import page_cache
from benchsuite.storage.staging.lazy import open_lazily
from benchsuite.storage.staging.stage import copy_name, refuse_small_disk, stage

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Placed:
    """Where a trial reads its dataset."""

    dataset: Dataset | None
    """What its readers open."""
    read_first: Dataset | None
    """Whose files the first reads come from."""

    @property
    def folder(self) -> Path | None:
        """Return the folder of the files that are read first; None where they are no files of this machine."""
        folder = self.read_first.folder if self.read_first else None
        return None if isinstance(folder, ObjectPath) else folder


@dataclass(frozen=True)
class TrialCopy:
    """A folder that one process made for one trial."""

    folder: Path

    def remove(self) -> None:
        """Remove it, whatever is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)


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
            _begin(dataset, target)
        rendezvous.set(key, str(target))
    rendezvous.wait([key])
    target = Path(rendezvous.get(key).decode())
    if spec.data.staging == "lazy":
        return Placed(open_lazily(dataset, target), dataset), found
    copied = open_dataset(target)
    return Placed(copied, copied), found


def _begin(dataset: Dataset, target: Path) -> None:
    """Make a folder that readers are going to fill; of a bucket in a process of its own, since readers are forked."""
    if isinstance(dataset.folder, ObjectPath):
        apart(lambda: str(open_lazily(dataset, target).folder))
    else:
        open_lazily(dataset, target)


def _copied(spec: TrialSpec, dataset: Dataset, target: Path) -> dict[str, Any]:
    """Stage, from a cold source unless the trial is to be warm."""
    resident, in_bucket = None, isinstance(dataset.folder, ObjectPath)
    if spec.data.cache != "warm" and not in_bucket:
        files = dataset.data_files()
        page_cache.evict(files)
        resident = page_cache.residency(files).fraction
    staged = apart(lambda: stage(dataset.folder, target)) if in_bucket else stage(dataset.folder, target)
    return {"stage_s": staged.seconds, "stage_bytes": staged.num_bytes, "stage_source_resident": resident}
