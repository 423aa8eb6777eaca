"""The folder of one attempt at a trial: made, named after its writer, and removed afterwards."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchsuite.contract.scratch import scratch
from benchsuite.launch.agents import AgentLauncher
from benchsuite.results.store.place import folder_in, share, written_to
from benchsuite.storage.dataset.partial import partial_folder, partial_folders, remove_abandoned

WORK, ATTEMPT = "work", "attempt"
"""The folder of a store where attempts are made, and what one is called until it has ended."""


@contextmanager
def work_folder(store: Path, trial: str) -> Iterator[Path]:
    """A new folder for one attempt at a trial, in the store; removed afterwards, unless `kept_work` has renamed it.

    Its name tells whose it is, so that what a killed process has left is known.

    Raises:
        StoreVanished: the store is gone.
        StoreError: the store cannot be written.
    """
    with written_to(store):
        folder = partial_folder(folder_in(store, WORK, trial) / ATTEMPT)
        folder.mkdir(0o755)  # for no umask may others write it: names in it are foreseeable
        share(folder, store, 0o050)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # of another attempt, or one that is kept
            folder.parent.rmdir()


def kept_work(folder: Path, store: Path) -> Path:
    """Give an attempt's folder the name by which its record names it; who shares the store may read what is in it."""
    for path in folder.rglob("*"):
        share(path, store, 0o050)
    return folder.rename(folder.with_name(f"{os.getpid()}-{uuid.uuid4().hex[:6]}"))


def remove_left_work(store: Path) -> None:
    """Remove folders of attempts whose processes were killed on this host."""
    try:
        trials = [store / WORK / name for name in os.listdir(store / WORK)]
    except OSError:  # nothing was tried yet
        return
    for trial in trials:  # other sweeps remove theirs meanwhile, so none of them need be there any more
        if partial_folders(trial / ATTEMPT):
            remove_abandoned(trial / ATTEMPT)
            with suppress(OSError):
                trial.rmdir()


@contextmanager
def shared_folder(store: Path | None, launcher: object, name: str) -> Iterator[Path]:
    """Yield a folder in which ranks leave what they found; it is removed afterwards.

    It lies in the store only where ranks are on other nodes, all of which see the store.
    """
    if store is None or (isinstance(launcher, AgentLauncher) and launcher.agent_config.only_here):
        with scratch() as folder:
            yield folder
        return
    with work_folder(store, name) as folder:
        yield folder
