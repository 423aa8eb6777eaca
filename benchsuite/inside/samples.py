"""What one rank of a trial, or of a loop that is watched, has measured: plain data, kept raw."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .files import write_new

PARTS = ("load", "h2d", "forward", "backward", "bubble", "communication", "optimizer")

SETTLING_STEPS = 2
"""Uncounted steps at the start of a ceiling block, while caches change over."""
STEADY_TURNS = 3
"""A loader block must cover this many turns of the queue to be called steady."""


@dataclass(frozen=True)
class Block:
    """One block of steps of one rank: its times, and what its readers did meanwhile."""

    kind: str
    """`ceiling` (input in memory), `loader` (the real pipeline), or `plain` (the only kind of other sources).

    Of an epoch on an emulated device also `rest`: the steps after those that count, to its end.
    Of a watched loop also `between`: again those of the loader's steps that lie between two ceilings.
    """
    start_s: float
    end_s: float
    """Ranks of watched loops share no clock: theirs begin at 0 and last as long as their steps."""
    parts: dict[str, list[float]]
    """Seconds per counted step, by part."""
    run_queue_s: float | None = None
    consumed_samples: int | None = 0
    consumed_bytes: int = 0
    """Stored bytes of the samples consumed."""
    produced_samples: int | None = 0
    """Samples that the readers finished within the block."""
    produced_bytes: int = 0
    read_s: float = 0.0
    read_cpu_s: float | None = None
    """Seconds of reading in which a core computed."""
    decode_s: float = 0.0
    collate_s: float | None = None
    """Seconds of decoding in which samples were put together to batches."""
    unpack_s: float | None = None
    """Seconds of decoding in which row groups were decompressed and decoded."""
    queue_full: bool = True
    """Whether the readers had filled the queue and rested before a ceiling block."""
    readers: int = 1
    """Readers that fill batches beside the steps; each is asked for every so many batches."""
    paced_samples: int = 0
    """Samples that the readers finished since the queue last began to be emptied, in uncounted steps too."""
    paced_s: float | None = None
    """Seconds that they needed for those, summed over readers; None where that is not known."""
    uncounted_step_s: list[float] = field(default_factory=list)
    """Seconds of each step before the counted ones."""
    threads_queue_s: float | None = None
    """Seconds that the one of the computing threads beside the main one that waited longest has waited for a core."""
    late_s: float | None = None
    """Mean lateness of the waits of an emulated device."""
    client_thread_s: float | None = None
    """CPU seconds of the thread of the bucket's client that computed most meanwhile; None where no bucket is read."""
    counted: dict[str, float] = field(default_factory=dict)
    """What the device counted meanwhile (`benchsuite.host.gpus.COUNTED`, `busy_s`), or the node's sockets: energy."""
    every: int = 1
    """Every so many of the counted steps are in `parts`."""
    totals: tuple[int, dict[str, float]] | None = None
    """The number of counted steps and the seconds of each part over all, where not every step may have been kept."""

    @property
    def num_steps(self) -> int:
        return self.totals[0] if self.totals else len(next(iter(self.parts.values()), []))

    def step_s(self) -> list[float]:
        """Seconds of each step that was kept: the sum of its parts."""
        return [sum(parts) for parts in zip(*self.parts.values(), strict=True)]

    def parts_s(self) -> dict[str, float]:
        """Seconds of each part over all counted steps."""
        return self.totals[1] if self.totals else {name: sum(seconds) for name, seconds in self.parts.items()}

    @property
    def steps_s(self) -> float:
        """Seconds of all counted steps."""
        return sum(self.parts_s().values())

    def after(self, steps: int) -> "Block":
        """The block without its first `steps` steps, with the share of what was counted that its time has."""
        begun_s = self.start_s + sum(self.step_s()[:steps])
        share = (self.end_s - begun_s) / (self.end_s - self.start_s)
        queued, threads = (None if each is None else each * share for each in (self.run_queue_s, self.threads_queue_s))
        parts = {name: seconds[steps:] for name, seconds in self.parts.items()}
        counted = {name: value * share for name, value in self.counted.items()}
        return replace(self, start_s=begun_s, parts=parts, run_queue_s=queued, threads_queue_s=threads, counted=counted)

    def thinned(self, most: int) -> "Block":
        """The block with at most so many single steps, evenly taken."""
        if len(next(iter(self.parts.values()), [])) <= most:
            return self
        parts = {name: seconds[::2] for name, seconds in self.parts.items()}
        return replace(self, parts=parts, every=2 * self.every, totals=(self.num_steps, self.parts_s())).thinned(most)


@dataclass(frozen=True)
class Reads:
    """What was read from the first loader block to the last, whatever lies between them."""

    read_call_bytes: int | None
    """Asked for by this rank and its workers in read calls."""
    storage_bytes: int | None
    """Fetched from storage for them."""
    produced_bytes: int = 0
    """Stored bytes of the samples that the readers finished."""
    mount_source: str | None = None
    """Whose counter; None for ranks that do not watch their node's mount."""
    mount_read_bytes: int | None = None
    mount_from_storage: bool | None = None
    seconds: float | None = None
    """Seconds in which the counters of a watched loop were read."""
    requests: dict[str, dict[str, Any]] | None = None
    """To a bucket, by kind (`benchsuite.storage.observe.requests.Counted`); its bytes are those read and fetched."""


@dataclass(frozen=True)
class SeenReaders:
    """What the readers of a watched loop did while counted steps ran, as the kernel tells from outside."""

    num_readers: int
    """Worker processes."""
    busy_fraction: float | None
    """Share of the time in which they ran or waited for a core; without any as `loading_thread_busy_fraction`."""
    loading_thread_busy_fraction: float | None = None
    """Share of the loads in which the thread that waits for them ran, or waited for a core."""
    fed_cores: float | None = None
    """Kept busy during the loads by threads that load for that one."""
    beside_cores: float | None = None
    """Kept busy during the loads by others of this rank, of whom it is not known whether they load."""
    refill_s: float = 0.0
    """Seconds of loading in the first steps of later passes."""
    queue_batches: int = 0
    """Batches that the loader may hold ready."""
    workers_stay: bool = False
    """Whether worker processes are known to live on from pass to pass."""
    body_busy_fraction: float | None = None
    """Share of the loop's body in which its thread ran or waited for a core."""
    body_cores: float | None = None
    """Kept busy during the body by all threads of this process."""
    queued_fraction: float | None = None
    """Share of the time in which worker processes waited for a core."""
    cpus: tuple[int, ...] = ()
    """Numbers of the cores that worker processes may use."""
    batch_bytes: int = 0
    """Bytes of the arrays in a batch."""
    batch_arrays: int = 0
    passes: int = 1
    begin_s: float = 0.0
    """Seconds in which later passes made their iterators: a DataLoader begins its workers there."""
    cores: float | None = None
    """Kept busy by all threads of a worker process, on average."""
    kernel_fraction: float | None = None
    """Share of the readers' CPU time that the kernel took for them."""


@dataclass(frozen=True)
class Line:
    """A line of the user's code at which a thread was seen."""

    phase: str
    """`load`, `readers` or `body`."""
    word: str
    """What it was at."""
    line: str
    """As `torch.save (train.py:41)`."""
    looks: int
    steps: int
    """In so many different steps."""


@dataclass(frozen=True)
class Looks:
    """What threads were at when they were looked at, some times a second, in counts of looks by one word.

    Words are those of `benchsuite.inside.syscalls.Doing`, for a thread that runs what it computes as far as that is
    known (`decode`, `collate`, `hand_over`, `start`, `shuffle`, else `runs`), and parts of a loader (`idle`, `ended`,
    `waits_for_readers`).
    """

    load: dict[str, float]
    """The loop's thread while it waits for its input."""
    readers: dict[str, float]
    """Its reading processes meanwhile: each look is shared among them."""
    body: dict[str, float]
    """The loop's thread in the rest of the step."""
    files: dict[str, int]
    """By folder: looks at waits for files."""
    lines: list[Line]
    start_s: list[float] = field(default_factory=list)
    """Of each worker: seconds from its process's start to its first batch, less what one usually takes."""
    collate_and_cpu_s: tuple[float, float] = (0.0, 0.0)
    """CPU seconds of the thread that reads: those in `collate_fn`, and all; 0 where none is timed."""
    handed_over: tuple[float, int] = (0.0, 0)
    """Of workers: CPU seconds of the threads that pickle batches and put them into shared memory; and how many."""
    inside: "Looks | None" = None
    """What workers saw of themselves, added up."""
    cost_fraction: float | None = None
    """Share of a core that looking took."""
    locked: float = 0.0
    """Looks at all readers in which one of them, or more, waited for a lock."""


@dataclass(frozen=True)
class UsedCores:
    """Who kept the cores busy that a rank of a watched loop may use, while counted steps ran."""

    node: str
    cpus: tuple[int, ...]
    """Numbers of the cores."""
    seconds: float
    everyone_cpu_s: float
    own_cpu_s: float
    """This rank's part of them, its workers included."""
    throttled_fraction: float | None = None
    """Share of the periods of a quota on cores in which it was used up; None without a quota."""
    idle_cores: float | None = None
    """Of the cores that its control group may use (without one all): how many were idle, and how many there are."""
    all_cores: int | None = None
    memory_stall_fraction: float | None = None
    """Share of the time in which some process of the node waited for memory."""
    swapped_in_bytes: int | None = None
    """By all processes of the node."""
    threads: int | None = None
    """With which torch computes on cores."""


@dataclass(frozen=True)
class Clocks:
    """How fast a rank's cores and its CUDA device run while it steps; None where that cannot be read."""

    cpu_mhz: float | None = None
    """Of the fastest core that it may use; the median of the readings, as that of the device."""
    cpu_throttled: int | None = None
    """How often its cores were held back for heat meanwhile."""
    device_mhz: float | None = None
    device_c: float | None = None
    """The highest temperature."""


@dataclass(frozen=True)
class OwnMemory:
    """The memory of a process, read now and then while steps counted."""

    pid: int
    is_reader: bool
    at_s: tuple[float, ...] = ()
    private_bytes: tuple[int, ...] = ()
    shared_bytes: tuple[int, ...] = ()
    """In pages that another process has as well: a child has all of them at first, and copies those it writes to."""

    def with_one(self, at_s: float, private_bytes: int, shared_bytes: int) -> "OwnMemory":
        """The readings and one more."""
        more = (*self.private_bytes, private_bytes), (*self.shared_bytes, shared_bytes)
        return OwnMemory(self.pid, self.is_reader, (*self.at_s, at_s), *more)

    def thinned(self) -> "OwnMemory":
        """Every second reading."""
        return OwnMemory(self.pid, self.is_reader, self.at_s[::2], self.private_bytes[::2], self.shared_bytes[::2])


@dataclass(frozen=True)
class RankSamples:
    """What one rank of a trial or of a watched loop measured, or why it failed. What it cannot know is None."""

    rank: int
    status: str
    reason: str | None = None
    phase: str = "start"
    blocks: list[Block] = field(default_factory=list)
    peak_memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    first_batch_s: float | None = None
    startup_s: float | None = None
    clock_offset_s: float = 0.0
    """How far its node's clock was ahead of the launcher's: of the moments in blocks, until `on_one_clock`."""
    steps_s: float | None = None
    """Seconds in all steps, uncounted ones included."""
    decoded_sample_bytes: int | None = None
    tokens_per_sample: int | None = None
    cache_resident_before: float | None = None
    cache_resident_after: float | None = None
    cache_measured_fraction: float | None = None
    reads: Reads | None = None
    storage_ceiling: dict[str, Any] | None = None
    """What the trial's files gave to a plain reader (`benchsuite.storage.rawspeed.plain_reader.Ceiling`)."""
    stage_s: float | None = None
    stage_bytes: int | None = None
    stage_source_resident: float | None = None
    """What staging a node's copy took, and from how cold a source; told by the first rank of the node."""
    io_profile: dict[str, Any] | None = None
    """What the readers did with files (`storage.observe.io_trace.Tracer.finish`), where that was asked for."""
    operators: dict[str, dict[str, float | None]] | None = None
    """What a PyTorch profile tells: what the operators of a step compute, move and take, by class.

    `benchsuite.workloads.parallel.operators.Counted`, and `seconds` (None: compiled).
    """
    exposed_s: float | None = None
    """Exposed communication a step by a PyTorch profile, where marks do not see all of it."""
    final_loss: float | None = None
    device_name: str | None = None
    num_multiprocessors: int | None = None
    """Multiprocessors of its CUDA device."""
    num_devices: int = 1
    """Devices that this one process computes on."""
    skipped_steps: int | None = None
    """Steps that fp16's gradient scaler left out."""
    instrument_s_per_step: float | None = None
    """Host seconds of the harness's own marks and heartbeat, by `benchsuite.trial.costs`; in others' loops, of all that
    measures in their thread."""
    account: dict[str, Any] | None = None
    """Bytes held and sent in one step that was counted and not timed (`workloads.parallel.account.Account`)."""
    engine: dict[str, float | None] | None = None
    """Figures that only the engine which trained could tell, by their names in a record."""
    flops: dict[str, Any] | None = None
    """What a sample costs, told by rank 0 (`benchsuite.workloads.flops.Flops`); empty where it cannot be counted."""
    seen_readers: SeenReaders | None = None
    """What was seen of the readers of a watched loop, which tell nothing themselves."""
    used_cores: UsedCores | None = None
    looks: Looks | None = None
    """What was seen of the threads of a watched loop and of its readers."""
    copy_bytes_per_s: float | None = None
    """How fast a core copies samples of this size, where readers were so fast that it was asked."""
    reader: str | None = None
    """The library, with its version, by which a stock reader reads."""
    device_uuid: str | None = None
    """The CUDA device that this rank computes on, as NVML names it."""
    gradient_copy_s: float | None = None
    """Copying all gradients once, as DDP does in each step whose gradients do not lie in its buckets."""
    cpus: str | None = None
    """The cores near its device that this rank was kept to, as `0-15`."""
    libraries: dict[str, str] | None = None
    """Versions of what torch has loaded for the device, told by rank 0: CUDA, cuDNN, NCCL."""
    reserved_memory_bytes: int | None = None
    """Device memory that torch's allocator took at most."""
    device_memory_bytes: int | None = None
    """Device memory in use at the end, beyond what was in use before this rank; by NVML, so libraries' included."""

    clocks: Clocks | None = None
    memory: list[OwnMemory] = field(default_factory=list)
    """Of this process and of its readers."""
    shm_used_fraction: float | None = None
    """The most of /dev/shm that was in use on its node."""
    wall_s: dict[str, float] | None = None
    """Of a process under `benchsuite run`: where its time went from its beginning (`inside.wall_time.WALL_PARTS`)."""
    not_counted: str | None = None
    """Why something that is counted after the steps is missing."""

    def write(self, path: Path) -> None:
        """Leave it where the launcher looks."""
        write_new(path, json.dumps(asdict(self)))


def on_one_clock(result: RankSamples) -> RankSamples:
    """Return a result with its moments by the launcher's clock, as those of other nodes."""
    ahead_s = result.clock_offset_s
    if not ahead_s:
        return result
    blocks = [replace(one, start_s=one.start_s - ahead_s, end_s=one.end_s - ahead_s) for one in result.blocks]
    return replace(result, blocks=blocks)
