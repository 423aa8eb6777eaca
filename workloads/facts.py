"""What a plan must know of a workload, without torch: those of this package declare it here, beside their sizes.

Of other workloads it is derived from their `Workload`, which imports torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from benchsuite.workloads import WorkloadError
from benchsuite.workloads.samples import SAMPLES
from benchsuite.workloads.spec import Variant


@dataclass(frozen=True)
class Facts:
    """What decides how a workload can be spread, and which datasets it can read.

    `divisible(variant)` gives what must be multiples of the degree of tensor parallelism, by name;
    `num_pieces(variant)` into how many pieces a pipeline can cut the model. None where it cannot be spread so.
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


def _resnet(name: str, layers: tuple[int, ...], width: int, bottleneck: bool = True) -> Variant:
    model: dict[str, int | float | tuple[int, ...]] = {"layers": layers, "width": width, "bottleneck": bottleneck}
    return Variant(model, SAMPLES["resnet50"].variants[name], num_classes=1000)


RESNET50 = Facts(
    name="resnet50",
    kind=SAMPLES["resnet50"].kind,
    variants={
        "nano": _resnet("nano", (3, 3, 0, 0), 8),
        "tiny": _resnet("tiny", (3, 4, 6, 3), 16),
        "resnet18": _resnet("resnet18", (2, 2, 2, 2), 64, bottleneck=False),
        "resnet101": _resnet("resnet101", (3, 4, 23, 3), 64),
        "reference": _resnet("reference", (3, 4, 6, 3), 64),
    },
    num_pieces=lambda variant: 2 + sum(cast(tuple[int, ...], variant.model["layers"])),  # stem, blocks, head
)

# No extent is halved down to 2: there torch 2.13's bfloat16 convolutions have wrong gradients on CPUs.
UNET3D_FILTERS: Mapping[str, tuple[int, ...]] = {
    "nano": (4, 8),
    "tiny": (8, 16, 32),
    "reference": (32, 64, 128, 256, 320),
}
UNET3D = Facts(
    name="unet3d",
    kind=SAMPLES["unet3d"].kind,
    variants={
        name: Variant({"filters": filters}, SAMPLES["unet3d"].variants[name], num_classes=3)
        for name, filters in UNET3D_FILTERS.items()
    },
)

BERT_NANO_SAMPLE = {"seq_len": 16, "max_predictions": 4, "vocab_size": 128}
"""For tests; no dataset has so few words."""


def bert_divisible(variant: Variant) -> dict[str, int]:
    """Heads are dealt to ranks, and the sequence with sequence parallelism; the vocabulary may be dealt unevenly."""
    return {"heads": cast(int, variant.model["heads"]), "seq_len": variant.sample["seq_len"]}


def _bert(hidden: int, layers: int, heads: int, dropout: float, sample: Mapping[str, int]) -> Variant:
    return Variant({"hidden": hidden, "layers": layers, "heads": heads, "dropout": dropout}, sample)


BERT = Facts(
    name="bert",
    kind=SAMPLES["bert"].kind,
    variants={
        "nano": _bert(32, 4, 8, 0.0, BERT_NANO_SAMPLE),
        "tiny": _bert(128, 4, 4, 0.1, SAMPLES["bert"].variants["tiny"]),
        "base": _bert(768, 12, 12, 0.1, SAMPLES["bert"].variants["base"]),
        "reference": _bert(1024, 24, 16, 0.1, SAMPLES["bert"].variants["reference"]),
    },
    divisible=bert_divisible,
    has_targets=True,
)

ROTARY_SHARE = 4  # one in so many of a head's dimensions is rotated
GPT_NEOX_SHAPES: Mapping[str, Sequence[int]] = {
    "nano": (64, 4, 8),
    "nano_moe": (64, 4, 8, 8, 2),
    "tiny": (128, 4, 4),
    "pythia-70m": (512, 6, 8),
    "pythia-160m": (768, 12, 12),
    "pythia-410m": (1024, 24, 16),
    "pythia-1b": (2048, 16, 8),
    "pythia-1.4b": (2048, 24, 16),
    "pythia-2.8b": (2560, 32, 32),
    "pythia-6.9b": (4096, 32, 32),
    "moe": (768, 12, 12, 8, 2),
    "reference": (6144, 44, 64),
}
"""Hidden, layers, heads; number of experts and how many of them a token visits."""


def gpt_neox_shape(
    hidden: int, layers: int, heads: int, num_experts: int = 0, top_k: int = 0, *, vocab_size: int, seq_len: int
) -> Variant:
    """A decoder of any shape; one without experts has plain MLPs.

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
    kind=SAMPLES["gpt_neox"].kind,
    variants={
        name: gpt_neox_shape(*sizes, **SAMPLES["gpt_neox"].variants[name]) for name, sizes in GPT_NEOX_SHAPES.items()
    },
    divisible=gpt_neox_divisible,
    num_pieces=lambda variant: 2 + cast(int, variant.model["layers"]),  # embedding, layers, norm and head
    has_experts=True,
)

FACTS: Mapping[str, Facts] = {facts.name: facts for facts in (RESNET50, UNET3D, BERT, GPT_NEOX)}
