"""What a plan must know of a workload, without torch: those of this package declare it here, beside their sizes.

Sizes of samples are those of the references: MLPerf Training for images, volumes (of KiTS19) and BERT, MLPerf Storage
for the volumes' distribution of bytes, GPT-NeoX for its sequences and padded vocabulary. Of other workloads the facts
are derived from their `Workload`, which imports torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from benchsuite.workloads import WorkloadError
from benchsuite.workloads.spec import Variant


@dataclass(frozen=True)
class Facts:
    """What decides how a workload can be parallelized, and which datasets it can read.

    `divisible(variant)` gives what must be multiples of the degree of tensor parallelism, by name;
    `num_pieces(variant)` into how many pieces a pipeline can cut the model. None where it cannot.
    """

    name: str
    kind: str
    variants: Mapping[str, Variant]
    divisible: Callable[[Variant], Mapping[str, int]] | None = None
    num_pieces: Callable[[Variant], int] | None = None
    has_targets: bool = False
    """Whether its loss is a mean over what is counted in the whole batch."""
    has_experts: bool = False
    """Whether any variant has experts that can be dealt to ranks; its model's `num_experts` says how many."""


def _resnet(layers: tuple[int, ...], width: int, image_size: int = 224, bottleneck: bool = True) -> Variant:
    model: dict[str, int | float | tuple[int, ...]] = {"layers": layers, "width": width, "bottleneck": bottleneck}
    return Variant(model, {"image_size": image_size}, num_classes=1000)


RESNET50 = Facts(
    name="resnet50",
    kind="image",
    variants={
        "nano": _resnet((3, 3, 0, 0), 8, 32),
        "tiny": _resnet((3, 4, 6, 3), 16, 64),
        "resnet18": _resnet((2, 2, 2, 2), 64, bottleneck=False),
        "resnet101": _resnet((3, 4, 23, 3), 64),
        "reference": _resnet((3, 4, 6, 3), 64),
    },
    num_pieces=lambda variant: 2 + sum(cast(tuple[int, ...], variant.model["layers"])),  # stem, blocks, head
)


def _unet3d(filters: tuple[int, ...], patch_size: int, mean_bytes: int, stdev_bytes: int) -> Variant:
    sample = {"patch_size": patch_size, "mean_bytes": mean_bytes, "stdev_bytes": stdev_bytes}
    return Variant({"filters": filters}, sample, num_classes=3)


# No extent is halved down to 2: there torch 2.13's bfloat16 convolutions have wrong gradients on CPUs.
UNET3D = Facts(
    name="unet3d",
    kind="volume",
    variants={
        "nano": _unet3d((4, 8), 16, 200_000, 70_000),
        "tiny": _unet3d((8, 16, 32), 32, 1_500_000, 500_000),
        "reference": _unet3d((32, 64, 128, 256, 320), 128, 146_600_628, 68_341_808),
    },
)


def bert_divisible(variant: Variant) -> dict[str, int]:
    """Heads are dealt to ranks, and the sequence with sequence parallelism; the vocabulary may be dealt unevenly."""
    return {"heads": cast(int, variant.model["heads"]), "seq_len": variant.sample["seq_len"]}


def _bert(
    hidden: int, layers: int, heads: int, seq_len: int, max_predictions: int, vocab_size: int, dropout: float = 0.1
) -> Variant:
    sample = {"seq_len": seq_len, "max_predictions": max_predictions, "vocab_size": vocab_size}
    return Variant({"hidden": hidden, "layers": layers, "heads": heads, "dropout": dropout}, sample)


BERT = Facts(
    name="bert",
    kind="mlm",
    variants={
        "nano": _bert(32, 4, 8, 16, 4, 128, dropout=0.0),
        "tiny": _bert(128, 4, 4, 128, 20, 512),
        "base": _bert(768, 12, 12, 512, 76, 30522),
        "reference": _bert(1024, 24, 16, 512, 76, 30522),
    },
    divisible=bert_divisible,
    has_targets=True,
)

ROTARY_SHARE = 4  # one in so many of a head's dimensions is rotated


def gpt_neox_shape(
    hidden: int,
    layers: int,
    heads: int,
    num_experts: int = 0,
    top_k: int = 0,
    *,
    vocab_size: int = 50304,
    seq_len: int = 2048,
) -> Variant:
    """A decoder of any shape; of experts, each token visits `top_k`, and one without has plain MLPs.

    Raises:
        WorkloadError: heads that are not whole, or a quarter of whose dimensions cannot be rotated in pairs.
    """
    if hidden % heads or hidden // heads % (2 * ROTARY_SHARE):
        raise WorkloadError(f"hidden({hidden}) / heads({heads}) must be a multiple of {2 * ROTARY_SHARE}")
    model = {"hidden": hidden, "layers": layers, "heads": heads, "num_experts": num_experts, "top_k": top_k}
    return Variant(model, {"seq_len": seq_len, "vocab_size": vocab_size})


def gpt_neox_divisible(variant: Variant) -> dict[str, int]:
    """What a tensor-parallel degree must divide; `seq_len` where activations are split along it."""
    return {"heads": cast(int, variant.model["heads"]), **variant.sample}


GPT_NEOX = Facts(
    name="gpt_neox",
    kind="tokens",
    variants={
        "nano": gpt_neox_shape(64, 4, 8, vocab_size=128, seq_len=16),
        "nano_moe": gpt_neox_shape(64, 4, 8, 8, 2, vocab_size=128, seq_len=16),
        "tiny": gpt_neox_shape(128, 4, 4, vocab_size=512, seq_len=128),
        "pythia-70m": gpt_neox_shape(512, 6, 8),
        "pythia-160m": gpt_neox_shape(768, 12, 12),
        "pythia-410m": gpt_neox_shape(1024, 24, 16),
        "pythia-1b": gpt_neox_shape(2048, 16, 8),
        "pythia-1.4b": gpt_neox_shape(2048, 24, 16),
        "pythia-2.8b": gpt_neox_shape(2560, 32, 32),
        "pythia-6.9b": gpt_neox_shape(4096, 32, 32, vocab_size=50432),
        "moe": gpt_neox_shape(768, 12, 12, 8, 2),
        "reference": gpt_neox_shape(6144, 44, 64, vocab_size=50432),
    },
    divisible=gpt_neox_divisible,
    num_pieces=lambda variant: 2 + cast(int, variant.model["layers"]),  # embedding, layers, norm and head
    has_experts=True,
)

FACTS: Mapping[str, Facts] = {facts.name: facts for facts in (RESNET50, UNET3D, BERT, GPT_NEOX)}
