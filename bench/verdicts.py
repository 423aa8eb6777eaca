"""Causes that were made, and what trials and `watch` say of them: a confusion matrix.

Causes are made by other means than verdicts look at: limits of the kernel's control groups, links shaped by tc, large
JPEGs, workers of one's own, processes pinned beside the job, a rank that is held up. Where KEEP names a folder, the
samples of each trial are kept there: `tests/analysis/recorded` holds some, which every run of the tests judges anew.
"""

import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import benchsuite
from bench.tables import goal
from bench.throttle import V1, CannotThrottle, throttled
from benchsuite.grid.expand import plan_trial
from benchsuite.grid.point import Point
from benchsuite.launch.launcher import CannotStart
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.verdicts import CANNOT_TELL
from benchsuite.runner.single_trial import run_in_processes
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.workloads.facts import FACTS

MIN_RIGHT = 0.95
FORMATS = ("files", "webdataset", "hdf5", "lmdb", "tfrecord")
STREAMS = ("webdataset", "tfrecord")
PHOTOS, VOLUMES, SEQUENCES = 400, 60, 600
SHARED_MEMORY = "failed: shared memory"
WATCHED_STEPS, STEP_S = 60, 0.02
READERS = '''
import fcntl
import time

import numpy as np
from PIL import Image


class Sleeping:
    """Samples that come from a service, in 20 ms each."""

    def __init__(self, dataset):
        self.labels = dataset.index["label"].tolist()

    def wait(self):
        time.sleep(0.02)

    def __getitem__(self, row):
        self.wait()
        return {"image": Image.new("RGB", (64, 64)), "label": self.labels[row]}


class Busy(Sleeping):
    """Samples that take a slow `__getitem__` 20 ms of a core each."""

    def wait(self):
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass


class Locked(Sleeping):
    """Samples that take 10 ms of a core each, by one worker at a time."""

    def wait(self):
        with open(LOCK, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass


class Large(Sleeping):
    """Photographs of 12 megapixels."""

    def __getitem__(self, row):
        return {"image": Image.open(LARGE).convert("RGB"), "label": self.labels[row]}
'''
SLOW_RANK = """
import time
from dataclasses import replace

import torch
import torch.distributed as dist

from benchsuite.workloads.gpt_neox import WORKLOAD as GPT


def held_up(wait):
    def loss(model, batch):
        if dist.is_initialized() and dist.get_rank() == 1:
            wait()
        return GPT.loss(model, batch)

    return replace(GPT, name="held_up", loss=loss, blocks=None, tensor_parallel=None, pipeline=None)


def compute():
    weights = torch.ones(900, 900)
    for _ in range(12):
        weights = weights @ weights / 900


SLEEPS = held_up(lambda: time.sleep(0.1))
COMPUTES = held_up(compute)
"""


class Cause(NamedTuple):
    """What was made, and what may be said of it."""

    name: str
    expected: tuple[str, ...]
    said: Callable[[], str]


class Said(str):
    """A trial's verdict, with what it was judged by as JSON."""

    judged_by: dict[str, Any]


def trial(spec: Mapping[str, Any], *around: Callable[[], Any]) -> str:
    """Return the verdict of a trial with these things made around it."""
    point = plan_trial(dict(spec))
    with ExitStack() as stack:
        for make in around:
            stack.enter_context(make())
        record, samples = run_in_processes(point)
    if record.status != "ok" or samples is None:
        raise RuntimeError(record.reason)
    said = Said(record.figures.bottleneck)
    said.judged_by = _judged_by(record, samples, point)
    return said


def _judged_by(record: TrialRecord, samples: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Return a trial's samples and what else its verdict rests on, without names of this machine."""
    data = {name: record.env.get("data", {}).get(name) for name in ("file_system", "read_ahead_kb")}
    figures = record.figures.model_dump(mode="json", exclude_none=True)
    return {
        "spec": record.spec,
        "manifest": point.manifest and point.manifest.model_dump(mode="json") | {"created": {}},
        "env": {name: record.env[name] for name in ("cores", "memory_bytes")} | {"libraries": {}, "data": data},
        "figures": figures,
        "ranks": samples["ranks"],
    }


def keep(folder: Path, root: Path, cause: Cause, said: Said) -> None:
    """Write what a verdict rests on to a file of the cause's name, without the path of the data's root."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9.]+", "-", cause.name.lower())
    kept = json.dumps({"cause": cause.name, "expected": cause.expected, "said": said} | said.judged_by)
    (folder / f"{name}.json.gz").write_bytes(gzip.compress(kept.replace(str(root), "/data").encode(), mtime=0))


def spec_of(folder: Path, form: str = "files", device: str = "emulated:4ms", **data: Any) -> dict[str, Any]:
    """A trial that reads photographs."""
    read = {"root": str(folder / "photos" / form), "format": form, "num_workers": 1, "prefetch_factor": 2, **data}
    measure = {"steps": 16, "warmup_steps": 1, "timeout_s": 120}
    more = {"workload": "resnet50", "variant": "tiny", "device": device, "batch_size": 4}
    return {**more, "data": {"shuffle_buffer": 32, **read}, "measure": measure}


def modelled(workload: str, **changes: Any) -> dict[str, Any]:
    """A trial of a real model on synthetic input."""
    measure = {"steps": 8, "warmup_steps": 2, "timeout_s": 120, "ceilings": False}
    base = {"workload": workload, "variant": "nano", "device": "cpu", "batch_size": 8, "data": {"source": "synthetic"}}
    return {**base, "measure": measure, **changes}


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Let this process and its children use so many cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(allowed)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def quota(cores: float) -> Iterator[None]:
    """Let this process and its children compute for so many cores, by the kernel's CFS bandwidth control.

    Raises:
        CannotThrottle: no such control group can be made.
    """
    group = Path("/sys/fs/cgroup/cpu" if V1.is_dir() else "/sys/fs/cgroup") / f"benchsuite-{os.getpid()}"
    of_100_ms = f"{round(cores * 1e5)}"
    files = {"cpu.cfs_quota_us": of_100_ms} if V1.is_dir() else {"cpu.max": f"{of_100_ms} 100000"}
    try:
        group.mkdir()
        for name, text in {**files, "cgroup.procs": str(os.getpid())}.items():
            (group / name).write_text(text)
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise CannotThrottle(f"{group}: {error.strerror}") from error
    try:
        yield
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (group.parent / "cgroup.procs").write_text(process)
        with suppress(OSError):
            group.rmdir()


@contextmanager
def of_others(*commands: list[str]) -> Iterator[None]:
    """Run processes of others, which are nobody's children here."""
    starts = (
        "import subprocess, sys\n"
        "print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, start_new_session=True).pid)"
    )
    found = [int(subprocess.check_output([sys.executable, "-c", starts, *command])) for command in commands]
    try:
        time.sleep(0.5)
        yield
    finally:
        for process in found:
            os.killpg(process, 9)


def crowd() -> Any:
    """Processes of others that keep every core busy."""
    code = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    cores = sorted(os.sched_getaffinity(0))
    return of_others(*([sys.executable, "-c", code, str(core)] for core in cores))


def reads(root: Path) -> Any:
    """Processes of others that read from the disk all the time, past the page cache and under our limits."""
    file = root / "of_others"
    file.write_bytes(bytes(1 << 26))
    again = 'while dd if="$0" of=/dev/null bs=256k iflag=direct 2> /dev/null; do :; done'
    return of_others(*[["sh", "-c", again, str(file)]] * 2)


def apart(root: Path, spec: Mapping[str, Any], namespace: str, prepare: str) -> TrialRecord:
    """Return the record of a trial in a namespace of its own (`man 1 unshare`), which a shell command prepares."""
    file = root / "apart.yaml"
    file.write_text(yaml.safe_dump(dict(spec)))
    command = f"{prepare} && exec {sys.executable} -m benchsuite trial {file} --format json"
    done = subprocess.run(["unshare", namespace, "sh", "-c", command], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr.strip())
    return TrialRecord.model_validate_json(done.stdout)


def over_a_link(root: Path, rate: str, spec: Mapping[str, Any]) -> str:
    """Return the verdict of two ranks over a loopback of that rate."""
    shape = f"ip link set lo up && tc qdisc add dev lo root tbf rate {rate} burst 128kb latency 400ms"
    record = apart(root, spec, "--net", shape)
    if record.status != "ok":
        raise RuntimeError(record.reason)
    return str(record.figures.bottleneck)


def in_little_shared_memory(root: Path, spec: Mapping[str, Any]) -> str:
    """Return what a trial fails for whose workers have 4 MB of shared memory for their batches."""
    record = apart(root, spec, "--mount", "mount -t tmpfs -o size=4m benchsuite /dev/shm")
    if record.status == "ok":
        return str(record.figures.bottleneck)
    return SHARED_MEMORY if "shared memory" in str(record.reason) else str(record.reason)


class Loaded(Dataset[Any]):
    """What somebody's own training loop reads."""

    def __init__(self, sample: Callable[[], Any]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, row: int) -> Any:
        return self.sample()


def slept(seconds: float) -> float:
    time.sleep(seconds)
    return 0.0


def computed(seconds: float) -> float:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return 0.0


def watched(sample: Callable[[], Any], step: Callable[[], Any], mark: str | None = None, **options: Any) -> str:
    """Return the verdict of a watched loop over such samples and steps, part of which may be marked."""
    options = {"batch_size": 4, "num_workers": 1} | options
    loader = DataLoader(Loaded(sample), multiprocessing_context="fork" if options["num_workers"] else None, **options)
    watch = benchsuite.watch(loader, quiet=True, warmup_steps=5)
    for number, _ in enumerate(watch):
        step()
        if mark:
            watch.mark(mark)
        if number == WATCHED_STEPS:
            break
    watch.close()
    return str(watch.figures["bottleneck"])


def datasets(root: Path) -> None:
    """Photographs in every format, volumes in gzip, a large photograph, readers and workloads of one's own."""
    for form in FORMATS:
        options: dict[str, int | str] = {"shard_samples": PHOTOS // 8} if form in STREAMS else {}
        tiny = FACTS["resnet50"].variants["tiny"].sample
        generate_dataset(root / "photos" / form, Wanted("resnet50", "tiny", form, "image", tiny, options), PHOTOS)
    volume = FACTS["unet3d"].variants["tiny"].sample
    packed = Wanted("unet3d", "tiny", "hdf5", "volume", volume, {"compression": "gzip"})
    generate_dataset(root / "volumes", packed, VOLUMES)
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), np.uint8)
    Image.fromarray(noise).resize((4000, 3000)).save(root / "large.jpg", quality=90)
    (root / "readers.py").write_text(f"LARGE, LOCK = {str(root / 'large.jpg')!r}, {str(root / 'lock')!r}\n{READERS}")
    (root / "ranks.py").write_text(SLOW_RANK)


def of_input(root: Path) -> Iterator[Cause]:
    """Causes in storage and preprocessing, on an emulated device."""
    for form in FORMATS:
        for loader in ("torch", "threads"):
            cold = spec_of(root, form, loader=loader, cache="cold")
            slow_disk = partial(throttled, root, 6_000_000)
            yield Cause(f"disk limited to 6 MB/s, {form} {loader}", ("storage",), partial(trial, cold, slow_disk))
            warm = spec_of(root, form, device="emulated:1ms", loader=loader, cache="warm")
            yield Cause(f"decoding by one worker, {form} {loader}", ("preprocessing",), partial(trial, warm))
        if form not in STREAMS:  # which read megabytes at once: so few reads are enough for them
            few_reads = partial(throttled, root, 60, "iops")
            random = spec_of(root, form, reader="stock", cache="cold")
            yield Cause(f"disk limited to 60 reads/s, {form}", ("storage",), partial(trial, random, few_reads))
        fed = spec_of(root, form, device="emulated:150ms", reader="stock", cache="warm")
        yield Cause(f"a slow accelerator, {form}", ("none",), partial(trial, fed))
    for name, expected in (("Sleeping", "mixed"), ("Busy", "preprocessing"), ("Large", "preprocessing")):
        for workers in (0, 1):
            own = spec_of(root, reader=f"{root / 'readers.py'}:{name}", cache="warm", num_workers=workers)
            yield Cause(f"own reader {name}, {workers} workers", (expected,), partial(trial, own))
    for workers in (2, 4):
        locked = spec_of(root, reader=f"{root / 'readers.py'}:Locked", cache="warm", num_workers=workers)
        yield Cause(f"a lock among {workers} workers", ("preprocessing", "mixed"), partial(trial, locked))
    for loader in ("torch", "threads"):
        read = spec_of(root, "hdf5", "emulated:2ms", loader=loader, cache="warm", root=str(root / "volumes"))
        gzip = partial(trial, {**read, "workload": "unet3d", "batch_size": 2})
        yield Cause(f"volumes in gzip, {loader}", ("preprocessing",), gzip)


def of_nodes(root: Path) -> Iterator[Cause]:
    """Causes in cores, ranks and links, with real models."""
    for workload in ("resnet50", "gpt_neox", "unet3d", "bert"):
        alone = modelled(workload, variant="tiny" if workload != "gpt_neox" else "nano")
        yield Cause(f"input in memory, {workload}", ("compute",), partial(trial, alone))
    for cores, around in ((1, partial(on_cores, 1)), (0.6, partial(quota, 0.6))):
        for form in ("files", "hdf5", "webdataset"):
            data = {"root": str(root / "photos" / form), "format": form, "cache": "warm", "num_workers": 2}
            busy = modelled("resnet50", data=data, threads_per_rank=1, measure={"steps": 16, "ceilings": False})
            name = f"{cores} cores for a model and two workers, {form}"
            yield Cause(name, ("client_cpu",), partial(trial, busy, around))
    for form in ("files", "lmdb", "webdataset"):
        data = {"root": str(root / "photos" / form), "format": form, "cache": "warm", "num_workers": 1}
        threads = {"batch_size": 16, "threads_per_rank": 2, "measure": {"steps": 16, "ceilings": False}}
        shared = modelled("resnet50", variant="tiny", data=data, **threads)
        yield Cause(f"two threads and a worker on two cores, {form}", ("client_cpu",), partial(trial, shared))
    for form in ("files", "hdf5"):
        large = {**spec_of(root, form, reader="stock", cache="warm"), "batch_size": 64}
        little = partial(in_little_shared_memory, root, large)
        yield Cause(f"4 MB of shared memory, {form}", (SHARED_MEMORY,), little)
    for rate in ("50mbit", "100mbit", "200mbit"):
        linked = modelled("resnet50", variant="tiny", parallelism="ddp", world_size=2, batch_size=2)
        yield Cause(f"a link of {rate}", ("communication",), partial(over_a_link, root, rate, linked))
    for name in ("SLEEPS", "COMPUTES"):
        for batch in (2, 4):
            held = modelled(f"{root / 'ranks.py'}:{name}", parallelism="ddp", world_size=2, batch_size=batch)
            yield Cause(f"rank 1 {name.lower()}, batch {batch}", ("imbalance",), partial(trial, held))
    for stages in (2, 4):
        piped = modelled("gpt_neox", parallelism={"pp": stages, "schedule": "naive"})
        yield Cause(f"a pipeline of {stages} naive stages", ("communication",), partial(trial, piped))
    beside = [spec_of(root, form, "emulated:1ms", reader="stock", cache="warm") for form in ("files", "lmdb")]
    beside += [modelled("resnet50", variant="tiny"), spec_of(root, "hdf5", "cpu", reader="stock", cache="warm")]
    for number, spec in enumerate(beside):
        yield Cause(f"others on every core, {number}", (CANNOT_TELL,), partial(trial, spec, crowd))
    shared_disk = (partial(throttled, root, 6_000_000), partial(reads, root))
    for form in ("files", "webdataset", "hdf5", "tfrecord"):  # beside others `lmdb`, a page at a time, takes too long
        cold = spec_of(root, form, reader="stock", cache="cold")
        yield Cause(f"others read the disk, {form}", (CANNOT_TELL,), partial(trial, cold, *shared_disk))


def of_loops(root: Path) -> Iterator[Cause]:
    """Causes in somebody's own training loop; its step waits for a device, as on a GPU, or computes."""
    waits, computes = partial(slept, STEP_S), partial(computed, STEP_S)
    long = 3 * STEP_S  # handing on a batch takes some 1 ms, which of a shorter step is more than a twentieth
    of_cores = ("preprocessing", "client_cpu")
    for workers in (0, 1, 2):
        elsewhere, here = (
            partial(watched, partial(sample, 0.02), waits, num_workers=workers) for sample in (slept, computed)
        )
        yield Cause(f"watch: samples of 20 ms elsewhere, {workers} workers", ("storage",), elsewhere)
        yield Cause(f"watch: samples of 20 ms of a core, {workers} workers", of_cores, here)
    yield Cause("watch: a slow first epoch", ("storage",), partial(watched, _first_slow(120), waits))
    yield Cause(
        "watch: fed, steps on a device", ("compute",), partial(watched, partial(slept, 0.0005), partial(slept, long))
    )
    on_a_core = partial(watched, partial(slept, 0.0005), partial(computed, long))
    yield Cause("watch: fed, steps on a core", ("compute",), on_a_core)
    exchange = partial(watched, partial(slept, 0.0005), waits, "communication")
    yield Cause("watch: an exchange", ("communication",), exchange)
    large = partial(watched, partial(np.zeros, 1_500_000, np.float32), partial(slept, 0.001))
    yield Cause("watch: batches of 24 MB", of_cores, large)
    crowded = partial(watched, partial(computed, 0.005), computes)
    yield Cause("watch: others on every core", (CANNOT_TELL,), partial(_beside_a_crowd, crowded))


def _first_slow(count: int) -> Callable[[], float]:
    """Samples of which a worker's first so many come from elsewhere, in 20 ms each, and the others from memory."""
    left = iter(range(count))
    return lambda: slept(0.02 if next(left, None) is not None else 0.0005)


def _beside_a_crowd(said: Callable[[], str]) -> str:
    with crowd():
        return said()


class Judged(NamedTuple):
    """A cause and what was said of it; None where it could not be made here, with why."""

    cause: Cause
    said: str | None
    why: str = ""


def report(root: Path) -> list[Judged]:
    """Make every cause, one after another."""
    datasets(root)
    found = []
    for cause in (*of_input(root), *of_nodes(root), *of_loops(root)):
        try:
            judged = Judged(cause, cause.said())
            if isinstance(judged.said, Said) and "KEEP" in os.environ:
                keep(Path(os.environ["KEEP"]), root, cause, judged.said)
        except (CannotStart, CannotThrottle, RuntimeError, OSError) as error:
            judged = Judged(cause, None, str(error))
        found.append(judged)
        wanted = "" if judged.said in cause.expected else f" (made: {' or '.join(cause.expected)})"
        print(f"   {cause.name}: {judged.said or judged.why}{wanted}", flush=True)
    return found


def matrix(found: list[Judged]) -> list[str]:
    """Rows of a table: what was made, what was said, how often."""
    counts = Counter((one.cause.expected[0], one.said) for one in found if one.said is not None)
    names = sorted({name for pair in counts for name in pair})
    rows = [f"| made | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}"]
    for made in sorted({made for made, _ in counts}):
        cells = [str(counts[made, said] or "") for said in names]
        rows.append(f"| {made} | {' | '.join(cells)} |")
    return rows


def show(folder: Path) -> None:
    """Print the matrix of causes and verdicts."""
    print("(n) causes that were made, and what trials and watch say of them")
    found = report(folder)
    told = [one for one in found if one.said not in (None, CANNOT_TELL, SHARED_MEMORY)]
    right = sum(one.said in one.cause.expected for one in told)
    abstained = sum(one.said == CANNOT_TELL for one in found)
    print("\n".join(matrix(found)))
    print(goal(right >= MIN_RIGHT * len(told), f"{right} of {len(told)} causes that are named are right (goal: 95 %)"))
    print(f"    of {len(found)} causes {abstained} abstentions, {sum(one.said is None for one in found)} not made here")
