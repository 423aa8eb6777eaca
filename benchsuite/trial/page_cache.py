"""The page cache of a trial's files: brought to the state asked for, once per node, and measured before and after."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.distributed import Store  # type: ignore[attr-defined]

from benchsuite import storage
from benchsuite.contract.emulated_devices import NO_MODEL
from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.grid.blocks import reader_samples
from benchsuite.host.environment import file_system
from benchsuite.storage.dataset.manifest import Dataset, DatasetError, ReaderShare, dealt
from benchsuite.storage.objects.path import ObjectPath
from benchsuite.storage.observe import page_cache
from benchsuite.storage.observe.file_systems import file_system_of
from benchsuite.storage.observe.page_cache import Residency
from benchsuite.storage.rawspeed.plain_objects import objects_of, read_objects
from benchsuite.storage.rawspeed.plain_reader import read_ceiling
from benchsuite.trial.feed import Feed
from benchsuite.trial.measure import of_ranks

PLAIN_READ_S = 1.0
"""A plain reader reads for at most so long."""
MAX_LEFT_RESIDENT = 0.05


@dataclass(frozen=True)
class CacheState:
    """What a node's first rank has prepared, and found."""

    files: list[Path]
    before: Residency


def prepare(spec: TrialSpec, dataset: Dataset | None, me: RankIdentity, rendezvous: Store) -> CacheState | None:
    """Evict or read in what the trial will read, on every node, before any of its ranks reads.

    None for ranks that are not the first of their node, and for trials that read nothing.

    Raises:
        DatasetError: a file that cannot be opened or read.
    """
    if dataset is None or spec.data.source != "storage" or isinstance(dataset.folder, ObjectPath):
        return None  # what a store keeps in memory cannot be seen from here, nor evicted
    state, key = None, f"cache-{me.rank - me.local_rank}"
    if me.local_rank == 0:
        files = files_read(spec, dataset)
        _bring(files, spec, dataset)
        state = CacheState(files, page_cache.residency(files))
        rendezvous.set(key, "ready")
    rendezvous.wait([key])
    return state


def prepare_more(spec: TrialSpec, dataset: Dataset, me: RankIdentity, pairs: int) -> None:
    """Evict or read in what further pairs of blocks will read; its readers rest meanwhile."""
    if me.local_rank == 0 and not isinstance(dataset.folder, ObjectPath):
        known = {*files_read(spec, dataset)}
        _bring([file for file in files_read(spec, dataset, pairs) if file not in known], spec, dataset)


def _bring(files: list[Path], spec: TrialSpec, dataset: Dataset) -> None:
    """Bring files into the state that a trial asks for."""
    try:
        (page_cache.warm if spec.data.cache == "warm" else page_cache.evict)(files)
    except OSError as error:
        raise DatasetError(f"{error.filename or dataset.folder}: {error.strerror}") from error


def found(state: CacheState | None) -> dict[str, Any]:
    """Fields of a rank's result: residency before the first read, and now."""
    if state is None:
        return {}
    return {
        "cache_resident_before": state.before.fraction,
        "cache_resident_after": page_cache.residency(state.files).fraction,
        "cache_measured_fraction": state.before.measured_fraction,
    }


def storage_ceiling(
    spec: TrialSpec, dataset: Dataset | None, feed: Feed | None, me: RankIdentity
) -> dict[str, Any] | None:
    """What the trial's files give to a plain reader with as many threads as there are readers on this node.

    Measured by a node's first rank in a trial with no model, when all ranks have stopped their readers; the files are
    evicted first, on every node, and each node reads its share of them. None where they stay in memory, or may do so
    unseen: that would be no storage. Objects are read by the same client.
    """
    if spec.device != NO_MODEL or dataset is None or feed is None:
        return None
    feed.close()
    nodes = of_ranks(me.rank - me.local_rank)
    files = [] if me.local_rank else files_read(spec, dataset)
    in_bucket = isinstance(dataset.folder, ObjectPath)
    evicted = me.local_rank > 0 or in_bucket or _evicted(dataset, files)
    if not all(of_ranks(evicted)) or me.local_rank:
        return None
    share = len({first for first in nodes if first < me.rank}), len(set(nodes))
    threads = spec.data.readers * nodes.count(me.rank)
    if in_bucket:  # whose server may have them in memory, which cannot be seen
        ceiling = read_objects(objects_of(dataset, files), threads, PLAIN_READ_S, share)
    else:
        ceiling = read_ceiling(files, threads, PLAIN_READ_S, share)
    return asdict(ceiling) if ceiling else None


def _evicted(dataset: Dataset, files: list[Path]) -> bool:
    """Evict files; whether they can be seen to be gone."""
    if not file_system_of(file_system(dataset.folder)["file_system"]).client_visible:
        return False
    page_cache.evict(files)
    left = page_cache.residency(files).fraction
    return left is not None and left <= MAX_LEFT_RESIDENT


def files_read(spec: TrialSpec, dataset: Dataset, pairs: int = 0) -> list[Path]:
    """The files that the trial's readers will open, for prefetched samples too; every one where that is not known.

    `pairs`: further pairs of blocks.
    Each reader takes the first samples of its lane of the first epoch, and of later ones when it has seen all.
    """
    form = storage.format_of(dataset.manifest.format)
    if form.files_of is None or spec.data.loader == "dali" or spec.measure.epochs is not None:
        return dataset.data_files()
    count, lanes = len(dataset.index), spec.data_ranks * spec.data.readers
    _, samples = reader_samples(spec, pairs)
    if samples >= count // lanes:
        return dataset.data_files()
    shuffle, seed = spec.data.shuffle, spec.measure.seed
    shares = [dealt(count, ReaderShare(lane, lanes, 0, seed, shuffle, 1))[:samples] for lane in range(lanes)]
    return form.files_of(dataset, np.concatenate(shares))
