"""A parameter server, with real processes: its bytes, what it lets workers do, and an asynchronous run replayed."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchsuite import workloads
from benchsuite.workloads import optim
from benchsuite.workloads.engines.parameter_server import RemoteOptimizer, deal
from benchsuite.workloads.engines.server import NOTES
from benchsuite.workloads.layout import layout_of
from benchsuite.workloads.parallel.apply import prepare
from benchsuite.workloads.parallel.check import Case, new_model, sample_batch
from benchsuite.workloads.parallel.step import Training
from benchsuite.workloads.parallel.waits import NoClock
from benchsuite.workloads.spec import ComputeSpec, Parallelism
from tests.workloads.spawned import found_by_ranks

CPU = torch.device("cpu")
WORKERS, STEPS, DEADLINE_S = 2, 6, 180.0
SLOW_S = 0.05
"""What one worker takes longer for a step than the other."""
MOMENTUM = ComputeSpec(optimizer="momentum")


def case_of(**asked: int) -> Case:
    workload = workloads.load(workloads.WORKLOADS, "gpt_neox")
    layout = layout_of(Parallelism(engine="parameter_server", **asked), WORKERS)
    return Case(workload, workload.variants["nano"], layout, MOMENTUM, rank_batch=2, steps=STEPS)


def training_of(case: Case, rank: int, folder: Path, workers: int = WORKERS) -> tuple[Training, RemoteOptimizer]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "meet"), workers), rank=rank, world_size=workers)
    training = prepare(case.workload, new_model(case, CPU), case.layout, case.compute, CPU, case.global_batch)
    assert isinstance(training.optimizer, RemoteOptimizer)
    return training, training.optimizer


def flat(model: nn.Module) -> np.ndarray:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


def train_asynchronously(rank: int, folder: Path) -> None:
    case = case_of(max_staleness=1)
    training, optimizer = training_of(case, rank, folder)
    for step in range(STEPS):
        time.sleep(SLOW_S * rank)
        training.step(sample_batch(case, rank, step, CPU), NoClock())
    (shard,) = optimizer.shards
    found = {
        "applied": np.array(shard.applied),
        "version": shard.version,
        "weights": flat(training.model),
        "staleness": np.array(shard.staleness),
    }
    dist.barrier()
    for server in optimizer.servers.started.values():
        server.send_signal(signal.SIGKILL)
    said = ""
    try:
        for step in range(STEPS, 2 * STEPS):
            training.step(sample_batch(case, rank, step, CPU), NoClock())
    except RuntimeError as error:
        said = str(error)
    np.savez(folder / f"rank{rank}.npz", said=np.array(said), **found)
    os._exit(0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, Any]]:
    """What each rank of one asynchronous run found, and said when its server was killed after it."""
    return [*found_by_ranks(train_asynchronously, WORKERS, tmp_path_factory.mktemp("trained"), DEADLINE_S)]


def test_one_process_that_applies_the_same_gradients_in_the_same_order_has_the_same_weights(
    trained: list[Mapping[str, Any]],
) -> None:
    found = trained
    order = {
        int(number): (rank, step) for rank in range(WORKERS) for step, (_, number) in enumerate(found[rank]["applied"])
    }
    assert sorted(order) == list(range(1, WORKERS * STEPS + 1))
    case = case_of(max_staleness=1)
    model = new_model(case, CPU)
    optimizer = optim.make(case.workload, MOMENTUM, list(model.parameters()))
    versions = [[parameter.detach().clone() for parameter in model.parameters()]]
    for number in sorted(order):
        rank, step = order[number]
        used = versions[int(found[rank]["applied"][step][0])]
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), used, strict=True):
                parameter.copy_(value)
        (case.workload.loss(model, sample_batch(case, rank, step, CPU)) / WORKERS).backward()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), versions[-1], strict=True):
                parameter.copy_(value)
        optimizer.step()
        optimizer.zero_grad()
        versions.append([parameter.detach().clone() for parameter in model.parameters()])
    for rank in range(WORKERS):
        expected = torch.cat([value.reshape(-1) for value in versions[int(found[rank]["version"])]]).numpy()
        assert found[rank]["weights"] == pytest.approx(expected, abs=1e-12)


def test_no_worker_is_further_ahead_of_the_slowest_than_was_allowed(trained: list[Mapping[str, Any]]) -> None:
    found = trained
    numbers = {int(number): rank for rank in range(WORKERS) for _, number in found[rank]["applied"]}
    steps = [0] * WORKERS
    ahead = 0
    for number in sorted(numbers):
        steps[numbers[number]] += 1
        ahead = max(ahead, max(steps) - min(steps))
    assert 1 <= ahead <= 2  # it may be one step ahead, and then sends the gradient of the next
    assert found[1]["staleness"].max() >= 1  # the other worker has not waited for it


def count(rank: int, folder: Path) -> None:
    case = case_of(num_servers=2)
    training, optimizer = training_of(case, rank, folder)
    for step in range(STEPS):
        training.step(sample_batch(case, rank, step, CPU), NoClock())
    told = training.told()
    sizes = [shard.buffer.nbytes for shard in optimizer.shards]
    np.savez(folder / f"rank{rank}.npz", sizes=np.array(sizes), **told | {"collectives": told["collectives"]["send"]})
    dist.barrier()
    os._exit(0)


@pytest.mark.full
def test_bytes_are_counted_for_each_role(tmp_path: Path) -> None:
    found = found_by_ranks(count, WORKERS, tmp_path, DEADLINE_S)
    sizes, model = found[0]["sizes"], new_model(case_of(), CPU)
    assert sizes.sum() == sum(parameter.nbytes for parameter in model.parameters())
    assert all(rank["wire_bytes"] == sizes.sum() and rank["collectives"] == 2 for rank in found)
    both_ways = WORKERS * (2 * sizes.max() + NOTES * 8)
    assert max(float(rank["server_bytes_per_step"]) for rank in found) == pytest.approx(both_ways)
    assert [float(rank["staleness_max"]) for rank in found] == [0, 0]


def test_the_rank_that_started_a_server_says_that_it_has_ended(trained: list[Mapping[str, Any]]) -> None:
    assert str(trained[0]["said"]) == "a parameter server of this rank has ended with exit code -9"
    assert "peer" in str(trained[1]["said"])


def test_parameters_are_dealt_whole_and_evenly() -> None:
    parameters = [nn.Parameter(torch.zeros(size)) for size in (5, 4, 3, 3, 1)]
    assert [[len(one) for one in held] for held in deal(parameters, 2)] == [[5, 3], [4, 3, 1]]
    with pytest.raises(ValueError, match="num_servers 6: the model has 5 parameters"):
        deal(parameters, 6)
