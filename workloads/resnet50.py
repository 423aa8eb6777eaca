"""ResNet-50 v1.5 and its family: bottlenecks with the stride in the 3x3 convolution; basic blocks in ResNet-18.

He et al., "Deep residual learning for image recognition" (2015); v1.5 is the variant of MLPerf Training's reference.
Names in the state dict are those of torchvision, so that published weights load.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchsuite.workloads.facts import RESNET50
from benchsuite.workloads.spec import Variant
from benchsuite.workloads.workload import Batch, Pipeline, Stage, Workload

LEARNING_RATE = 0.01
"""Low enough that a benchmark's small batches do not diverge."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, added to the input: (N, C, H, W) -> (N, width, H / stride, W / stride)."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _downsample(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return cast(Tensor, self.relu(y + self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3, 1x1 expand, added to the input: (N, C, H, W) -> (N, 4 width, H / stride, W / stride)."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * self.expansion
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return cast(Tensor, self.relu(y + self.downsample(x)))


def _downsample(channels: int, out: int, stride: int) -> nn.Module:
    """Brings a block's input to the shape of its output."""
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """Stem, four stages of blocks, mean pooling, classifier: (N, 3, H, W) -> (N, num_classes).

    A depth of 0 leaves a stage out.
    """

    def __init__(
        self,
        layers: tuple[int, ...],
        width: int,
        num_classes: int,
        block: type[BasicBlock] | type[Bottleneck] = Bottleneck,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        channels, stages = width, []
        for number, depth in enumerate(layers):
            blocks: list[nn.Module] = []
            for place in range(depth):
                stride = 2 if number > 0 and place == 0 else 1
                blocks.append(block(channels, width << number, stride))
                channels = (width << number) * block.expansion
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
    """The model of a variant, on the default device."""
    layers, width = variant.model["layers"], variant.model["width"]
    assert isinstance(layers, tuple) and isinstance(width, int)
    return ResNet(layers, width, variant.num_classes, Bottleneck if variant.model["bottleneck"] else BasicBlock)


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Every residual block."""
    assert isinstance(model, ResNet)
    return [block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage]


def stages(model: nn.Module) -> Sequence[Stage]:
    """Stem, every residual block, head. Modules keep their names within stem and head."""
    assert isinstance(model, ResNet)
    stem = OrderedDict(conv1=model.conv1, bn1=model.bn1, relu=model.relu, maxpool=model.maxpool)
    head = OrderedDict(avgpool=model.avgpool, flatten=nn.Flatten(), fc=model.fc)
    rest = [*blocks(model), nn.Sequential(head)]
    return [(nn.Sequential(stem), _see), *((piece, _continue) for piece in rest)]


def _see(stem: nn.Module, _before: None, batch: Batch) -> Tensor:
    return cast(Tensor, stem(batch["image"]))


def _continue(piece: nn.Module, before: Tensor, _batch: Batch) -> Tensor:
    return cast(Tensor, piece(before))


def criterion(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of the labels."""
    return cross_entropy(logits, batch["label"])


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The criterion of what the model makes of a batch's images."""
    return criterion(model(batch["image"]), batch)


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
    name=RESNET50.name,
    kind=RESNET50.kind,
    variants=RESNET50.variants,
    build=build,
    loss=loss,
    synthetic=synthetic,
    optimizer=optimizer,
    learning_rate=LEARNING_RATE,
    blocks=blocks,
    pipeline=Pipeline(stages, criterion),
)
