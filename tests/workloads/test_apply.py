"""The training step of each mode: its parts, and the same weights as one process that handles every microbatch."""

import copy
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchsuite.workloads.layout import layout_of
from benchsuite.workloads.parallel.apply import prepare
from benchsuite.workloads.parallel.step import Training
from benchsuite.workloads.resnet50 import WORKLOAD
from benchsuite.workloads.spec import ComputeSpec
from benchsuite.workloads.workload import Batch, Workload
from tests.workloads.spawned import found_by_ranks

CPU = torch.device("cpu")
NANO = WORKLOAD.variants["nano"]
RANKS = 2
STEPS = 2
DEADLINE_S = 120
MODEST = replace(WORKLOAD, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9))
"""A learning rate at which rounding does not grow into another solution."""


class Recorder:
    """A clock that notes the order of marks."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def mark(self, part: str) -> None:
        self.parts.append(part)


def microbatch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> Batch:
    """What a rank trains on in a step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {
        "image": torch.randn(4, 3, 32, 32, generator=generator).to(dtype),
        "label": torch.randint(1000, (4,), generator=generator),
    }


def prepared(workload: Workload, model: nn.Module, mode: str, precision: str = "fp32") -> Training:
    """A mode's training step over the process group's ranks, if there is one."""
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    compute = ComputeSpec.model_validate({"precision": precision})
    return prepare(workload, model, layout_of(mode, ranks), compute, CPU, 4 * ranks)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


class TestNone:
    def test_parts_come_in_order(self) -> None:
        torch.manual_seed(0)
        training = prepared(WORKLOAD, WORKLOAD.build(NANO), "none")
        clock = Recorder()
        for step in range(2):
            training.step(microbatch(0, step), clock)
        assert clock.parts == ["h2d", "forward", "backward", "optimizer"] * 2

    def test_a_step_is_forward_backward_update(self) -> None:
        torch.manual_seed(0)
        model = WORKLOAD.build(NANO)
        twin = copy.deepcopy(model)
        training = prepared(MODEST, model, "none")
        optimizer = MODEST.optimizer(twin.parameters())
        for step in range(STEPS):
            batch = microbatch(0, step)
            loss = training.step(batch, Recorder())
            expected = nn.functional.cross_entropy(twin(batch["image"]), batch["label"])
            optimizer.zero_grad()
            expected.backward()
            optimizer.step()
            assert loss.item() == expected.item()
            assert not loss.requires_grad
        for name, value in twin.state_dict().items():
            assert torch.equal(training.gather_state()[name], value), name

    def test_update_is_marked_after_the_weights_have_changed(self) -> None:
        torch.manual_seed(0)
        model = WORKLOAD.build(NANO)
        seen: dict[str, Tensor] = {}

        class Clock:
            def mark(self, part: str) -> None:
                seen[part] = model.get_parameter("fc.weight").detach().clone()

        prepared(WORKLOAD, model, "none").step(microbatch(0, 0), Clock())
        assert torch.equal(seen["h2d"], seen["backward"])
        assert not torch.equal(seen["backward"], seen["optimizer"])

    @pytest.mark.parametrize("precision", ["fp32", "bf16"])
    def test_trains_in_every_precision(self, precision: str) -> None:
        torch.manual_seed(0)
        training = prepared(MODEST, WORKLOAD.build(NANO), "none", precision)
        losses = [training.step(microbatch(0, 0), Recorder()).item() for _ in range(12)]
        assert losses[-1] < 0.6 * losses[0]
        assert {value.dtype for value in training.gather_state().values()} == {torch.float32, torch.int64}

    def test_data_parallel_without_devices_is_the_model_itself(self) -> None:
        torch.manual_seed(0)
        model = WORKLOAD.build(NANO)
        twin = copy.deepcopy(model)
        alone, threads = prepared(MODEST, model, "none"), prepared(MODEST, twin, "data_parallel")
        for step in range(STEPS):
            batch = microbatch(0, step)
            assert alone.step(batch, Recorder()).item() == threads.step(batch, Recorder()).item()
        assert alone.gather_state().keys() == threads.gather_state().keys()

    def test_gathered_state_loads_into_a_new_model(self) -> None:
        training = prepared(WORKLOAD, WORKLOAD.build(NANO), "none")
        WORKLOAD.build(NANO).load_state_dict(training.gather_state(), strict=True)


class GatedClock(Recorder):
    """Notes the gradients after the exchange, and makes rank 1 wait in one step until rank 0's backward has ended.

    Rank 0 therefore marks `backward` at a time when the exchange cannot have happened: a mark that came after DDP's
    wait would end in the deadline.
    """

    def __init__(self, rank: int, folder: Path, model: nn.Module) -> None:
        super().__init__()
        self.rank, self.model = rank, model
        self.gate = folder / "backward-ended"
        self.gated = False
        self.exchanged: list[dict[str, Tensor]] = []

    def mark(self, part: str) -> None:
        super().mark(part)
        if part == "communication":
            self.exchanged.append(gradients(self.model))
        if self.gated and self.rank == 0 and part == "backward":
            self.gate.touch()
        if self.gated and self.rank == 1 and part == "forward":
            deadline = time.monotonic() + DEADLINE_S / 2
            while not self.gate.exists():
                assert time.monotonic() < deadline, "rank 0 never marked the end of its backward computation"
                time.sleep(0.01)


def ddp_rank(rank: int, folder: Path) -> None:
    """Two steps of DDP on one of two ranks, and a third one that is gated; leaves state and gradients in a file.

    In float64: BatchNorm over a few values makes percents of another order of summation's rounding in float32.
    """
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    torch.manual_seed(rank)  # DDP must start all ranks from rank 0's weights
    model = WORKLOAD.build(NANO).double()
    training = prepared(MODEST, model, "ddp")
    clock = GatedClock(rank, folder, model)
    losses = [training.step(microbatch(rank, step, torch.float64), clock).item() for step in range(STEPS)]
    found = {f"state/{name}": value.numpy() for name, value in training.gather_state().items()}
    found |= {
        f"gradient/{step}/{name}": value.numpy()
        for step in range(STEPS)
        for name, value in clock.exchanged[step].items()
    }
    found = {name: value.copy() for name, value in found.items()}
    clock.gated = True
    training.step(microbatch(rank, STEPS, torch.float64), clock)
    np.savez(folder / f"rank{rank}.npz", losses=losses, parts=clock.parts, **found)
    torch.distributed.barrier()
    os._exit(0)  # unwinding DDP may hang


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, np.ndarray]]:
    """What two real processes found."""
    return found_by_ranks(ddp_rank, RANKS, tmp_path_factory.mktemp("ddp"), DEADLINE_S)


@pytest.fixture(scope="module")
def reference() -> dict[str, object]:
    """One process that handles the same microbatches: a replica for each, gradients averaged by hand."""
    torch.manual_seed(0)
    model = WORKLOAD.build(NANO).double()
    replicas = [copy.deepcopy(model) for _ in range(RANKS)]
    optimizers = [MODEST.optimizer(replica.parameters()) for replica in replicas]
    averages: list[dict[str, Tensor]] = []
    losses: list[list[float]] = []
    for step in range(STEPS):
        losses.append([])
        for rank, replica in enumerate(replicas):
            replica.zero_grad()
            loss = WORKLOAD.loss(replica, microbatch(rank, step, torch.float64))
            loss.backward()
            losses[-1].append(loss.item())
        own = [gradients(replica) for replica in replicas]
        averages.append({name: (own[0][name] + own[1][name]) / RANKS for name in own[0]})
        for replica, optimizer in zip(replicas, optimizers, strict=True):
            for name, parameter in replica.named_parameters():
                parameter.grad = averages[-1][name].clone()
            optimizer.step()
    return {"states": [replica.state_dict() for replica in replicas], "gradients": averages, "losses": losses}


def apart(one: np.ndarray, other: Tensor) -> float:
    expected = other.detach().double().numpy()
    return float(np.linalg.norm(one - expected) / max(np.linalg.norm(expected), 1e-12))


class TestDdp:
    def test_parts_come_in_order(self, ranks: list[dict[str, np.ndarray]]) -> None:
        for found in ranks:
            assert found["parts"].tolist() == ["h2d", "forward", "backward", "communication", "optimizer"] * (STEPS + 1)

    def test_losses_are_those_of_one_process(self, ranks: list[dict[str, np.ndarray]], reference: dict) -> None:
        for rank, found in enumerate(ranks):
            assert found["losses"].tolist() == pytest.approx([step[rank] for step in reference["losses"]], rel=1e-9)

    def test_gradients_are_the_average_over_ranks(self, ranks: list[dict[str, np.ndarray]], reference: dict) -> None:
        for found in ranks:
            for step, averages in enumerate(reference["gradients"]):
                for name, expected in averages.items():
                    assert apart(found[f"gradient/{step}/{name}"], expected) < 1e-9, (step, name)

    def test_weights_and_statistics_are_those_of_one_process(
        self, ranks: list[dict[str, np.ndarray]], reference: dict
    ) -> None:
        """Each rank keeps the batch statistics of its own microbatches: buffers are not broadcast."""
        for rank, found in enumerate(ranks):
            states = reference["states"]
            assert {name for name in found if name.startswith("state/")} == {f"state/{name}" for name in states[rank]}
            for name, expected in states[rank].items():
                assert apart(found[f"state/{name}"], expected) < 1e-9, name

    def test_ranks_end_with_the_same_weights_bit_for_bit(self, ranks: list[dict[str, np.ndarray]]) -> None:
        model = WORKLOAD.build(NANO)
        for name, _ in model.named_parameters():
            assert np.array_equal(ranks[0][f"state/{name}"], ranks[1][f"state/{name}"]), name
        statistics = "state/bn1.running_mean"
        assert not np.array_equal(ranks[0][statistics], ranks[1][statistics])
