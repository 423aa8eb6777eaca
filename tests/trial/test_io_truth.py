"""What storage really delivered: trials cold, warm and direct, and beside a foreign reader, against what is known."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchsuite.contract.trial_spec import parse_sweep
from benchsuite.grid.expand import expand, plan_trial
from benchsuite.grid.warnings import memory_warning
from benchsuite.host.machine import this_machine
from benchsuite.launch.launcher import Launcher, load_launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.runner.single_trial import run_with_launcher
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.storage.observe.counters import mount_io
from benchsuite.storage.observe.page_cache import evict
from benchsuite.workloads.facts import FACTS
from tests.storage.samples import PAGES_MAY_GO, file_system

SAMPLES_MADE = 320
READS = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from benchsuite.storage.observe.page_cache import evict
print("begun", flush=True)
while True:
    evict([Path(sys.argv[1])])
    Path(sys.argv[1]).read_bytes()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("truth")
    if file_system(root) in ("tmpfs", "ramfs"):
        pytest.skip("the temporary folder lies in memory: nothing is read from storage there")
    spec = FACTS["resnet50"]
    for name in ("files", "hdf5"):
        generate_dataset(
            root / name,
            Wanted("resnet50", "tiny", name, kind=spec.kind, params=spec.variants["tiny"].sample),
            SAMPLES_MADE,
        )
    return root


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with load_launcher("auto") as made:
        yield made


def trial(launcher: Launcher, data: Path, ranks: int = 1, **settings: Any) -> TrialRecord:
    spec = {
        "workload": "resnet50",
        "variant": "tiny",
        "device": "emulated:10ms",
        "parallelism": "ddp" if ranks > 1 else "none",
        "world_size": ranks,
        "batch_size": 4,
        "data": {"root": str(data), "loader": "threads", "num_workers": 1, "prefetch_factor": 1, **settings},
        "measure": {"steps": 16, "warmup_steps": 1, "ceilings": False, "timeout_s": 120},
    }
    record, _ = run_with_launcher(plan_trial(spec), launcher)
    assert record.status == "ok", record.reason
    return record


@PAGES_MAY_GO
@pytest.mark.parametrize("name", ["files", pytest.param("hdf5", marks=pytest.mark.full)])
def test_cold_comes_from_storage_and_warm_from_memory(launcher: Launcher, data: Path, name: str) -> None:
    cold, warm = (trial(launcher, data, format=name, cache=state) for state in ("cold", "warm"))
    assert cold.figures.cache_resident_before == 0 and cold.figures.cache_measured_fraction == 1
    assert cold.figures.cache_hit_fraction is not None and cold.figures.cache_hit_fraction < 0.1
    assert (warm.figures.cache_resident_before or 0) > 0.98 and (warm.figures.cache_hit_fraction or 0) > 0.98
    assert cold.figures.cache_resident_after is not None and cold.figures.cache_resident_after > 0.1
    for record in (cold, warm):
        assert not {"not_cold", "not_warm", "cache_unverified"} & {*record.caveats}, record.caveat_details
        assert record.figures.delivered_bytes is not None and record.figures.read_call_bytes is not None
        assert record.figures.read_call_bytes == pytest.approx(record.figures.delivered_bytes, rel=0.05)


@PAGES_MAY_GO
def test_only_what_will_be_read_is_evicted(launcher: Launcher, data: Path) -> None:
    """48 batches of 320 samples would be too many: 17 of 4 leave most files as they were."""
    files = sorted((data / "files").rglob("*.jpg"))
    for path in files:
        path.read_bytes()
    trial(launcher, data, format="files", cache="cold")
    evicted_and_read = trial(launcher, data, format="files", cache="cold").figures.cache_resident_after
    from benchsuite.storage.observe.page_cache import residency

    resident = residency(files).fraction
    assert resident is not None and resident > 0.7
    assert evicted_and_read is not None and evicted_and_read > 0.7, "of the files it evicted, it has read nearly all"


@pytest.mark.weekly
@pytest.mark.parametrize("name", [pytest.param("files", marks=pytest.mark.full), "hdf5"])
def test_direct_reads_leave_nothing_behind(launcher: Launcher, data: Path, name: str) -> None:
    record = trial(launcher, data, format=name, cache="direct", loader="threads")
    assert record.figures.cache_resident_after is not None and record.figures.cache_resident_after < 0.05
    assert record.figures.cache_hit_fraction is not None and record.figures.cache_hit_fraction < 0.05
    assert "not_direct" not in record.caveats


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"format": "files", "loader": "dali"}, "reader stock reads through the page cache"),
        ({"format": "files"}, "reader stock reads through the page cache, .*; set data.loader: threads"),
        ({"format": "webdataset", "loader": "threads"}, "no dataset there|read by mapping or streaming"),
    ],
)
def test_what_cannot_be_read_directly_is_refused(data: Path, settings: dict[str, Any], reason: str) -> None:
    spec = {
        "workload": "resnet50",
        "variant": "tiny",
        "batch_size": 4,
        "data": {"root": str(data), "cache": "direct", **settings},
    }
    with pytest.raises(ValueError, match=reason):
        plan_trial(spec)


@pytest.mark.weekly
def test_a_foreign_reader_is_seen_and_named(launcher: Launcher, data: Path) -> None:
    if mount_io(data) is None:
        pytest.skip(f"{file_system(data)} has no counter of its own here")
    other = data / "other"
    other.write_bytes(bytes(64 << 20))
    evict([other])
    root = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", READS, str(other), root], stdout=subprocess.PIPE, text=True) as reader:
        try:
            assert reader.stdout is not None and reader.stdout.readline() == "begun\n"
            record = trial(launcher, data, ranks=2, format="hdf5", cache="cold")
        finally:
            reader.kill()
    said = [detail for detail in record.caveat_details if detail.startswith("counters_disagree")]
    assert said and "others read beside this trial" in said[0] and "ranks and workers" in said[0]
    figures = record.figures
    assert figures.mount_read_bytes is not None and figures.process_storage_bytes is not None
    assert figures.mount_read_bytes > 2 * figures.process_storage_bytes


def test_a_dataset_smaller_than_memory_is_warned_of(data: Path) -> None:
    sweep = {
        "name": "small",
        "base": {"workload": "resnet50", "variant": "tiny", "batch_size": 4, "data": {"root": str(data)}},
        "grid": {"data.format": ["files", "hdf5"]},
    }
    plan = expand(parse_sweep(sweep), this_machine())
    warning = memory_warning(plan.points, plan.machine, 10_000_000_000)
    assert warning is not None and "2 datasets" in warning and "50 GB would not" in warning
    assert memory_warning(plan.points, plan.machine, 1000) is None
