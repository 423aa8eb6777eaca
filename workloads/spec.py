"""What can be asked of a workload, and how it is parallelized (no torch)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

MAX_RANKS, MAX_COUNT = 1 << 17, 1_000_000_000
"""Larger than any machine and any count that a trial could come to the end of; what is above is a slip of the pen, and
planning walks over ranks."""
Precision = Literal["fp32", "tf32", "bf16", "fp16", "pure_bf16", "fp8"]
Optimizer = Literal["sgd", "momentum", "adam", "adamw", "adafactor"]
ContextAttention = Literal["ring", "all_to_all"]
Schedule = Literal["naive", "gpipe", "1f1b", "interleaved", "zero_bubble"]


MIN_VOCAB, MIN_SEQ_LEN = 128, 8
"""Less holds neither BERT's special tokens nor a sample of two segments."""


class ModelSpec(BaseModel):
    """Sizes of a model in place of its variant's; null leaves one as it is. Keys that a workload lacks are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    hidden_size: int | None = Field(None, ge=1, le=MAX_COUNT, description="width of a token between layers")
    num_layers: int | None = Field(None, ge=1, le=MAX_COUNT, description="layers of the transformer")
    num_heads: int | None = Field(None, ge=1, le=MAX_COUNT, description="attention heads; divide hidden_size")
    num_kv_heads: int | None = Field(
        None, ge=0, le=MAX_COUNT, description="heads of keys and values, each for several queries; 0: num_heads"
    )
    ffn_size: int | None = Field(None, ge=0, le=MAX_COUNT, description="width inside the MLP; 0: 4 hidden_size")
    num_experts: int | None = Field(None, ge=0, le=MAX_COUNT, description="MLPs of a layer, of which a router chooses")
    top_k: int | None = Field(None, ge=0, le=MAX_COUNT, description="experts that work on each token")
    vocab_size: int | None = Field(None, ge=MIN_VOCAB, le=MAX_COUNT, description="words of the vocabulary")
    seq_len: int | None = Field(None, ge=MIN_SEQ_LEN, le=MAX_COUNT, description="tokens of a sample")
    max_predictions: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="masked tokens of a sample; default: in proportion to seq_len"
    )

    def __str__(self) -> str:
        given = self.model_dump(exclude_none=True)
        return ", ".join(f"{name} {value}" for name, value in given.items()) or "as its variant"


@dataclass(frozen=True)
class Variant:
    """One size of a workload: the model's shape and the parameters of its samples."""

    model: Mapping[str, int | float | tuple[int, ...]]
    sample: Mapping[str, int]
    num_classes: int = 0
    """Classes of samples with labels; 0 for others."""

    @property
    def sizes(self) -> list[str]:
        """The keys of `ModelSpec` that it has."""
        return [name for name in ModelSpec.model_fields if name in self.model or name in self.sample]

    def resized(self, sizes: Mapping[str, int]) -> "Variant":
        """The workload with other sizes, each of them one of `sizes`.

        Masked tokens, unless they are given too, stay in proportion to the length of a sample.
        """
        own = {name: value for name, value in sizes.items() if name in self.model}
        sample = {**self.sample, **{name: value for name, value in sizes.items() if name in self.sample}}
        if "max_predictions" in sample and "max_predictions" not in sizes:
            share = sample["seq_len"] / self.sample["seq_len"]
            sample["max_predictions"] = max(1, round(self.sample["max_predictions"] * share))
        return replace(self, model={**self.model, **own}, sample=sample)


class Parallelism(BaseModel):
    """Degrees of parallelism: dp x tp x pp x cp = world size; an omitted dp is what is left."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dp: int | None = Field(
        None, ge=1, le=MAX_RANKS, description="data-parallel ranks; default: world size / (tp pp cp)"
    )
    dp_replicate: int = Field(
        1, ge=1, le=MAX_RANKS, description="of these, replicas of a sharded model (hsdp); divides dp"
    )
    tp: int = Field(1, ge=1, le=MAX_RANKS, description="ranks that share each layer")
    pp: int = Field(1, ge=1, le=MAX_RANKS, description="pipeline stages, or ranks that take several stages each")
    cp: int = Field(1, ge=1, le=MAX_RANKS, description="ranks that share each sequence")
    cp_attention: ContextAttention = Field(
        "ring",
        description="how ranks that share a sequence attend: ring: keys and values go round (Liu 2023) | all_to_all: "
        "each rank takes some heads of the whole sequence (Ulysses, Jacobs 2023)",
    )
    ep: int = Field(1, ge=1, le=MAX_RANKS, description="ranks that share the experts; divides dp")
    zero: int = Field(
        0, ge=0, le=3, description="sharded over dp: 1 optimizer, 2 and gradients, 3 and weights (fully sharded)"
    )
    engine: str = Field(
        "torch",
        description="what trains: torch | deepspeed | horovod | parameter_server | broadcast, or another package's",
    )
    num_servers: int | None = Field(
        None, ge=1, le=MAX_RANKS, description="parameter_server: processes besides the workers; default 1"
    )
    max_staleness: int | None = Field(
        None,
        ge=0,
        le=MAX_COUNT,
        description="parameter_server: steps that a worker may be ahead of the slowest; null: all wait for each other",
    )
    schedule: Schedule = Field("1f1b", description="of the pipeline: naive | gpipe | 1f1b | interleaved | zero_bubble")
    microbatches: int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="pieces of a rank's batch in the pipeline; default: pp, naive: 1",
    )
    sequence_parallel: bool = Field(False, description="activations between layers are sharded over tp as well")
    loss_parallel: bool = Field(False, description="logits stay sharded over tp in the loss")


class ComputeSpec(BaseModel):
    """How a rank computes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    precision: Precision = Field(
        "fp32",
        description="fp32 | tf32 (CUDA) | bf16, fp16: autocast over float32 weights | pure_bf16: weights too | "
        "fp8 (CUDA): as bf16, with products of linear layers in float8 (torchao)",
    )
    optimizer: Optimizer | None = Field(None, description="default: the one of the workload's reference")
    fused: bool = Field(False, description="the optimizer's fused implementation")
    lr_scaling: Literal["none", "linear"] = Field(
        "none", description="linear: the learning rate grows with the global batch, as of 256 samples (Goyal 2017)"
    )
    lr_warmup_steps: int = Field(0, ge=0, le=MAX_COUNT, description="steps over which the learning rate rises from 0")
    grad_accum: int = Field(
        1, ge=1, le=MAX_COUNT, description="microbatches a rank's batch is cut into, exchanged once"
    )
    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        "none", description="recompute in backward: full: whole blocks; selective: all but matmuls and convolutions"
    )
    compile: bool = Field(False, description="torch.compile of each block")
    cudnn_benchmark: bool = Field(
        False, description="cuDNN times its convolutions at each new shape and keeps the fastest; CUDA"
    )
    channels_last: bool = Field(False, description="images and volumes with channels innermost")
    bucket_cap_mb: int | None = Field(None, ge=1, le=MAX_COUNT, description="ddp: size of gradient buckets; default 25")
    comm_hook: Literal["fp16", "bf16", "powersgd"] | None = Field(
        None, description="ddp, and horovod (fp16): how gradients are compressed for the exchange"
    )

    @field_validator("comm_hook", mode="before")
    @classmethod
    def _none_is_none(cls, value: object) -> object:
        return None if value == "none" else value

    static_graph: bool = Field(False, description="ddp: the graph of every step is the same")
    gradient_as_bucket_view: bool = Field(False, description="ddp: gradients lie in the buckets")
    reshard_after_forward: bool | None = Field(
        None,
        description="fsdp: weights are dropped after forward; default: of blocks under zero 3 without pp, else false",
    )
    prefetch_blocks: int = Field(
        0, ge=0, le=MAX_COUNT, description="fsdp: blocks whose weights are gathered ahead; 0: as torch does"
    )
    cpu_offload: bool = Field(False, description="fsdp and deepspeed: shards lie in host memory")
    reduce_bucket_size: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="deepspeed: gradients that are reduced at once, in elements"
    )
    prefetch_bucket_size: int | None = Field(
        None, ge=0, le=MAX_COUNT, description="deepspeed, zero 3: weights that are gathered ahead, in elements"
    )
    param_persistence_threshold: int | None = Field(
        None, ge=0, le=MAX_COUNT, description="deepspeed, zero 3: parameters of fewer elements are not sharded"
    )
    contiguous_gradients: bool | None = Field(None, description="deepspeed: gradients are copied to one buffer")
    overlap_comm: bool | None = Field(None, description="deepspeed: gradients are reduced during backward")
    fusion_threshold_mb: int | None = Field(
        None, ge=0, le=MAX_COUNT, description="horovod: size up to which gradients are sent as one message"
    )
