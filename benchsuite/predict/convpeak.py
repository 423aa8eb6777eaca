"""Peak memory of this suite's own ResNet-50 in float32 on a CPU, trained by SGD with momentum.

Counted by hand from the model's code, an element at a time, and held to torch's own account of allocations by a test.
UNet3D is not counted: what oneDNN takes for its convolutions beside depends on batch and threads, 36 and 41 MB in all
for two samples of `tiny`, 71 for one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchsuite.errors import UserError
from benchsuite.predict.convnets import Layer, resnet_blocks

FLOAT_BYTES = 4
STATES = 3
"""Of each parameter: weight, gradient, momentum."""
BEFORE = 2
"""The same before the backward pass."""
POOL_INDEX = 2
"""Elements of float32 that an int64 takes."""
GRADIENTS = 3
"""Times the output of the block whose backward pass runs: gradients of it, of the norm's and of what it adds."""
Sizes = Mapping[str, Any]


def resnet_bytes(params: float, sizes: Sizes, sample: Sizes, batch_size: int) -> tuple[float, float, float]:
    """Model states, what autograd keeps, and the peak of a step of `workloads.resnet50`.

    A convolution's output and that of its norm are kept (rectified in place), of a projection the former alone, of the
    pooling its output and places. Backward frees a block's share and leaves its weights' gradients: the peak is where
    both together are most, beside three gradients of that block's output.

    Raises:
        UserError: blocks without bottleneck, which are not counted.
    """
    if not sizes["bottleneck"]:
        raise UserError("resnet50 with bottleneck false: not counted; allowed: true")
    stem, *blocks = resnet_blocks(sizes["layers"], True, sizes["width"], image_size=sample["image_size"])[:-1]
    pooled = _outputs(blocks[0][0]) * (1 + POOL_INDEX) * sizes["width"] / blocks[0][0].out
    kept = [2 * _outputs(stem[0]) + pooled, *map(_kept_of_block, blocks)]
    ends = [_outputs(stem[0]), *(_outputs(block[2]) for block in blocks)]
    sums = [sum(layer.params for layer in block) for block in (stem, *blocks)]
    images = batch_size * 3 * sample["image_size"] ** 2
    working = [
        batch_size * (sum(kept[: place + 1]) + GRADIENTS * ends[place]) + params - sum(sums[: place + 1])
        for place in range(len(kept))
    ]
    return _bytes(params, batch_size * sum(kept), images + max(working))


def _outputs(layer: Layer) -> float:
    return layer.out * layer.positions


def _kept_of_block(block: Sequence[Layer]) -> float:
    return 2 * sum(map(_outputs, block[:3])) + sum(map(_outputs, block[3:]))


def _bytes(params: float, kept: float, working: float) -> tuple[float, float, float]:
    states = FLOAT_BYTES * STATES * params
    return states, FLOAT_BYTES * kept, max(states, FLOAT_BYTES * (BEFORE * params + working))
