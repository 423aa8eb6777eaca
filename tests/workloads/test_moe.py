"""Mixtures of experts against a loop over tokens, and dealt to real ranks against one process."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import gelu

from benchsuite.workloads.decoder import Mlp
from benchsuite.workloads.facts import DecoderShape
from benchsuite.workloads.moe import Experts, MoE
from tests.workloads.spawned import found_by_ranks

HIDDEN, INTERMEDIATE, EXPERTS = 16, 24, 4
RANKS = 2
DEADLINE_S = 120


def mixture(top_k: int = 2, num_experts: int = EXPERTS) -> MoE:
    torch.manual_seed(0)
    moe = MoE(HIDDEN, INTERMEDIATE, num_experts, top_k)
    with torch.no_grad():
        for parameter in moe.parameters():
            parameter.normal_(std=0.3)
    return moe


def token_by_token(moe: MoE, x: Tensor) -> Tensor:
    """What the paper says, one token and one expert at a time."""
    rows = []
    for token in x.flatten(0, -2):
        probability = (moe.router.weight @ token).exp() / (moe.router.weight @ token).exp().sum()
        best = sorted(range(EXPERTS), key=lambda expert: -probability[expert].item())[: moe.top_k]
        total = sum(probability[expert] for expert in best) if moe.top_k > 1 else 1.0
        row = torch.zeros(HIDDEN)
        for expert in best:
            inner = gelu(moe.experts.up[expert] @ token + moe.experts.up_bias[expert])
            made = moe.experts.down[expert] @ inner + moe.experts.down_bias[expert]
            row = row + probability[expert] / total * made
        rows.append(row)
    return torch.stack(rows).view_as(x)


def apart(one: Tensor, other: Tensor) -> float:
    """Relative distance of two tensors."""
    one, other = one.detach(), other.detach()
    return float((one - other).norm() / other.norm().clamp(min=1e-12))


class TestMoE:
    @pytest.mark.parametrize("top_k", [1, 2, 4])
    def test_is_a_loop_over_tokens(self, top_k: int) -> None:
        moe = mixture(top_k)
        x = torch.randn(3, 7, HIDDEN, requires_grad=True)
        seen = []
        for run in (moe, lambda x: token_by_token(moe, x)):
            moe.zero_grad()
            x.grad = None
            made = run(x)
            made.square().mean().backward()
            seen.append([made, x.grad, *(parameter.grad for parameter in moe.parameters())])
        for found, expected in zip(*seen, strict=True):
            assert found.shape == expected.shape and expected.norm() > 1e-4
            assert apart(found, expected) < 1e-5

    def test_one_expert_is_an_mlp(self) -> None:
        moe, mlp = MoE(HIDDEN, 4 * HIDDEN, 1, 1), Mlp(DecoderShape(HIDDEN, 1, 1))
        for part, linear in (("up", mlp.up), ("down", mlp.down)):
            moe.experts.get_parameter(part).data = linear.weight.data[None]
            moe.experts.get_parameter(f"{part}_bias").data = linear.bias.data[None]
        x = torch.randn(2, 5, HIDDEN)
        assert torch.allclose(moe(x), mlp(x), atol=1e-6)

    def test_no_token_is_dropped_when_all_choose_the_same_experts(self) -> None:
        moe = mixture()
        moe.router.weight.data[:2] += 1
        x = torch.randn(40, HIDDEN).abs()
        assert set(moe.route(x)[1].flatten().tolist()) == {0, 1}
        made = moe(x)
        assert apart(made, token_by_token(moe, x)) < 1e-5
        made.sum().backward()
        assert (moe.experts.up.grad[2:] == 0).all(), "an expert without tokens has a gradient of zeros, not none"

    def test_weights_of_a_token_sum_to_one(self) -> None:
        weights, chosen = mixture().route(torch.randn(9, HIDDEN))
        assert weights.shape == chosen.shape == (9, 2)
        assert torch.allclose(weights.sum(-1), torch.ones(9))

    def test_a_single_experts_router_learns(self) -> None:
        moe = mixture(top_k=1)
        moe(torch.randn(9, HIDDEN)).sum().backward()
        assert moe.router.weight.grad.norm() > 1e-3

    def test_is_the_same_from_run_to_run(self) -> None:
        x = torch.randn(64, HIDDEN)
        runs = []
        for _ in range(2):
            moe = mixture()
            made = moe(x)
            made.square().sum().backward()
            runs.append([made, *(parameter.grad for parameter in moe.parameters())])
        assert all(map(torch.equal, *runs))

    def test_expert_parameters_are_all_but_the_routers(self) -> None:
        moe = mixture()
        dealt = {id(parameter) for parameter in moe.experts.expert_parameters()}
        rest = [name for name, parameter in moe.named_parameters() if id(parameter) not in dealt]
        assert rest == ["router.weight"]


def batch(rank: int, skewed: bool) -> Tensor:
    """What a rank's tokens are; skewed ones all go to the first rank's experts."""
    x = torch.randn(2, 5 + rank, HIDDEN, generator=torch.Generator().manual_seed(rank))
    return x.abs() if skewed else x


def pulled(moe: MoE, skewed: bool) -> MoE:
    """A router that sends positive tokens to the first two experts alone."""
    moe.router.weight.data[:2] += 1.0 * skewed
    return moe


def expert_rank(rank: int, folder: Path) -> None:
    """Forward and backward with dealt experts on one of two ranks; leaves outputs and gradients in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    found = {}
    for skewed in (False, True):
        moe = pulled(mixture(), skewed)
        moe.experts.shard(dist.group.WORLD)
        x = batch(rank, skewed).requires_grad_()
        made = moe(x)
        made.square().sum().backward()
        values = {"made": made, "x": x.grad, **{name: value.grad for name, value in moe.named_parameters()}}
        found |= {f"{skewed}/{name}": value.detach().numpy().copy() for name, value in values.items()}
    try:
        Experts(3, HIDDEN, INTERMEDIATE).shard(dist.group.WORLD)
    except ValueError as error:
        found["refused"] = np.array(str(error))
    np.savez(folder / f"rank{rank}.npz", **found)
    dist.barrier()
    os._exit(0)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, np.ndarray]]:
    """What two real processes found."""
    return found_by_ranks(expert_rank, RANKS, tmp_path_factory.mktemp("ep"), DEADLINE_S)


@pytest.mark.parametrize("skewed", [False, True])
class TestDealt:
    def test_tokens_come_back_as_from_one_process(self, ranks: list[dict[str, np.ndarray]], skewed: bool) -> None:
        for rank, found in enumerate(ranks):
            moe = pulled(mixture(), skewed)
            x = batch(rank, skewed).requires_grad_()
            made = moe(x)
            made.square().sum().backward()
            for name, expected in (("made", made), ("x", x.grad), ("router.weight", moe.router.weight.grad)):
                assert apart(torch.tensor(found[f"{skewed}/{name}"]), expected) < 1e-5, name

    def test_experts_gradients_are_sums_over_the_ranks(self, ranks: list[dict[str, np.ndarray]], skewed: bool) -> None:
        moe = pulled(mixture(), skewed)
        for rank in range(RANKS):
            moe(batch(rank, skewed)).square().sum().backward()
        for name, parameter in moe.experts.named_parameters():
            for found, expected in zip(ranks, parameter.grad.chunk(RANKS), strict=True):
                gradient = torch.tensor(found[f"{skewed}/experts.{name}"])
                assert gradient.shape == expected.shape
                assert apart(gradient, expected) < 1e-5, name


def test_experts_that_cannot_be_dealt_evenly_are_refused(ranks: list[dict[str, np.ndarray]]) -> None:
    assert {str(found["refused"]) for found in ranks} == {
        "experts(3) must be a multiple of the ranks that share them(2)"
    }
