"""The loader with no model and a plain reader of the files: measured once for trials that share their input."""

from pathlib import Path
from typing import Any

import pytest

from benchsuite.analysis.record_builder import Attempt
from benchsuite.contract.emulated_devices import NO_MODEL
from benchsuite.contract.rank_samples import Progress, RankIdentity
from benchsuite.contract.trial_spec import parse_sweep
from benchsuite.grid.expand import expand, plan_trial
from benchsuite.grid.point import Point
from benchsuite.host.machine import this_machine
from benchsuite.launch.launcher import load_launcher
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import sweep
from benchsuite.runner.ceilings import without_model
from benchsuite.runner.claims import Claims
from benchsuite.runner.single_trial import run_in_processes
from benchsuite.storage.create.convert import Wanted, generate_dataset
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.trial import page_cache
from benchsuite.workloads.facts import FACTS
from tests.storage.samples import file_system


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, spec = tmp_path_factory.mktemp("ceilings"), FACTS["resnet50"]
    generate_dataset(
        root / "files", Wanted("resnet50", "tiny", "files", kind=spec.kind, params=spec.variants["tiny"].sample), 128
    )
    return root


def base(root: Path, **changes: Any) -> dict[str, Any]:
    read = {"root": str(root), "num_workers": 1, "prefetch_factor": 1, **changes.pop("data", {})}
    measure = {"steps": 8, "warmup_steps": 1, "repeats": 1, **changes.pop("measure", {})}
    return {
        "workload": "resnet50",
        "variant": "tiny",
        "device": "cpu",
        "batch_size": 4,
        "data": read,
        "measure": measure,
        **changes,
    }


def alone(root: Path, **changes: Any) -> Point | None:
    return without_model(plan_trial(base(root, **changes)))


class Closed:
    """Readers that have stopped."""

    def close(self) -> None: ...


class Silent:
    """Watches a sweep and says nothing."""

    def started(
        self, attempt: Attempt, number: int, total: int, trial_s: float | None, remaining_s: float | None
    ) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def finished(self, record: TrialRecord, remaining_s: float | None) -> None: ...

    def say(self, text: str) -> None: ...


def test_what_the_model_does_makes_no_other_pipeline(data: Path) -> None:
    plain = alone(data)
    assert plain is not None and plain.spec.device == NO_MODEL
    for same in ({"precision": "bf16"}, {"optimizer": "adamw"}, {"activation_checkpointing": "full"}):
        other = alone(data, **same)
        assert other is not None and other.point_id == plain.point_id, same


@pytest.mark.parametrize(
    "other", [{"batch_size": 8}, {"data": {"num_workers": 2}}, {"data": {"cache": "warm"}}, {"measure": {"seed": 1}}]
)
def test_other_input_is_another(data: Path, other: dict[str, Any]) -> None:
    plain, found = alone(data), alone(data, **other)
    assert plain is not None and found is not None and found.point_id != plain.point_id


def test_ranks_that_share_samples_read_them_alone_once(data: Path) -> None:
    found = alone(data, parallelism="ddp", world_size=2)
    assert found is not None and (found.spec.parallelism, found.spec.ranks) == ("ddp", 2)
    piped = alone(data, parallelism={"pp": 2, "schedule": "gpipe"})
    assert piped is not None and (piped.spec.parallelism, piped.spec.ranks) == ("none", 1)


@pytest.mark.parametrize(
    "without",
    [
        {"data": {"source": "memory"}},
        {"data": {"source": "synthetic"}},
        {"data": {"staging": "copy"}},
        {"measure": {"ceilings": False}},
        {"device": NO_MODEL},
    ],
)
def test_where_there_is_nothing_to_measure(data: Path, without: dict[str, Any]) -> None:
    assert alone(data, **without) is None


@pytest.mark.parametrize(
    ("rank", "local_rank", "threads", "share"), [(0, 0, 6, (0, 2)), (1, 1, None, None), (3, 0, 2, (1, 2))]
)
def test_each_node_reads_its_share_with_its_own_ranks_readers(
    data: Path, monkeypatch: pytest.MonkeyPatch, rank: int, local_rank: int, threads: int | None, share: Any
) -> None:
    """Three ranks on the first node, one on the second, two readers each."""
    asked: list[tuple[int, Any]] = []
    monkeypatch.setattr(page_cache, "of_ranks", lambda value: [True] * 4 if value is True else [0, 0, 0, 3])
    monkeypatch.setattr(page_cache, "_evicted", lambda dataset, files: True)
    monkeypatch.setattr(page_cache, "read_ceiling", lambda files, count, seconds, part: asked.append((count, part)))
    point = alone(data, parallelism="ddp", world_size=4, batch_size=1, data={"num_workers": 2})
    assert point is not None
    me = RankIdentity(rank, 4, local_rank, data, 0.0)
    assert page_cache.storage_ceiling(point.spec, open_dataset(data / "files"), Closed(), me) is None  # type: ignore[arg-type]
    assert asked == ([] if threads is None else [(threads, share)])


def test_a_node_that_cannot_see_its_cache_leaves_no_ceiling(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of the others are not that of all."""
    monkeypatch.setattr(page_cache, "of_ranks", lambda value: [True, False] if value is True else [0, 1])
    point = alone(data, parallelism="ddp", world_size=2)
    assert point is not None
    me = RankIdentity(0, 2, 0, data, 0.0)
    assert page_cache.storage_ceiling(point.spec, open_dataset(data / "files"), Closed(), me) is None  # type: ignore[arg-type]


def test_two_ranks_read_plainly_at_once(data: Path) -> None:
    """By all the readers of their node."""
    if file_system(data) in ("tmpfs", "ramfs"):
        pytest.skip("what stays in memory is no storage")
    point = alone(data, parallelism="ddp", world_size=2, batch_size=2)
    assert point is not None
    record, samples = run_in_processes(point)
    assert record.status == "ok" and samples is not None, record.reason
    plain = [rank["storage_ceiling"] for rank in samples["ranks"]]
    assert plain[0]["threads"] == 2 and plain[1] is None
    assert record.figures.storage_ceiling_bytes_per_s == plain[0]["bytes_per_s"]


def test_measured_once_a_session_and_named_by_the_trials(data: Path, tmp_path: Path) -> None:
    value = {"name": "two", "base": base(data), "grid": {"optimizer": ["sgd", "momentum"]}}
    plan = expand(parse_sweep(value), this_machine())
    store = ResultsStore(tmp_path / "store")
    with load_launcher("auto") as launcher:
        todo = sweep.session_status(plan, store, "default").todo
        claims = Claims.of(store.path, "default")
        records = sweep.run(plan, todo, store, launcher, "default", Silent(), claims).records
    probes = [record for record in store.latest() if record.kind == "probe"]
    assert len(records) == 2 and len(probes) == 1
    assert {record.figures.ceilings_record_id for record in records} == {probes[0].record_id}
    for record in records:
        assert record.status == "ok" and record.kind == "trial"
        assert record.figures.loader_only_samples_per_s == probes[0].figures.samples_per_s > 0
    assert len(store.frame()) == 2, "probes are no trials"
    assert not sweep.session_status(plan, store, "default").todo
    ceiling = records[0].figures.storage_ceiling_bytes_per_s
    if file_system(data) in ("tmpfs", "ramfs"):
        assert ceiling is None, "what stays in memory is no storage"
    else:
        assert ceiling is not None and ceiling > 0
