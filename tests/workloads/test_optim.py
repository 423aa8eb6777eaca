"""Optimizers by name, learning rates and their warm-up: what they do to a weight."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from benchsuite.workloads import optim
from benchsuite.workloads.optim import OPTIMIZERS
from benchsuite.workloads.parallel.account import state_bytes
from benchsuite.workloads.resnet50 import WORKLOAD
from benchsuite.workloads.spec import ComputeSpec

RATE = WORKLOAD.learning_rate


def stepped(gradients: list[float], **compute: object) -> list[float]:
    """A weight of 1 after each of these gradients."""
    weight = nn.Parameter(torch.ones(1))
    spec = ComputeSpec.model_validate(compute)
    optimizer = optim.make(WORKLOAD, spec, [weight])
    rates = optim.schedule(optimizer, spec, 512)
    found = []
    for gradient in gradients:
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        if rates is not None:
            rates.step()
        found.append(weight.item())
    return found


def test_sgd_subtracts_the_gradient() -> None:
    assert stepped([1.0, 2.0], optimizer="sgd") == pytest.approx([1 - RATE, 1 - 3 * RATE])


def test_momentum_remembers_nine_tenths() -> None:
    assert stepped([1.0, 0.0], optimizer="momentum") == pytest.approx([1 - RATE, 1 - 1.9 * RATE])


def test_adamw_moves_by_its_rate_and_decays() -> None:
    assert stepped([5.0], optimizer="adamw") == pytest.approx([(1 - 0.01 * RATE) - RATE], rel=1e-6)


def test_adam_decays_by_the_gradient_which_its_size_divides_away() -> None:
    """L2 joins the gradient (Kingma and Ba 2015), so that the first step is the rate whatever the decay."""
    assert stepped([5.0, 5.0], optimizer="adam") == pytest.approx([1 - RATE, 1 - 2 * RATE], rel=1e-6)
    weight = nn.Parameter(torch.ones(1))
    decayed = OPTIMIZERS["adam"]([weight], lr=RATE, weight_decay=3.0)
    weight.grad = torch.tensor([-1.0])
    decayed.step()
    assert weight.item() == pytest.approx(1 - RATE, rel=1e-6), "a decay of 3 turns a gradient of -1 round"


def test_the_default_is_the_references() -> None:
    decayed = 1 + 1e-4
    assert stepped([1.0]) == pytest.approx([1 - RATE * decayed])


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "adafactor"])
def test_fused_does_the_same(name: str) -> None:
    gradients = [0.5, -1.0, 2.0]
    assert stepped(gradients, optimizer=name, fused=True) == pytest.approx(stepped(gradients, optimizer=name), rel=1e-6)


def test_linear_scaling_multiplies_by_the_batch_over_256() -> None:
    assert stepped([1.0], optimizer="sgd", lr_scaling="linear") == pytest.approx([1 - 2 * RATE])


def test_warm_up_rises_to_the_full_rate() -> None:
    found = stepped([1.0] * 4, optimizer="sgd", lr_warmup_steps=4)
    moved = [1 - found[0], *(before - after for before, after in pairwise(found))]
    assert moved == pytest.approx([RATE / 4, RATE / 2, RATE * 3 / 4, RATE], rel=1e-4)


def test_bytes_of_states() -> None:
    weight = nn.Parameter(torch.ones(10))
    for name, floats in (("sgd", 0), ("momentum", 10), ("adam", 21), ("adamw", 21)):
        optimizer = optim.make(WORKLOAD, ComputeSpec.model_validate({"optimizer": name}), [weight])
        weight.grad = torch.ones(10)
        optimizer.step()
        assert state_bytes(optimizer) == 4 * floats, name
