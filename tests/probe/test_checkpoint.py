"""Checkpoints: what is written is read back to the bit, cold, and nothing stays behind."""

import copy
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchsuite.contract.errors import UserError
from benchsuite.contract.rank_samples import RankIdentity
from benchsuite.grid.expand import plan_trial
from benchsuite.grid.point import Point
from benchsuite.launch.starters import LocalLauncher
from benchsuite.probe import checkpoint as checkpointing
from benchsuite.probe import checkpoint_rank
from benchsuite.probe.checkpoint import TASK, caveats, figures, launched, needed_bytes, over_ranks, slowdown
from benchsuite.probe.checkpoint_rank import Request, Written, run_rank
from benchsuite.probe.ranks import found_by, leave_request
from benchsuite.probe.state_compare import compare, leaves
from benchsuite.storage.observe import page_cache
from tests.storage.samples import file_system

FULL = pytest.mark.full
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def point_of(**values: Any) -> Point:
    base = {"workload": "gpt_neox", "variant": "nano", "optimizer": "adamw", "batch_size": 2, "device": "cpu"}
    return plan_trial({**base, "data": {"source": "synthetic"}, "measure": {"timeout_s": 120.0}, **values})


def alone(tmp_path: Path, mode: str, point: Point, repeats: int = 1) -> list[Written]:
    """One rank in this process."""
    folder, target = tmp_path / "work", tmp_path / "disk" / "own"
    folder.mkdir()
    target.mkdir(parents=True, exist_ok=True)
    leave_request(Request(str(target), mode, repeats), folder)
    run_rank(point.spec, None, RankIdentity(0, 1, 0, folder, time.perf_counter()), [])
    assert list(target.iterdir()) == []
    return [Written(**line) for line in found_by(folder, 0)]


MADE = Written(100, 2, 0.5, 3.0, 2.0, 1.5, 4.0, 0.0, [1.0, 1.0], [2.0, 3.0])


class TestOneRank:
    @pytest.mark.parametrize("mode", ["rank0", "sharded", "async"])
    def test_written_read_equal_and_removed(self, tmp_path: Path, mode: str):
        point = point_of()
        found = alone(tmp_path, mode, point, repeats=2)
        assert len(found) == 2
        for one in found:
            assert needed_bytes(point) / 1.1 <= one.num_bytes < 2 * needed_bytes(point)
            assert one.num_files == (1 if mode == "rank0" else 2), "DCP writes its metadata beside the data"
            assert 0 < one.write_s <= one.durable_s and one.read_s > 0 and one.gather_s >= 0
            if file_system(tmp_path) not in ("tmpfs", "ramfs"):
                assert one.resident_before_read == 0
            if mode == "async":
                assert one.blocked_s <= one.durable_s and one.steps_s and len(one.bare_steps_s) == 5
            else:
                assert one.blocked_s == one.durable_s and not one.steps_s

    @pytest.mark.parametrize("mode", ["sharded", pytest.param("rank0", marks=FULL)])
    def test_a_byte_that_changes_on_the_disk_is_noticed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
    ):
        real = page_cache.evict

        def damaging(paths: list[Path]) -> None:
            largest = max(paths, key=lambda path: path.stat().st_size)
            content = bytearray(largest.read_bytes())
            content[len(content) // 2] ^= 1
            largest.write_bytes(content)
            real(paths)

        monkeypatch.setattr(page_cache, "evict", damaging)
        with pytest.raises(UserError, match=r"disk: what was read is not what was written: 1 of \d+ values, such as "):
            alone(tmp_path, mode, point_of())

    @pytest.mark.parametrize("mode", ["async", *(pytest.param(mode, marks=FULL) for mode in ("rank0", "sharded"))])
    def test_a_full_disk_is_said_in_a_line(self, tmp_path: Path, mode: str):
        if os.geteuid() != 0:
            pytest.skip("needs root, to mount a small file system")
        (tmp_path / "disk").mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path / "disk")]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("a file system cannot be mounted here")
        try:
            with pytest.raises(UserError, match=r"disk: no space left for the checkpoint$"):
                alone(tmp_path, mode, point_of())
        finally:
            subprocess.run(["umount", "-l", str(tmp_path / "disk")], check=True)

    def test_a_folder_that_goes_away(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        real = page_cache.evict

        def removing(paths: list[Path]) -> None:
            real(paths)
            shutil.rmtree(paths[0].parent)

        monkeypatch.setattr(page_cache, "evict", removing)
        with pytest.raises(UserError, match=r"disk: No such file or directory"):
            alone(tmp_path, "rank0", point_of())


class TestRanks:
    @pytest.fixture(scope="class")
    @staticmethod
    def launcher() -> Iterator[LocalLauncher]:
        with LocalLauncher(TASK) as launcher:
            yield launcher

    @pytest.mark.parametrize(
        ("mode", "parallelism", "files"),
        [
            ("sharded", "fsdp", 3),
            ("async", "ddp", 3),
            ("rank0", "tp", 1),
            pytest.param("rank0", "fsdp", 1, marks=FULL),
            pytest.param("async", "fsdp", 3, marks=FULL),
        ],
    )
    def test_two_ranks(self, tmp_path: Path, launcher: LocalLauncher, mode: str, parallelism: str, files: int):
        point = point_of(world_size=2, parallelism=parallelism)
        found, why = launched(point, Request(str(tmp_path), mode, 1), launcher)
        assert why is None
        assert list(tmp_path.iterdir()) == []
        (one,) = over_ranks(found)
        assert one.num_files == files
        assert needed_bytes(point) / 1.1 <= one.num_bytes < 2 * needed_bytes(point)
        if mode == "async":
            assert len({len(rank["written"][0]["steps_s"]) for rank in found}) == 1, "as many steps on every rank"
        if file_system(tmp_path) not in ("tmpfs", "ramfs"):
            assert one.resident_before_read == 0

    @pytest.mark.parametrize("mode", ["async", "rank0", pytest.param("sharded", marks=FULL)])
    @pytest.mark.full
    def test_batch_norm_differs_between_ranks_and_one_copy_is_kept(
        self, tmp_path: Path, launcher: LocalLauncher, mode: str
    ):
        point = point_of(world_size=2, parallelism="fsdp", workload="resnet50")
        found, why = launched(point, Request(str(tmp_path), mode, 1), launcher)
        assert why is None
        details = caveats(over_ranks(found), "ext4")
        assert any(detail.startswith("replicas_differ: ") for detail in details) == (mode != "rank0")

    def test_a_rank_that_cannot_write_gives_the_reason(self, tmp_path: Path, launcher: LocalLauncher):
        point = point_of(world_size=2, parallelism="fsdp")
        gone = tmp_path / "file" / "own"
        (tmp_path / "file").touch()
        found, why = launched(point, Request(str(gone), "sharded", 1), launcher)
        assert found == [] and why is not None
        assert why[0] == "failed" and "Not a directory" in why[1]


class TestComparing:
    def test_nested_values_have_names(self):
        assert dict(leaves({"a": {"b": [1, {"c": 2}]}, "d": 3})) == {"a.b[0]": 1, "a.b[1].c": 2, "d": 3}

    def test_equal_to_the_bit(self):
        state = {"w": torch.tensor([1.0, float("nan"), -0.0]), "step": torch.tensor(3.0), "lr": 0.1, "flags": (True,)}
        compare(state, copy.deepcopy(state), Path("/p"))

    @pytest.mark.parametrize(
        ("change", "name"),
        [
            ({"w": torch.tensor([1.0, 0.0])}, "w"),
            ({"w": torch.tensor([1.0, -0.0], dtype=torch.float64)}, "w"),
            ({"w": torch.tensor([[1.0, -0.0]])}, "w"),
            ({"w": [1.0, -0.0]}, "w"),
            ({"lr": 0.2}, "lr"),
            ({"lr": torch.tensor(0.1)}, "lr"),
            ({"more": 1}, "more"),
        ],
    )
    def test_what_differs_is_named(self, change: dict[str, Any], name: str):
        state = {"w": torch.tensor([1.0, -0.0]), "lr": 0.1}
        with pytest.raises(UserError, match=rf"^/p: what was read is not what was written: .* such as {name}"):
            compare(state, {**state, **change}, Path("/p"))


class TestFigures:
    def test_the_slowest_rank_counts(self):
        ranks = [
            {"written": [vars(MADE)]},
            {"written": [vars(replace(MADE, num_bytes=0, num_files=0, read_s=9.0, resident_before_read=None))]},
        ]
        assert over_ranks(ranks) == [replace(MADE, read_s=9.0)]

    def test_medians_over_checkpoints(self):
        found = figures([MADE, replace(MADE, write_s=3.0, blocked_s=5.0), replace(MADE, write_s=0.5)])
        assert found.checkpoint_bytes == 100
        assert found.checkpoint_write_bytes_per_s == pytest.approx(100 / 1.5)
        assert found.checkpoint_read_bytes_per_s == 25
        assert (found.checkpoint_blocked_s, found.checkpoint_durable_s) == (3.0, 2.0)
        assert found.checkpoint_slowdown == 2.5
        assert found.get("samples_per_s") is None

    def test_no_slowdown_where_nothing_trained_meanwhile(self):
        assert slowdown([replace(MADE, steps_s=[], bare_steps_s=[])]) is None

    @pytest.mark.parametrize(
        ("resident", "kind", "name"),
        [
            (0.0, "ext4", None),
            (0.5, "ext4", "not_cold"),
            (None, "ext4", "cache_unverified"),
            (0.0, "gpfs", "cache_unverified"),
            (1.0, "tmpfs", "not_cold: tmpfs is memory"),
        ],
    )
    def test_caveats(self, resident: float | None, kind: str, name: str | None):
        found = caveats([replace(MADE, resident_before_read=resident)], kind)
        assert found == [] if name is None else found[0].startswith(name)


def test_what_is_needed_is_what_is_written():
    """The sum over tensors of a real state, and a tenth more."""
    point = point_of(optimizer="momentum", workload="resnet50")
    model = checkpointing.workload_of(point.spec).build(checkpointing.workload_of(point.spec).variants["nano"])
    parameters = sum(value.nbytes for value in model.parameters())
    buffers = sum(value.nbytes for value in model.buffers())
    assert needed_bytes(point) == int(1.1 * (2 * parameters + buffers))
    assert checkpoint_rank.FILE == "checkpoint.pt"
