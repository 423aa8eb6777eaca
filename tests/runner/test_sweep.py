"""Running a plan: what is left to do, in which order, and what the store is told. Trials are made up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchsuite.analysis.record_builder import Attempt
from benchsuite.contract.emulated_devices import NO_MODEL
from benchsuite.contract.errors import UserError
from benchsuite.contract.outcome import Outcome, RankExit
from benchsuite.contract.rank_samples import Progress
from benchsuite.contract.trial_spec import TrialSpec, parse_sweep, trial_id
from benchsuite.grid.expand import expand
from benchsuite.grid.point import Plan
from benchsuite.host.machine import Machine
from benchsuite.host.signals import Terminated
from benchsuite.inside.samples import RankSamples
from benchsuite.launch.launcher import CannotStart
from benchsuite.results.store.record import TrialRecord
from benchsuite.results.store.store import ResultsStore
from benchsuite.runner import sweep as sweeping
from benchsuite.runner.ceilings import without_model
from benchsuite.runner.claims import Claims
from benchsuite.storage.create.convert import Wanted, generate_dataset
from tests.helpers.made import CEILING, made_block, made_result
from tests.results.made import made_record


class Rehearsal:
    """A launcher that runs nothing: each trial ends as it is told to."""

    def __init__(self, ends: Callable[[int], RankSamples | BaseException | None] = lambda number: None) -> None:
        self.ends, self.launched = ends, list[tuple[int | None, Path]]()

    def __enter__(self) -> "Rehearsal":
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, on_progress: Callable[[Progress], None]
    ) -> Outcome:
        end = self.ends(len(self.launched)) or made_result(blocks=[made_block("plain", 0.0, CEILING)])
        self.launched.append((spec.batch_size, folder))
        if isinstance(end, BaseException):
            raise end
        end.write(folder / "rank-0.json")
        return Outcome([RankExit(0, 0 if end.status == "ok" else 1)])


class Silence:
    """A watcher that notes what it was shown."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def started(
        self, attempt: Attempt, number: int, total: int, trial_s: float | None, remaining_s: float | None
    ) -> None:
        self.seen.append(f"started {number}/{total}")

    def progress(self, progress: Progress) -> None: ...

    def finished(self, record: TrialRecord, remaining_s: float | None) -> None:
        self.seen.append(f"finished {record.status}")

    def say(self, text: str) -> None:
        self.seen.append(text)


def made_plan(repeats: int = 2, **sweep: Any) -> Plan:
    base = {
        "workload": "resnet50",
        "variant": "tiny",
        "batch_size": 1,
        "data": {"source": "synthetic"},
        "measure": {"repeats": repeats},
    }
    sweep = {"grid": {"batch_size": [1, 2]}} | sweep
    return expand(parse_sweep({"name": "s", "base": base, **sweep}), Machine(2, 0))


def run(plan: Plan, store: ResultsStore, launcher: Rehearsal, session: str = "default", retry: str = "") -> list[str]:
    claims = Claims.of(store.path, session)
    todo = sweeping.shared_status(plan, store, session, frozenset(retry.split(",")), claims).todo
    ran = sweeping.run(plan, todo, store, launcher, session, Silence(), claims)
    return [record.trial_id for record in ran.records]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    generate_dataset(root / "files", Wanted("resnet50", "tiny", "files"), 32)
    return root


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"cpu_binding": "device"},
        {"cpu_binding": "none"},
        {"precision": "bf16", "channels_last": True, "cudnn_benchmark": True},
        {"measure": {"steps": 8, "profile": "nvtx"}},
        {"parallelism": "fsdp", "world_size": 4},
    ],
)
def test_every_cuda_point_has_a_trial_without_its_model(images: Path, asked: dict[str, Any]):
    """Planned for devices that are told: this machine needs none."""
    read = {"root": str(images), "num_workers": 1, "prefetch_factor": 1, "cache": "warm"}
    base = {"workload": "resnet50", "variant": "tiny", "device": "cuda", "batch_size": 2, "data": read}
    base |= {"measure": {"steps": 8}, **asked}
    machine = Machine(cores=16, cuda_devices=8)
    (point,) = expand(parse_sweep({"name": "s", "base": base}), machine).points
    alone = without_model(point, machine)
    assert alone is not None, "loader-only rate and storage ceiling would be missing"
    assert (alone.spec.device, alone.spec.ranks, alone.spec.data) == (NO_MODEL, point.spec.ranks, point.spec.data)


@pytest.fixture
def store(tmp_path: Path) -> ResultsStore:
    return ResultsStore(tmp_path / "store")


def test_repeats_are_interleaved_over_the_points(store: ResultsStore):
    launcher = Rehearsal()
    run(made_plan(), store, launcher)
    assert [batch for batch, _ in launcher.launched] == [1, 2, 1, 2]


def test_every_trial_is_recorded_as_soon_as_it_has_ended(store: ResultsStore):
    seen: list[int] = []

    def count(_number: int) -> None:
        seen.append(len(store.records()) if (store.path / "segments").is_dir() else 0)

    run(made_plan(), store, Rehearsal(count))
    assert seen == [0, 1, 2, 3]
    assert [record.status for record in store.records()] == ["ok"] * 4
    assert store.samples(store.records()[0]) is not None


def test_what_is_done_is_not_run_again(store: ResultsStore):
    plan = made_plan()
    first = run(plan, store, Rehearsal())
    again = Rehearsal()
    assert run(plan, store, again) == []
    assert again.launched == []
    assert len(first) == len(set(first)) == 4
    status = sweeping.session_status(plan, store, "default")
    assert (status.todo, status.finished, status.num_failed) == ([], {"ok": 4}, 0)


def test_more_repeats_add_only_those(store: ResultsStore):
    run(made_plan(repeats=1), store, Rehearsal())
    added = run(made_plan(repeats=3), store, Rehearsal())
    assert [name.rpartition(".")[2] for name in added] == ["1", "1", "2", "2"]


def test_another_session_measures_anew(store: ResultsStore):
    run(made_plan(), store, Rehearsal())
    assert len(run(made_plan(), store, Rehearsal(), session="new")) == 4


def test_failures_are_run_again_only_when_asked(store: ResultsStore):
    plan = made_plan()
    run(plan, store, Rehearsal(lambda number: RankSamples(0, "failed", reason="broke") if number == 1 else None))
    assert sweeping.session_status(plan, store, "default").num_failed == 1
    assert run(plan, store, Rehearsal()) == []
    assert run(plan, store, Rehearsal(), retry="oom") == []
    assert len(run(plan, store, Rehearsal(), retry="failed")) == 1
    assert {record.status for record in store.latest()} == {"ok"}
    assert len(store.records()) == 5, "the failed attempt is kept"


def test_a_failed_trial_keeps_its_folder_an_ok_one_does_not(store: ResultsStore):
    launcher = Rehearsal(lambda number: RankSamples(0, "oom", reason="MemoryError") if number == 0 else None)
    run(made_plan(), store, launcher)
    kept = [record.work_folder for record in store.records()]
    assert kept[0] is not None and (store.path / kept[0] / "rank-0.json").is_file() and kept[1:] == [None] * 3
    assert [str(path.relative_to(store.path)) for path in store.path.glob("work/*/*")] == kept[:1]
    assert [record.status for record in store.records()] == ["oom", "ok", "ok", "ok"]


def test_what_could_not_be_launched_leaves_no_folder(store: ResultsStore):
    with pytest.raises(CannotStart):
        run(made_plan(), store, Rehearsal(lambda number: CannotStart("no ranks") if number else UserError("not this")))
    assert [record.status for record in store.records()] == ["failed", "interrupted"]
    assert [*store.path.glob("work/*")] == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated])
def test_an_interrupt_loses_the_trial_in_flight_only(store: ResultsStore, stop: type[BaseException]):
    plan = made_plan()
    with pytest.raises(stop):
        run(plan, store, Rehearsal(lambda number: stop() if number == 2 else None))
    assert [record.status for record in store.records()] == ["ok", "ok", "interrupted"]
    assert len(run(plan, store, Rehearsal())) == 2
    assert {record.status for record in store.latest()} == {"ok"}


def test_what_is_measured_after_an_interrupt_elsewhere_counts(store: ResultsStore, monkeypatch: pytest.MonkeyPatch):
    """The interrupted sweep's clock is years ahead: by the clocks alone its record would be the last one."""
    plan = made_plan()
    todo = sweeping.session_status(plan, store, "default").todo
    with monkeypatch.context() as ahead, pytest.raises(KeyboardInterrupt):
        ahead.setattr("benchsuite.analysis.record_builder.now", lambda: "2099-01-01T00:00:00.000000+00:00")
        run(plan, store, Rehearsal(lambda number: KeyboardInterrupt()))
    sweeping.run(plan, todo, store, Rehearsal(), "default", Silence(), Claims.of(store.path, "default"))
    assert {record.status for record in store.latest()} == {"ok"}
    assert run(plan, store, Rehearsal()) == []


def test_the_watcher_is_told(store: ResultsStore):
    watcher = Silence()
    plan = made_plan(repeats=1)
    todo = sweeping.session_status(plan, store, "s").todo
    sweeping.run(plan, todo, store, Rehearsal(), "s", watcher, Claims.of(store.path, "s"))
    assert watcher.seen == ["started 0/2", "finished ok", "started 1/2", "finished ok"]


def test_skipped_points_are_recorded_once_per_session_and_reason(store: ResultsStore):
    plan = made_plan(grid={"world_size": [1, 2]})
    for session in ("a", "a", "b"):
        sweeping.record_skipped(plan, store, session)
    assert [(record.session, record.status) for record in store.records()] == [("a", "skipped"), ("b", "skipped")]
    assert store.records()[0].reason == "parallelism none has 1 rank, world_size is 2: give ddp, or another mode"


def test_excluding_a_point_later_hides_no_result(store: ResultsStore):
    run(made_plan(), store, Rehearsal())
    run(made_plan(exclude=[{"batch_size": 2}]), store, Rehearsal())
    assert [record.status for record in store.latest()] == ["ok"] * 4


def test_skipped_points_run_once_they_can(store: ResultsStore):
    plan = made_plan(repeats=1)
    name = trial_id(plan.points[0].point_id, "default", 0)
    store.append(made_record(0, trial_id=name, status="skipped", reason="no shards"))
    assert name in run(plan, store, Rehearsal())


def test_nothing_runs_names_every_reason_once():
    error = sweeping.nothing_runs_error(made_plan(grid={"world_size": [2], "batch_size": [1, 1]}))
    assert isinstance(error, UserError)
    assert str(error).count("parallelism none has 1 rank, world_size is 2") == 1
    error = sweeping.nothing_runs_error(made_plan(grid={"world_size": [2], "batch_size": [1, 2, 3]}))
    assert str(error).count("parallelism none has 1 rank, world_size is 2") == 1
    assert all(f"batch_size {size}" in str(error) for size in (1, 2, 3))


def test_environment_of_a_record(store: ResultsStore):
    run(made_plan(repeats=1), store, Rehearsal())
    env = store.records()[0].env
    assert env["cores"] >= 1
    assert env["libraries"]["torch"].startswith("2.")
    assert env["load_average"] >= 0.0
