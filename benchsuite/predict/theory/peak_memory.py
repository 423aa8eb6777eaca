"""Peak memory of this suite's own models in float32 on a CPU: states, what autograd keeps, what works on it.

Counted by hand from the models' code, an element at a time, and held to torch's own account of allocations by a test:
h hidden, a heads, L layers, s seq_len, V vocabulary, p predictions a sequence. Training with AdamW, gradients freed
between steps; on a GPU, or with other kernels of attention, less or more is kept.

Peak memory of this suite's own ResNet-50 in float32 on a CPU, trained by SGD with momentum.

Counted by hand from the model's code, an element at a time, and held to torch's own account of allocations by a test.
UNet3D is not counted: what oneDNN takes for its convolutions beside depends on batch and threads, 36 and 41 MB in all
for two samples of `tiny`, 71 for one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchsuite.contract.errors import UserError, refuse
from benchsuite.predict.theory.flops import Layer, resnet_blocks
from benchsuite.predict.theory.memory import fp32_bytes

FLOAT_BYTES = 4
ATTENTION_COPIES = 3
"""Of attention's scores under dropout: after softmax, the mask, and their product."""
LOGIT_COPIES = 3
"""Log-probabilities, the gradient of each, and that of the logits."""
ADAM_TEMPORARIES = 2
"""Of the largest parameter, while the optimizer steps."""


@dataclass(frozen=True)
class Peak:
    """Bytes."""

    states: float
    """Weights, gradients and both moments: 16 a parameter; of ResNet-50 one momentum, 12."""
    kept: float
    """Most that autograd keeps for backward."""
    peak: float
    """Most at any moment of a step."""


def gpt_neox_peak(
    params: float, sizes: Mapping[str, float], sample: Mapping[str, float], batch_size: int, largest: float = 0.0
) -> Peak:
    """Of a dense `benchsuite.workloads.gpt_neox`, `largest` the elements of its largest parameter.

    A layer keeps 18 h + a + 4 elements a token: its input, two norms' outputs, the fused projection 3 h, rotated
    queries and keys 2 h, attention's output twice, the MLP's 4 h twice; a sum per head, two norms' statistics. At the
    peak, when the gradient of the logits is made, there are 3 V + 2 h + 2 more, and no gradient of a weight.
    """
    h, heads, layers, vocab = sizes["hidden"], sizes["heads"], sizes["layers"], sample["vocab_size"]
    tokens = batch_size * sample["seq_len"]
    blocks = layers * (18 * h + heads + 4) + 2 * h + 2
    kept = tokens * (blocks + vocab)
    return _peak(params, kept, tokens * (blocks + LOGIT_COPIES * vocab), largest)


def bert_peak(
    params: float, sizes: Mapping[str, float], sample: Mapping[str, float], batch_size: int, largest: float = 0.0
) -> Peak:
    """Of `benchsuite.workloads.bert` with dropout.

    A layer keeps 18 h + 3 a s + 4 elements a token: queries, keys, values, attention's output, the MLP's 4 h twice, and
    of each of two residuals a dropout mask, the sum and its norm; three copies of the scores. The peak is in the head
    (3 V + 4 h + 2 a prediction) or in the last layer's MLP (3 h more a token, and gradients of the head's weights).
    """
    h, layers, s, vocab = sizes["hidden"], sizes["layers"], sample["seq_len"], sample["vocab_size"]
    tokens, masked = batch_size * s, batch_size * sample["max_predictions"]
    blocks = layers * (18 * h + ATTENTION_COPIES * sizes["heads"] * s + 4)
    embedded = 3 * h + 2
    head = masked * (4 * h + 2)
    kept = tokens * (blocks + embedded) + head + masked * vocab
    in_head = tokens * (blocks + embedded) + head + masked * LOGIT_COPIES * vocab
    in_layer = tokens * (blocks + 6 * h) + vocab * h + vocab + 2 * h**2
    return _peak(params, kept, max(in_head, in_layer), largest)


def _peak(params: float, kept: float, working: float, largest: float) -> Peak:
    """The larger of backward's peak, before there are gradients, and the optimizer's, without activations."""
    states = float(fp32_bytes(params))
    before = states * 3 / 4 + FLOAT_BYTES * working
    after = states + FLOAT_BYTES * ADAM_TEMPORARIES * largest
    return Peak(states, FLOAT_BYTES * kept, max(before, after))


def resnet50_peak(
    params: float, sizes: Mapping[str, float], sample: Mapping[str, float], batch_size: int, largest: float = 0.0
) -> Peak:
    """Of `benchsuite.workloads.resnet50`; `convpeak.resnet_bytes`."""
    return Peak(*resnet_bytes(params, sizes, sample, batch_size))


PEAKS = {"gpt_neox": gpt_neox_peak, "bert": bert_peak, "resnet50": resnet50_peak}


def peak_of(
    workload: str,
    params: float,
    sizes: Mapping[str, float],
    sample: Mapping[str, float],
    batch_size: int,
    largest: float = 0.0,
) -> Peak:
    """The peak of a workload's variant; `sizes` and `sample` are its `model` and `sample`.

    Raises:
        UserError: a workload, or a variant with experts or without dropout, that is not counted.
    """
    if workload not in PEAKS:
        raise refuse("workload", workload, PEAKS)
    if workload == "gpt_neox" and sizes.get("num_experts", 0):
        raise UserError(f"gpt_neox with {sizes['num_experts']:g} experts: not counted; allowed: num_experts 0")
    if workload == "bert" and not sizes.get("dropout", 0.0) > 0:
        raise UserError("bert with dropout 0: not counted, other kernels of attention keep less; allowed: above 0")
    return PEAKS[workload](params, sizes, sample, batch_size, largest)


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
    """Model states, what autograd keeps, and the peak of a step of `benchsuite.workloads.resnet50`.

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
