"""A Slurm of two nodes on this host, sweeps as its jobs, and proof that nothing of them is left."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.asked import only_if_asked
from tests.cluster.daemons import Daemons, missing
from tests.cluster.processes import wait_for
from tests.cluster.slurm import Slurm
from tests.faults.conftest import Bench

Run = Callable[..., tuple[int, str, str]]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They need a Slurm that can be started here."""
    only_if_asked(HERE, missing(), config, items)


@pytest.fixture(scope="session")
def daemons() -> Iterator[Daemons]:
    started = Daemons()
    try:
        started.start()
        Slurm(started).wait_idle()
        yield started
    finally:
        print(started.logs())  # noqa: T201 - shown with a failure
        started.stop()


@pytest.fixture
def slurm(daemons: Daemons) -> Iterator[Slurm]:
    made = Slurm(daemons)
    yield made
    made.recover()


class ClusterBench(Bench):
    """Sweeps as jobs of a cluster, and a workload that can be held in mid-trial."""

    def __init__(self, folder: Path, slurm: Slurm, run_cli: Run) -> None:
        super().__init__(folder)
        self.run_cli = run_cli
        self.hold_file = folder / "hold"
        self.env |= {**slurm.env, "BENCHSUITE_TEST_HOLD": str(self.hold_file)}

    def grid(self, points: int, **base: Any) -> Path:
        """A sweep of so many points, batch sizes 1, 2, ..., of the workload that can be held."""
        held = {"workload": f"{HERE / 'held.py'}:WORKLOAD", "variant": "nano", "data": {"source": "synthetic"}}
        fixed = {"device": "cpu", "measure": {"steps": 3, "warmup_steps": 1, "repeats": 1}}
        return self.write(
            {"name": "held", "base": held | fixed | base, "grid": {"batch_size": [*range(1, points + 1)]}}
        )

    def submit(self, file: Path, *options: object) -> int:
        """`benchsuite submit slurm`; the job's id."""
        code, out, err = self.run("submit", "slurm", file, "--store", self.store, *options)
        assert code == 0, err
        found = re.fullmatch(rf"submitted: (\d+) · {re.escape(str(self.store))}/jobs/bs-\S+\.sh\n", out)
        assert found, out
        return int(found[1])

    def hold(self, point: int) -> None:
        """Let trials of this batch size wait in their first step."""
        self.hold_file.write_text(str(point))

    def release(self) -> None:
        self.hold_file.unlink()

    def wait_held(self) -> None:
        """Wait until a trial is held."""
        wait_for(self.hold_file.with_suffix(".held").exists, "a trial that is held", 180)

    def status(self, file: Path) -> str:
        """What `benchsuite status` says."""
        code, out, err = self.run_cli("status", file, "--store", self.store)
        assert code == 0, err
        return out

    def statuses(self) -> Counter[tuple[int, str]]:
        """How often each batch size has a record of each status."""
        return Counter((record["spec"]["batch_size"], record["status"]) for record in self.records())

    def said(self) -> str:
        """What the jobs printed."""
        return "\n".join(path.read_text() for path in sorted((self.store / "jobs").glob("*.out")))


@pytest.fixture
def bench(tmp_path: Path, slurm: Slurm, run_cli: Run) -> Iterator[ClusterBench]:
    yield from _bench(tmp_path, slurm, run_cli)


@pytest.fixture
def other_bench(tmp_path: Path, slurm: Slurm, run_cli: Run) -> Iterator[ClusterBench]:
    """With a store and a hold of its own."""
    folder = tmp_path / "other"
    folder.mkdir()
    yield from _bench(folder, slurm, run_cli)


def _bench(folder: Path, slurm: Slurm, run_cli: Run) -> Iterator[ClusterBench]:
    made = ClusterBench(folder, slurm, run_cli)
    yield made
    print(made.said())  # noqa: T201 - shown with a failure
    shutil.rmtree(made.temporary, ignore_errors=True)  # jobs of a failed test may still be at it
