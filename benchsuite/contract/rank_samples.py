"""What passes between a launcher and the ranks of a trial: who a rank is, how far it is, what it found."""

import hashlib
import mmap
import os
import struct
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from benchsuite.inside.files import read_plain
from benchsuite.inside.samples import RankSamples

PHASES = ("start", "stage", "evict", "warm", "load", "build", "warmup", "measure", "count", "done")
_PROGRESS = struct.Struct("<qqqd")  # phase, steps done, steps in all, AU so far


@dataclass(frozen=True)
class RankIdentity:
    """One rank of a trial, and where it leaves its results."""

    rank: int
    world_size: int
    local_rank: int
    folder: Path
    launched_s: float
    """CLOCK_MONOTONIC when the launcher began with this trial."""
    master_port: int = 0
    listen_fd: int | None = None
    """A bound socket for rank 0's rendezvous store."""
    staging_dir: Path | None = None
    """Where staged copies go on this node; None: where the environment says."""
    master_addr: str = "127.0.0.1"
    """Address of rank 0's node."""
    address: str | None = None
    """Address of this rank's node, where ranks are on several."""
    interface: str | None = None
    """The network interface that has it."""
    interfaces: tuple[str, ...] = ()
    """All over which the nodes reach each other; empty where that cannot be told."""
    device_index: int | None = None
    """Among the devices that this process may use; None: the local rank."""
    clock_offset_s: float = 0.0
    """How far this node's clock is ahead of the launcher's."""
    cores_per_rank: float | None = None
    """Cores of this node over its ranks; None: this is its one rank."""
    watches_machine: bool = True
    """False where ranks of another node are on the same machine and read its counters."""
    temporary: Path | None = None
    """The launcher's temporary folder, where it is on the same node."""

    @property
    def reads_counters(self) -> bool:
        """Whether it is for this rank to read what counts for a whole machine."""
        return self.local_rank == 0 and self.watches_machine

    def next(self, number: int) -> "RankIdentity":
        """The rank that comes so many after this one on the same agent; the first of all has the meeting's socket."""
        rank = self.rank + number
        return replace(
            self,
            rank=rank,
            local_rank=self.local_rank + number,
            device_index=None if self.device_index is None else self.device_index + number,
            listen_fd=self.listen_fd if rank == 0 else None,
        )

    @property
    def result_path(self) -> Path:
        return self.folder / f"rank-{self.rank}.json"

    def leave(self, result: "RankSamples") -> None:
        """Leave a result where the launcher looks: in its folder, else, where that has vanished, by its spare path."""
        try:
            result.write(self.result_path)
        except OSError:
            if self.temporary is None:
                raise
            result.write(spare_path(self.result_path, self.temporary))

    @property
    def has_left_result(self) -> bool:
        """Whether a result lies where `leave` puts one; False where its file system does not answer."""
        spare = self.temporary and spare_path(self.result_path, self.temporary)
        return os.path.exists(self.result_path) or (spare is not None and spare.exists())

    @property
    def log_path(self) -> Path:
        return self.folder / f"rank-{self.rank}.log"


ENDED_COUNTING = "it was ended while it counted"
"""What the result says that a rank leaves before it counts: it stays where the rank comes to no end."""
RESULT = TypeAdapter(RankSamples)


def read_result(path: Path) -> RankSamples | None:
    """A rank's result, or None where it left none."""
    try:
        return parse_result(path.read_bytes())
    except OSError:
        return _spared(spare_path(path, Path(tempfile.gettempdir())))
    except ValueError:
        return None


def spare_path(path: Path, temporary: Path) -> Path:
    """Where on the same node a result is left whose folder has vanished, as with a store's file system."""
    return temporary / f"benchsuite-result-{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]}.json"


def _spared(path: Path) -> RankSamples | None:
    """A result that was left by its spare path, which is removed; None where there is none."""
    try:
        found = parse_result(read_plain(path))
        path.unlink()
    except (OSError, ValueError):
        return None
    return found


def parse_result(text: str | bytes) -> RankSamples:
    """A rank's result from its JSON.

    Raises:
        ValueError: it is none.
    """
    return RESULT.validate_json(text)


class Heartbeat:
    """How far a rank is, in a small mapped file that its launcher may read at any time."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"progress-{rank}"
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        os.posix_fallocate(descriptor, 0, _PROGRESS.size)  # a full disk is an error here, not a SIGBUS later
        self._map = mmap.mmap(descriptor, _PROGRESS.size)
        os.close(descriptor)
        self._phase, self._step, self._total, self._au = 0, 0, 0, -1.0
        self.beat()

    def phase(self, name: str) -> None:
        """Note the phase reached."""
        self._phase = PHASES.index(name)
        self.beat()

    def total(self, steps: int) -> None:
        """Note how many steps there are in all."""
        self._total = steps

    def more(self, steps: int) -> None:
        """Note that there are so many steps more."""
        self._total += steps

    def step(self) -> None:
        """Note one step done."""
        self._step += 1
        self.beat()

    def au(self, value: float) -> None:
        """Note the utilization so far."""
        self._au = value

    def beat(self) -> None:
        """Write how far the rank is."""
        _PROGRESS.pack_into(self._map, 0, self._phase, self._step, self._total, self._au)


@dataclass(frozen=True)
class Progress:
    """A heartbeat as its reader sees it."""

    phase: str
    step: int
    total: int
    au: float | None


def read_progress(folder: Path, rank: int) -> Progress | None:
    """How far a rank is; None before it has started."""
    try:
        phase, step, total, au = _PROGRESS.unpack((folder / f"progress-{rank}").read_bytes())
    except (OSError, struct.error):
        return None
    return Progress(PHASES[phase], step, total, au if au >= 0 else None)


TORCH_TRACE = "torch-rank"
"""What the traces of PyTorch's profiler begin with, in a rank's folder."""


FLOPS_FILE = "flops.json"
