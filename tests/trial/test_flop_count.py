"""FLOPs are counted once for a model, by rank 0, and told to the trials that follow."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchsuite import workloads
from benchsuite.analysis import flops
from benchsuite.analysis.flops import flops_of, write_known_flops
from benchsuite.contract.rank_samples import FLOPS_FILE, RankIdentity
from benchsuite.trial import costs
from benchsuite.trial.costs import flops_by_rank
from benchsuite.workloads.flops import count
from benchsuite.workloads.workload import Workload
from tests.helpers.made import made_result, made_spec

TOLD = {"parameters": 7, "forward_flops": 1, "backward_flops": 2, "blocks_forward_flops": 0, "convention": "made up"}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "_known", {})


@pytest.fixture
def resnet() -> Workload:
    workload: Workload = workloads.load(workloads.WORKLOADS, "resnet50")
    return workload


def me(folder: Path, rank: int = 0) -> RankIdentity:
    return RankIdentity(rank, 2, rank, folder, 0.0)


def no_count(*_arguments: Any) -> None:
    raise AssertionError("counted again")


def test_rank_0_counts_and_the_others_do_not(tmp_path: Path, resnet: Workload):
    spec = made_spec(variant="nano")
    assert flops_by_rank(spec, resnet, me(tmp_path)) == asdict(count(resnet, resnet.variants["nano"]))
    assert flops_by_rank(spec, resnet, me(tmp_path, 1)) is None
    assert flops_by_rank(made_spec(device="emulated:1ms"), resnet, me(tmp_path)) is None


def test_a_later_trial_is_told(tmp_path: Path, resnet: Workload, monkeypatch: pytest.MonkeyPatch):
    spec, other = made_spec(), made_spec(variant="reference")
    sized = made_spec(model={"num_layers": 2})
    found = flops_of(spec, [made_result(flops=TOLD), made_result(1)])
    assert found is not None and (found.parameters, found.convention) == (7, "made up")
    for name, asked in (("same", spec), ("other", other), ("sized", sized)):
        (tmp_path / name).mkdir()
        write_known_flops(asked, tmp_path / name)
    assert [path.parent.name for path in tmp_path.rglob(FLOPS_FILE)] == ["same"]
    monkeypatch.setattr(costs, "count", no_count)
    assert flops_by_rank(spec, resnet, me(tmp_path / "same")) == TOLD


def test_nothing_is_told_before_the_first_count(tmp_path: Path):
    assert flops_of(made_spec(), [made_result()]) is None
    write_known_flops(made_spec(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("look", [lambda x: float(x.sum()), lambda x: x.numpy(), lambda x: x.no_such_thing])
def test_what_cannot_be_counted_is_tried_once(tmp_path: Path, resnet: Workload, look: Callable[[Tensor], Any]):
    """A model that looks at values: null in the record, and later trials are told so."""

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * x.sum() if look(x) > 0 else self.weight

    looks = replace(resnet, build=lambda variant: Looks(), loss=lambda model, batch: model(batch["image"]), blocks=None)
    spec = made_spec()
    found = flops_by_rank(spec, looks, me(tmp_path))
    assert found == {}
    assert flops_of(spec, [made_result(flops=found)]) is None
    write_known_flops(spec, tmp_path)
    assert json.loads((tmp_path / FLOPS_FILE).read_text()) == {}


def test_a_note_that_cannot_be_left_or_read_costs_a_count_only(tmp_path: Path, resnet: Workload):
    spec = made_spec(variant="nano")
    flops_of(spec, [made_result(flops=TOLD)])
    write_known_flops(spec, tmp_path / "missing")
    (tmp_path / FLOPS_FILE).write_text('{"param')
    assert flops_by_rank(spec, resnet, me(tmp_path)) == asdict(count(resnet, resnet.variants["nano"]))
