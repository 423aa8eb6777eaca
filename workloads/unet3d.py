"""UNet3D as MLPerf Training's image segmentation: nnU-Net's 3D network (Isensee et al., 2018), kidneys and tumours.

Layers, initial weights and the names of the state dict are those of the reference, so that its checkpoints load
(mlcommons/training, retired_benchmarks/unet3d/pytorch). Extents are halved as often as there are filters: a patch's is
a multiple of 2 ** len(filters), and at least twice that, as instance norm refuses a single voxel.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.facts import UNET3D
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch, Workload

LEARNING_RATE = 0.1
"""Low enough that a benchmark's small batches do not diverge without the reference's 200 epochs of warm-up."""
SMOOTH = 1e-6
"""Added above and below in Dice, as in the reference: a class that is neither there nor predicted scores 1."""


def convolution(channels: int, out: int, stride: int = 1) -> nn.Sequential:
    """3x3x3 convolution, instance norm, ReLU: (N, C, D, H, W) -> (N, out, D / stride, H / stride, W / stride)."""
    return nn.Sequential(
        nn.Conv3d(channels, out, 3, stride, padding=1, bias=False), nn.InstanceNorm3d(out, affine=True), nn.ReLU()
    )


class DoubleConvolution(nn.Module):
    """Two convolutions, the first of which may halve the extents."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = convolution(channels, out, stride)
        self.conv2 = convolution(out, out)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv2(self.conv1(x)))


class Upsample(nn.Module):
    """Double the extents, join with what the way down had at this size, two convolutions."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.upsample_conv = nn.Sequential(nn.ConvTranspose3d(channels, out, 2, 2))
        self.conv1 = convolution(2 * out, out)
        self.conv2 = convolution(out, out)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        joined = torch.cat((self.upsample_conv(x), skip), dim=1)
        return cast(Tensor, self.conv2(self.conv1(joined)))


class Output(nn.Module):
    """A score for every class and voxel."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv3d(channels, num_classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv(x))


class UNet3D(nn.Module):
    """Down by halves, up again with skips: (N, 1, D, H, W) -> (N, num_classes, D, H, W)."""

    def __init__(self, filters: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        last = filters[-1]
        self.input_block = DoubleConvolution(1, filters[0])
        self.downsample = nn.ModuleList(DoubleConvolution(few, many, stride=2) for few, many in pairwise(filters))
        self.bottleneck = DoubleConvolution(last, last, stride=2)
        self.upsample = nn.ModuleList(Upsample(many, few) for many, few in pairwise((last, *reversed(filters))))
        self.output = Output(filters[0], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.input_block(x)]
        for downsample in self.downsample:
            skips.append(downsample(skips[-1]))
        x = self.bottleneck(skips[-1])
        for upsample in self.upsample:
            x = upsample(x, skips.pop())
        return cast(Tensor, self.output(x))


def build(variant: Variant) -> nn.Module:
    """The model of a variant, on the default device."""
    filters = variant.model["filters"]
    assert isinstance(filters, tuple)
    return UNet3D(filters, variant.num_classes)


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Input, way down, bottleneck, way up; the output layer is left to the model itself."""
    assert isinstance(model, UNet3D)
    return [model.input_block, *model.downsample, model.bottleneck, *model.upsample]


def dice_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Mean of cross-entropy and of what Dice lacks to 1: (N, C, D, H, W), (N, 1, D, H, W) -> scalar.

    Dice is taken of each sample and class but the background, then averaged: the whole is a mean over samples.
    """
    logits = logits.float()
    classes = torch.arange(1, logits.shape[1], dtype=label.dtype, device=label.device).view(-1, 1, 1, 1)
    probability, truth = logits.softmax(1)[:, 1:], label == classes
    voxels = (2, 3, 4)
    both = (probability * truth).sum(voxels)
    dice = (2 * both + SMOOTH) / (truth.sum(voxels) + probability.sum(voxels) + SMOOTH)
    return (cross_entropy(logits, label[:, 0].long()) + (1 - dice).mean()) / 2


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Dice and cross-entropy of the labels, in equal parts."""
    return dice_cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant: Variant, batch_size: int, device: torch.device) -> Batch:
    """Normally distributed intensities and uniform labels, made on the device."""
    shape = (batch_size, 1) + (variant.sample["patch_size"],) * 3
    return {
        "image": torch.randn(shape, device=device),
        "label": torch.randint(variant.num_classes, shape, dtype=torch.uint8, device=device),
    }


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum 0.9, as the reference trains; its rate of 0.8 to 1 is reached after a warm-up."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9, nesterov=True)


WORKLOAD = Workload(
    name=UNET3D.name,
    kind=UNET3D.kind,
    variants=UNET3D.variants,
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=optimizer,
    learning_rate=LEARNING_RATE,
    blocks=blocks,
)
