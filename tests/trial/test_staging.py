"""Staged trials: the same samples from a copy of their own, timed, and nothing left of it."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import benchsuite
from benchsuite.analysis.caveats import caveats
from benchsuite.analysis.metrics import figures
from benchsuite.analysis.record_builder import conclude, new_attempt
from benchsuite.contract.errors import UserError
from benchsuite.contract.trial_spec import TrialSpec, check_staging, parse_trial
from benchsuite.grid.expand import plan_trial
from benchsuite.host.staged_copies import NAME
from benchsuite.inside.samples import RankSamples
from benchsuite.launch.launcher import Launcher, load_launcher
from benchsuite.results.scaling.staging import pairs
from benchsuite.results.store.record import TrialRecord
from benchsuite.storage.dataset.manifest import open_dataset
from benchsuite.storage.dataset.partial import partial_folder
from benchsuite.storage.observe import page_cache
from tests.helpers.grids import in_folder, plan, refused, storage_base
from tests.helpers.made import made_result, made_spec

__all__ = ["in_folder"]
pytestmark = pytest.mark.slow


def spec(root: Path, copies: Path | None, staged: str, **changes: Any) -> dict[str, Any]:
    """Nine steps: the 96 images leave no room for further blocks, which an AU above 1 adds and which train longer."""
    data = {
        "root": str(root),
        "format": "webdataset",
        "staging": staged,
        "staging_dir": str(copies) if copies else None,
        "num_workers": 1,
        "prefetch_factor": 1,
        "shuffle_buffer": 8,
    }
    return {
        "workload": "resnet50",
        "variant": "nano",
        "device": "cpu",
        "batch_size": 2,
        "threads_per_rank": 1,
        "data": data | changes.pop("data", {}),
        "measure": {"steps": 9, "warmup_steps": 1, "timeout_s": 120},
        **changes,
    }


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node-local")


@pytest.fixture(scope="module")
def forked(dataset_root: Path, copies: Path) -> dict[str, TrialRecord]:
    """Trials on two ranks, by staging."""
    found = {}
    with load_launcher("auto") as launcher:
        for staged in ("none", "copy", "lazy"):
            asked = spec(dataset_root, copies if staged != "none" else None, staged, parallelism="ddp", world_size=2)
            found[staged] = launched(launcher, asked, copies.parent / f"work-{staged}")
            assert found[staged].status == "ok", found[staged].reason
        endless = {"measure": {"steps": 1_000_000, "timeout_s": 4}, "parallelism": "ddp", "world_size": 2}
        asked = spec(dataset_root, copies, "copy", data={"cache": "warm"}) | endless
        assert launched(launcher, asked, copies.parent / "work-killed").status == "timeout"
    return found


def launched(launcher: Launcher, asked: dict[str, Any], folder: Path) -> TrialRecord:
    point = plan_trial(asked)
    attempt = new_attempt(point, "default", 0, "trial", None)
    folder.mkdir()
    outcome = launcher.run(point.spec, point.dataset, folder, lambda progress: None)
    return conclude(attempt, outcome, folder)[0]


class TestTwoRanks:
    def test_the_same_samples_are_trained_on(self, forked: dict[str, TrialRecord]) -> None:
        losses = {staged: record.figures.final_loss for staged, record in forked.items()}
        assert losses["none"] is not None
        assert losses["copy"] == losses["none"] == losses["lazy"]

    def test_copying_is_timed_and_filling_is_not(self, forked: dict[str, TrialRecord], dataset_root: Path) -> None:
        copied = forked["copy"].figures
        assert copied.stage_s is not None and copied.stage_s > 0
        size = sum(path.stat().st_size for path in open_dataset(dataset_root / "webdataset").data_files())
        assert copied.stage_bytes_per_s == pytest.approx(size / copied.stage_s)
        for staged in ("none", "lazy"):
            assert forked[staged].figures.stage_s is None
            assert forked[staged].figures.stage_bytes_per_s is None

    def test_the_record_says_where_the_copy_was(self, forked: dict[str, TrialRecord], copies: Path) -> None:
        assert forked["copy"].spec["data"]["staging_dir"] == str(copies)
        assert forked["copy"].env["staging"]["mount"] == forked["lazy"].env["staging"]["mount"]
        assert "staging" not in forked["none"].env

    def test_nothing_of_the_copies_is_left(self, forked: dict[str, TrialRecord], copies: Path) -> None:
        """Nor of the one whose trial was killed at its time limit."""
        assert forked
        assert list(copies.iterdir()) == []

    def test_points_have_ids_of_their_own(self, forked: dict[str, TrialRecord]) -> None:
        assert len({record.point_id for record in forked.values()}) == 3


FILLED = ["files", "hdf5", "mds"]
"""A file for each sample, one for all, shards; those above are lazily read tar files."""
MORE = ["webdataset", "lmdb", "parquet", "tfrecord"]


@pytest.mark.parametrize("form", [*FILLED, *(pytest.param(name, marks=pytest.mark.full) for name in MORE)])
def test_threads_read_a_copy_that_is_filled_meanwhile(
    dataset_root: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Steps that an AU above 1 adds would train longer: by how fast the blocks happened to be.
    monkeypatch.setattr("benchsuite.trial.rank.extra_pairs", lambda spec, num_samples: 0)
    asked = {"format": form, "loader": "threads"}
    bare = benchsuite.run_trial(spec(dataset_root, None, "none", data=asked))
    found = benchsuite.run_trial(spec(dataset_root, tmp_path, "lazy", data=asked))
    assert (bare.status, found.status) == ("ok", "ok"), (bare.reason, found.reason)
    assert found.figures.final_loss == bare.figures.final_loss
    assert list(tmp_path.iterdir()) == []


class TestFolder:
    def test_it_is_the_environments_by_default(
        self, dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "file"))
        (tmp_path / "file").touch()
        record = benchsuite.run_trial(spec(dataset_root, None, "copy"))
        assert (record.status, record.phase) == ("failed", "stage")
        assert str(tmp_path / "file") in str(record.reason)

    def test_too_small_a_disk_fails_the_trial_with_both_figures(
        self, dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usage = type("Usage", (), {"free": 1_000_000})
        monkeypatch.setattr("benchsuite.storage.staging.stage.shutil.disk_usage", lambda path: usage)
        for staged in ("copy", "lazy"):
            record = benchsuite.run_trial(spec(dataset_root, tmp_path, staged))
            assert (record.status, record.phase) == ("failed", "stage")
            assert "staging needs " in str(record.reason) and "has 1 MB free" in str(record.reason)
            assert list(tmp_path.iterdir()) == []

    def test_copies_of_ended_trials_are_removed_and_others_kept(self, dataset_root: Path, tmp_path: Path) -> None:
        child = os.fork()
        if child == 0:
            (partial_folder(tmp_path / NAME) / "x").mkdir(parents=True)
            os._exit(0)
        os.waitpid(child, 0)
        mine = partial_folder(tmp_path / NAME)
        mine.mkdir()
        assert len(list(tmp_path.iterdir())) == 2
        assert benchsuite.run_trial(spec(dataset_root, tmp_path, "copy")).status == "ok"
        assert list(tmp_path.iterdir()) == [mine]


class TestCache:
    def test_cold_is_cold_on_both_sides(
        self, dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = open_dataset(dataset_root / "webdataset")
        evicted: list[Path] = []
        monkeypatch.setattr(page_cache, "evict", lambda paths: evicted.extend(paths))
        record = benchsuite.run_trial(spec(dataset_root, tmp_path, "copy"))
        assert record.status == "ok"
        folders = list(dict.fromkeys(path.parent for path in evicted))
        assert folders[0] == source.folder
        assert [folder.is_relative_to(tmp_path) for folder in folders[1:]] == [True]

    def test_lazy_reads_its_source_first(
        self, dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        evicted: list[Path] = []
        monkeypatch.setattr(page_cache, "evict", lambda paths: evicted.extend(paths))
        benchsuite.run_trial(spec(dataset_root, tmp_path, "lazy"))
        assert {path.parent for path in evicted} == {dataset_root / "webdataset"}

    def test_a_source_that_was_not_cold_is_a_caveat(self) -> None:
        asked = made_spec(data={"staging": "copy"})
        cold, warm, unknown = (
            [made_result(stage_s=2.0, stage_bytes=10, stage_source_resident=share)] for share in (0.0, 0.5, None)
        )

        def found(spec: TrialSpec, results: list[RankSamples]) -> list[tuple[str, str]]:
            return caveats(spec, results, cores=8, cache_visible=True)

        assert found(asked, cold) == []
        assert found(asked, warm) == [("not_cold", "stage_s: 50% of the source stayed in the page cache")]
        assert found(asked, unknown)[0][0] == "cache_unverified"
        assert (
            found(made_spec(data={"staging": "copy", "cache": "warm"}), [replace(warm[0], cache_resident_before=1.0)])
            == []
        )

    def test_the_slowest_node_counts(self) -> None:
        nodes = [made_result(stage_s=seconds, stage_bytes=100) for seconds in (2.0, 4.0)]
        found = figures(made_spec(world_size=3, parallelism="ddp"), [*nodes, made_result()])
        assert (found["stage_s"], found["stage_bytes_per_s"]) == (4.0, 50.0)
        assert "stage_s" not in figures(made_spec(), [made_result()])


class TestLegality:
    def test_a_folder_without_staging_is_refused(self) -> None:
        assert refused("data.source=storage", "data.staging_dir=/nvme") == (
            "data.staging_dir '/nvme' without data.staging: give copy or lazy, or leave it out"
        )
        asked = parse_trial({"workload": "resnet50", "batch_size": 2, "data": {"staging_dir": "/nvme"}})
        with pytest.raises(UserError, match=r"without data\.staging"):
            check_staging([asked])

    def test_a_grid_over_staging_keeps_the_folder_to_its_staged_points(self, dataset_root: Path) -> None:
        base = storage_base(dataset_root, staging_dir="nvme")
        found = plan(base, grid={"data.staging": ["none", "copy", "lazy"]})
        folders = [point.spec.data.staging_dir for point in found.points]
        assert folders == [None, str(Path("nvme").absolute()), str(Path("nvme").absolute())]
        bare = plan(storage_base(dataset_root)).points[0]
        assert found.points[0].point_id == bare.point_id

    def test_other_sources_are_not_staged(self, dataset_root: Path) -> None:
        base = storage_base(dataset_root, staging="copy", staging_dir="/nvme")
        found = plan(base, grid={"data.source": ["storage", "memory", "synthetic"]})
        assert [(p.spec.data.staging, p.spec.data.staging_dir) for p in found.points] == [
            ("copy", "/nvme"),
            ("none", None),
            ("none", None),
        ]

    def test_words_that_are_none(self) -> None:
        assert "data.staging" in refused("data.staging=eager")


def test_pairs_come_from_real_records(forked: dict[str, TrialRecord], tmp_path: Path) -> None:
    from benchsuite.results.render.tables import rows
    from benchsuite.results.store.store import ResultsStore

    store = ResultsStore(tmp_path / "store")
    for record in forked.values():
        store.append(record, None)
    found = pairs(rows(store.frame(by="point")))
    assert [pair.staged["spec.data.staging"] for pair in found] == ["copy", "lazy"]
    assert all(pair.unstaged["spec.data.staging"] == "none" for pair in found)
    assert found[0].epoch_s == pytest.approx(96 / (forked["copy"].figures.samples_per_s or 0))
