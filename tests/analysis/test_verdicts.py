"""Built situations with a known cause: each trial goes the whole way, and its record must name the cause."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.au import register, unregister
from bench.throttle import CannotThrottle, throttled
from benchsuite.grid.expand import plan_trial
from benchsuite.launch.launcher import Launcher, load_launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.single_trial import in_processes, launched
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.workloads.facts import FACTS
from tests.storage.samples import file_system

pytestmark = pytest.mark.quiet

PHOTOS, TINY_FILES, VOLUMES = 192, 600, 48
PACED_US = 2000

STRAGGLER = """
from dataclasses import replace

import torch
import torch.distributed as dist

from benchsuite.workloads.gpt_neox import WORKLOAD as GPT


def loss(model, batch):
    if dist.is_initialized() and dist.get_rank() == 1:
        weights = torch.ones(700, 700)
        for _ in range(12):
            weights = weights @ weights / 700
    return GPT.loss(model, batch)


WORKLOAD = replace(GPT, name="straggler", loss=loss, blocks=None, tensor_parallel=None, pipeline=None)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Photographs, sequences in a file each, volumes as gzip, samples that take a known time."""
    before = os.environ.get("PYTHONPATH")
    register()
    root = tmp_path_factory.mktemp("verdicts")
    _generate(root / "photos" / "files", "resnet50", "tiny", "files", PHOTOS, {})
    _generate(root / "small" / "files", "gpt_neox", "nano", "files", TINY_FILES, {})
    _generate(root / "volumes" / "hdf5", "unet3d", "tiny", "hdf5", VOLUMES, {"compression": "gzip"})
    _generate(root / "paced" / "paced", "gpt_neox", "nano", "paced", 64, {"sample_us": PACED_US})
    yield root
    unregister(before)


@pytest.fixture(scope="module")
def warm(data: Path) -> Iterator[Launcher]:
    """A launcher that has begun before, for trials that need no limit of this process."""
    with load_launcher("auto") as launcher:
        yield launcher


def _generate(
    folder: Path, workload: str, variant: str, name: str, samples: int, options: dict[str, int | str]
) -> None:
    spec = FACTS[workload]
    generate_dataset(
        folder,
        Wanted(workload, variant, name, kind=spec.kind, params=spec.variants[variant].sample, options=options),
        samples,
    )


def judged(warm: Launcher | None = None, /, **changes: Any) -> TrialRecord:
    """A trial of these changes, by a launcher; or in processes of its own, which inherit this one's limits."""
    base: dict[str, Any] = {"variant": "nano", "measure": {"steps": 12, "warmup_steps": 2, "timeout_s": 120}}
    nested = {
        key: {**base.get(key, {}), **value} if isinstance(value, dict) else value for key, value in changes.items()
    }
    point = plan_trial({**base, **nested})
    record, _ = launched(point, warm) if warm else in_processes(point)
    assert record.status == "ok", record.reason
    return record


def says(record: TrialRecord, bottleneck: str, *words: str) -> None:
    """The record names the cause, and these words stand in its evidence and remedy."""
    figures = record.figures
    told = f"{figures.bottleneck}: {figures.bottleneck_evidence}; {figures.bottleneck_remedy}"
    assert figures.bottleneck == bottleneck, told
    for word in words:
        assert word in told, told


def input_words(record: TrialRecord) -> list[str]:
    """What the evidence must say of a trial that is held back by its input: its own figures."""
    figures = record.figures
    read, decode = figures.read_s_per_sample or 0.0, figures.decode_s_per_sample or 0.0
    return [
        f"AU {figures.au:.2f}",
        f"{figures.input_stall_fraction:.0%} of the step waits for input, {figures.cpu_contention_fraction:.0%} for a",
        f"a reader reads {read * 1e3:.2f} ms and decodes {decode * 1e3:.2f} ms a sample",
        f"busy {figures.reader_busy_fraction:.0%} of the time",
    ]


def headspace(record: TrialRecord) -> str:
    """What the evidence says of the loader with no model beside what the steps would need."""
    figures = record.figures
    alone, wanted = figures.loader_only_samples_per_s or 0.0, (figures.samples_per_s or 0.0) / (figures.au or 1.0)
    assert alone > 0
    return f"the loader alone gives {alone:.0f} samples/s, the model could take {wanted:.0f}"


def share_of_step(record: TrialRecord, seconds: float | None) -> str:
    """As evidence tells it."""
    return f"{(seconds or 0.0) / (record.figures.step_s_mean or 1.0):.0%} of the step"


def on_disk(path: Path) -> None:
    """Skip where nothing can be cold."""
    if file_system(path) in ("tmpfs", "ramfs"):
        pytest.skip("the temporary folder lies in memory: nothing is read from storage there")


def photos(data: Path, **changes: Any) -> dict[str, Any]:
    return {
        "workload": "resnet50",
        "variant": "tiny",
        "device": "emulated:4ms",
        "batch_size": 4,
        "data": {"root": str(data / "photos"), "format": "files", "num_workers": 1, "prefetch_factor": 1, **changes},
    }


def test_1_a_throttled_disk_is_storage(data: Path) -> None:
    on_disk(data)
    try:
        with throttled(data, 3_000_000):
            record = judged(**photos(data, cache="cold"), measure={"steps": 8})
    except CannotThrottle as error:
        pytest.skip(str(error))
    read = (record.figures.io_bytes_per_s or 0.0) / (record.figures.storage_ceiling_bytes_per_s or 1.0)
    says(record, "storage", *input_words(record), headspace(record), "staging")
    says(record, "storage", f"a plain reader gets no more of these files: {read:.0%} of that is read")


def test_2_decoding_with_one_worker_is_preprocessing(data: Path, warm: Launcher) -> None:
    record = judged(warm, **photos(data, cache="warm"))
    assert (record.figures.decode_s_per_sample or 0.0) > 2 * (record.figures.read_s_per_sample or 1.0)
    says(record, "preprocessing", *input_words(record), headspace(record))


def test_3_tiny_files_are_storage_and_shards_would_help(data: Path) -> None:
    on_disk(data)
    small = {"root": str(data / "small"), "format": "files", "cache": "cold", "num_workers": 0, "loader": "threads"}
    try:
        with throttled(data, 3_000_000):  # a fast disk opens 600 small files before anyone notices
            record = judged(workload="gpt_neox", device="emulated:1ms", batch_size=16, data=small)
    except CannotThrottle as error:
        pytest.skip(str(error))
    says(record, "storage", *input_words(record), headspace(record), "a format of shards")


def test_4_a_slow_network_is_communication(data: Path) -> None:
    """Two ranks in a network namespace whose loopback gives 100 Mbit/s: 8 MB of gradients a step."""
    tools = [shutil.which(name) for name in ("unshare", "ip", "tc")]
    if os.geteuid() or None in tools:
        pytest.skip("shaping a link needs root, unshare, ip and tc")
    spec = {
        "workload": "resnet50",
        "variant": "tiny",
        "parallelism": "ddp",
        "world_size": 2,
        "batch_size": 2,
        "data": {"source": "synthetic"},
        "device": "cpu",
        "measure": {"steps": 2, "warmup_steps": 1, "ceilings": False, "timeout_s": 120},
    }
    file = data / "slow.yaml"
    file.write_text(yaml.safe_dump(spec))
    shape = "ip link set lo up && tc qdisc add dev lo root tbf rate 100mbit burst 128kb latency 400ms"
    trial = f"{sys.executable} -c 'from benchsuite.cli.app import main; main()' trial {file} --format json"
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", f"{shape} || exit 9; exec {trial}"], capture_output=True, text=True, check=False
    )
    if done.returncode == 9:
        pytest.skip(f"a link cannot be shaped here: {done.stderr.strip()}")
    record = TrialRecord.model_validate_json(done.stdout)
    assert record.status == "ok", record.reason
    wire = share_of_step(record, record.figures.communication_min_s)
    says(record, "communication", f"exposed communication is {wire}, stragglers aside", "larger batch")


def test_5_a_straggler_is_named(data: Path, warm: Launcher) -> None:
    file = data / "straggler.py"
    file.write_text(STRAGGLER)
    record = judged(
        warm,
        workload=f"{file}:WORKLOAD",
        parallelism="ddp",
        world_size=2,
        batch_size=2,
        data={"source": "synthetic"},
    )
    waited, wire = (
        record.figures.imbalance_s,
        (record.figures.communication_min_s or 0.0) / (record.figures.step_s_mean or 1),
    )
    said = f"others wait {share_of_step(record, waited)} for rank 1, the wire takes {wire:.0%}"
    says(record, "imbalance", said, "look at rank 1")


def test_6_a_model_that_is_fed_is_compute(data: Path, warm: Launcher) -> None:
    record = judged(
        warm, workload="gpt_neox", variant="nano", batch_size=16, data={"source": "synthetic"}, threads_per_rank=1
    )
    step, load = record.figures.step_s_mean or 0.0, record.figures.load_s or 0.0
    assert load < 0.05 * step
    says(record, "compute", f"input in memory; load is {load / step:.0%} of the step")


def test_7_decompressing_is_preprocessing_though_it_is_in_a_read(data: Path, warm: Launcher) -> None:
    packed = {"root": str(data / "volumes"), "format": "hdf5", "cache": "warm", "num_workers": 1, "loader": "threads"}
    record = judged(warm, workload="unet3d", variant="tiny", device="emulated:2ms", batch_size=2, data=packed)
    figures = record.figures
    read, computed = figures.read_s_per_sample or 0.0, figures.read_cpu_s_per_sample or 0.0
    decode = figures.decode_s_per_sample or 0.0
    assert computed > 0.8 * read > 4 * decode, "nearly all is one read, and nearly all of the read is computing"
    share = (figures.reader_busy_fraction or 0.0) * min(1.0, (decode + computed) / (read + decode))
    says(record, "preprocessing", *input_words(record), f"computing {share:.0%} of it")


def test_8_who_waits_though_all_bytes_are_in_memory_is_not_held_by_storage(data: Path, warm: Launcher) -> None:
    slow = {"root": str(data / "paced"), "format": "paced", "cache": "warm", "num_workers": 1, "loader": "threads"}
    record = judged(warm, workload="gpt_neox", device="emulated:2ms", batch_size=4, data=slow)
    assert record.figures.samples_per_s == pytest.approx(1e6 / PACED_US, rel=0.1)
    hit = f"{record.figures.cache_hit_fraction:.0%} of the bytes came from memory"
    says(record, "mixed", *input_words(record), headspace(record), hit, "and they wait all the same")


def test_9_nothing_holds_back_an_accelerator_that_is_fed(data: Path, warm: Launcher) -> None:
    paced = {"root": str(data / "paced"), "format": "paced", "cache": "warm", "num_workers": 2, "loader": "threads"}
    record = judged(warm, workload="gpt_neox", device="emulated:40ms", batch_size=4, data=paced)
    says(record, "none", f"AU {record.figures.au:.2f}; ", "input keeps up")


def test_10_a_pipelines_bubble_is_communication(warm: Launcher) -> None:
    record = judged(
        warm,
        workload="gpt_neox",
        parallelism={"pp": 4, "schedule": "naive"},
        batch_size=8,
        data={"source": "synthetic"},
    )
    bubble = share_of_step(record, record.figures.bubble_s)
    said = f"input in memory; waiting for other stages of the pipeline is {bubble}"
    says(record, "communication", said, "more microbatches")


@pytest.mark.full
def test_11_reading_as_long_as_decoding_is_mixed(data: Path) -> None:
    """The disk is throttled until a reader waits for it about as long as it decodes."""
    on_disk(data)
    rate = 25e6
    for _ in range(4):
        try:
            with throttled(data, round(rate)):
                record = judged(**photos(data, cache="cold", num_workers=0), measure={"steps": 12, "ceilings": False})
        except CannotThrottle as error:
            pytest.skip(str(error))
        read, decode = record.figures.read_s_per_sample or 0.0, record.figures.decode_s_per_sample or 0.0
        if 0.45 < read / (read + decode) < 0.6:
            return says(record, "mixed", *input_words(record), "; and ")
        rate *= read / decode
    pytest.skip("this disk cannot be throttled to the speed of decoding")


def test_12_readers_that_take_the_cores_are_the_clients_cpu(data: Path) -> None:
    """Two readers a rank and two ranks on however many cores this process may use: one."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        record = judged(
            workload="resnet50",
            variant="nano",
            parallelism="ddp",
            world_size=2,
            batch_size=4,
            threads_per_rank=1,
            device="cpu",
            data={"root": str(data / "photos"), "format": "files", "cache": "warm", "num_workers": 2},
            measure={"steps": 12, "ceilings": False},
        )
    finally:
        os.sched_setaffinity(0, allowed)
    assert (record.figures.cpu_contention_fraction or 0.0) > 0.1
    says(record, "client_cpu", *input_words(record), "cores")


def test_13_readers_on_one_core_do_not_blame_the_storage(data: Path) -> None:
    """Six threads read cold photographs on one core, which decodes as fast as it can; the disk has far more to give."""
    on_disk(data)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        record = judged(**photos(data, cache="cold", num_workers=6, loader="threads"), measure={"steps": 12})
    finally:
        os.sched_setaffinity(0, allowed)
    given, ceiling = record.figures.io_bytes_per_s or 0.0, record.figures.storage_ceiling_bytes_per_s or 0.0
    assert 0 < given < 0.5 * ceiling
    says(record, "client_cpu", *input_words(record), "cores")
    assert "storage" not in str(record.figures.bottleneck_remedy)
