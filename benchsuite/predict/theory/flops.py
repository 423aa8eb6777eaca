"""FLOPs, parameters, training days and utilization of transformers: closed forms. 2 FLOPs per multiply-add.

B batch_size, s seq_len, l num_layers, h hidden_size, V vocab_size, P params, T tokens, n num_devices, X FLOP/s.
`benchsuite.workloads.flops` counts real models; the forms here need only shapes, and a test holds them to the counts.
Parameters of families of transformers are exact. Convolution nets are summed over layers, without their norms.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from benchsuite.contract.errors import refuse
from benchsuite.predict.theory.arrays import Floats, fraction, positive, whole

SECONDS_PER_DAY = 86_400
RECOMPUTE = ("full", "none", "selective", "selective_published")
FORWARD_PASSES = {"full": 4, "none": 3, "selective": 3, "selective_published": 3}
"""Forward, backward (twice the forward), and the forward pass again where everything is recomputed."""
ATTENTION_PASSES = {"full": 4, "none": 3, "selective": 4, "selective_published": 6}
"""The same of attention's two matrix products. Korthikanti et al. print (1 + s/3h) for selective: twice what it is."""


def transformer_flops(
    batch_size: ArrayLike,
    seq_len: ArrayLike,
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    vocab_size: ArrayLike,
    recompute: str = "full",
    causal: bool = False,
) -> Floats:
    """FLOPs of one training step of a GPT (MLP of 4 h) on the whole batch.

    `full`: every layer's forward pass is done again, 96 B s l h^2 (1 + s/6h + V/16lh) (Narayanan et al. 2021,
    arXiv:2104.04473, eq. 2). `none`: 72 B s l h^2 (1 + s/6h + V/12lh), the model's FLOPs. `selective`: attention alone
    is done again, 72 B s l h^2 (1 + 2s/9h + V/12lh); `selective_published`: with s/3h, as Korthikanti et al. 2022
    (arXiv:2205.05198) print it. The head is never recomputed. GPT-NeoX's logger uses 72 with V/16lh, a quarter of the
    head less. `causal` counts only what a causal mask leaves of attention (half); the papers and `workloads.flops`
    count all of it. Norms, activations and the optimizer are left out.

    Raises:
        UserError: another `recompute`, or a shape not above 0.
    """
    if recompute not in RECOMPUTE:
        raise refuse("recompute", recompute, RECOMPUTE)
    b, s, layers, h, v = positive(
        batch_size=batch_size, seq_len=seq_len, num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size
    )
    products = 24 * h**2 * FORWARD_PASSES[recompute]
    attention = 4 * s * h * ATTENTION_PASSES[recompute] * (0.5 if causal else 1)
    return b * s * (layers * (products + attention) + 6 * h * v)


def transformer_params(
    num_layers: ArrayLike, hidden_size: ArrayLike, vocab_size: ArrayLike, seq_len: ArrayLike
) -> Floats:
    """Parameters of a GPT with learned positions and tied embeddings: 12 l h^2 (1 + 13/12h + (V + s)/12lh).

    Narayanan et al. 2021 (arXiv:2104.04473), section 5.1; the final norm (2h) is left out. Models without learned
    positions: see `parameters`.
    """
    layers, h, v, s = positive(num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size, seq_len=seq_len)
    return 12 * layers * h**2 + 13 * layers * h + (v + s) * h


def vit_forward_flops(
    batch_size: ArrayLike,
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    patch_size: ArrayLike,
    image_size: ArrayLike = 224,
    num_classes: ArrayLike = 1000,
) -> Floats:
    """Forward FLOPs of a ViT: patches 6 q^2 h each, encoder layers over patches and class token, head 2 h c."""
    b, h, q, image, classes = positive(
        batch_size=batch_size,
        hidden_size=hidden_size,
        patch_size=patch_size,
        image_size=image_size,
        num_classes=num_classes,
    )
    patches = (image // q) ** 2
    return b * (6 * q**2 * h * patches + 2 * h * classes) + encoder_forward_flops(b, patches + 1, num_layers, h)


def encoder_forward_flops(
    batch_size: ArrayLike, seq_len: ArrayLike, num_layers: ArrayLike, hidden_size: ArrayLike
) -> Floats:
    """Forward FLOPs of l transformer layers without a head: 24 B s l h^2 (1 + s/6h). BERT, ViT; training is 3 times."""
    b, s, layers, h = positive(batch_size=batch_size, seq_len=seq_len, num_layers=num_layers, hidden_size=hidden_size)
    return 24 * b * s * layers * h**2 + 4 * b * s**2 * layers * h


def mlm_head_forward_flops(num_masked: ArrayLike, hidden_size: ArrayLike, vocab_size: ArrayLike) -> Floats:
    """Forward FLOPs of BERT's head, which is run on masked positions alone: 2 (h^2 + h V) each (Devlin et al. 2019)."""
    masked, h, v = positive(num_masked=num_masked, hidden_size=hidden_size, vocab_size=vocab_size)
    return 2 * masked * (h**2 + h * v)


def flops_per_token(
    params: ArrayLike,
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    seq_len: ArrayLike,
    convention: str = "full_attention",
) -> Floats:
    """Training FLOPs a token, without recomputation.

    `full_attention`: 6 P + 12 l h s (PaLM, arXiv:2204.02311, appendix B; nanoGPT, llm-foundry); `causal`: 6 P + 6 l h
    s (MaxText since 2025); `none`: 6 P (Kaplan et al. 2020). P counts what each reports: with embeddings in llm-foundry
    and PaLM, without them in torchtitan (pass P - P_embedding). Say which convention a figure has.
    """
    share = {"full_attention": 12.0, "causal": 6.0, "none": 0.0}
    if convention not in share:
        raise refuse("convention", convention, share)
    p, layers, h, s = positive(params=params, num_layers=num_layers, hidden_size=hidden_size, seq_len=seq_len)
    return 6 * p + share[convention] * layers * h * s


def training_days(params: ArrayLike, tokens: ArrayLike, num_devices: ArrayLike, achieved_flops: ArrayLike) -> Floats:
    """Days of a run with full recomputation: 8 T P / (n X) / 86,400 (Narayanan et al. 2021, eq. 4).

    `achieved_flops`: FLOP/s that one device achieves. 1.4 to 3 % below `exact_training_days` for GPTs of 175B up.
    """
    p, t, n, x = positive(params=params, tokens=tokens, num_devices=num_devices, achieved_flops=achieved_flops)
    return 8 * t * p / (n * x) / SECONDS_PER_DAY


def exact_training_days(
    step_flops: ArrayLike,
    step_tokens: ArrayLike,
    tokens: ArrayLike,
    num_devices: ArrayLike,
    achieved_flops: ArrayLike,
) -> Floats:
    """Days of T tokens: T/(B s) F/(n X) / 86,400, with `step_tokens` B s and `step_flops` F of `transformer_flops`."""
    f, per_step, t, n, x = positive(
        step_flops=step_flops,
        step_tokens=step_tokens,
        tokens=tokens,
        num_devices=num_devices,
        achieved_flops=achieved_flops,
    )
    return t / per_step * f / (n * x) / SECONDS_PER_DAY


def utilization(step_flops: ArrayLike, step_s: ArrayLike, num_devices: ArrayLike, peak_flops: ArrayLike) -> Floats:
    """Share of the devices' dense peak: MFU with the model's FLOPs (`recompute="none"`), HFU with those really done.

    Chowdhery et al. 2022 (PaLM), section 4.1. Give the dense peak: half of what is printed for sparse matrices.
    """
    f, t, n, peak = positive(step_flops=step_flops, step_s=step_s, num_devices=num_devices, peak_flops=peak_flops)
    return f / (t * n * peak)


def step_s(step_flops: ArrayLike, num_devices: ArrayLike, peak_flops: ArrayLike, efficiency: ArrayLike = 1.0) -> Floats:
    """Seconds of a step that reaches `efficiency` (0 to 1) of the devices' peak: the inverse of `utilization`."""
    f, n, peak = positive(step_flops=step_flops, num_devices=num_devices, peak_flops=peak_flops)
    (share,) = fraction(efficiency=efficiency)
    (share,) = positive(efficiency=share)
    return f / (n * peak * share)


def neox_params(num_layers: ArrayLike, hidden_size: ArrayLike, vocab_size: ArrayLike) -> Floats:
    """Parameters of GPT-NeoX: rotary positions, untied embeddings, biases, exact: l (12 h^2 + 13 h) + 2 V h + 2 h."""
    layers, h, v = positive(num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size)
    return layers * (12 * h**2 + 13 * h) + 2 * v * h + 2 * h


def llama_params(
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    ffn_size: ArrayLike,
    vocab_size: ArrayLike,
    num_heads: ArrayLike,
    num_kv_heads: ArrayLike,
) -> Floats:
    """Parameters of LLaMA: gated MLP, no biases, RMS norms, grouped queries, untied embeddings, exact.

    l (2 h^2 + 2 h^2 k/a + 3 h f + 2 h) + 2 V h + h (Touvron et al. 2023, arXiv:2307.09288), k of a heads hold keys.
    """
    layers, h, f, v = positive(num_layers=num_layers, hidden_size=hidden_size, ffn_size=ffn_size, vocab_size=vocab_size)
    a, k = whole(num_heads=num_heads, num_kv_heads=num_kv_heads)
    return layers * (2 * h**2 * (1 + k / a) + 3 * h * f + 2 * h) + 2 * v * h + h


def gpt2_params(num_layers: ArrayLike, hidden_size: ArrayLike, vocab_size: ArrayLike, seq_len: ArrayLike) -> Floats:
    """Parameters of GPT-2, exact: `transformer_params` and the final norm's 2 h (Radford et al. 2019)."""
    (h,) = positive(hidden_size=hidden_size)
    return transformer_params(num_layers, h, vocab_size, seq_len) + 2 * h


def bert_params(
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    vocab_size: ArrayLike = 30_522,
    seq_len: ArrayLike = 512,
    pooler: bool = True,
    heads: bool = False,
) -> Floats:
    """Parameters of BERT (Devlin et al. 2018), exact: l (12 h^2 + 13 h) + (V + s + 2) h + 2 h, with two segments.

    The pooler has h^2 + h; `heads`: of masked tokens h^2 + 3 h + V (tied to the embedding) and next sentence 2 h + 2.
    """
    layers, h, v, s = positive(num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size, seq_len=seq_len)
    body = layers * (12 * h**2 + 13 * h) + (v + s + 4) * h
    return body + pooler * (h**2 + h) + heads * (h**2 + 5 * h + v + 2)


def vit_params(
    num_layers: ArrayLike,
    hidden_size: ArrayLike,
    patch_size: ArrayLike,
    image_size: ArrayLike = 224,
    num_classes: ArrayLike = 1000,
) -> Floats:
    """Parameters of a ViT with an MLP of 4 h and a class token (Dosovitskiy et al. 2020), exact.

    l (12 h^2 + 13 h), patches (3 q^2 + 1) h, positions ((i/q)^2 + 1) h, class token h, final norm 2 h, head (h + 1) c.
    """
    layers, h, q, image, classes = positive(
        num_layers=num_layers,
        hidden_size=hidden_size,
        patch_size=patch_size,
        image_size=image_size,
        num_classes=num_classes,
    )
    tokens = (image // q) ** 2 + 1
    return layers * (12 * h**2 + 13 * h) + (3 * q**2 + 1 + tokens + 3) * h + (h + 1) * classes


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
