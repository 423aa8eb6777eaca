"""FLOPs and parameters of convolution nets, summed over layers. 2 FLOPs per multiply-add; norms are not counted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.predict.arrays import Floats, positive

RESNET_DEPTHS = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}
"""Blocks of each stage, and whether they are bottlenecks (He et al. 2015, table 1)."""
VGG16_CHANNELS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
UNET3D_FILTERS = (32, 64, 128, 256, 320)
"""Of MLPerf Training's reference."""


@dataclass(frozen=True)
class Layer:
    """A convolution, or a matrix (kernel and positions 1)."""

    channels: int
    out: int
    kernel: int
    """Weights of one input and one output channel: 9 of a 3 x 3 kernel."""
    positions: float
    """Places where the whole kernel is applied: voxels of the output, of the input where it is a transposed one."""
    extra_params: int = 0
    """Bias, and the norm that follows: scale and shift."""

    @property
    def forward_flops(self) -> float:
        return 2.0 * self.channels * self.out * self.kernel * self.positions

    @property
    def params(self) -> int:
        return self.channels * self.out * self.kernel + self.extra_params


def forward_flops(layers: Iterable[Layer], batch_size: ArrayLike = 1) -> Floats:
    """Of one batch."""
    return positive(batch_size=batch_size)[0] * sum(layer.forward_flops for layer in layers)


def training_flops(layers: Sequence[Layer], batch_size: ArrayLike = 1) -> Floats:
    """Forward and backward: three times the forward pass, less the first layer's input gradient, which nobody needs."""
    return 3 * forward_flops(layers, batch_size) - forward_flops(layers[:1], batch_size)


def params(layers: Iterable[Layer]) -> int:
    """Weights, biases, scales and shifts."""
    return sum(layer.params for layer in layers)


def resnet_layers(
    depths: Sequence[int] = (3, 4, 6, 3),
    bottleneck: bool = True,
    width: int = 64,
    num_classes: int = 1000,
    image_size: int = 224,
) -> list[Layer]:
    """ResNet v1.5 (He et al. 2015; MLPerf Training): bottlenecks have their stride in the 3 x 3 convolution.

    `RESNET_DEPTHS` has the published depths. A depth of 0 leaves a stage out.
    """
    return [layer for block in resnet_blocks(depths, bottleneck, width, num_classes, image_size) for layer in block]


def resnet_blocks(
    depths: Sequence[int] = (3, 4, 6, 3),
    bottleneck: bool = True,
    width: int = 64,
    num_classes: int = 1000,
    image_size: int = 224,
) -> list[list[Layer]]:
    """The same by the stem, each residual block (its projection last), and the classifier."""
    side = _halved(image_size)
    blocks = [[_normed(3, width, 7 * 7, side**2)]]
    side, channels = _halved(side), width
    for stage, depth in enumerate(depths):
        for place in range(depth):
            stride = 2 if stage and not place else 1
            blocks.append(_block(channels, width << stage, side, stride, bottleneck))
            side = _halved(side) if stride == 2 else side
            channels = (width << stage) * (4 if bottleneck else 1)
    return [*blocks, [Layer(channels, num_classes, 1, 1, num_classes)]]


def _block(channels: int, width: int, side: int, stride: int, bottleneck: bool) -> list[Layer]:
    """A residual block that reads `side` x `side`, with the projection where the shape changes."""
    out, after = width * (4 if bottleneck else 1), _halved(side) if stride == 2 else side
    if bottleneck:
        layers = [
            _normed(channels, width, 1, side**2),
            _normed(width, width, 9, after**2),
            _normed(width, out, 1, after**2),
        ]
    else:
        layers = [_normed(channels, width, 9, after**2), _normed(width, width, 9, after**2)]
    return layers if stride == 1 and channels == out else [*layers, _normed(channels, out, 1, after**2)]


def vgg16_layers(num_classes: int = 1000, image_size: int = 224) -> list[Layer]:
    """VGG-16 without norms (Simonyan and Zisserman 2014, configuration D)."""
    layers, channels, side = [], 3, image_size
    for stage in VGG16_CHANNELS:
        for out in stage:
            layers.append(Layer(channels, out, 9, side**2, out))
            channels = out
        side //= 2
    for size in (4096, 4096, num_classes):
        layers.append(Layer(channels * side**2, size, 1, 1, size))
        channels, side = size, 1
    return layers


def unet3d_layers(
    filters: Sequence[int] = UNET3D_FILTERS, patch_size: int = 128, channels: int = 1, num_classes: int = 3
) -> list[Layer]:
    """UNet3D of MLPerf Training (Isensee et al. 2018): two 3^3 convolutions a level, 2^3 transposed ones going up.

    `patch_size` is halved once per filter: a multiple of 2^len(filters).
    """
    layers, side = [], patch_size
    for level, out in enumerate([*filters, filters[-1]]):
        side = patch_size >> level
        layers += [_normed(channels, out, 27, side**3), _normed(out, out, 27, side**3)]
        channels = out
    for below, out in pairwise((filters[-1], *reversed(filters))):
        layers.append(Layer(below, out, 8, side**3, out))
        side *= 2
        layers += [_normed(2 * out, out, 27, side**3), _normed(out, out, 27, side**3)]
    return [*layers, Layer(filters[0], num_classes, 1, side**3, num_classes)]


def _normed(channels: int, out: int, kernel: int, positions: float) -> Layer:
    """A convolution without bias, then a norm's scale and shift."""
    return Layer(channels, out, kernel, positions, 2 * out)


def _halved(side: int) -> int:
    """After a stride of 2 with padding: rounded up."""
    return int(np.ceil(side / 2))
