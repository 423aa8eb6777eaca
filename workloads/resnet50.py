"""ResNet-50 v1.5: bottlenecks with the stride in the 3x3 convolution.

He et al., "Deep residual learning for image recognition" (2015); v1.5 is the variant of MLPerf Training's reference.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from workloads.samples import SAMPLES
from workloads.spec import Variant
from workloads.workload import Batch, Workload

EXPANSION = 4
LEARNING_RATE = 0.01
"""Low enough that a benchmark's small batches do not diverge."""


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3, 1x1 expand, added to the input: (N, C, H, W) -> (N, 4 width, H / stride, W / stride)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return cast(Tensor, self.relu(y + self.downsample(x)))


class ResNet(nn.Module):
    """Stem, four stages of bottlenecks, mean pooling, classifier: (N, 3, H, W) -> (N, num_classes)."""

    def __init__(self, layers: tuple[int, ...], width: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        channels, stages = width, []
        for number, depth in enumerate(layers):
            blocks = []
            for block in range(depth):
                stride = 2 if number > 0 and block == 0 else 1
                blocks.append(Bottleneck(channels, width << number, stride))
                channels = (width << number) * EXPANSION
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, num_classes)
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return cast(Tensor, self.fc(self.avgpool(x).flatten(1)))


def _initialise(module: nn.Module) -> None:
    """Kaiming-normal convolutions by fan-out (He et al. 2015); zero-initialised last norms are left out, as in v1.5."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def build(variant: Variant) -> nn.Module:
    """The model of a variant, on the CPU."""
    layers, width = variant.model["layers"], variant.model["width"]
    assert isinstance(layers, tuple) and isinstance(width, int)
    return ResNet(layers, width, variant.num_classes)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of the labels."""
    return cross_entropy(model(batch["image"]), batch["label"])


def synthetic(variant: Variant, batch_size: int, device: torch.device) -> Batch:
    """Normally distributed images and uniform labels, made on the device."""
    size = variant.sample["image_size"]
    return {
        "image": torch.randn(batch_size, 3, size, size, device=device),
        "label": torch.randint(variant.num_classes, (batch_size,), device=device),
    }


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum 0.9 and weight decay 1e-4, as the reference trains; its rate of 0.1 is for batches of 256."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9, weight_decay=1e-4)


WORKLOAD = Workload(
    name="resnet50",
    kind=SAMPLES["resnet50"].kind,
    variants={
        "tiny": Variant({"layers": (3, 4, 6, 3), "width": 16}, SAMPLES["resnet50"].variants["tiny"], 1000),
        "reference": Variant({"layers": (3, 4, 6, 3), "width": 64}, SAMPLES["resnet50"].variants["reference"], 1000),
    },
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=optimizer,
)
