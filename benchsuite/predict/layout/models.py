"""Models that can be planned, as YAML: their shapes, and what follows from them: parameters, FLOPs, bytes a sample."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from benchsuite.contract.errors import UserError, refuse
from benchsuite.contract.yaml_file import parse_yaml, read_yaml
from benchsuite.predict.layout.yaml_input import Part, Quantity, Values, checked, shipped_files

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
    """As stored; default: bytes_per_token times the sample's tokens."""
    dataset_samples: Annotated[float, Quantity("samples of one epoch", 1, 1e15, "1281167")] | None = None
    """Of the dataset that it is trained on: tells how long staging copies, and whether it fits on a node."""
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
