"""Models that can be planned, as YAML or a config.json of Hugging Face: shapes, parameters, FLOPs, bytes a sample."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.yaml_file import parse_yaml, read_yaml
from benchsuite_plan.layout.yaml_input import Part, Quantity, Values, checked, shipped_files

Kind = Literal["decoder", "encoder", "encoder-decoder", "vision-transformer", "conv", "other"]
SHAPED = ("decoder", "encoder", "encoder-decoder", "vision-transformer")
"""Kinds that are stacks of transformer layers; the others can be spread by data parallelism and ZeRO only."""
FOLDER = "models"
Size = Annotated[int, Field(gt=0, le=10**9)]
Layers = Annotated[int, Field(gt=0, le=10**5)]
Params = Annotated[float, Quantity("parameters", 1, 1e16, "20e9")]
Flop = Annotated[float, Quantity("FLOP of one sample", 1e3, 1e21, "24.3e9")]
SampleBytes = Annotated[float, Quantity("bytes of one sample", 1, 1e13, "110e3")]


class Model(Part):
    """One model. Widths are elements, lengths tokens; null means not known, or not meant for this kind.

    Stacks of layers need layers, hidden, heads and seq_len (an encoder-decoder also decoder_layers and
    decoder_seq_len), the kinds conv and other published_params. A file of several models has them by name under
    `models`, and what they share under `common`.
    """

    name: str = ""
    """Default: that of the file."""
    kind: Kind
    source: str = ""
    """Where the figures are from."""
    note: str = ""
    layers: Layers | None = None
    hidden: Size | None = None
    heads: Size | None = None
    seq_len: Size | None = None
    vocab: Size | None = None
    kv_heads: Size | None = None
    """Grouped-query attention; default: as many as heads."""
    head_dim: Size | None = None
    """Default: hidden / heads."""
    ffn_hidden: Size | None = None
    """Default: 4 hidden."""
    gated_mlp: bool = False
    """SwiGLU and the like: three matrices instead of two."""
    num_experts: Annotated[int, Field(ge=0, le=10**5)] = 0
    """MLPs of a layer, of which a token visits top_k; 0: one."""
    top_k: Annotated[int, Field(ge=0, le=10**5)] = 0
    bias: bool = True
    rms_norm: bool = False
    tied_embeddings: bool = True
    learned_positions: bool = False
    decoder_layers: Layers | None = None
    decoder_seq_len: Size | None = None
    predictions: Size | None = None
    """Tokens a sample that meet the vocabulary; default: all of the last stack."""
    other_params: int = Field(default=0, ge=0, le=10**16)
    other_forward_flops_per_sample: float = Field(default=0.0, ge=0, le=1e21)
    train_flops_per_sample: Flop | None = None
    """Forward and backward of kinds that are no stacks of layers."""
    activations_per_sample: Annotated[float, Quantity("elements of one sample", 1, 1e14, "11.1e6")] | None = None
    """Kept for the backward pass, of such kinds."""
    device_sample_s: Annotated[float, Quantity("seconds of one sample", 1e-8, 1e5, "4e-3")] | None = None
    """Measured forward and backward time of one sample on one device; used instead of FLOPs where given."""
    bytes_per_token: Annotated[float, Quantity("bytes of one token", 0.01, 1e6, "2")] | None = None
    sample_bytes: SampleBytes | None = None
    """Bytes of a sample as stored; default: bytes_per_token times the sample's tokens."""
    dataset_samples: Annotated[float, Quantity("samples of one epoch", 1, 1e15, "1281167")] | None = None
    """Samples of the dataset that it is trained on: tells how long staging copies, and whether it fits on a node."""
    published_params: Params | None = None
    published_tokens: Annotated[float, Quantity("tokens of the whole training", 1, 1e18, "300e9")] | None = None
    published_samples: Annotated[float, Quantity("samples of the whole training", 1, 1e18, "115e6")] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.shaped:
            if self.published_params is None:
                raise ValueError(f"model {self.name}: kind {self.kind} needs published_params")
            return self
        missing = [key for key in ("layers", "hidden", "heads", "seq_len") if getattr(self, key) is None]
        if self.kind == "encoder-decoder":
            missing += [key for key in ("decoder_layers", "decoder_seq_len") if getattr(self, key) is None]
        if missing:
            raise ValueError(f"model {self.name}: kind {self.kind} needs {', '.join(missing)}")
        if self.head_dim is None and self.width % self.num_heads:
            raise ValueError(
                f"model {self.name}: hidden {self.hidden} % heads {self.heads} = {self.width % self.num_heads}, not 0; "
                "give head_dim if heads are not hidden / heads wide"
            )
        if self.heads and self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"model {self.name}: heads {self.heads} is no multiple of kv_heads {self.kv_heads}")
        if (self.num_experts or self.top_k) and not 1 <= self.top_k <= self.num_experts:
            raise ValueError(f"model {self.name}: top_k {self.top_k} of num_experts {self.num_experts}: give both")
        return self

    @property
    def shaped(self) -> bool:
        """Whether it is a stack of transformer layers."""
        return self.kind in SHAPED

    @property
    def width(self) -> int:
        """Elements of a token between layers."""
        return self.hidden or 1

    @property
    def num_heads(self) -> int:
        """Attention heads; 1 where there are none."""
        return self.heads or 1

    @property
    def num_layers(self) -> int:
        """Layers that a pipeline can be cut between, both stacks together; 1 where there are none."""
        return (self.layers or 1) + (self.decoder_layers or 0)

    @property
    def tokens(self) -> int:
        """Tokens of a sample's longest stack; 1 where a sample has none."""
        return self.seq_len or 1

    def with_seq_len(self, seq_len: int) -> Self:
        """The same model on samples of another length."""
        if not self.shaped or self.kind == "vision-transformer":
            raise UserError(f"--seq-len {seq_len}: model {self.name} ({self.kind}) has no sequence length to choose")
        changed: Values = self.model_dump() | {"seq_len": seq_len}
        if self.predictions is not None:
            changed["predictions"] = max(1, round(self.predictions * seq_len / self.tokens))
        return type(self)(**changed)


class Several(Part):
    """A file of several models: keys of `Model`."""

    source: str = ""
    common: dict[str, Any] = Field(default_factory=dict)
    models: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]


def names() -> list[str]:
    """Every model that comes with benchsuite."""
    return sorted(_shipped())


def load(name: str) -> Model:
    """A model by its name, or from one's own YAML file: the fields of `Model`, or `common` and `models` of several.

    FILE.yaml:NAME chooses one of several.

    Raises:
        UserError: no such model or file, or a field is wrong.
    """
    file, _, one = name.partition(".yaml:")
    if one or name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(f"{file}.yaml" if one else name)
        return _one_of(_entries(read_yaml(path), path.stem, str(path)), one, str(path))
    found = _shipped()
    if name not in found:
        raise refuse("--model", name, sorted(found))
    return found[name]


def _one_of(found: dict[str, Model], one: str, path: str) -> Model:
    if one and one not in found:
        raise refuse(f"model in {path}", one, found)
    if not one and len(found) > 1:
        raise UserError(f"{path} holds {len(found)} models: {', '.join(found)}; choose one: {path}:{next(iter(found))}")
    return found[one or next(iter(found))]


@cache
def _shipped() -> dict[str, Model]:
    found: dict[str, Model] = {}
    for stem, text in shipped_files(FOLDER).items():
        found |= _entries(parse_yaml(text, stem), stem, stem)
    return found


def _entries(values: Values, stem: str, where: str) -> dict[str, Model]:
    """The models of one file."""
    if "models" not in values:
        return {stem: parse({"name": stem, "source": where} | values, where)}
    several = checked(Several, values, where)
    shared = {"source": several.source or where} | several.common
    return {name: parse({"name": name} | shared | own, f"{where}: {name}") for name, own in several.models.items()}


def parse(values: dict[str, Any], where: str) -> Model:
    """A model from its fields.

    Raises:
        UserError: a field is unknown, missing or wrong.
    """
    return checked(Model, values, where)


@dataclass(frozen=True)
class Shape:
    """One sample's forward FLOPs (a multiply-add is two) and the parameters, by part. Layers are the mean layer."""

    layer_params: float
    embedding_params: float
    """Parameters before the layers: tokens, positions, patches."""
    head_params: float
    """Parameters after the layers, with a matrix of its own only where it is not tied to the embedding."""
    matrix_flops: float | None
    """FLOPs of the matrix products of one layer; None where nothing is published."""
    attention_flops: float
    """FLOPs of one layer's scores and their products with the values; what selective recomputation repeats."""
    head_flops: float
    expert_params: float = 0.0
    """The part of layer_params that the experts of a layer hold."""

    def params(self, num_layers: int) -> float:
        """All of them."""
        return self.layer_params * num_layers + self.embedding_params + self.head_params


def shape_of(model: Model) -> Shape:
    """The shape of a model.

    Transformers: per layer 2 matrices of h x q and 2 of h x k for attention (q, k: heads and key-value heads times
    their width), 2 or (gated) 3 of h x f; 2 operations a parameter and token, and 4 s q a token for scores and values
    over the full square: with f = 4h, q = k = h these are Megatron's forms (arXiv:2104.04473: 12 l h^2, ...). A
    decoder's layer beside an encoder has a second attention, over the encoder's tokens. Grouped heads: k < q. Of
    experts a layer has num_experts MLPs and a router of h x num_experts, and a token passes through top_k of them.
    """
    if not model.shaped:
        flops = model.train_flops_per_sample
        return Shape(model.published_params or 0.0, 0.0, 0.0, None if flops is None else flops / 3, 0.0, 0.0)
    own = _layer_params(model, cross=False)
    if model.kind != "encoder-decoder":
        matrix, scores = _forward(model, model.tokens, model.tokens)
        return _with_ends(model, own, matrix, scores, model.tokens)
    encoder, decoder = model.layers or 1, model.decoder_layers or 1
    wide, targets = _layer_params(model, cross=True), model.decoder_seq_len or 1
    first, first_scores = _forward(model, model.tokens, model.tokens)
    second, second_scores = _cross_forward(model, targets)
    layers = encoder + decoder
    mean = (encoder * own + decoder * wide) / layers
    matrix = (encoder * first + decoder * second) / layers
    scores = (encoder * first_scores + decoder * second_scores) / layers
    return _with_ends(model, mean, matrix, scores, targets)


def widths(model: Model) -> tuple[int, int, int, int]:
    """h, q, k, f: a token's width, those of all heads and of all key-value heads, and that inside the MLP."""
    head = model.head_dim or model.width // model.num_heads
    return model.width, model.num_heads * head, (model.kv_heads or model.num_heads) * head, ffn(model)


def ffn(model: Model) -> int:
    """Width inside the MLP."""
    return model.ffn_hidden or 4 * model.width


def _matrices(model: Model) -> tuple[int, int]:
    """Parameters of the matrices of one attention, and of the MLP."""
    h, q, k, f = widths(model)
    return 2 * h * q + 2 * h * k, (3 if model.gated_mlp else 2) * h * f


def _layer_params(model: Model, cross: bool) -> int:
    h, q, k, _ = widths(model)
    attention = _matrices(model)[0] + (q + 2 * k + h if model.bias else 0)
    norm = h if model.rms_norm else 2 * h
    router = model.num_experts * h
    return (2 if cross else 1) * (attention + norm) + _mlp_params(model) * max(1, model.num_experts) + norm + router


def _mlp_params(model: Model) -> int:
    """Parameters of one MLP, or of one expert."""
    h, _, _, f = widths(model)
    return _matrices(model)[1] + ((2 if model.gated_mlp else 1) * f + h if model.bias else 0)


def _forward(model: Model, queries: int, keys: int) -> tuple[float, float]:
    """Forward FLOPs of a sample in one layer: of matrices, and of attention."""
    attention, mlp = _matrices(model)
    mlp = mlp * max(1, model.top_k) + model.num_experts * model.width
    return 2.0 * queries * (attention + mlp), 4.0 * queries * keys * widths(model)[1]


def _cross_forward(model: Model, targets: int) -> tuple[float, float]:
    """FLOPs of the second attention of a decoder's layer: its keys and values are made of the encoder's tokens."""
    h, q, k, _ = widths(model)
    attention, mlp = _matrices(model)
    matrix = 2.0 * targets * (attention + mlp + 2 * h * q) + 2.0 * model.tokens * 2 * h * k
    return matrix, 4.0 * targets * (targets + model.tokens) * q


def _with_ends(model: Model, layer: float, matrix: float, scores: float, last_tokens: int) -> Shape:
    h, vocab = model.width, model.vocab or 0
    norms = (2 if model.kind == "encoder-decoder" else 1) * (h if model.rms_norm else 2 * h)
    positions = h * model.tokens if model.learned_positions else 0
    head = 2.0 * (model.predictions or last_tokens) * h * vocab + model.other_forward_flops_per_sample
    if model.predictions:
        head += 2.0 * model.predictions * h * h
    return Shape(
        layer_params=layer,
        embedding_params=float(vocab * h + positions + model.other_params),
        head_params=float(norms + (0 if model.tied_embeddings else vocab * h)),
        matrix_flops=matrix,
        attention_flops=scores,
        head_flops=head,
        expert_params=float(_mlp_params(model) * model.num_experts),
    )


def params(model: Model) -> float:
    """Parameters of a model."""
    return shape_of(model).params(model.num_layers)


def train_flops_per_sample(model: Model) -> float | None:
    """Model FLOPs of one sample forward and backward, nothing recomputed; None where they are not known."""
    of = shape_of(model)
    if of.matrix_flops is None:
        return None
    return 3 * (model.num_layers * (of.matrix_flops + of.attention_flops) + of.head_flops)


def sample_bytes(model: Model) -> float | None:
    """Stored bytes of one sample; None where not known."""
    if model.sample_bytes is not None or model.bytes_per_token is None:
        return model.sample_bytes
    return model.bytes_per_token * (model.tokens + (model.decoder_seq_len or 0))


LLAMA = {"gated_mlp": True, "rms_norm": True, "bias": False, "learned_positions": False, "tied_embeddings": False}
GPT2 = {"gated_mlp": False, "rms_norm": False, "bias": True, "learned_positions": True, "tied_embeddings": True}
NEOX = GPT2 | {"learned_positions": False, "tied_embeddings": False}
ARCHITECTURES: Mapping[str, Mapping[str, bool]] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,
    "Qwen3ForCausalLM": LLAMA,
    "MixtralForCausalLM": LLAMA,
    "Qwen3MoeForCausalLM": LLAMA,
    "GPT2LMHeadModel": GPT2,
    "GPTNeoXForCausalLM": NEOX,
}
"""The parts that a model has, where its config.json does not tell."""
KEYS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn_hidden": ("moe_intermediate_size", "intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
    "seq_len": ("max_position_embeddings", "n_positions"),
    "tied_embeddings": ("tie_word_embeddings",),
    "num_experts": ("num_local_experts", "num_experts"),
    "top_k": ("num_experts_per_tok",),
}
"""Our keys, and where a config.json has them; the first that is there counts."""
NEEDED = ("layers", "hidden", "heads", "vocab", "seq_len")


def from_config(path: Path) -> Model:
    """The model of a config.json, as beside weights; of a length that rope_scaling stretches, the original.

    Raises:
        UserError: it cannot be read, its architecture is not known, or keys are missing or wrong.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--model {path}: {getattr(error, 'strerror', None) or 'is no JSON'}") from error
    if not isinstance(values, dict) or not isinstance(values.get("architectures"), list) or not values["architectures"]:
        raise UserError(f"--model {path}: has no architectures, which Hugging Face's config.json has")
    name = str(values["architectures"][0])
    if name not in ARCHITECTURES:
        raise UserError(f"{path}: {refuse('architectures', name, ARCHITECTURES)}; or give sizes in a YAML file")
    found = _sizes_in(values)
    missing = [" or ".join(KEYS[key]) for key in NEEDED if found.get(key) is None]
    if missing:
        raise UserError(f"{path}: {name} without {', '.join(missing)}")
    label = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    own = {"name": label, "kind": "decoder", "source": f"{path.name} of {name}"}
    return parse(own | dict(ARCHITECTURES[name]) | found, str(path))


def _sizes_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes by our keys; experts only where every layer has them."""
    found: dict[str, Any] = {}
    for ours, theirs in KEYS.items():
        given = [values[key] for key in theirs if values.get(key) is not None]
        found |= {ours: given[0]} if given else {}
    if "num_experts" not in found:
        found.pop("top_k", None)
    original = (values.get("rope_scaling") or {}).get("original_max_position_embeddings")
    return found | ({"seq_len": original} if original else {})
