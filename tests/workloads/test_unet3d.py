"""UNet3D against the reference's layer list, written out by hand, and its loss against a sum over voxels.

The layer list and the loss are those of mlcommons/training: Unet3D(1, 3, "instancenorm", "relu") and DiceCELoss with
to_onehot_y, use_softmax, NCDHW and no background.
"""

import copy
import math
from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv3d, conv_transpose3d
from torch.utils.checkpoint import checkpoint

from benchsuite.storage.create.volumes import volume_sample
from benchsuite.storage.dataset.kinds import VOLUME, decode_one, sample_rng
from benchsuite.storage.dataset.sample import fresh
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.unet3d import WORKLOAD, UNet3D, blocks, dice_cross_entropy
from benchsuite.workloads.workload import Batch

CPU = torch.device("cpu")
NANO, TINY, REFERENCE = (WORKLOAD.variants[name] for name in ("nano", "tiny", "reference"))
FILTERS = (32, 64, 128, 256, 320)


def on_meta(variant: Variant) -> nn.Module:
    with torch.device("meta"):
        return WORKLOAD.build(variant)


def real_batch(variant: Variant, batch_size: int) -> Batch:
    """Patches of generated volumes, as a loader gives them."""
    samples = [volume_sample(index, fresh, 0, variant.sample) for index in range(batch_size)]
    rows = [decode_one(VOLUME, sample, variant.sample, sample_rng(0, 0, sample.key)) for sample in samples]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def double_batch(patch: int, batch_size: int = 2) -> Batch:
    shape = (batch_size, 1, patch, patch, patch)
    return {"image": torch.randn(shape, dtype=torch.float64), "label": torch.randint(3, shape, dtype=torch.uint8)}


def gradients(model: nn.Module, value: Tensor) -> dict[str, Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


def apart(one: Tensor, other: Tensor) -> float:
    """Relative distance of two tensors."""
    one, other = one.detach(), other.detach()
    return float((one - other).norm() / other.norm().clamp(min=1e-300))


def disturbed(*filters: int) -> UNet3D:
    """In float64, with norms that scale and shift."""
    torch.manual_seed(0)
    made = UNet3D(filters, 3)
    for module in made.modules():
        if isinstance(module, nn.InstanceNorm3d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    return made.double()


class TestLayers:
    def test_parameters_of_each_block(self) -> None:
        made = on_meta(REFERENCE)
        assert isinstance(made, UNet3D)
        pieces = [*blocks(made), made.output]
        down = [28_640, 166_144, 664_064, 2_655_232, 4_977_920, 5_530_880]
        up = [9_115_200, 5_965_056, 1_589_888, 397_632, 99_488]
        assert [sum(weights.numel() for weights in piece.parameters()) for piece in pieces] == [*down, *up, 99]
        assert sum(weights.numel() for weights in made.parameters()) == 31_190_243

    def test_names_and_shapes_are_those_of_the_reference(self) -> None:
        found = [(name, tuple(value.shape)) for name, value in on_meta(REFERENCE).state_dict().items()]
        assert found == list(published(FILTERS).items())
        assert len(found) == 78

    @pytest.mark.parametrize(("filters", "patch"), [((4, 8), 8), ((4, 8, 16), 16), ((1, 2, 3, 4, 5), 64)], ids=str)
    def test_output_and_gradients_are_those_of_the_layer_list(self, filters: tuple[int, ...], patch: int) -> None:
        model, batch = disturbed(*filters), double_batch(patch, 1 if patch == 64 else 2)
        twin = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
        logits, expected = model(batch["image"]), by_hand(twin, len(model.upsample), batch["image"])
        assert logits.shape == (len(logits), 3, *batch["image"].shape[2:])
        assert apart(logits, expected) < 1e-12
        found = gradients(model, WORKLOAD.loss(model, batch))
        theirs = torch.autograd.grad(dice_cross_entropy(expected, batch["label"]), list(twin.values()))
        for (name, gradient), other in zip(found.items(), theirs, strict=True):
            assert gradient.abs().sum() > 0 and apart(gradient, other) < 1e-4, name

    def test_extents_may_differ(self) -> None:
        assert UNet3D((4, 8), 3)(torch.randn(1, 1, 8, 16, 12)).shape == (1, 3, 8, 16, 12)


def published(filters: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the reference's state dict."""
    ways = [(1, filters[0]), *pairwise(filters), (filters[-1], filters[-1])]
    down = ["input_block", *(f"downsample.{number}" for number in range(len(filters) - 1)), "bottleneck"]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (channels, out) in zip(down, ways, strict=True):
        shapes |= convolution(f"{name}.conv1", channels, out) | convolution(f"{name}.conv2", out, out)
    for number, (out, channels) in enumerate(reversed(ways[1:])):
        name = f"upsample.{number}"
        shapes |= {f"{name}.upsample_conv.0.weight": (channels, out, 2, 2, 2), f"{name}.upsample_conv.0.bias": (out,)}
        shapes |= convolution(f"{name}.conv1", 2 * out, out) | convolution(f"{name}.conv2", out, out)
    return shapes | {"output.conv.0.weight": (3, filters[0], 1, 1, 1), "output.conv.0.bias": (3,)}


def convolution(name: str, channels: int, out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.0.weight": (out, channels, 3, 3, 3), f"{name}.1.weight": (out,), f"{name}.1.bias": (out,)}


def by_hand(weights: Mapping[str, Tensor], depth: int, image: Tensor) -> Tensor:
    """The forward pass by the layer list, in functions alone."""

    def convolved(name: str, x: Tensor, stride: int = 1) -> Tensor:
        x = conv3d(x, weights[f"{name}.0.weight"], stride=stride, padding=1)
        centred = x - x.mean((2, 3, 4), keepdim=True)
        normal = centred / (centred.square().mean((2, 3, 4), keepdim=True) + 1e-5).sqrt()
        scale, shift = (weights[f"{name}.1.{part}"].view(-1, 1, 1, 1) for part in ("weight", "bias"))
        return (normal * scale + shift).clamp(min=0)

    def twice(name: str, x: Tensor, stride: int = 1) -> Tensor:
        return convolved(f"{name}.conv2", convolved(f"{name}.conv1", x, stride))

    levels = [twice("input_block", image)]
    for number in range(depth - 1):
        levels.append(twice(f"downsample.{number}", levels[-1], stride=2))
    x = twice("bottleneck", levels[-1], stride=2)
    for number in range(depth):
        name = f"upsample.{number}"
        x = conv_transpose3d(
            x, weights[f"{name}.upsample_conv.0.weight"], weights[f"{name}.upsample_conv.0.bias"], stride=2
        )
        x = twice(name, torch.cat([x, levels[-1 - number]], dim=1))
    return conv3d(x, weights["output.conv.0.weight"], weights["output.conv.0.bias"])


def loss_by_hand(logits: Tensor, label: Tensor) -> float:
    """DiceCELoss, voxel by voxel: Dice by sample and class, without background, 1e-6 above and below."""
    dices, entropies = [], []
    for scores, truth in zip(logits.double().flatten(2).tolist(), label.flatten(1).tolist(), strict=True):
        columns = list(zip(*scores, strict=True))
        probability = [[math.exp(score) / sum(map(math.exp, column)) for score in column] for column in columns]
        entropies += [-math.log(voxel[right]) for voxel, right in zip(probability, truth, strict=True)]
        for tissue in range(1, len(scores)):
            predicted = sum(voxel[tissue] for voxel in probability)
            both = sum(voxel[tissue] for voxel, right in zip(probability, truth, strict=True) if right == tissue)
            dices.append((2 * both + 1e-6) / (predicted + truth.count(tissue) + 1e-6))
    return (sum(entropies) / len(entropies) + sum(1 - dice for dice in dices) / len(dices)) / 2


class TestLoss:
    @pytest.mark.parametrize("classes", [(0, 1, 2), (0,), (1, 2), (0, 2)], ids=str)
    def test_is_the_reference_s(self, classes: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        logits = 2 * torch.randn(3, 3, 2, 3, 4)
        label = torch.tensor(classes, dtype=torch.uint8)[torch.randint(len(classes), (3, 1, 2, 3, 4))]
        assert dice_cross_entropy(logits, label).item() == pytest.approx(loss_by_hand(logits, label), rel=1e-5)

    def test_is_that_of_the_model_s_output(self) -> None:
        torch.manual_seed(0)
        made, batch = WORKLOAD.build(NANO), real_batch(NANO, 2)
        assert WORKLOAD.loss(made, batch).item() == pytest.approx(
            loss_by_hand(made(batch["image"]), batch["label"]), rel=1e-5
        )

    def test_a_perfect_prediction_costs_nothing(self) -> None:
        label = real_batch(NANO, 2)["label"]
        logits = 100.0 * nn.functional.one_hot(label[:, 0].long(), 3).movedim(-1, 1)
        assert dice_cross_entropy(logits, label).item() == pytest.approx(0, abs=1e-6)
        assert dice_cross_entropy(-logits, label).item() > 10

    def test_is_a_mean_over_samples(self) -> None:
        """What ranks find for their shares of a batch averages to what one finds for all of it."""
        model, batch = disturbed(4, 8, 16), double_batch(16, 4)
        shares = [{name: value[start : start + 2] for name, value in batch.items()} for start in (0, 2)]
        whole, halves = WORKLOAD.loss(model, batch), [WORKLOAD.loss(model, share) for share in shares]
        assert whole.item() == pytest.approx(sum(half.item() for half in halves) / 2, rel=1e-6)
        one, other = (gradients(model, half) for half in halves)
        for name, gradient in gradients(model, whole).items():
            assert apart((one[name] + other[name]) / 2, gradient) < 1e-4, name

    def test_low_precision_is_widened_first(self) -> None:
        torch.manual_seed(0)
        logits, label = torch.randn(2, 3, 16, 16, 16).bfloat16(), torch.randint(3, (2, 1, 16, 16, 16)).byte()
        found = dice_cross_entropy(logits, label)
        assert found.dtype == torch.float32
        assert torch.equal(found, dice_cross_entropy(logits.float(), label))


class TestTraining:
    @pytest.mark.parametrize("name", ["nano", pytest.param("tiny", marks=pytest.mark.full)])
    @pytest.mark.parametrize("batch_size", [1, 2])
    def test_learns_real_patches_in_small_batches(self, name: str, batch_size: int) -> None:
        torch.manual_seed(0)
        variant = WORKLOAD.variants[name]
        made, batch = WORKLOAD.build(variant), real_batch(variant, batch_size)
        optimizer = WORKLOAD.optimizer(made.parameters())
        losses = []
        for _ in range(12):
            loss = WORKLOAD.loss(made, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert max(losses) < 1.1 * losses[0] and losses[-1] < 0.65 * losses[0]

    def test_optimizer_is_that_of_the_reference_but_for_its_rate(self) -> None:
        (group,) = WORKLOAD.optimizer([nn.Parameter(torch.zeros(1))]).param_groups
        assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 0)
        assert group["lr"] == WORKLOAD.learning_rate == 0.1

    def test_the_same_seed_builds_the_same_model(self) -> None:
        states = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            states.append(WORKLOAD.build(NANO).state_dict())
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert not torch.equal(states[0]["output.conv.0.weight"], states[2]["output.conv.0.weight"])


@pytest.mark.parametrize("name", WORKLOAD.variants)
class TestVariants:
    def test_synthetic_batches_look_like_the_loaders(self, name: str) -> None:
        variant = WORKLOAD.variants[name]
        tensors = VOLUME.tensors(variant.sample)
        batch = WORKLOAD.synthetic(variant, 2, CPU)
        assert {key: (value.dtype, tuple(value.shape[1:])) for key, value in batch.items()} == tensors
        assert {len(value) for value in batch.values()} == {2}
        assert batch["image"].mean().abs() < 0.05 and 0.95 < batch["image"].std() < 1.05
        assert batch["label"].unique().tolist() == list(range(variant.num_classes)) == [0, 1, 2]

    def test_runs_on_the_device_of_its_batch(self, name: str) -> None:
        """On meta there are no values, so nothing can have depended on them."""
        meta = torch.device("meta")
        made = on_meta(WORKLOAD.variants[name])
        loss = WORKLOAD.loss(made, WORKLOAD.synthetic(WORKLOAD.variants[name], 1, meta))
        loss.backward()
        assert loss.is_meta and loss.shape == ()
        assert all(parameter.grad is not None for parameter in made.parameters())

    def test_blocks_come_in_order_of_use_and_leave_the_output_out(self, name: str) -> None:
        made, used = on_meta(WORKLOAD.variants[name]), []
        units = blocks(made)
        for unit in units:
            unit.register_forward_pre_hook(lambda module, _: used.append(module))
        WORKLOAD.loss(made, WORKLOAD.synthetic(WORKLOAD.variants[name], 1, torch.device("meta")))
        assert len(used) == len(units) and all(one is other for one, other in zip(used, units, strict=True))
        held = {id(parameter) for unit in units for parameter in unit.parameters()}
        left = {key for key, parameter in made.named_parameters() if id(parameter) not in held}
        assert left == {"output.conv.0.weight", "output.conv.0.bias"}


def test_blocks_can_be_recomputed() -> None:
    """Checkpointed blocks, skips included, give the same gradients."""
    torch.manual_seed(0)
    made, batch = WORKLOAD.build(NANO), real_batch(NANO, 2)
    twin = copy.deepcopy(made)
    for block in blocks(twin):
        whole = block.forward
        block.forward = lambda *given, whole=whole: checkpoint(whole, *given, use_reentrant=False)
    found, expected = gradients(twin, WORKLOAD.loss(twin, batch)), gradients(made, WORKLOAD.loss(made, batch))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
