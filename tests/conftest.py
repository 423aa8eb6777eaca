"""Fixtures that several packages' tests share: one small dataset, in every format."""

import os
import re
import signal
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from benchsuite.storage import FORMATS, load
from benchsuite.storage.create.convert import Wanted, convert_dataset, generate_dataset
from tests.helpers.fixtures import no_site_or_user_file, published, run_cli  # noqa: F401

NUM_SAMPLES = 96
SHARD_SAMPLES = 8
"""12 shards, so that 2 ranks x 2 workers each get three."""
LONGEST = (
    *("cluster/test_launchers.py", "late/test_stores.py", "late/test_data.py", "cluster/test_one_job.py"),
    *("late/test_compaction.py", "cluster/test_container.py", "late/", "cluster/", "network/"),
    *("workloads/parallel/test_modes.py", "faults/", "runner/test_validate.py", "storage/loaders/", "plugins/"),
    *("test_imports.py", "test_packaging.py", "probe/", "trial/"),
)
"""Files that take minutes are begun first, so that of two processes none ends with a long one; of those that wait for
Slurm or for late mounts, one of each kind beside the other: three Slurms at once are too many for two cores."""
SLOW = tuple(
    """
    cli/test_app.py::TestTrial::test_its_record cli/test_app.py::TestTrial::test_validate_on cli/test_broken_pipe.py
    cli/test_controls.py cli/test_data.py::TestData::test_every_format_at_once cli/test_data.py::TestKinds
    cli/test_export.py::test_filters cli/test_export.py::test_on_a_full_disk cli/test_modelled.py
    cli/test_paths.py::test_a_url
    cli/test_report_html.py cli/test_scaling.py::test_figures cli/test_search.py
    cli/test_sessions.py::TestReport::test_one_is_chosen cli/test_signals.py cli/test_special_files.py
    cli/test_streams.py
    faults/
    fuzz/
    grid/test_show_config.py::TestDefaultStore grid/test_sweep_files.py::test_a_mistake_that_all
    grid/test_sweep_files.py::test_many_points grid/test_sweep_files.py::test_one_line
    launch/test_launchers.py::TestLocal::test_a_trial_that launch/test_launchers.py::TestLocal::test_an_agent
    launch/test_launchers.py::TestTorchrun::test_a_trial_that launch/test_rendezvous.py launch/test_starters.py
    nightly/test_measuring.py nightly/test_proposal.py
    plugins/
    predict/test_rulers.py predict/theory/test_alpha_beta_fit.py
    probe/comm/test_probe.py probe/comm/test_rank.py probe/llm/ probe/test_checkpoint.py probe/test_nodes.py
    probe/test_probe_verbs.py
    results/charts/ results/compare/test_slow_nodes.py results/export/ results/gate/test_alarms.py
    results/store/test_compaction results/store/test_damaged_lines.py results/store/test_frames.py
    results/store/test_sql results/store/test_version_1.py
    runner/test_ceilings.py::test_measured_once runner/test_ceilings.py::test_two_ranks runner/test_validate.py
    storage/buckets/ storage/create/test_convert.py::TestInterruption storage/create/test_generation.py
    storage/create/test_parts.py storage/create/test_photos.py storage/dataset/test_verify.py::test_a_generated
    storage/formats/test_files.py::TestNpzFiles::test_damage storage/formats/test_hdf5.py::TestChunks
    storage/formats/test_hdf5.py::TestCompression storage/formats/test_hdf5.py::TestManyFiles
    storage/formats/test_lmdb.py::TestDamage::test_a_page storage/formats/test_lmdb.py::TestProcesses
    storage/formats/test_tar.py::test_whatever storage/loaders/test_dali
    storage/loaders/test_stock.py::TestStock::test_the_order storage/loaders/test_stock.py::TestStock::test_with_shards
    storage/loaders/test_threads.py::TestThreads::test_memory
    storage/loaders/test_threads.py::TestThreads::test_the_order storage/loaders/test_torch.py::TestStorageBytes
    storage/observe/test_io_trace.py
    storage/staging/test_stage.py
    trial/test_emulated.py::test_from_a_sweep trial/test_io_truth.py workloads/parallel/test_first_weights.py
    trial/test_engines.py trial/test_profile.py trial/test_setup.py::test_every_group trial/test_stock.py
    watcher/test_processes.py::test_ranks_speak
    watcher/test_feeders.py::test_a_dataloaders watcher/test_untold.py watcher/test_watch.py::test_a_stored_record
    watcher/test_watch.py::test_batches_are_not
    workloads/engines/test_broadcast.py workloads/engines/test_parameter_server.py workloads/parallel/test_account.py
    workloads/parallel/test_context.py::test_outputs workloads/parallel/test_modes.py workloads/test_apply.py
    workloads/test_moe.py workloads/test_precision.py::test_fp8 workloads/test_unet3d.py::TestTraining
    test_imports.py::test_a_sweep_and_its_report test_packaging.py test_written_before.py
    """.split()  # noqa: SIM905
)
"""Files and tests of `make test-all`, but for what is marked smoke, which `make test` runs too."""


CLUSTER = ("cluster/", "late/", "network/", "storm/")
"""Folders whose own conftest marks all that they hold so."""
WHOLLY_WEEKLY = re.compile(r"^pytestmark = .*mark\.weekly", re.MULTILINE)
WHOLLY_SLOW = re.compile(r"^pytestmark = .*mark\.slow", re.MULTILINE)

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
"""Hundreds of processes that tests start would each compile the product, and every run of tests the tests."""


@cache
def says(file: Path, mark: str) -> bool:
    """Whether a test file marks anything so."""
    return f"mark.{mark}" in file.read_text()


def none_wanted(file: Path, expression: str) -> bool:
    """Whether a tier has none of a file's tests, which then need not be imported: most of collecting is that."""
    words, name = expression.split(), file.relative_to(Path(__file__).parent).as_posix()
    if not words or " or " in expression:
        return False
    if words[0] == "weekly":
        return not says(file, "weekly") and not any(word in file.read_text() for word in ("PAGES_MAY_GO", "browser"))
    if words[0] == "slow":
        return not says(file, "slow") and not name.startswith(tuple(each.partition("::")[0] for each in SLOW))
    slow = WHOLLY_SLOW.search(file.read_text()) is not None or (name.startswith(SLOW) and not says(file, "smoke"))
    weekly = WHOLLY_WEEKLY.search(file.read_text()) is not None
    cluster = "not cluster" in expression and name.startswith(CLUSTER)
    return cluster or ("not slow" in expression and slow) or ("not weekly" in expression and weekly)


def pytest_configure() -> None:
    """Hear SIGINT and SIGHUP, which a shell ignores in what it runs in the background: what tests start inherits it."""
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets it, and tables heed it
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that hold nothing of the tier that is asked for are not even imported."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and none_wanted(collection_path, config.option.markexpr) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, and leave the full matrix out unless an expression of markers is given."""
    for item in items:
        is_slow = item.nodeid.startswith(tuple(f"tests/{name}" for name in SLOW))
        if is_slow and not item.get_closest_marker("smoke"):
            item.add_marker("slow")
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("weekly")
        if item.get_closest_marker("engines"):
            item.add_marker("slow")
    names = [f"tests/{name}" for name in LONGEST]
    items.sort(key=lambda item: next((place for place, name in enumerate(names) if item.nodeid.startswith(name)), 99))
    if config.option.markexpr:
        return
    full = [item for item in items if item.get_closest_marker("full")]
    if full:
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if item not in set(full)]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Forked children hang in threaded tensor operations once their parent has run one."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def dataset_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one dataset of images per format that stores them, holding the same samples."""
    root = tmp_path_factory.mktemp("data")
    generate_dataset(root / "files", Wanted("resnet50", "tiny", "files"), NUM_SAMPLES, seed=3)
    for name in sorted(FORMATS):
        form = load(FORMATS, name)
        if "image" in form.kinds and name != "files":
            options = {"shard_samples": SHARD_SAMPLES} if form.sequential else {}
            convert_dataset(root / "files", root / name, Wanted("resnet50", "tiny", name, options=options))
    return root


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each test file took."""
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                seconds[file] = seconds.get(file, 0.0) + report.duration
    terminalreporter.section("seconds per file")
    for file, total in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{total:7.1f}  {file}")
