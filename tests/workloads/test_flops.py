"""Counted FLOPs and parameters against published figures and against sums over layers by hand."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from benchsuite.workloads import WorkloadError, gpt_neox, resnet50, unet3d
from benchsuite.workloads.flops import CONVENTION, count
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch, Workload

PUBLISHED = [
    (resnet50.WORKLOAD, "resnet18", 11_689_512, 3.628, 10.648),
    (resnet50.WORKLOAD, "reference", 25_557_032, 8.178, 24.299),
    (resnet50.WORKLOAD, "resnet101", 44_549_160, 15.60, 46.57),
    (unet3d.WORKLOAD, "reference", 31_190_243, 954.6, 2860.2),
]
"""Parameters, GFLOP per sample of forward, and of forward and backward.

ResNets: torchvision's documentation (1.814, 4.089 and 7.801 giga multiply-adds). UNet3D: MONAI's DynUNet of the same
shape. Backward as torch counts it.
"""


@pytest.mark.parametrize(("workload", "variant", "parameters", "forward", "both"), PUBLISHED)
def test_figures_are_the_published_ones(
    workload: Workload, variant: str, parameters: int, forward: float, both: float
) -> None:
    flops = count(workload, workload.variants[variant])
    assert flops.parameters == parameters
    assert flops.forward_flops / 1e9 == pytest.approx(forward, rel=5e-4)
    assert (flops.forward_flops + flops.backward_flops) / 1e9 == pytest.approx(both, rel=5e-4)
    assert flops.convention == CONVENTION


@pytest.mark.parametrize("name", unet3d.WORKLOAD.variants)
def test_unet3d_costs_the_sum_of_its_layers(name: str) -> None:
    variant = unet3d.WORKLOAD.variants[name]
    filters, extent = variant.model["filters"], variant.sample["patch_size"]
    flops = count(unet3d.WORKLOAD, variant)
    first = convolution_flops(1, filters[0], extent)
    rest = unet3d_flops(filters, extent) - first
    assert flops.forward_flops == first + rest
    assert flops.backward_flops == first + 2 * rest  # the first layer needs no gradient of its input


def convolution_flops(channels: int, out: int, extent: int, kernel: int = 3) -> int:
    return 2 * kernel**3 * channels * out * extent**3


def unet3d_flops(filters: tuple[int, ...], extent: int) -> int:
    total, channels = 0, 1
    for level, out in enumerate([*filters, filters[-1]]):
        size = extent >> level
        total += convolution_flops(channels, out, size) + convolution_flops(out, out, size)
        channels = out
    for level, out in reversed(list(enumerate(filters))):
        size = extent >> level
        total += convolution_flops(channels, out, size // 2, kernel=2)  # each voxel is read once, and makes eight
        total += convolution_flops(2 * out, out, size) + convolution_flops(out, out, size)
        channels = out
    return total + convolution_flops(channels, 3, extent, kernel=1)


def test_experts_cost_what_their_tokens_do_wherever_they_go() -> None:
    """Counted without values, and in a real step whose router has chosen."""
    workload, variant = gpt_neox.WORKLOAD, gpt_neox.WORKLOAD.variants["nano_moe"]
    flops = count(workload, variant)
    torch.manual_seed(0)
    model, batch = workload.build(variant), workload.synthetic(variant, 2, torch.device("cpu"))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = workload.loss(model, batch)
        assert counter.get_total_flops() == 2 * flops.forward_flops
        loss.backward()
    assert counter.get_total_flops() == 2 * (flops.forward_flops + flops.backward_flops)


WIDTH, HEADS, WORDS = 16, 4, 32


class Attention(nn.Module):
    """One layer of attention between an embedding and a head that share their weights, as a user may write it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.qkv(self.embedding(tokens)).unflatten(-1, (3 * HEADS, WIDTH // HEADS)).transpose(1, 2).chunk(3, 1)
        mixed = scaled_dot_product_attention(*parts, is_causal=True)
        return self.head(mixed.transpose(1, 2).flatten(2))


def attention_loss(model: nn.Module, batch: Batch) -> Tensor:
    """A mean over targets of which batches have different numbers."""
    losses = cross_entropy(model(batch["tokens"]).transpose(1, 2), batch["tokens"], reduction="none")
    return losses.sum() / batch["num_targets"]


def attention_batch(variant: Variant, batch_size: int, device: torch.device) -> Batch:
    return {"tokens": torch.randint(WORDS, (batch_size, variant.sample["seq_len"]), device=device)}


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


USERS = Workload(
    name="users",
    kind="tokens",
    variants={str(length): Variant({}, {"seq_len": length}) for length in (8, 24)},
    build=lambda variant: Attention(),
    loss=attention_loss,
    synthetic=attention_batch,
    optimizer=sgd,
    targets=lambda batch: {"num_targets": torch.ones_like(batch["tokens"], dtype=torch.float32).sum()},
)


@pytest.mark.parametrize("length", [8, 24])
def test_users_own_attention_is_counted_whole(length: int) -> None:
    """Two matrix products of length x length, mask or not, whatever kernel runs on this machine."""
    flops = count(USERS, USERS.variants[str(length)])
    linear = 2 * length * WIDTH * (3 * WIDTH + WORDS)
    attention = 2 * 2 * length * length * WIDTH
    assert flops.parameters == WORDS * WIDTH + 3 * WIDTH * (WIDTH + 1)
    assert flops.forward_flops == linear + attention
    assert flops.backward_flops == 2 * flops.forward_flops


@pytest.mark.parametrize("name", ["nano", "tiny"])
def test_real_steps_cost_what_was_counted(name: str) -> None:
    variant = resnet50.WORKLOAD.variants[name]
    model, cpu = resnet50.WORKLOAD.build(variant), torch.device("cpu")
    with FlopCounterMode(display=False) as counter:
        resnet50.WORKLOAD.loss(model, resnet50.WORKLOAD.synthetic(variant, 3, cpu)).backward()
    flops = count(resnet50.WORKLOAD, variant)
    assert counter.get_total_flops() == 3 * (flops.forward_flops + flops.backward_flops)


def test_a_model_that_needs_values_is_told_so() -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value = attention_loss(model, batch)
        return value if value.item() > 0 else -value

    with pytest.raises(WorkloadError, match=r"^workload users: cannot be counted on the meta device: "):
        count(replace(USERS, loss=loss), USERS.variants["8"])


def test_what_a_causal_mask_leaves_out_is_half_of_attention() -> None:
    variant = gpt_neox.WORKLOAD.variants["tiny"]
    layers, hidden, length = variant.model["num_layers"], variant.model["hidden_size"], variant.sample["seq_len"]
    assert isinstance(layers, int) and isinstance(hidden, int)
    scores_and_mix = 2 * 2 * length * length * hidden
    found = count(gpt_neox.WORKLOAD, variant)
    assert found.masked_flops == 3 * layers * scores_and_mix // 2
    assert 0 < found.masked_flops < found.forward_flops + found.backward_flops
    assert count(resnet50.WORKLOAD, resnet50.WORKLOAD.variants["nano"]).masked_flops == 0
