"""Datasets that fit in memory are warned of, with the memory of all nodes that read them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchsuite.cli import trial
from benchsuite.contract.errors import UserError
from benchsuite.grid.warnings import memory_warning, skipped_crowding_notes
from benchsuite.host.machine import Machine
from benchsuite.runner import single_trial
from tests.helpers.made import made_spec

GB = 10**9
CLUSTER = Machine(cores=4, cuda_devices=0, nodes=8)


def point(num_bytes: int, ranks: int = 1, dataset: str = "/data", **changes: Any) -> Any:
    ddp = {"parallelism": "ddp", "world_size": ranks} if ranks > 1 else {}
    manifest = SimpleNamespace(stored_bytes=num_bytes)
    return SimpleNamespace(spec=made_spec(**ddp, **changes), manifest=manifest, dataset=Path(dataset))


def test_one_node() -> None:
    assert memory_warning([point(100 * GB)], None, 100 * GB) is None
    assert memory_warning([point(50 * GB)], None, 100 * GB) == (
        "warning: a dataset of 50 GB, 0.5 x the memory of the node: epochs after the first may come from the cache; "
        "500 GB would not (MLPerf Storage: 5 x)"
    )


def test_all_nodes_of_a_point_cache_their_part() -> None:
    """16 ranks, 4 to a node of 4 cores: four nodes have 400 GB, so that 300 GB fit; 4 ranks are one node, 100 GB."""
    assert memory_warning([point(300 * GB, 4)], CLUSTER, 100 * GB) is None
    said = memory_warning([point(300 * GB, 4), point(300 * GB, 16)], CLUSTER, 100 * GB)
    assert said is not None and "a dataset of 300 GB, 0.75 x the memory of its 4 nodes, taken to be alike" in said
    assert "2000 GB would not" in said


def test_ranks_per_node_says_how_many_nodes() -> None:
    said = memory_warning([point(150 * GB, 2, ranks_per_node=1)], CLUSTER, 100 * GB)
    assert said is not None and "0.75 x the memory of its 2 nodes" in said


def test_several_datasets_are_counted_and_the_smallest_share_is_told() -> None:
    points = [point(30 * GB, dataset="/a"), point(60 * GB, dataset="/b"), point(900 * GB, dataset="/c")]
    said = memory_warning([*points, points[0]], CLUSTER, 100 * GB)
    assert said is not None and said.startswith("warning: 2 datasets, one of 30 GB, 0.3 x the memory of the node")


def test_a_share_of_memory_that_is_next_to_nothing_is_not_told_to_the_digit() -> None:
    said = memory_warning([point(41 * 10**6)], None, 100 * GB)
    assert said is not None and "a dataset of 0.041 GB, less than 1% of the memory of the node: " in said
    said = memory_warning([point(GB)], None, 100 * GB)
    assert said is not None and ", 0.01 x the memory of the node: " in said


def test_what_reads_no_storage_is_not_warned_of() -> None:
    assert memory_warning([point(1, data={"source": "memory"})], None, 100) is None


def test_a_single_trial_warns_too(
    run_cli: Callable[..., tuple[int, str, str]], dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what this process's control group allows, where that is less than the host has."""

    def stop(point: Any, store: Any) -> Any:
        raise UserError("no further")

    monkeypatch.setattr(single_trial, "run_in_this_process", stop)
    monkeypatch.setattr(trial, "memory_bytes", lambda: (0, 10**9))
    file = tmp_path / "trial.yaml"
    data = f"{{root: {dataset_root}, num_workers: 1}}"
    file.write_text(f"workload: resnet50\nvariant: tiny\nbatch_size: 2\ndata: {data}\nmeasure: {{steps: 4}}\n")
    _, _, err = run_cli("trial", file)
    assert "x the memory of the node" in err and "5 GB would not" in err and "no further" in err


def test_ranks_of_skipped_points_that_the_cores_are_too_few_for() -> None:
    """Points are skipped for their data; that their ranks have no cores either is told once."""
    skipped = [SimpleNamespace(point=SimpleNamespace(spec=point(GB, 64).spec, label=name)) for name in "ab"]
    plan: Any = SimpleNamespace(machine=Machine(cores=2, cuda_devices=0), skipped=skipped)
    assert skipped_crowding_notes(plan) == ["2 points such as a: also 64 ranks x 1 thread > 2 cores"]
