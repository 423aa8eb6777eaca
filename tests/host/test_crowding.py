"""Whether ranks have cores and devices enough: what a plan foretells, and what a dry run says of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from benchsuite.cli import sweep as runner
from benchsuite.contract.errors import UserError
from benchsuite.grid.validity import ranks_on_a_node
from benchsuite.grid.warnings import crowding_warnings
from benchsuite.host.interference import crowding
from benchsuite.host.machine import Machine
from benchsuite.launch.link import Link
from benchsuite.launch.placement import Agent, shares
from tests.helpers.grids import SYNTHETIC, in_folder, plan, reasons
from tests.helpers.made import made_spec

__all__ = ["in_folder"]

Run = Callable[..., tuple[int, str, str]]
DDP = SYNTHETIC | {"parallelism": "ddp", "device": "cpu", "threads_per_rank": 1}


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (1, {}),
        (2, {}),
        (4, {"threads_per_rank": 2}),
        (9, {}),
        (4, {"ranks_per_node": 4}),
        (3, {"ranks_per_node": 1}),
        (5, {"node": "n0"}),
    ],
)
def test_launchers_lay_ranks_out_as_is_foretold(nodes: int, device: str, ranks: int, more: dict[str, Any]) -> None:
    """On nodes of 4 cores and 2 devices."""
    names = [f"n{number}" for number in range(nodes)]
    link, devices = cast(Link, None), ("GPU-0", "GPU-1")
    agents = [
        Agent(link, name, number, cores=4, cpus=(0, 1, 2, 3), devices=devices) for number, name in enumerate(names)
    ]
    spec = made_spec(world_size=ranks, parallelism="ddp", device=device, **more)
    foretold = ranks_on_a_node(spec, Machine(4, 2, nodes))
    try:
        laid_out = shares(spec, agents)
    except UserError as error:
        few_nodes, few_devices = more.get("ranks_per_node") == 1 and nodes == 1, device == "cuda" and foretold > 2
        assert few_nodes or few_devices, error
        return
    assert foretold == max(share.num_ranks for share in laid_out)


class TestDevices:
    def test_more_ranks_on_a_node_than_devices_there_are_skipped(self):
        base = DDP | {"device": "cuda", "world_size": 8}
        found = plan(base, Machine(cores=8, cuda_devices=2, nodes=4), grid={"ranks_per_node": [2, 4]})
        assert [point.spec.ranks_per_node for point in found.points] == [2]
        assert reasons(found) == ["4 ranks on a node > 2 CUDA devices that torch can use there"]

    def test_so_are_ranks_on_one_named_node(self):
        found = plan(DDP | {"device": "cuda", "world_size": 3, "node": "n1"}, Machine(8, 2, nodes=4))
        assert reasons(found) == ["3 ranks on a node > 2 CUDA devices that torch can use there"]


class TestCores:
    def test_a_warning_for_each_way(self):
        found = plan(DDP, Machine(2, 0), grid={"world_size": [1, 2, 4], "threads_per_rank": [1, 2]})
        assert len(found.points) == 6 and not found.skipped
        assert crowding_warnings(found) == [
            "warning: 2 ranks threads_per_rank 2: 2 ranks x 2 threads > 2 cores; flagged oversubscribed",
            "warning: 4 ranks threads_per_rank 1: 4 ranks x 1 thread > 2 cores; flagged oversubscribed",
            "warning: 4 ranks threads_per_rank 2: 4 ranks x 2 threads > 2 cores; flagged oversubscribed",
        ]

    def test_points_alike_are_told_together(self):
        found = plan(DDP | {"world_size": 4}, Machine(2, 0), grid={"batch_size": [1, 2, 4]})
        (line,) = crowding_warnings(found)
        assert line.startswith("warning: 3 points such as batch_size 1: 4 ranks x 1 thread > 2 cores;")

    def test_nodes_have_cores_each(self):
        assert crowding_warnings(plan(DDP | {"world_size": 4}, Machine(2, 0, nodes=2))) == []
        (line,) = crowding_warnings(plan(DDP | {"world_size": 4}, Machine(1, 0, nodes=2)))
        assert "2 ranks x 1 thread > 1 cores of a node" in line

    @pytest.mark.parametrize("device", ["cuda", "emulated:10ms"])
    def test_ranks_that_compute_elsewhere_crowd_nobody(self, device: str):
        asked = {"world_size": 4, "parallelism": "ddp", "data": {"source": "storage"}}
        assert crowding(made_spec(device=device, **asked), 4, 2) is None
        assert crowding(made_spec(device="cpu", **asked), 4, 2) is not None

    def test_a_dry_run_says_it_beside_each_trial(
        self, run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As the run would, which begins all the same."""
        monkeypatch.setattr(runner, "this_machine", lambda: Machine(2, 0))
        sweep = {"base": DDP | {"measure": {"repeats": 1}}, "grid": {"world_size": [2, 4]}}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(sweep))
        code, out, _ = run_cli("sweep", "s.yaml", "--dry-run")
        first, second = out.splitlines()
        assert code == 0 and first.endswith("  2 ranks")
        assert second.startswith("run ")
        assert second.endswith("  4 ranks  (oversubscribed: 4 ranks x 1 thread > 2 cores)")
