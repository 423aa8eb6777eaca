"""What a plan must know of a workload, without torch: those of this package declare it here, beside their sizes.

Sizes of samples are those of the references: MLPerf Training for images, volumes (of KiTS19) and BERT, MLPerf Storage
for the volumes' distribution of bytes, GPT-NeoX for its sequences and padded vocabulary. Of other workloads the facts
are derived from their `Workload`, which imports torch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, cast

from benchsuite.workloads import WorkloadError
from benchsuite.workloads.spec import Variant

WHOLE_PARAMETERS = 100_000_000
"""Models of up to so many parameters are built whole by each rank, in host memory: that takes less time."""


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
    shared: Callable[[Variant], Mapping[str, int]] | None = None
    """Heads and seq_len, which ranks that share sequences must divide; None where they cannot be shared."""
    parameters: Callable[[Variant], int] = lambda _variant: 0
    """How many parameters it has; 0 where that is not known."""
    built_whole: bool = False
    """Whether each rank must build all of it in host memory, however large it is."""

    def is_built_whole(self, variant: Variant) -> bool:
        """Whether each rank builds all of it in host memory."""
        return self.built_whole or self.parameters(variant) <= WHOLE_PARAMETERS


def _resnet(layers: tuple[int, ...], width: int, image_size: int = 224, bottleneck: bool = True) -> Variant:
    model: dict[str, int | float | tuple[int, ...]] = {"layers": layers, "width": width, "bottleneck": bottleneck}
    return Variant(model, {"image_size": image_size}, num_classes=1000)


def _resnet_parameters(variant: Variant) -> int:
    layers, width = cast(tuple[int, ...], variant.model["layers"]), cast(int, variant.model["width"])
    channels, total = width, 3 * 49 * width + 2 * width
    for number, depth in enumerate(layers):
        inner = width << number
        out = inner * (4 if variant.model["bottleneck"] else 1)
        for place in range(depth):
            if variant.model["bottleneck"]:
                total += channels * inner + 9 * inner * inner + inner * out + 4 * inner + 2 * out
            else:
                total += 9 * channels * inner + 9 * inner * inner + 4 * inner
            if channels != out or (number and not place):
                total += channels * out + 2 * out
            channels = out
    return total + (channels + 1) * variant.num_classes


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
    parameters=_resnet_parameters,
)


def _unet3d(filters: tuple[int, ...], patch_size: int, mean_bytes: int, stdev_bytes: int) -> Variant:
    sample = {"patch_size": patch_size, "mean_bytes": mean_bytes, "stdev_bytes": stdev_bytes}
    return Variant({"filters": filters}, sample, num_classes=3)


def _unet3d_parameters(variant: Variant) -> int:
    filters = cast(tuple[int, ...], variant.model["filters"])

    def convolutions(few: int, many: int) -> int:
        return 27 * (few * many + many * many) + 4 * many

    down = [(1, filters[0]), *pairwise(filters), (filters[-1], filters[-1])]
    up = [*pairwise((filters[-1], *reversed(filters)))]
    joined = sum(8 * many * few + few + convolutions(2 * few, few) for many, few in up)
    return sum(convolutions(*each) for each in down) + joined + (filters[0] + 1) * variant.num_classes


# No extent is halved down to 2: there torch 2.13's bfloat16 convolutions have wrong gradients on CPUs.
UNET3D = Facts(
    name="unet3d",
    kind="volume",
    variants={
        "nano": _unet3d((4, 8), 16, 200_000, 70_000),
        "tiny": _unet3d((8, 16, 32), 32, 1_500_000, 500_000),
        "reference": _unet3d((32, 64, 128, 256, 320), 128, 146_600_628, 68_341_808),
    },
    parameters=_unet3d_parameters,
)


def bert_divisible(variant: Variant) -> dict[str, int]:
    """Heads and the MLP's width are dealt to ranks, and the sequence with sequence parallelism.

    The vocabulary may be dealt unevenly.
    """
    model = cast(Mapping[str, int], variant.model)
    inner = model["ffn_size"] or MLP_FACTOR * model["hidden_size"]
    return {"num_heads": model["num_heads"], "ffn_size": inner, "seq_len": variant.sample["seq_len"]}


def _bert_parameters(variant: Variant) -> int:
    model, vocab = cast(Mapping[str, int], variant.model), variant.sample["vocab_size"]
    hidden = model["hidden_size"]
    inner = model["ffn_size"] or MLP_FACTOR * hidden
    embeddings = (vocab + variant.sample["seq_len"] + 2) * hidden + 2 * hidden
    layer = 4 * hidden * (hidden + 1) + 2 * hidden * inner + inner + hidden + 4 * hidden
    heads = 2 * hidden * (hidden + 1) + 2 * hidden + vocab + 2 * hidden + 2
    return embeddings + model["num_layers"] * layer + heads


MLP_FACTOR = 4
"""The width of an MLP is so many times the hidden size, where no other is given."""


def _bert(
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    seq_len: int,
    max_predictions: int,
    vocab_size: int,
    dropout: float = 0.1,
) -> Variant:
    sizes = {"hidden_size": hidden_size, "num_layers": num_layers, "num_heads": num_heads, "ffn_size": 0}
    sample = {"seq_len": seq_len, "max_predictions": max_predictions, "vocab_size": vocab_size}
    return Variant({**sizes, "dropout": dropout}, sample)


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
    parameters=_bert_parameters,
)

ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class DecoderShape:
    """The shape of a decoder: its sizes, and which parts it has; by default those of GPT-NeoX."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int = 0
    """0: as many as num_heads."""
    ffn_size: int = 0
    """0: 4 hidden_size."""
    num_experts: int = 0
    """MLPs of a layer; 0: one, and no router."""
    top_k: int = 0
    rotary_share: float = 0.25
    """Share of a head's dimensions that positions turn; 0: none."""
    rope_theta: float = ROTARY_BASE
    learned_positions: bool = False
    parallel_residual: bool = True
    rms_norm: bool = False
    gated_mlp: bool = False
    tanh_gelu: bool = False
    """GELU by its approximation."""
    bias: bool = True
    tied_embeddings: bool = False
    """The head shares the embedding's weight."""
    vocab_size: int = 50304
    seq_len: int = 2048

    @classmethod
    def of(cls, variant: Variant) -> "DecoderShape":
        """The shape of a variant of `gpt_neox`."""
        return cls(**cast(Any, {**variant.model, **variant.sample}))

    @property
    def variant(self) -> Variant:
        """The facts as a variant."""
        model = asdict(self)
        return Variant(model, {name: model.pop(name) for name in ("seq_len", "vocab_size")})

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads

    @property
    def rotary_dims(self) -> int:
        """Dimensions of a head that are turned."""
        return int(self.head_dim * self.rotary_share)

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @property
    def inner(self) -> int:
        """Width inside an MLP."""
        return self.ffn_size or MLP_FACTOR * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """How many parameters it has."""
        hidden, inner, norm = self.hidden_size, self.inner, self.hidden_size * (1 if self.rms_norm else 2)
        qkv = hidden + 2 * self.kv_heads * self.head_dim
        attention = hidden * (qkv + hidden) + self.bias * (qkv + hidden)
        mlp = (3 if self.gated_mlp else 2) * hidden * inner
        mlp += self.bias * ((2 if self.gated_mlp else 1) * inner + hidden)
        if self.num_experts:  # with biases, and a router
            mlp = self.num_experts * (2 * hidden * inner + inner + hidden + hidden)
        tables = self.vocab_size * (1 if self.tied_embeddings else 2) + self.seq_len * self.learned_positions
        return tables * hidden + self.num_layers * (attention + mlp + 2 * norm) + norm


def shape_problem(variant: Variant) -> str | None:
    """Why no model has such a shape, with the arithmetic; None where one has, or where there are no heads."""
    if "num_heads" not in variant.model:
        return None
    return next(_shape_problems(cast(Mapping[str, Any], variant.model), variant.sample), None)


def _shape_problems(model: Mapping[str, Any], sample: Mapping[str, int]) -> Iterator[str]:
    hidden, heads, grouped = model["hidden_size"], model["num_heads"], model.get("num_kv_heads") or model["num_heads"]
    head_dim, share = hidden // heads, model.get("rotary_share", 0)
    if hidden % heads:
        yield f"hidden_size {hidden} is not a multiple of num_heads {heads}"
    if heads % grouped:
        yield f"num_heads {heads} is not a multiple of num_kv_heads {grouped}"
    if head_dim * share % 2:
        turned = f"hidden_size {hidden} / num_heads {heads} = {head_dim}, of which {share:g} is turned by position"
        yield f"{turned}: {head_dim * share:g} dimensions are no pairs"
    experts, chosen = model.get("num_experts", 0), model.get("top_k", 0)
    if (experts or chosen) and not 1 <= chosen <= experts:
        yield f"top_k {chosen} of num_experts {experts}: give both, top_k from 1 to num_experts"
    if experts and model.get("gated_mlp"):
        yield f"num_experts {experts} in a model with gated MLPs: experts are plain ones"
    words = sample.get("max_predictions", 0)
    if words > sample.get("seq_len", 0) - SPECIAL_TOKENS > 0:
        yield f"max_predictions {words} > seq_len {sample['seq_len']} - {SPECIAL_TOKENS} special tokens"


SPECIAL_TOKENS = 3
"""Tokens of a BERT sample: what begins it, and what ends each of its two segments."""


def gpt_neox_shape(
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    num_experts: int = 0,
    top_k: int = 0,
    *,
    vocab_size: int = 50304,
    seq_len: int = 2048,
) -> Variant:
    """A decoder like GPT-NeoX of any shape; of experts, each token visits `top_k`, and one without has plain MLPs.

    Raises:
        WorkloadError: heads that are not whole, or a quarter of whose dimensions cannot be turned in pairs.
    """
    sizes: dict[str, Any] = {"num_experts": num_experts, "top_k": top_k, "vocab_size": vocab_size, "seq_len": seq_len}
    found = DecoderShape(hidden_size, num_layers, num_heads, **sizes).variant
    if wrong := shape_problem(found):
        raise WorkloadError(wrong)
    return found


def _gpt2(hidden_size: int, num_layers: int, num_heads: int, vocab_size: int = 50257, seq_len: int = 1024) -> Variant:
    """GPT-2 (Radford et al. 2019)."""
    ends: dict[str, Any] = {"rotary_share": 0.0, "learned_positions": True, "tied_embeddings": True}
    body: dict[str, Any] = {"parallel_residual": False, "tanh_gelu": True, "vocab_size": vocab_size, "seq_len": seq_len}
    return DecoderShape(hidden_size, num_layers, num_heads, **ends, **body).variant


def _llama(
    hidden_size: int, num_layers: int, num_heads: int, num_kv_heads: int, ffn_size: int, **more: float
) -> Variant:
    """LLaMA 2 (Touvron et al. 2023), whose vocabulary and length are the default, and 3 (Grattafiori et al. 2024)."""
    parts: dict[str, Any] = {"rms_norm": True, "gated_mlp": True, "bias": False, "parallel_residual": False}
    parts |= {"rotary_share": 1.0, "vocab_size": 32000, "seq_len": 4096, **more}
    return DecoderShape(hidden_size, num_layers, num_heads, num_kv_heads, ffn_size, **parts).variant


LLAMA3 = {"vocab_size": 128256, "seq_len": 8192, "rope_theta": 500_000.0}


def gpt_neox_divisible(variant: Variant) -> dict[str, int]:
    """What a tensor-parallel degree must divide; `seq_len` where activations are split along it."""
    shape = DecoderShape.of(variant)
    inner = {} if shape.num_experts else {"ffn_size": shape.inner}
    return {"num_heads": shape.num_heads, "num_kv_heads": shape.kv_heads, **inner, **variant.sample}


GPT_NEOX = Facts(
    name="gpt_neox",
    kind="tokens",
    variants={
        "nano": gpt_neox_shape(64, 4, 8, vocab_size=128, seq_len=16),
        "nano_moe": gpt_neox_shape(64, 4, 8, 8, 2, vocab_size=128, seq_len=16),
        "nano_gpt2": _gpt2(64, 4, 8, vocab_size=131, seq_len=16),
        "nano_llama": _llama(64, 4, 8, 4, 192, vocab_size=128, seq_len=16),
        "tiny": gpt_neox_shape(128, 4, 4, vocab_size=512, seq_len=128),
        "gpt2": _gpt2(768, 12, 12),
        "gpt2-medium": _gpt2(1024, 24, 16),
        "gpt2-large": _gpt2(1280, 36, 20),
        "gpt2-xl": _gpt2(1600, 48, 25),
        "pythia-70m": gpt_neox_shape(512, 6, 8),
        "pythia-160m": gpt_neox_shape(768, 12, 12),
        "pythia-410m": gpt_neox_shape(1024, 24, 16),
        "pythia-1b": gpt_neox_shape(2048, 16, 8),
        "pythia-1.4b": gpt_neox_shape(2048, 24, 16),
        "pythia-2.8b": gpt_neox_shape(2560, 32, 32),
        "pythia-6.9b": gpt_neox_shape(4096, 32, 32, vocab_size=50432),
        "pythia-12b": gpt_neox_shape(5120, 36, 40, vocab_size=50688),
        "llama2-7b": _llama(4096, 32, 32, 32, 11008),
        "llama2-13b": _llama(5120, 40, 40, 40, 13824),
        "llama2-70b": _llama(8192, 80, 64, 8, 28672),
        "llama3-8b": _llama(4096, 32, 32, 8, 14336, **LLAMA3),
        "llama3-70b": _llama(8192, 80, 64, 8, 28672, **LLAMA3),
        "llama3-405b": _llama(16384, 126, 128, 8, 53248, **LLAMA3),
        "moe": gpt_neox_shape(768, 12, 12, 8, 2),
        "reference": gpt_neox_shape(6144, 44, 64, vocab_size=50432),
    },
    divisible=gpt_neox_divisible,
    # embedding, a table of positions, layers, norm and head
    num_pieces=lambda variant: 2 + cast(int, variant.model["num_layers"]) + bool(variant.model["learned_positions"]),
    has_experts=True,
    shared=gpt_neox_divisible,
    parameters=lambda variant: DecoderShape.of(variant).num_parameters,
)

FACTS: Mapping[str, Facts] = {facts.name: facts for facts in (RESNET50, UNET3D, BERT, GPT_NEOX)}
